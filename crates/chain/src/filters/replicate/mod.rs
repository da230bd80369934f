//! The filter `replicate`: writes go to two or three disks, and reads are answered by any of them
//! (docs/internals/replication.md; StorM's replica dispatch).
//!
//! ```text
//!               ┌──▶ below, the volume itself    in sync
//!  request ──▶ filter ─▶ replica b               rebuilding: written where it is missing nothing
//!               └──▶ replica c                   excluded: gets nothing
//! ```
//!
//! | part | what it does |
//! |---|---|
//! | `filter` | is the filter of the chain: takes requests, and polls the parts below |
//! | `replica_set` | the members with what is pending there and what they are missing |
//! | `member` | one of these disks, and pure decisions about who may be read |
//! | `requests`, `held` | requests that are not answered, and the ranges that they lock |
//! | `dispatch`, `reads`, `results` | start requests at members, and take what they answer |
//! | `region_log`: `region_map`, `slot`, `store` | what members are missing, also after a crash |
//! | `startup`, `rebuild` | phases: find the source, and give the others what they are missing |
//! | `startup_steps`, `rebuild_steps` | take the steps of these phases |
//! | `tracker`: `selection`, `granules` | partial replicas, which get chosen files only |
//!
//! Invariants:
//!
//! * Two changes that overlap are never pending together, so all members have them in one order.
//! * A change is acknowledged when every member that is not excluded has it, and the file says
//!   which members are excluded. At least one complete member has it. While there is no such
//!   member, no change begins, and pending ones fail.
//! * A member that fails, or does not answer for too long, is excluded. Requests pending there do
//!   not matter any more, and reads are tried elsewhere. It is in sync again when everything that
//!   it is missing is on its stable storage.
//! * Only members in sync are read. A partial replica is never read, and what it alone has is not
//!   acknowledged.

mod dispatch;
mod filter;
mod granules;
mod held;
mod member;
mod reads;
mod rebuild;
mod rebuild_steps;
mod region_log;
mod region_map;
mod regions;
mod replica_set;
mod requests;
mod results;
mod selection;
mod slot;
mod startup;
mod startup_steps;
mod store;
#[cfg(test)]
mod tests;
mod timeouts;
mod tracker;

use std::io;

use base::IoError;

use member::VOLUME;

pub use filter::Replicate;
pub use store::REPLICAS_SUFFIX;

use crate::StateFolder;

fn no_source() -> IoError {
    IoError::Unavailable("no complete replica is available".to_owned())
}

/// Whether the volume is missing writes that its replicas have, by the file of the filter `name`
/// in `state`. A filter that was replaced in order did not leave it so.
///
/// # Errors
/// If the file cannot be read.
pub fn volume_is_missing_writes(state: &StateFolder, name: &str) -> io::Result<bool> {
    let loaded = store::load(&*state.disk, &store::path_in(state, name))?;
    Ok(loaded.is_some_and(|map| map.released_by == 0 && map.is_excluded[VOLUME]))
}
