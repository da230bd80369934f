//! Fuzzes version records.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::version_record(data));
