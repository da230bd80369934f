//! Fuzzes the first page of a volume's journal.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::journal_page(data));
