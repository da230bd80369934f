//! Fuzzes the handshake of an NBD server, as the client reads it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::nbd_greeting(data));
