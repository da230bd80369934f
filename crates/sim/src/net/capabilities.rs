//! What a host may do on unit daemons: what controllers sign, by the rules of
//! `control::capabilities`, and the host's cache of them, by those of `agent::capability_cache`, without
//! HTTP. Controllers always answer here.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use auth::{Capability, Fence, ITEMS_MAX, Scope, SigningKey, VerifyingKey, lineage_tag_of};
use base::{ClusterId, CopysetId, Lineage, LineageTag, SegmentId, VolumeId};
use parking_lot::Mutex;
use volume::catalog::{FreePlan, MemoryCatalog, PendingFree};
use world::simulated::SimulatedClock;
use world::{Clock, Millis};

use super::SteadyClock;
use super::link::Link;
use crate::catalog::WatchedCatalog;
use crate::members::Members;

/// How long a host may change what its capability names.
const CHANGES_FOR: Duration = Duration::from_secs(60);
/// How long it may read.
const READS_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// How long it may repair.
const REPAIRS_FOR: Duration = Duration::from_secs(20);

/// What a host wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Want {
    /// To write a volume under a lease.
    Lease(VolumeId, u32),
    /// To read what a lineage and those above it have written.
    Read(Lineage),
    /// To carry out a plan.
    Free(i64),
    /// To repair a copyset: the members that are filled, or all that are put on.
    Repair(CopysetId, bool),
}

/// The controllers.
pub struct Controllers {
    key: SigningKey,
    cluster: ClusterId,
    clock: SteadyClock,
    memory: Arc<MemoryCatalog>,
    members: Arc<Members>,
    /// All of which they were ever asked.
    lineage_tags: Mutex<BTreeSet<LineageTag>>,
}

impl Controllers {
    /// Those whose database is `catalog`.
    #[must_use]
    pub fn new(cluster: ClusterId, clock: &Arc<SimulatedClock>, catalog: &WatchedCatalog) -> Self {
        Self {
            key: SigningKey::derive(b"simulated"),
            cluster,
            clock: SteadyClock(Arc::clone(clock)),
            memory: Arc::clone(&catalog.memory),
            members: Arc::clone(&catalog.members),
            lineage_tags: Mutex::default(),
        }
    }

    /// By which daemons know what they sign.
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

    /// What a lease that was just taken allows `holder`.
    ///
    /// # Panics
    /// If it is not the newest.
    #[must_use]
    pub fn lease(&self, holder: [u8; 32], volume: VolumeId, epoch: u32) -> Arc<[u8]> {
        let scope = self.lease_scope(volume, epoch);
        self.sign(holder, scope.expect("it is the newest"), CHANGES_FOR)
    }

    fn read_scope(&self, lineage: Lineage) -> Option<Scope> {
        use volume::catalog::Catalog as _;
        let keys = self.memory.keys(lineage).ok()?;
        let lineage_tags = keys
            .iter()
            .map(|key| lineage_tag_of(self.cluster, key.lineage));
        let lineage_tags: Vec<LineageTag> = lineage_tags.collect();
        self.lineage_tags.lock().extend(&lineage_tags);
        Some(Scope::Read { lineage_tags })
    }

    fn repair_scope(&self, copyset: CopysetId, are_compared: bool) -> Option<Scope> {
        let copysets = self.members.copysets();
        let set = copysets.into_iter().find(|set| set.id == copyset)?;
        let units = match are_compared {
            true => set.members,
            false => set.rebuilding,
        };
        let copysets = vec![copyset];
        Some(Scope::Repair { copysets, units })
    }

    /// What a want is good for, and how long; `None` if it is refused.
    fn scopes(&self, want: Want) -> Option<(Vec<Scope>, Duration)> {
        match want {
            Want::Lease(volume, epoch) => {
                Some((vec![self.lease_scope(volume, epoch)?], CHANGES_FOR))
            }
            Want::Read(lineage) => Some((vec![self.read_scope(lineage)?], READS_FOR)),
            Want::Repair(copyset, are_compared) => {
                Some((vec![self.repair_scope(copyset, are_compared)?], REPAIRS_FOR))
            }
            Want::Free(id) => {
                use volume::catalog::Catalog as _;
                let due = self.memory.due_frees(Millis(i64::MAX), 0, u32::MAX).ok()?;
                let free = due.into_iter().find(|free| free.id == id)?;
                let plan = FreePlan::decode(&free.plan).ok()?;
                let segments: Vec<SegmentId> = plan.segments().map(|(id, _)| id).collect();
                // Of which lineage each was, only the database knows.
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

/// What there is for a want, by the host's clock.
struct Granted {
    capabilities: Vec<Arc<[u8]>>,
    renew: Duration,
    ends: Duration,
}

#[derive(Default)]
struct State {
    granted: BTreeMap<Want, Granted>,
    kept: BTreeSet<Want>,
    links: Vec<Weak<Link>>,
    /// Somebody shows something: what is asked for that renews nothing.
    is_showing: bool,
}

/// A host's, as long as its process lives.
pub struct CapabilityCache {
    controllers: Arc<Controllers>,
    holder: [u8; 32],
    state: Mutex<State>,
}

impl CapabilityCache {
    /// An empty one.
    #[must_use]
    pub fn new(controllers: &Arc<Controllers>, holder: [u8; 32]) -> Self {
        Self {
            controllers: Arc::clone(controllers),
            holder,
            state: Mutex::default(),
        }
    }

    /// A daemon is used.
    pub fn add(&self, link: &Arc<Link>) {
        self.state.lock().links.push(Arc::downgrade(link));
    }

    fn now(&self) -> Duration {
        self.controllers.clock.monotonic()
    }

    /// All that has not ended: what is shown first on a new connection.
    #[must_use]
    pub fn capabilities(&self) -> Vec<Arc<[u8]>> {
        let now = self.now();
        let state = self.state.lock();
        let lasting = state.granted.values().filter(|granted| granted.ends > now);
        lasting
            .flat_map(|granted| granted.capabilities.clone())
            .collect()
    }

    /// A lease was taken, or names more than it did.
    pub fn leased(&self, volume: VolumeId, epoch: u32) {
        let mut state = self.state.lock();
        let is_older = |want: &Want| match want {
            Want::Lease(other, before) => *other != volume || *before >= epoch,
            _ => true,
        };
        state.kept.retain(is_older);
        state.granted.retain(|want, _| is_older(want));
        state.kept.insert(Want::Lease(volume, epoch));
        drop(state);
        self.obtain(Want::Lease(volume, epoch));
    }

    /// Keys were read.
    pub fn reads(&self, lineage: Lineage) {
        let want = Want::Read(lineage);
        let is_new = self.state.lock().kept.insert(want);
        if is_new {
            self.obtain(want);
        }
    }

    /// A plan is about to be carried out.
    pub fn frees(&self, due: &PendingFree) {
        self.obtain(Want::Free(due.id));
    }

    /// A copyset is about to be gone through; whole members, too, if they are compared.
    pub fn repairs(&self, copyset: CopysetId, are_compared: bool) {
        let want = Want::Repair(copyset, are_compared);
        self.state.lock().kept.insert(want);
        self.obtain(want);
    }

    /// It was gone through.
    pub fn has_repaired(&self, copyset: CopysetId) {
        let is_other = |want: &Want| !matches!(want, Want::Repair(its, _) if *its == copyset);
        let mut state = self.state.lock();
        state.kept.retain(is_other);
        state.granted.retain(|want, _| is_other(want));
    }

    /// Has a want signed, and shows it to all daemons.
    fn obtain(&self, want: Want) {
        let now = self.now();
        let answer = self.controllers.scopes(want);
        let (scopes, lasts) = answer.unwrap_or((Vec::new(), Duration::from_secs(20)));
        let sign = |scope| self.controllers.sign(self.holder, scope, lasts);
        let capabilities: Vec<Arc<[u8]>> = scopes.into_iter().map(sign).collect();
        let granted = Granted {
            capabilities: capabilities.clone(),
            renew: now + lasts / 2,
            ends: now + lasts,
        };
        let mut state = self.state.lock();
        state.granted.insert(want, granted);
        state.granted.retain(|_, granted| granted.ends > now);
        let links: Vec<Arc<Link>> = state.links.iter().filter_map(Weak::upgrade).collect();
        let was_showing = std::mem::replace(&mut state.is_showing, true);
        drop(state);
        for link in links {
            capabilities
                .iter()
                .for_each(|capability| link.show(capability));
        }
        self.state.lock().is_showing = was_showing;
    }

    /// What is kept is renewed, if it is due: something else does that beside all that
    /// a host asks.
    pub fn renew(&self) {
        loop {
            let now = self.now();
            let due = {
                let state = self.state.lock();
                if state.is_showing {
                    return;
                }
                let is_due = |want: &&Want| {
                    let granted = state.granted.get(want);
                    granted.is_none_or(|granted| now >= granted.renew)
                };
                state.kept.iter().find(is_due).copied()
            };
            match due {
                Some(want) => self.obtain(want),
                None => return,
            }
        }
    }
}
