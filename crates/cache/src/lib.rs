//! Floor 2: which blocks a cache keeps (docs/cache.md).
//!
//! ```text
//!  policy     get, insert: which keys are resident, and which go
//!  lab        what was asked of a disk ─▶ steps ─▶ each policy, at several sizes ─▶ hit ratios
//! ```
//!
//! The policies that are compared are those that are used.
//!
//! Must not know: blocks, files, clocks, who asks.

pub mod lab;
pub mod policy;
