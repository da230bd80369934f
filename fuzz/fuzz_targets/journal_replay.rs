//! Fuzzes the replay of a damaged journal.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::journal_replay(data));
