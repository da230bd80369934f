//! Fuzzes the headers and tables of segment files.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::segment(data));
