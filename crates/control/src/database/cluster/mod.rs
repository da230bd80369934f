//! The cluster itself: which copy of the database owns the units, and which authority signs its
//! parties.

pub(in crate::database) mod authority;
pub(in crate::database) mod owner;
