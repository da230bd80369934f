//! Fuzzes policies of filter chains.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::policy(data));
