//! Fuzzes a host's requests, as a unit daemon reads them.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::daemon_session(data));
