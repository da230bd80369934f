//! A journal as a filter of a policy: the chain that it is in, and its settings.

use std::sync::Arc;

use base::checksum::crc32c;
use chain_policy::{FilterPolicy, FlushRule};
use world::World;

use super::leftover::JOURNAL_SUFFIX;
use super::stage::Stage;
use super::{FlushMode, Journal, JournalConfig, RING_BYTES_MIN};
use crate::{FilterContext, FilterError, StateFolder};

/// The maximal memory for changes that are not durable below, in bytes.
pub const JOURNAL_MEMORY_MAX: u64 = 256 << 20;

/// The length of a ring is a multiple of it, in bytes.
const RING_STEP: u64 = 4096;

/// A checksum of those of `filters`, which are below a journal, that transform writes.
/// The journal's records may be written back only through the same ones. Others may change.
pub(crate) fn transforming_filters(filters: &[FilterPolicy]) -> u32 {
    let mut words = String::new();
    for filter in filters {
        if let Some(transformation) = filter.kind.transformation() {
            words += &transformation;
            words.push('\n');
        }
    }
    crc32c(words.as_bytes())
}

/// The chain that a journal is a filter of.
pub(super) struct ChainContext {
    name: Arc<str>,
    context: FilterContext,
}

impl ChainContext {
    /// The filter's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reports something about the journal, as an event.
    pub fn report(&self, note: String) {
        self.context.report(&self.name, note);
    }

    /// Whether the lease on the volume holds.
    pub fn lease_holds(&self) -> bool {
        self.context.attachment.lease.holds()
    }
}

impl Journal {
    /// The filter `name` of a policy. `below` are the [`transforming_filters`] below it. Its file
    /// is in `state`.
    #[must_use]
    pub(crate) fn of_policy(
        name: &str,
        policy: &chain_policy::JournalConfig,
        below: u32,
        context: FilterContext,
        state: StateFolder,
    ) -> Self {
        let attachment = &context.attachment;
        let bytes_max = attachment.disk_limits.journal_bytes;
        let ring_bytes = policy.size.min(bytes_max) / RING_STEP * RING_STEP;
        let volume_id = attachment.attribution.volume_id.as_ref();
        let config = JournalConfig {
            path: state.path.join(format!("{name}{JOURNAL_SUFFIX}")),
            ring_bytes,
            flush: match policy.flush {
                FlushRule::Through => FlushMode::Through,
                FlushRule::Journal => FlushMode::Journal,
            },
            memory_max: JOURNAL_MEMORY_MAX.min(attachment.memory_max),
            block_min: 1,
            history: Some(attachment.history),
            below: Some(below),
            disk: volume_id.map(|id| crc32c(id.to_string().as_bytes())),
            has_moved: false,
        };
        let world = World {
            disk: state.disk,
            clock: Arc::clone(&context.host.clock),
            random: Arc::clone(&context.host.random),
            pool: Arc::clone(&context.host.pool),
        };
        let mut journal = Self::new(config, world, attachment.wake.clone());
        journal.lifecycle.chain = Some(ChainContext {
            name: name.into(),
            context,
        });
        if ring_bytes < RING_BYTES_MIN {
            journal.lifecycle.stage = Stage::Failed(FilterError::Other(format!(
                "this host allows a journal {} MiB, but a journal needs {} MiB \
                 (--filter-journal)",
                bytes_max >> 20,
                RING_BYTES_MIN >> 20
            )));
        } else if policy.size > bytes_max {
            journal.lifecycle.note(format!(
                "the journal has {} MiB instead of {} MiB, because this host allows no more \
                 (--filter-journal)",
                bytes_max >> 20,
                policy.size >> 20
            ));
        }
        journal
    }
}
