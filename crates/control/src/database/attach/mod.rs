//! Attachments of volumes to hosts.
//!
//! * `attachments`: rows, and who may see them
//! * `requests`: attach and detach, which set the desired state; `moves`: one attachment replaces
//!   another
//! * `reports`: what hosts report of the observed state
//! * `journals`: journals in folders that several hosts share

pub(in crate::database) mod attachments;
pub(in crate::database) mod journals;
pub(in crate::database) mod moves;
pub(in crate::database) mod reports;
pub(in crate::database) mod requests;
