//! The `scree` binary.
fn main() {}
