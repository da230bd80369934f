//! A journal as a filter of a policy: whose it is, and what it is given.

use std::sync::Arc;

use base::checksum::crc32c;
use chain_policy::{FilterKind, FilterPolicy, FlushRule};
use world::World;

use super::left::JOURNAL_SUFFIX;
use super::opening::Stage;
use super::{FlushMode, Journal, JournalConfig, RING_BYTES_MIN};
use crate::{FilterContext, StateFolder};

/// So much of what is not below yet is in memory at most, in bytes.
pub const JOURNAL_MEMORY_MAX: u64 = 256 << 20;

/// Rings are multiples of it, in bytes.
const RING_STEP: u64 = 4096;

/// Which filters make something else of what is written, of those below a journal: what it has
/// acknowledged is for these. The others may change meanwhile.
pub(crate) fn below_of(filters: &[FilterPolicy]) -> u32 {
    let mut words = String::new();
    for one in filters {
        match &one.kind {
            FilterKind::Encrypt(_) => words += "encrypt\n",
            FilterKind::External(config) => words += &format!("external {}\n", config.program),
            FilterKind::Remote(config) => words += &format!("remote {}\n", config.key),
            FilterKind::Monitor(_)
            | FilterKind::Replicate(_)
            | FilterKind::Journal(_)
            | FilterKind::Trace(_)
            | FilterKind::Rate(_)
            | FilterKind::Fault(_) => {}
        }
    }
    crc32c(words.as_bytes())
}

/// Whose filter a journal is.
pub(super) struct OfChain {
    name: Arc<str>,
    context: FilterContext,
}

impl OfChain {
    /// The filter's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the lease on what is below the chain holds.
    pub fn lease_holds(&self) -> bool {
        self.context.attachment.lease.holds()
    }
}

impl Journal {
    /// The filter of a policy, of this name, above others ([`below_of`]). Its file is in `state`.
    #[must_use]
    pub(crate) fn of_policy(
        name: &str,
        (config, below): (&chain_policy::JournalConfig, u32),
        context: FilterContext,
        state: StateFolder,
    ) -> Self {
        let bytes_max = context.attachment.disk_limits.journal_bytes;
        let ring_bytes = config.size.min(bytes_max) / RING_STEP * RING_STEP;
        let given = JournalConfig {
            path: state.path.join(format!("{name}{JOURNAL_SUFFIX}")),
            ring_bytes,
            flush: match config.flush {
                FlushRule::Through => FlushMode::Through,
                FlushRule::Journal => FlushMode::Journal,
            },
            memory_max: JOURNAL_MEMORY_MAX.min(context.attachment.memory_max),
            block_min: 1,
            history: Some(context.attachment.history),
            below: Some(below),
            disk: context
                .attachment
                .attribution
                .volume_id
                .as_ref()
                .map(|id| crc32c(id.to_string().as_bytes())),
            has_moved: false,
        };
        let world = World {
            disk: state.disk,
            clock: Arc::clone(&context.host.clock),
            random: Arc::clone(&context.host.random),
            pool: Arc::clone(&context.host.pool),
        };
        let mut new = Self::new(given, world, context.attachment.wake.clone());
        new.of_chain = Some(OfChain {
            name: name.into(),
            context,
        });
        if ring_bytes < RING_BYTES_MIN {
            let reason = format!(
                "this host gives a journal {} MiB, and it needs {} at least (--filter-journal)",
                bytes_max >> 20,
                RING_BYTES_MIN >> 20
            );
            new.stage = Stage::Failed(reason);
        } else if config.size > bytes_max {
            new.note(format!(
                "it has {} MiB, and not {}: this host gives no more (--filter-journal)",
                bytes_max >> 20,
                config.size >> 20
            ));
        }
        new
    }

    /// Says something of itself, as an event, and in the host's log.
    pub(super) fn note(&self, note: String) {
        tracing::warn!(path = %self.config.path.display(), "{note}");
        if let Some(of_chain) = &self.of_chain {
            of_chain.context.report(&of_chain.name, note);
        }
    }
}
