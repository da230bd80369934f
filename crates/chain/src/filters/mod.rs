//! The filters that there are, and [`build_filters`], which makes those of a policy.

mod encrypt;
mod fault;
pub mod journal;
mod monitor;
mod out_of_process;
mod rate;
mod replicate;
mod trace;

pub use encrypt::Encrypt;
pub use fault::Fault;
pub use journal::{
    FlushMode, JOURNAL_SUFFIX, Journal, JournalConfig, JournalLeftover, QUARANTINED_INFIX,
    REPLACEMENT_SUFFIX, RING_BYTES_MIN, journal_exists, journal_leftover, quarantine_journal,
};
pub(crate) use journal::{JOURNAL_MEMORY_MAX, transforming_filters};
pub use monitor::{Detail, Event, EventKind, FileEvent, Monitor};
pub use out_of_process::OutOfProcess;
pub use rate::Rate;
pub use replicate::{REPLICAS_SUFFIX, Replicate, volume_is_missing_writes};
pub use trace::{TRACE_SUFFIX, Trace};

use std::sync::Arc;

use base::BlockDevice;
use chain_policy::{FilterKind, FilterPolicy, Policy};

use crate::{DiskLimits, Filter, FilterContext, Opening};

/// Makes the filters of a policy, for a [`crate::HotSwap`].
#[must_use]
pub fn build_filters(policy: &Policy, context: &FilterContext) -> Vec<Box<dyn Filter>> {
    let shares = memory_shares(&policy.filters, context.attachment.memory_max);
    let is_trace = |filter: &&FilterPolicy| matches!(filter.kind, FilterKind::Trace(_));
    let traces = policy.filters.iter().filter(is_trace).count().max(1) as u64;
    let disk_limits = DiskLimits {
        trace_bytes: context.attachment.disk_limits.trace_bytes / traces,
        ..context.attachment.disk_limits
    };
    let filters = policy.filters.iter().zip(shares).enumerate();
    filters
        .map(|(at, (filter, memory_max))| {
            let mut context = context.clone();
            context.attachment.memory_max = memory_max;
            context.attachment.disk_limits = disk_limits;
            build_filter(filter, &policy.filters[at + 1..], context)
        })
        .collect()
}

/// Makes a filter. `below` are the filters below it.
fn build_filter(
    policy: &FilterPolicy,
    below: &[FilterPolicy],
    context: FilterContext,
) -> Box<dyn Filter> {
    if let Some(settings) = &policy.out_of_process {
        return Box::new(OutOfProcess::new(policy, settings.on_failure, context));
    }
    let clock = Arc::clone(&context.host.clock);
    match &policy.kind {
        FilterKind::Monitor(config) => {
            Box::new(Monitor::new(&policy.name, config.clone(), context))
        }
        FilterKind::Encrypt(config) => Box::new(Encrypt::new(config.clone(), context)),
        FilterKind::Replicate(config) => Box::new(Replicate::new(&policy.name, config, context)),
        FilterKind::Rate(config) => Box::new(Rate::new(config, clock)),
        FilterKind::Fault(config) => Box::new(Fault::new(config.clone(), clock)),
        FilterKind::Journal(config) => match context.attachment.state.clone() {
            Some(state) => {
                let below = transforming_filters(below);
                Box::new(Journal::of_policy(
                    &policy.name,
                    config,
                    below,
                    context,
                    state,
                ))
            }
            None => Box::new(UnsupportedFilter(
                "a journal needs a folder for its ring, and there is none here",
            )),
        },
        FilterKind::Trace(config) => match context.attachment.state.clone() {
            Some(state) => Box::new(Trace::new(&policy.name, config, context, state)),
            None => Box::new(UnsupportedFilter(
                "a trace needs a folder for its file, and there is none here",
            )),
        },
        FilterKind::External(_) | FilterKind::Remote(_) => Box::new(UnsupportedFilter(
            "a filter of this kind does not run inline",
        )),
    }
}

/// The memory limit of a filter by its policy, in bytes; 0 if it takes little in any case.
fn requested_memory(policy: &FilterPolicy) -> u64 {
    match (&policy.out_of_process, &policy.kind) {
        (_, FilterKind::Remote(_)) => 0,
        (Some(settings), _) => settings.limits.memory_bytes,
        (None, FilterKind::Monitor(config)) => config.memory_max,
        (None, FilterKind::Replicate(config)) => {
            let is_partial = config
                .replicas
                .iter()
                .any(|replica| replica.paths.is_some());
            if is_partial { config.memory_max } else { 0 }
        }
        (None, FilterKind::Journal(config)) => config.size.min(JOURNAL_MEMORY_MAX),
        (None, _) => 0,
    }
}

/// The memory limit of each filter in bytes: that of its policy, scaled down if all together would
/// exceed `memory_max`.
fn memory_shares(filters: &[FilterPolicy], memory_max: u64) -> Vec<u64> {
    let requested: Vec<u64> = filters.iter().map(requested_memory).collect();
    let all: u128 = requested.iter().copied().map(u128::from).sum();
    let share = |requested: u64| match all <= u128::from(memory_max) {
        true => requested,
        false => (u128::from(requested) * u128::from(memory_max) / all) as u64,
    };
    requested.into_iter().map(share).collect()
}

/// A filter that cannot be made here, for this reason.
struct UnsupportedFilter(&'static str);

impl Filter for UnsupportedFilter {
    fn open(&mut self, _: &mut dyn BlockDevice) -> Opening {
        Opening::Failed(self.0.to_owned().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of sixteen monitors once took all the memory that the operator allows a chain.
    #[test]
    fn the_filters_of_a_chain_share_its_memory_limit() {
        let mut text = "volume = 'v'\n".to_owned();
        for number in 0..14 {
            text += &format!("[[filter]]\nkind = 'monitor'\nname = 'm{number}'\n");
        }
        text += "[[filter]]\nkind = 'rate'\niops = 1\n\
                 [[filter]]\nkind = 'monitor'\nname = 'p'\nruns = 'process'\nmemory = '1G'\n";
        let policy = Policy::parse(&text).expect("a policy");
        let shares = memory_shares(&policy.filters, 1 << 30);
        let of_sixteen = (1 << 30) / 16;
        let mut expected = vec![of_sixteen; 14];
        expected.extend([0, 2 * of_sixteen]);
        assert_eq!(shares, expected);
        // Below the limit each filter gets what its policy says.
        let enough = memory_shares(&policy.filters, 8 << 30);
        assert_eq!((enough[0], enough[15]), (512 << 20, 1 << 30));
        assert_eq!(memory_shares(&policy.filters, u64::MAX), enough);
    }
}
