//! What jobs that read a whole version have in common: preloads of images (`cache`) and audits of
//! volumes (`audits`).
//!
//! ```text
//!  1. start   a desired job that is not running yet
//!  2. follow  it runs on a thread that may block; the agent reports its progress each second
//!  3. end     the agent reports its outcome until a controller accepts it, unless the job was
//!             canceled
//! ```
//!
//! A running job polls whether it was canceled: [`JobProgress::check`].

mod progress;
mod versions;

pub(crate) use progress::{Canceled, JobProgress, TICK, forget};
pub(crate) use versions::{VersionError, VersionReader, rest};
