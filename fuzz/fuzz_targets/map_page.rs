//! Fuzzes map pages.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::map_page(data));
