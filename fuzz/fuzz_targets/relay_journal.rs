//! Fuzzes the journal of a `journal` filter.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::relay_journal(data));
