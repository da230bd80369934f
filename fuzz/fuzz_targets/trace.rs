//! Fuzzes trace files.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::trace(data));
