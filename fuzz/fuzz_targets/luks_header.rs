//! Fuzzes LUKS2 headers.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::luks_header(data));
