//! Fuzzes an NBD server's replies.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::nbd_replies(data));
