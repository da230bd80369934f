//! Fuzzes a unit daemon's answers, as a host reads them.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::daemon_answer(data));
