//! Fuzzes partition tables.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::partition_table(data));
