//! A host's cache of sealed blocks, and its policies (docs/internals/cache.md).
//!
//! ```text
//!  policy     get, insert: which keys are resident, and which go
//!  store      blocks in a file, in three areas, each with a policy
//!  memory     blocks in memory, and those that were read ahead
//!  host       both, for one host, and what is counted
//! ```
//!
//! Must not know: keys, what a block means, who asks. A policy knows neither blocks nor clocks.

pub mod host;
pub mod memory;
pub mod policy;
pub mod store;
mod uses;
