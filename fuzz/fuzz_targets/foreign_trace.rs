//! Fuzzes traces that other programs have recorded.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::foreign_trace(data));
