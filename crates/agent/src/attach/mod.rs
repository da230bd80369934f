//! Attachments: each has a worker that brings its volume to the state that the controllers desire.
//!
//! * [`Attachments`]: the workers of this host
//! * `worker`: one attachment; `decide`: its next action, a pure function; `maintain`, `detach`: the
//!   actions on an open volume, and at its end; `reports`, `messages`: what it reports
//! * `opener`: from a lease to a device that is served, and back
//!
//! Must not know: the database, other attachments.

mod attachments;
mod decide;
mod detach;
mod error;
mod maintain;
mod messages;
mod opener;
mod reports;
mod worker;

pub(crate) use attachments::Attachments;
pub use error::AttachError;
pub(crate) use opener::{OpenerParts, VolumeOpener};
pub(crate) use worker::WorkerParts;
