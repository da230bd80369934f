//! The repair of copysets (docs/internals/repair.md).
//!
//! * `jobs`: which host repairs which copyset, and what comes of it; `list`: what users see of that
//! * `members`: the units of a copyset, and how one replaces another
//! * `degraded`: members that missed a write; `suspicions`: units that may be incomplete;
//!   `in_flight`: what was being written at that time

pub(in crate::database) mod degraded;
pub(in crate::database) mod in_flight;
pub(in crate::database) mod jobs;
pub(in crate::database) mod list;
pub(in crate::database) mod members;
pub(in crate::database) mod suspicions;
