//! [`Controllers`] sign capabilities by the rules of `control::capabilities`, and a host's
//! [`CapabilityCache`] requests and renews them by the rules of the agent's cache, without
//! HTTP. Controllers always answer here.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use auth::{Capability, Fence, ITEMS_MAX, Scope, SigningKey, VerifyingKey, lineage_tag_of};
use base::{ClusterId, CopysetId, Lineage, LineageTag, SegmentId, VolumeId};
use catalog::{FreePlan, MemoryCatalog, PendingFree};
use parking_lot::Mutex;
use world::simulated::SimulatedClock;
use world::{Clock, Millis};

use super::clock::SteadyClock;
use super::link::Link;
use crate::members::Members;

/// The validity of capabilities to change segments.
const CHANGES_FOR: Duration = Duration::from_secs(60);
/// The validity of capabilities to read.
const READS_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// The validity of capabilities to repair.
const REPAIRS_FOR: Duration = Duration::from_secs(20);

/// A request for capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CapabilityRequest {
    /// To write a volume under a lease.
    Lease {
        /// The volume.
        volume: VolumeId,
        /// The lease's epoch.
        epoch: u32,
    },
    /// To read the segments of a lineage and of those that it inherits from.
    Read(Lineage),
    /// To carry out the free plan with this id.
    Free(i64),
    /// To repair a copyset.
    Repair {
        /// The copyset.
        copyset: CopysetId,
        /// Whether all write targets may be changed, or only rebuilding members.
        all_members: bool,
    },
}

/// The controllers, as far as they sign capabilities.
pub struct Controllers {
    key: SigningKey,
    cluster: ClusterId,
    clock: SteadyClock,
    memory: Arc<MemoryCatalog>,
    members: Arc<Members>,
    /// The lineage tags of all reads that were ever requested.
    lineage_tags: Mutex<BTreeSet<LineageTag>>,
}

impl Controllers {
    /// Controllers whose database is `memory`, with the states of `members`.
    #[must_use]
    pub fn new(
        cluster: ClusterId,
        clock: &Arc<SimulatedClock>,
        memory: Arc<MemoryCatalog>,
        members: Arc<Members>,
    ) -> Self {
        Self {
            key: SigningKey::derive(b"simulated"),
            cluster,
            clock: SteadyClock(Arc::clone(clock)),
            memory,
            members,
            lineage_tags: Mutex::default(),
        }
    }

    /// The key with which daemons verify capabilities.
    #[must_use]
    pub fn verifying_key(&self) -> VerifyingKey {
        self.key.verifying_key()
    }

    fn sign(&self, holder: [u8; 32], scope: Scope, lasts: Duration) -> Arc<[u8]> {
        let now = self.clock.wall();
        let lasts = i64::try_from(lasts.as_millis()).expect("a day at most");
        let signed = self.key.sign(&Capability {
            cluster: self.cluster,
            holder,
            made: now,
            ends: Millis(now.0 + lasts),
            generation: 1,
            scope,
        });
        signed.0.into()
    }

    fn lease_scope(&self, volume: VolumeId, epoch: u32) -> Option<Scope> {
        let (lineage, left) = self.memory.lease_rights(volume, epoch).ok()?;
        let open = left.open_segments.iter().map(|open| {
            let serial = open.segment.serial();
            serial..serial + 1
        });
        let mut all: Vec<Range<u64>> = left.serials.iter().cloned().chain(open).collect();
        all.retain(|range| !range.is_empty());
        all.sort_unstable_by_key(|range| range.start);
        let mut serials: Vec<Range<u64>> = Vec::new();
        for range in all {
            match serials.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => serials.push(range),
            }
        }
        assert!(serials.len() <= ITEMS_MAX, "a run is small");
        Some(Scope::Lease {
            lineage_tag: lineage_tag_of(self.cluster, lineage),
            fence: Fence::of(self.cluster, volume),
            epoch,
            serials,
        })
    }

    /// The capability of a lease that `holder` has just acquired.
    ///
    /// # Panics
    /// If the lease is not the newest.
    #[must_use]
    pub fn lease(&self, holder: [u8; 32], volume: VolumeId, epoch: u32) -> Arc<[u8]> {
        let scope = self.lease_scope(volume, epoch);
        self.sign(holder, scope.expect("it is the newest"), CHANGES_FOR)
    }

    fn read_scope(&self, lineage: Lineage) -> Option<Scope> {
        use catalog::Catalog as _;
        let keys = self.memory.keys(lineage).ok()?;
        let lineage_tags = keys
            .iter()
            .map(|key| lineage_tag_of(self.cluster, key.lineage));
        let lineage_tags: Vec<LineageTag> = lineage_tags.collect();
        self.lineage_tags.lock().extend(&lineage_tags);
        Some(Scope::Read { lineage_tags })
    }

    fn repair_scope(&self, copyset: CopysetId, all_members: bool) -> Option<Scope> {
        let copysets = self.members.copysets();
        let set = copysets.into_iter().find(|set| set.id == copyset)?;
        let units = match all_members {
            true => set.members,
            false => set.rebuilding,
        };
        let copysets = vec![copyset];
        Some(Scope::Repair { copysets, units })
    }

    /// The scopes that are granted, and their validity; `None` if the request is refused.
    fn scopes(&self, request: CapabilityRequest) -> Option<(Vec<Scope>, Duration)> {
        match request {
            CapabilityRequest::Lease { volume, epoch } => {
                Some((vec![self.lease_scope(volume, epoch)?], CHANGES_FOR))
            }
            CapabilityRequest::Read(lineage) => Some((vec![self.read_scope(lineage)?], READS_FOR)),
            CapabilityRequest::Repair {
                copyset,
                all_members,
            } => Some((vec![self.repair_scope(copyset, all_members)?], REPAIRS_FOR)),
            CapabilityRequest::Free(id) => {
                use catalog::Catalog as _;
                let due = self.memory.due_frees(Millis(i64::MAX), 0, u32::MAX).ok()?;
                let free = due.into_iter().find(|free| free.id == id)?;
                let plan = FreePlan::decode(&free.plan).ok()?;
                let segments: Vec<SegmentId> = plan.segments().map(|(id, _)| id).collect();
                // The lineage of each segment is not known here: all of them may be read.
                let lineage_tags = self.lineage_tags.lock().iter().copied().collect();
                let frees = segments.chunks(ITEMS_MAX).map(|segments| Scope::Free {
                    segments: segments.to_vec(),
                });
                let read = Scope::Read { lineage_tags };
                Some((std::iter::once(read).chain(frees).collect(), CHANGES_FOR))
            }
        }
    }
}

/// The capabilities that a request was granted. Times are by the host's clock.
struct Granted {
    capabilities: Vec<Arc<[u8]>>,
    renew: Duration,
    ends: Duration,
}

#[derive(Default)]
struct State {
    granted: BTreeMap<CapabilityRequest, Granted>,
    /// Requests whose capabilities are renewed.
    renewed: BTreeSet<CapabilityRequest>,
    links: Vec<Weak<Link>>,
    /// Whether capabilities are being presented: the requests for that renew none.
    is_presenting: bool,
}

/// The capabilities of a host's process.
pub struct CapabilityCache {
    controllers: Arc<Controllers>,
    holder: [u8; 32],
    state: Mutex<State>,
}

impl CapabilityCache {
    /// An empty cache.
    #[must_use]
    pub fn new(controllers: &Arc<Controllers>, holder: [u8; 32]) -> Self {
        Self {
            controllers: Arc::clone(controllers),
            holder,
            state: Mutex::default(),
        }
    }

    /// Adds a link to a daemon: capabilities are presented on it.
    pub fn add(&self, link: &Arc<Link>) {
        self.state.lock().links.push(Arc::downgrade(link));
    }

    fn now(&self) -> Duration {
        self.controllers.clock.monotonic()
    }

    /// All valid capabilities: they are presented first on a new connection.
    #[must_use]
    pub fn capabilities(&self) -> Vec<Arc<[u8]>> {
        let now = self.now();
        let state = self.state.lock();
        let valid = state.granted.values().filter(|granted| granted.ends > now);
        valid
            .flat_map(|granted| granted.capabilities.clone())
            .collect()
    }

    /// Requests the capability of a lease that was acquired, or whose serials have changed.
    pub fn request_lease(&self, volume: VolumeId, epoch: u32) {
        let mut state = self.state.lock();
        let is_kept = |request: &CapabilityRequest| match request {
            CapabilityRequest::Lease {
                volume: other,
                epoch: before,
            } => *other != volume || *before >= epoch,
            _ => true,
        };
        let request = CapabilityRequest::Lease { volume, epoch };
        state.renewed.retain(is_kept);
        state.granted.retain(|request, _| is_kept(request));
        state.renewed.insert(request);
        drop(state);
        self.obtain(request);
    }

    /// Requests to read a lineage whose keys were read, unless it was requested before.
    pub fn request_read(&self, lineage: Lineage) {
        let request = CapabilityRequest::Read(lineage);
        let is_new = self.state.lock().renewed.insert(request);
        if is_new {
            self.obtain(request);
        }
    }

    /// Requests to carry out a free plan.
    pub fn request_free(&self, due: &PendingFree) {
        self.obtain(CapabilityRequest::Free(due.id));
    }

    /// Requests to repair a copyset: all write targets, or only rebuilding members.
    pub fn begin_repair(&self, copyset: CopysetId, all_members: bool) {
        let request = CapabilityRequest::Repair {
            copyset,
            all_members,
        };
        self.state.lock().renewed.insert(request);
        self.obtain(request);
    }

    /// Forgets the capabilities to repair a copyset.
    pub fn end_repair(&self, copyset: CopysetId) {
        let is_other = |request: &CapabilityRequest| !matches!(request, CapabilityRequest::Repair { copyset: its, .. } if *its == copyset);
        let mut state = self.state.lock();
        state.renewed.retain(is_other);
        state.granted.retain(|request, _| is_other(request));
    }

    /// Obtains capabilities, and presents them to all daemons.
    fn obtain(&self, request: CapabilityRequest) {
        let now = self.now();
        let answer = self.controllers.scopes(request);
        let (scopes, lasts) = answer.unwrap_or((Vec::new(), Duration::from_secs(20)));
        let sign = |scope| self.controllers.sign(self.holder, scope, lasts);
        let capabilities: Vec<Arc<[u8]>> = scopes.into_iter().map(sign).collect();
        let granted = Granted {
            capabilities: capabilities.clone(),
            renew: now + lasts / 2,
            ends: now + lasts,
        };
        let mut state = self.state.lock();
        state.granted.insert(request, granted);
        state.granted.retain(|_, granted| granted.ends > now);
        let links: Vec<Arc<Link>> = state.links.iter().filter_map(Weak::upgrade).collect();
        let was_presenting = std::mem::replace(&mut state.is_presenting, true);
        drop(state);
        for link in links {
            capabilities
                .iter()
                .for_each(|capability| link.present(capability));
        }
        self.state.lock().is_presenting = was_presenting;
    }

    /// Renews the capabilities that are due. Called before each request of the host, in
    /// place of a timer.
    pub fn renew(&self) {
        loop {
            let now = self.now();
            let due = {
                let state = self.state.lock();
                if state.is_presenting {
                    return;
                }
                let is_due = |request: &&CapabilityRequest| {
                    let granted = state.granted.get(request);
                    granted.is_none_or(|granted| now >= granted.renew)
                };
                state.renewed.iter().find(is_due).copied()
            };
            match due {
                Some(request) => self.obtain(request),
                None => return,
            }
        }
    }
}
