//! The folder unit of a daemon and the state that all its connections share: which
//! capabilities are valid, and whether a request is allowed.

mod job;

pub use job::Job;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use auth::{BadCapability, Capability, Fence, Scope, VerifyingKey};
use base::{ClusterId, LineageTag, SegmentId};
use parking_lot::{Mutex, RwLock};
use unit::{Read, SlotRun, Tag, Unit as _, UnitError};
use unit_folder::FolderUnit;
use unit_wire::{BODY_BYTES_MAX, Greeting, Refusal, Status, Verb, put_frame};
use world::{Clock, Millis, World};

use crate::active_connection::{ActiveConnections, ExclusiveRight, RightPassage};
use crate::counters::Counters;
use crate::fences::{FenceError, Fences, LeasePassage};
use crate::rights::{Action, NotAllowed, Right, Rights, UNREADABLE};

/// Memory for the requests and answers of one connection, in bytes.
pub(crate) const HELD_BYTES_MAX: usize = 16 << 20;

/// The fence under which the newest generation of the database is recorded. No volume has it.
const GENERATION: Fence = Fence(0);

/// What a keeper knows about its cluster.
#[derive(Debug, Clone)]
pub struct KeeperConfig {
    /// The cluster.
    pub cluster: ClusterId,
    /// The keys that controllers sign capabilities with.
    pub keys: Vec<VerifyingKey>,
    /// The generation of the database. Capabilities of earlier generations are refused.
    pub generation: u32,
}

/// The folder unit of a daemon. Shared by all its connections.
pub struct Keeper {
    unit: FolderUnit,
    clock: Arc<dyn Clock>,
    config: RwLock<KeeperConfig>,
    fences: Fences,
    active: ActiveConnections,
    /// The number of the next connection.
    connection_next: AtomicU64,
    /// Held while a note is compared and written.
    noting: Mutex<()>,
    /// The newest known generation of the database.
    generation: AtomicU32,
    incarnation: u64,
    /// The number of the next draft of a segment. Begins at a random number, so that no draft
    /// of an earlier process has it.
    drafts: AtomicU64,
    counters: Counters,
    /// The clock of the controllers minus the clock of this machine, in milliseconds.
    clock_offset_ms: AtomicI64,
}

impl Keeper {
    /// Serves `unit`, which is in `folder`.
    ///
    /// # Errors
    /// If the fences in the folder cannot be read.
    pub fn open(
        world: &World,
        unit: FolderUnit,
        folder: &Path,
        config: KeeperConfig,
    ) -> io::Result<Self> {
        let disk = world.disk.within(folder);
        let fences = Fences::load(disk)?;
        let keeper = Self {
            fences,
            active: ActiveConnections::default(),
            connection_next: AtomicU64::new(1),
            noting: Mutex::default(),
            generation: AtomicU32::new(config.generation),
            unit,
            clock: Arc::clone(&world.clock),
            config: RwLock::new(config),
            incarnation: world.random.u64(),
            drafts: AtomicU64::new(world.random.u64()),
            counters: Counters::default(),
            clock_offset_ms: AtomicI64::new(0),
        };
        keeper.load_generation();
        Ok(keeper)
    }

    /// Replaces the configuration.
    pub fn set_config(&self, config: KeeperConfig) {
        self.generation
            .fetch_max(config.generation, Ordering::SeqCst);
        *self.config.write() = config;
    }

    /// Sets the time by the clock of a controller.
    pub fn set_time(&self, theirs: Millis) {
        let offset = theirs.0.saturating_sub(self.clock.wall().0);
        self.clock_offset_ms.store(offset, Ordering::Relaxed);
    }

    /// The clock of the controllers minus the clock of this machine, in milliseconds; 0 before
    /// a controller has answered.
    #[must_use]
    pub fn clock_offset_ms(&self) -> i64 {
        self.clock_offset_ms.load(Ordering::Relaxed)
    }

    /// The time by the clock of the controllers, as far as it is known.
    pub(crate) fn now(&self) -> Millis {
        Millis(self.clock.wall().0.saturating_add(self.clock_offset_ms()))
    }

    /// The id of the unit.
    #[must_use]
    pub fn id(&self) -> base::UnitId {
        self.unit.id()
    }

    /// Identifies this run of the daemon: drawn at random when the keeper was opened.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The folder unit, for maintenance.
    #[must_use]
    pub fn unit(&self) -> &FolderUnit {
        &self.unit
    }

    /// The number of a new connection. Numbers grow.
    pub(crate) fn next_connection(&self) -> u64 {
        self.connection_next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Carries out a request and records its duration.
    pub(crate) fn timed<T>(&self, verb: Verb, act: impl FnOnce() -> T) -> T {
        let begun = self.clock.monotonic();
        let done = act();
        let took = self.clock.monotonic().saturating_sub(begun);
        self.counters.answered(verb, took);
        done
    }

    pub(crate) fn greeting(&self) -> Greeting {
        Greeting {
            version: unit_wire::VERSION,
            body_bytes_max: BODY_BYTES_MAX as u32,
            unit: self.unit.id(),
            incarnation: self.incarnation,
            now_ms: self.now().0,
            held_bytes_max: HELD_BYTES_MAX as u32,
        }
    }

    pub(crate) fn cluster(&self) -> ClusterId {
        let config = self.config.read();
        config.cluster
    }

    /// Verifies a capability of `holder`.
    fn verify(&self, signed: &[u8], holder: &[u8; 32]) -> Result<Capability, Refusal> {
        let not_allowed = |text: &str| Refusal::new(Status::NotAllowed, text);
        let config = self.config.read();
        let mut keys = config.keys.iter();
        let capability = keys.find_map(|key| match key.verify(signed) {
            Err(BadCapability::Signature) => None,
            other => Some(other),
        });
        let capability = capability
            .unwrap_or(Err(BadCapability::Signature))
            .map_err(|error| not_allowed(&error.to_string()))?;
        if capability.cluster != config.cluster {
            return Err(not_allowed("the capability is for another cluster"));
        }
        if capability.holder != *holder {
            return Err(not_allowed("the capability belongs to another host"));
        }
        if capability.generation < self.generation() {
            let text = "the capability is from a database that was replaced since";
            return Err(Refusal::new(Status::Expired, text));
        }
        Ok(capability)
    }

    /// Loads the generation recorded in the folder, so that older databases are refused.
    fn load_generation(&self) {
        let recorded = self.fences.newest(GENERATION).unwrap_or_default();
        self.generation.fetch_max(recorded, Ordering::SeqCst);
    }

    fn generation(&self) -> u32 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Accepts a capability that a host presents. On return no older lease of the same volume is
    /// valid. Waits for requests under older leases, and for the disk.
    pub(crate) fn present(
        &self,
        signed: &[u8],
        holder: &[u8; 32],
        rights: &Mutex<Rights>,
    ) -> Result<(), Refusal> {
        // The unit may have been mounted since.
        self.fences.load_if_unread();
        self.load_generation();
        let capability = self.verify(signed, holder)?;
        if capability.generation > self.generation() {
            self.generation
                .fetch_max(capability.generation, Ordering::SeqCst);
            // Without the record, older capabilities are valid again after a restart until a
            // controller answers.
            match self.fences.present(GENERATION, capability.generation) {
                Ok(()) | Err(FenceError::Older { .. }) => {}
                Err(FenceError::NotRecorded(why)) => {
                    tracing::warn!(error = %why, "keeper failed to record the generation of the database");
                }
            }
        }
        if let Some((fence, epoch)) = lease_of(&capability)? {
            self.fences
                .present(fence, epoch)
                .map_err(|error| match error {
                    FenceError::Older { .. } => Refusal::new(Status::Expired, error.to_string()),
                    FenceError::NotRecorded(why) => Refusal::new(Status::Failed, why.to_string()),
                })?;
        }
        let connection = rights.lock().connection();
        if !self
            .active
            .activate(&self.exclusive_rights_of(&capability), connection)
        {
            return Err(active_elsewhere());
        }
        self.take(capability, rights)
    }

    /// The rights of a capability that are valid on one connection only. Each has a number by
    /// which the newer of two is the larger: the epoch of a lease, or the time at which a
    /// capability for repair was signed.
    fn exclusive_rights_of(&self, capability: &Capability) -> Vec<(ExclusiveRight, i64)> {
        match &capability.scope {
            Scope::Lease { fence, epoch, .. } => {
                vec![(ExclusiveRight::Lease(*fence), i64::from(*epoch))]
            }
            Scope::Repair { copysets, units } if units.contains(&self.unit.id()) => {
                let copysets = copysets.iter();
                copysets
                    .map(|copyset| (ExclusiveRight::Repair(*copyset), capability.made.0))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// As [`Keeper::present`] without waiting; `None` if it would have to wait.
    pub(crate) fn try_present(
        &self,
        signed: &[u8],
        holder: &[u8; 32],
        rights: &Mutex<Rights>,
    ) -> Option<Result<(), Refusal>> {
        let present = || {
            if !self.fences.is_loaded() {
                return Ok(false);
            }
            let capability = self.verify(signed, holder)?;
            let lease = lease_of(&capability)?;
            let waits = lease.is_some_and(|(fence, epoch)| !self.fences.try_present(fence, epoch));
            if waits || capability.generation > self.generation() {
                return Ok(false);
            }
            let connection = rights.lock().connection();
            match self
                .active
                .try_activate(&self.exclusive_rights_of(&capability), connection)
            {
                Some(true) => {}
                Some(false) => return Err(active_elsewhere()),
                None => return Ok(false),
            }
            self.take(capability, rights).map(|()| true)
        };
        let begun = self.clock.monotonic();
        let answer = match present() {
            Ok(true) => Ok(()),
            Ok(false) => return None,
            Err(refusal) => Err(refusal),
        };
        let took = self.clock.monotonic().saturating_sub(begun);
        self.counters.answered(Verb::Present, took);
        Some(answer)
    }

    fn take(&self, capability: Capability, rights: &Mutex<Rights>) -> Result<(), Refusal> {
        let taken = rights.lock().take(capability, self.unit.id(), self.now());
        taken.map_err(|why| Refusal::new(Status::NotAllowed, why))
    }

    /// The right under which `action` is allowed now, held until the request ends.
    fn allow(
        &self,
        rights: &Mutex<Rights>,
        action: &Action,
    ) -> Result<(Right, Option<Passage<'_>>), Refusal> {
        let (right, connection, as_repairer) = {
            let rights = rights.lock();
            let right = match rights.right(action, self.now()) {
                Ok(_) if rights.generation() < self.generation() => Err(NotAllowed::Ended),
                right => right,
            };
            let as_repairer = rights.puts_as_repairer(action, self.now());
            (right, rights.connection(), as_repairer)
        };
        let enter = |right| {
            self.active
                .enter(right, connection)
                .ok_or_else(active_elsewhere)
        };
        let repair = |copyset| {
            let _active = enter(ExclusiveRight::Repair(copyset))?;
            Ok((
                Right::Repair(copyset),
                Some(Passage {
                    _active,
                    _lease: None,
                }),
            ))
        };
        match right {
            Ok(right @ Right::Lease { fence, epoch, .. }) => {
                match (self.fences.enter(fence, epoch), as_repairer) {
                    (Some(passage), _) => {
                        let _active = enter(ExclusiveRight::Lease(fence))?;
                        let _lease = Some(passage);
                        Ok((right, Some(Passage { _active, _lease })))
                    }
                    // The host has lost the volume, and repairs what was put under the lease.
                    (None, Some(copyset)) => repair(copyset),
                    (None, None) => {
                        let text = "a newer lease of the volume was presented";
                        Err(Refusal::new(Status::Expired, text))
                    }
                }
            }
            Ok(Right::Repair(copyset)) => repair(copyset),
            Ok(Right::ReadOrFree) => Ok((Right::ReadOrFree, None)),
            Err(why @ NotAllowed::Never) => Err(Refusal::new(Status::NotAllowed, why.to_string())),
            Err(why @ NotAllowed::Ended) => Err(Refusal::new(Status::Expired, why.to_string())),
        }
    }

    /// The lineage tag of a segment, for checking what a host may do with it.
    fn lineage_tag_of(&self, segment: SegmentId) -> LineageTag {
        lineage_tag_in(&self.unit.lineage_tag_of(segment))
    }

    /// As [`Keeper::allow`], for reading a segment.
    fn allow_reading(
        &self,
        rights: &Mutex<Rights>,
        segment: SegmentId,
    ) -> Result<Option<Passage<'_>>, Refusal> {
        let lineage_tag = self.unit.lineage_tag_of(segment);
        // A host without rights gets the same answer for a missing segment.
        let allowed = self.allow(rights, &Action::Read(segment, lineage_tag_in(&lineage_tag)));
        match (allowed, lineage_tag) {
            (Ok((_, passage)), Ok(_)) => Ok(passage),
            (Ok(_), Err(error)) => Err(error.into()),
            (Err(refusal), Ok(_)) => Err(refusal),
            // The segment has no owner; a host that may read there learns why.
            (Err(_), Err(error)) => {
                self.allow(rights, &Action::Read(segment, LineageTag::NONE))?;
                Err(error.into())
            }
        }
    }

    /// Reads a run if that needs no waiting, and appends the frame of the answer.
    pub(crate) fn read_now(
        &self,
        rights: &Mutex<Rights>,
        run: SlotRun,
        slot_bytes: u32,
        tag: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(lineage_tag) = self.unit.lineage_tag_now(run.segment) else {
            return false;
        };
        let Ok((_, _passage)) = self.allow(rights, &Action::Read(run.segment, lineage_tag)) else {
            return false;
        };
        let begun = self.clock.monotonic();
        let before = out.len();
        let (mut is_read, mut data_bytes) = (false, 0);
        put_frame(out, Status::Done as u16, tag, |body| {
            let (tags, data) = room_for(body, run, slot_bytes);
            let read = self.unit.read_now(Read {
                run,
                slot_bytes,
                tags,
                data,
            });
            (is_read, data_bytes) = (matches!(read, Ok(true)), data.len());
        });
        if is_read {
            let took = self.clock.monotonic().saturating_sub(begun);
            self.counters.answered(Verb::Read, took);
            self.counters.read(data_bytes);
        } else {
            out.truncate(before);
        }
        is_read
    }
}

/// A request under way; ends when it is dropped. Newer leases and repairs wait for it.
pub(crate) struct Passage<'a> {
    _active: RightPassage<'a>,
    _lease: Option<LeasePassage<'a>>,
}

fn active_elsewhere() -> Refusal {
    let text = "the capability for it was presented on a newer connection";
    Refusal::new(Status::Expired, text)
}

/// The lease of a capability, if it is one.
fn lease_of(capability: &Capability) -> Result<Option<(Fence, u32)>, Refusal> {
    match capability.scope {
        auth::Scope::Lease { fence, .. } if fence == GENERATION => {
            let text = "the lease belongs to no volume";
            Err(Refusal::new(Status::NotAllowed, text))
        }
        auth::Scope::Lease { fence, epoch, .. } => Ok(Some((fence, epoch))),
        _ => Ok(None),
    }
}

/// The lineage tag to check rights against, from looking it up. A missing segment has no
/// tag. One that cannot be read has [`UNREADABLE`]: only the lease of its serial and repairs of
/// its copyset have rights on it.
fn lineage_tag_in(found: &Result<LineageTag, UnitError>) -> LineageTag {
    match found {
        Ok(lineage_tag) => *lineage_tag,
        Err(UnitError::NoSegment { .. }) => LineageTag::NONE,
        Err(_) => UNREADABLE,
    }
}

/// Appends room for the tags and contents of a run.
fn room_for(body: &mut Vec<u8>, run: SlotRun, slot_bytes: u32) -> (&mut [Tag], &mut [u8]) {
    let start = body.len();
    body.resize(start + run.answer_bytes(slot_bytes), 0);
    let tags_bytes = usize::from(run.count) * size_of::<Tag>();
    let (tags, data) = body[start..].split_at_mut(tags_bytes);
    let (tags, _) = tags.as_chunks_mut();
    (tags, data)
}
