//! Fuzzes an ext file system that is followed while it is written.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::ext_live(data));
