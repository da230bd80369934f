//! Fuzzes the handshake of an NBD client, as the server reads it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::nbd_handshake(data));
