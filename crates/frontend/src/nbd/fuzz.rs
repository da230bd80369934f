//! Entry points for fuzzers: pure functions over bytes, which must return
//! whatever the bytes are.
