//! Fuzzes free plans.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::free_plan(data));
