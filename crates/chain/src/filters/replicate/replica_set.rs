//! [`ReplicaSet`]: the members, what is pending there, and what they are missing.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::{BlockDevice, IoError, Outcome};

use super::member::Members;
use super::rebuild::Rebuild;
use super::region_log::{Acknowledge, RegionLog};
use super::requests::Requests;
use crate::FilterContext;

/// How the filter is used by its chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    /// The filter was never in use. Another filter may have its file.
    Unused,
    Active,
    /// The filter starts nothing of its own: others may write the volume soon.
    Quiesced,
}

/// A volume and its replicas. It knows no file systems: [`super::tracker`] says which blocks a
/// partial replica should have.
pub(super) struct ReplicaSet {
    /// The name of the filter.
    pub name: Arc<str>,
    pub context: FilterContext,
    pub members: Members,
    pub log: RegionLog,
    pub requests: Requests,
    /// The rebuild of one member, if one is missing something.
    pub rebuild: Option<Rebuild>,
    pub usage: Usage,
    /// Whether requests fail instead of waiting for an unavailable source.
    pub gives_up: bool,
    /// The only complete member was unavailable, and may have lost changes that were acknowledged
    /// and not flushed. The next flush returns that.
    pub may_have_lost: bool,
    /// Whether requests were started whose batch has not ended.
    pub must_end_batch: bool,
    /// The size of the disk when the filter was opened, in bytes.
    pub disk_bytes: u64,
}

impl ReplicaSet {
    pub fn new(name: &str, members: Members, log: RegionLog, context: FilterContext) -> Self {
        Self {
            name: name.into(),
            context,
            members,
            log,
            requests: Requests::default(),
            rebuild: None,
            usage: Usage::Unused,
            gives_up: false,
            may_have_lost: false,
            must_end_batch: false,
            disk_bytes: 0,
        }
    }

    pub fn now(&self) -> Duration {
        self.context.host.clock.monotonic()
    }

    /// Reports something about the filter, as an event.
    pub fn note(&self, note: String) {
        self.context.report(&self.name, note);
    }

    /// Whether the filter may start nothing of its own.
    pub fn is_quiesced(&self) -> bool {
        self.usage != Usage::Active
    }

    /// Whether a member is the only complete one.
    pub fn is_only_complete(&self, at: usize) -> bool {
        self.members.is_only_complete(at, &self.log.map)
    }

    /// The map has changed: notes that, and starts to write it.
    pub fn log_changed(&mut self, acknowledge: Acknowledge) {
        self.log.change(acknowledge);
        self.write_log();
    }

    /// Starts to write the map, if it is not in the file. Until the filter is in use, another
    /// filter may have the file. While it is quiesced, pending requests may wait for the file.
    pub fn write_log(&mut self) {
        let may_write = !self.is_quiesced()
            || !self.requests.held.is_empty()
            || self.log.map.released_by != 0
            || !self.requests.unstored.is_empty();
        if may_write {
            self.log.write();
        }
    }

    /// A member is missing regions, even if they were just copied.
    pub fn add_missing(&mut self, at: usize, regions: Range<usize>) {
        if let Some(rebuild) = self.rebuild.as_mut().filter(|rebuild| rebuild.member == at) {
            rebuild.discard(regions.clone());
        }
        for region in regions {
            self.log.map.missing[at].set(region);
        }
    }

    /// Partial replicas may be missing everything. Returns whether one of them was not before.
    pub fn add_all_missing_to_partial(&mut self) -> bool {
        let mut is_new = false;
        for at in 0..self.members.len() {
            if self.members.is_partial(at) {
                is_new |= !self.log.map.add_all_missing(at);
                if let Some(rebuild) = self.rebuild.as_mut().filter(|rebuild| rebuild.member == at)
                {
                    rebuild.discard_all();
                }
            }
        }
        is_new
    }

    /// Ends the batch that was started at the members.
    pub fn end_batch(&mut self, below: &mut dyn BlockDevice) -> Result<(), IoError> {
        self.must_end_batch = false;
        for at in 1..self.members.len() {
            let remote = self.members[at].remote.as_mut();
            if let Some(Err(error)) = remote.map(|remote| remote.end_batch()) {
                self.exclude(at, &error.to_string());
            }
        }
        below.end_batch()
    }

    /// Ends the batch of what a poll has started: the chain ends only batches from above.
    /// If that fails, so do the changes that have ended, since their answers count on it.
    pub fn end_own_batch(&mut self, below: &mut dyn BlockDevice) {
        let answered = self.requests.ended.len();
        if self.must_end_batch
            && let Err(error) = self.end_batch(below)
        {
            for ended in &mut self.requests.ended[..answered] {
                if let Ok(Outcome::Done) = ended.result {
                    ended.result = Err(error.clone());
                }
            }
        }
    }
}
