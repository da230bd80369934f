//! Fuzzes an ext file system that is read.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::ext_view(data));
