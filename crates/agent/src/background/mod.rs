//! What jobs that go through a whole version have in common: preloads of images (`cache`) and
//! audits of volumes (`audits`).
//!
//! ```text
//!  1. begin   it is desired, and not under way yet
//!  2. follow  it runs on a thread that may wait; now and then its host reports its progress
//!  3. end     its outcome is reported until a controller hears it, unless it is not desired any
//!             more
//! ```
//!
//! A job that is not desired any more finds that out by itself: [`JobProgress::check`].

mod progress;
mod versions;

pub(crate) use progress::{Canceled, JobProgress, TICK, forget};
pub(crate) use versions::{VersionError, VersionReader, rest};
