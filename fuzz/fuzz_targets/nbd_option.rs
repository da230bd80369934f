//! Fuzzes one option of an NBD handshake.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::nbd_option(data));
