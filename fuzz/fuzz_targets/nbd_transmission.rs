//! Fuzzes an NBD client's requests.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scree_fuzz::nbd_transmission(data));
