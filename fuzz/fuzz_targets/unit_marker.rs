//! Fuzzes the markers of storage units.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::unit_marker(data));
