//! Wrapping keys, and the data keys of lineages that they wrap. All keys here are wrapped.

pub(in crate::database) mod lineages;
pub(in crate::database) mod wrapping_keys;
