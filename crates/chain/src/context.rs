//! [`FilterContext`]: what filters are given by the process that runs them.

use std::path::PathBuf;
use std::sync::Arc;

use chain_policy::{FilterKind, FilterPolicy, Policy};
use serde::{Deserialize, Serialize};
use world::{Clock, Disk, Pool, Random, Wake};
use zeroize::Zeroizing;

use crate::filters::{
    Encrypt, Event, Fault, JOURNAL_MEMORY_MAX, Journal, Monitor, OutOfProcess, Rate, Replicate,
    Trace, What, transforming_filters,
};
use crate::{Derivations, Filter, Opening, Programs, Targets};
#[cfg(test)]
use crate::{NoPrograms, NoTargets};

/// There is none of this name, or it cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyMissing {
    /// None of this name.
    #[error("there is no key {0} here")]
    None(String),
    /// There is, and it is of no use.
    #[error("the key {name} cannot be used: {reason}")]
    Unusable {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
}

/// Where keys lie that policies name.
pub trait KeySource: Send + Sync {
    /// The passphrase of this name. It may wait: it is asked in a [`Pool`].
    ///
    /// # Errors
    /// [`KeyMissing`].
    fn passphrase(&self, name: &str) -> Result<Zeroizing<Vec<u8>>, KeyMissing>;
}

/// There are none.
pub struct NoKeys;

impl KeySource for NoKeys {
    fn passphrase(&self, name: &str) -> Result<Zeroizing<Vec<u8>>, KeyMissing> {
        Err(KeyMissing::None(name.to_owned()))
    }
}

/// Whose disk a chain is before: what a filter knows of each request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attribution {
    /// Whose the volume is.
    pub tenant: String,
    /// The machine that has it; none of a plain export.
    pub vm: Option<String>,
    /// The volume's name.
    pub volume: String,
    /// And its id, if it has one.
    pub volume_id: Option<String>,
}

/// When a chain has a volume: so that a filter knows whether somebody may have written the
/// volume without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tenure {
    /// Of the lease on the volume: whoever writes it later has a larger one. None, if nobody
    /// says.
    pub epoch: Option<u32>,
    /// This chain's number, which no other one has.
    pub turn: u64,
    /// That of the chain in whose place it comes; 0: none.
    pub follows: u64,
    /// How often the volume has gone back to a version. None, if nobody says.
    pub restores: Option<u64>,
    /// Since which lease the same host has had all up to `epoch`, and let nobody in before this
    /// chain; none: that one.
    pub since: Option<u32>,
}

/// The right to acknowledge what is written to what lies below a chain.
pub trait Lease: Send + Sync {
    /// Whether it holds now. Asked once a turn, in the thread that owns the disk.
    fn holds(&self) -> bool;
}

/// One that never ends.
pub struct Unlimited;

impl Lease for Unlimited {
    fn holds(&self) -> bool {
        true
    }
}

/// What filters may take of the disk on which their state is kept, whatever their policies say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The ring of a journal, in bytes.
    pub journal_bytes: u64,
    /// The traces of a chain together, in bytes.
    pub trace_bytes: u64,
}

impl Room {
    /// Whoever writes the policy decides.
    pub const UNLIMITED: Self = Self {
        journal_bytes: u64::MAX,
        trace_bytes: u64::MAX,
    };
}

/// Where events go. Called in the thread that owns the disk: it never waits, and counts
/// itself what it has no room for.
pub trait EventSink: Send + Sync {
    /// Takes events, in their order.
    fn tell(&self, events: Vec<Event>);
}

/// What all filters of a host share: its clock, threads and randomness.
#[derive(Clone)]
pub struct HostContext {
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// Runs work that would keep the disk's thread too long.
    pub pool: Arc<dyn Pool>,
    /// Derives keys from passphrases: a few at a time for all disks of the host.
    pub derivations: Arc<Derivations>,
    /// Where new keys come from.
    pub random: Arc<dyn Random>,
    /// Makes the programs of filters that do not run inline.
    pub programs: Arc<dyn Programs>,
}

/// What belongs to the one disk whose chain a filter is in.
#[derive(Clone)]
pub struct AttachmentContext {
    /// The most memory that the chain's filters may take together, in bytes, whatever their
    /// policy gives them; in the context of a built filter, the most that it may take itself.
    pub memory_max: u64,
    /// Makes the disk's thread poll the chain.
    pub wake: Wake,
    /// The tenant, the virtual machine and the volume, for events.
    pub whose: Arc<Attribution>,
    /// Takes the filters' events.
    pub events: Arc<dyn EventSink>,
    /// Has the keys that the policy names.
    pub keys: Arc<dyn KeySource>,
    /// Opens the disks elsewhere that the policy names.
    pub targets: Arc<dyn Targets>,
    /// When this chain has the volume.
    pub tenure: Tenure,
    /// Says whether writes may be acknowledged.
    pub lease: Arc<dyn Lease>,
    /// The most disk space that the filters' state may take.
    pub room: Room,
    /// Where filters keep what they need after a crash; `None` if they cannot keep anything.
    pub state: Option<StateFolder>,
}

/// Everything that a filter is given by the process that runs it.
#[derive(Clone)]
pub struct FilterContext {
    /// What all filters of the host share.
    pub host: HostContext,
    /// What belongs to the filter's disk.
    pub attachment: AttachmentContext,
}

/// A folder, and how it is written.
#[derive(Clone)]
pub struct StateFolder {
    /// Its disk.
    pub disk: Arc<dyn Disk>,
    /// Where it is; it is there.
    pub path: PathBuf,
}

impl FilterContext {
    /// Reports something about a filter, as an event.
    pub(crate) fn note(&self, name: &Arc<str>, note: String) {
        self.attachment.events.tell(vec![Event {
            time: self.host.clock.wall(),
            whose: Arc::clone(&self.attachment.whose),
            monitor: Arc::clone(name),
            partition: None,
            what: What::Note(note),
            rule: None,
        }]);
    }
}

#[cfg(test)]
impl FilterContext {
    /// Those of a simulated world, where nobody hears and there are no keys.
    pub(crate) fn simulated(world: world::World) -> Self {
        struct Deaf;
        impl EventSink for Deaf {
            fn tell(&self, _: Vec<Event>) {}
        }
        Self {
            host: HostContext {
                clock: world.clock,
                derivations: Arc::new(Derivations::new(Arc::clone(&world.pool))),
                pool: world.pool,
                random: world.random,
                programs: Arc::new(NoPrograms),
            },
            attachment: AttachmentContext {
                memory_max: 1 << 30,
                wake: Wake::noop(),
                whose: Arc::new(Attribution {
                    tenant: "alice".to_owned(),
                    vm: None,
                    volume: "disk".to_owned(),
                    volume_id: None,
                }),
                events: Arc::new(Deaf),
                keys: Arc::new(NoKeys),
                targets: Arc::new(NoTargets),
                tenure: Tenure::default(),
                lease: Arc::new(Unlimited),
                room: Room::UNLIMITED,
                state: None,
            },
        }
    }
}

/// The filters of a policy, ready to be put in the place of others ([`crate::HotSwap`]).
#[must_use]
pub fn build(policy: &Policy, context: &FilterContext) -> Vec<Box<dyn Filter>> {
    let shares = memory_shares(&policy.filters, context.attachment.memory_max);
    let is_trace = |one: &&FilterPolicy| matches!(one.kind, FilterKind::Trace(_));
    let traces = policy.filters.iter().filter(is_trace).count().max(1) as u64;
    let room = Room {
        trace_bytes: context.attachment.room.trace_bytes / traces,
        ..context.attachment.room
    };
    let filters = policy.filters.iter().zip(shares).enumerate();
    filters
        .map(|(at, (one, memory_max))| {
            let mut given = context.clone();
            given.attachment.memory_max = memory_max;
            given.attachment.room = room;
            build_one(one, &policy.filters[at + 1..], &given)
        })
        .collect()
}

/// What each filter may take of the memory that all may take together: what it is to have by its
/// policy, or if that is more altogether, as much less as all the others.
fn memory_shares(filters: &[FilterPolicy], memory_max: u64) -> Vec<u64> {
    let wanted = |one: &FilterPolicy| match (&one.out_of_process, &one.kind) {
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
    };
    let all: u128 = filters.iter().map(|one| u128::from(wanted(one))).sum();
    let share = |wanted: u64| match all <= u128::from(memory_max) {
        true => wanted,
        false => (u128::from(wanted) * u128::from(memory_max) / all) as u64,
    };
    filters.iter().map(|one| share(wanted(one))).collect()
}

fn build_one(
    one: &FilterPolicy,
    below: &[FilterPolicy],
    context: &FilterContext,
) -> Box<dyn Filter> {
    if let Some(settings) = &one.out_of_process {
        return Box::new(OutOfProcess::new(one, settings.on_failure, context.clone()));
    }
    let clock = Arc::clone(&context.host.clock);
    let given = context.clone();
    match &one.kind {
        FilterKind::Monitor(config) => Box::new(Monitor::new(&one.name, config.clone(), given)),
        FilterKind::Encrypt(config) => Box::new(Encrypt::new(config.clone(), given)),
        FilterKind::Replicate(config) => Box::new(Replicate::new(&one.name, config, given)),
        FilterKind::Rate(config) => Box::new(Rate::new(config, clock)),
        FilterKind::Fault(config) => Box::new(Fault::new(config.clone(), clock)),
        FilterKind::Journal(config) => match given.attachment.state.clone() {
            Some(state) => {
                let below = transforming_filters(below);
                Box::new(Journal::of_policy(&one.name, config, below, given, state))
            }
            None => Box::new(Unbuilt("what it acknowledges can be kept nowhere here")),
        },
        FilterKind::Trace(config) => match given.attachment.state.clone() {
            Some(state) => Box::new(Trace::new(&one.name, config, given, state)),
            None => Box::new(Unbuilt("what it records can be kept nowhere here")),
        },
        FilterKind::External(_) | FilterKind::Remote(_) => {
            Box::new(Unbuilt("a filter of this kind does not run inline"))
        }
    }
}

/// A filter that cannot be made here, and why.
struct Unbuilt(&'static str);

impl Filter for Unbuilt {
    fn open(&mut self, _: &mut dyn base::BlockDevice) -> Opening {
        Opening::Failed(self.0.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of sixteen monitors might have taken all that its host's operator gives.
    #[test]
    fn the_filters_of_a_chain_share_what_its_host_gives() {
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
        // Where there is enough, each has what its policy says.
        let enough = memory_shares(&policy.filters, 8 << 30);
        assert_eq!((enough[0], enough[15]), (512 << 20, 1 << 30));
        assert_eq!(memory_shares(&policy.filters, u64::MAX), enough);
    }
}
