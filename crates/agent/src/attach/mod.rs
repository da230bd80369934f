//! Attachments: each has a worker that brings its volume to the state that the controllers desire.
//!
//! * [`Attachments`]: the workers of this host
//! * `worker`: one attachment; `decide`: its next action, a pure function; `maintain`, `detach`:
//!   the actions on an open volume, and the last ones; `reports`, `messages`: its reports
//! * `opener`: opens a volume under a lease, serves it, and closes it; `opening`: its engine
//!
//! Must not know: the database, other attachments.

mod attachments;
mod decide;
mod detach;
mod error;
mod maintain;
mod messages;
mod opener;
mod opening;
mod reports;
mod worker;

pub(crate) use attachments::Attachments;
pub use error::AttachError;
pub(crate) use opener::{OpenerParts, VolumeOpener};
pub(crate) use worker::WorkerParts;
