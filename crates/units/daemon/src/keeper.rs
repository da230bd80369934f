//! The folder that a daemon keeps, and how a host's requests are carried out
//! on it.

mod job;

pub use job::Job;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use auth::{BadCapability, Capability, Fence, Scope, VerifyingKey};
use base::{ClusterId, LineageTag, SegmentId};
use unit::{Read, SlotRun, Tag, Unit as _, UnitError};
use unit_folder::FolderUnit;
use unit_wire::{BODY_BYTES_MAX, Greeting, Refusal, Status, Verb, put_frame};
use world::{Clock, Millis, World};

use crate::counters::Counters;
use crate::fences::{FenceError, Fences, Passage};
use crate::shown::{Action, NotAllowed, Right, Shown, UNREADABLE};
use crate::turns::{Turn, TurnPassage, Turns};

/// What a daemon holds of one connection's requests and answers, in bytes.
pub(crate) const HELD_BYTES_MAX: usize = 16 << 20;

/// Under which the newest generation of the database is noted: no volume's.
const GENERATION: Fence = Fence(0);

/// What a daemon is told of its cluster.
#[derive(Debug, Clone)]
pub struct KeeperConfig {
    /// The cluster.
    pub cluster: ClusterId,
    /// With which keys controllers sign capabilities.
    pub keys: Vec<VerifyingKey>,
    /// The generation of the database: what was signed from an earlier one
    /// counts no more.
    pub generation: u32,
}

/// A folder unit in a daemon's keeping. Shared by all its connections.
pub struct Keeper {
    unit: FolderUnit,
    clock: Arc<dyn Clock>,
    config: RwLock<KeeperConfig>,
    fences: Fences,
    turns: Turns,
    /// The number of the next connection.
    connection_next: AtomicU64,
    /// Held while a note is compared and written.
    noting: Mutex<()>,
    /// The newest generation of the database that was heard of.
    generation: AtomicU32,
    incarnation: u64,
    /// The number of the next draft of a segment: not one of an earlier life's.
    drafts: AtomicU64,
    counters: Counters,
    /// The controllers' clock less this machine's, in milliseconds.
    clock_offset_ms: AtomicI64,
}

impl Keeper {
    /// Keeps `unit`, which lies in `folder`.
    ///
    /// # Errors
    /// If the leases that it was shown cannot be read.
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
            turns: Turns::default(),
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
        keeper.hear_of_noted();
        Ok(keeper)
    }

    /// What controllers say of the cluster now.
    pub fn set_config(&self, config: KeeperConfig) {
        self.generation
            .fetch_max(config.generation, Ordering::SeqCst);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// A controller's clock shows `theirs` now.
    pub fn set_time(&self, theirs: Millis) {
        let offset = theirs.0.saturating_sub(self.clock.wall().0);
        self.clock_offset_ms.store(offset, Ordering::Relaxed);
    }

    /// The controllers' clock less this machine's, in milliseconds, as was heard
    /// last; 0 if nothing was.
    #[must_use]
    pub fn clock_offset_ms(&self) -> i64 {
        self.clock_offset_ms.load(Ordering::Relaxed)
    }

    /// The time by the controllers' clock, as far as it is known.
    pub(crate) fn now(&self) -> Millis {
        Millis(self.clock.wall().0.saturating_add(self.clock_offset_ms()))
    }

    /// Which unit it keeps.
    #[must_use]
    pub fn id(&self) -> base::UnitId {
        self.unit.id()
    }

    /// This life of it: drawn when it was opened.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The folder, for whoever looks after it.
    #[must_use]
    pub fn unit(&self) -> &FolderUnit {
        &self.unit
    }

    /// The number of a new connection: larger than those before.
    pub(crate) fn next_connection(&self) -> u64 {
        self.connection_next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Does something about a request, and counts how long that took.
    pub(crate) fn timed<T>(&self, verb: Verb, what: impl FnOnce() -> T) -> T {
        let begun = self.clock.monotonic();
        let done = what();
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
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        config.cluster
    }

    /// Reads a capability of `holder`'s.
    fn verify(&self, signed: &[u8], holder: &[u8; 32]) -> Result<Capability, Refusal> {
        let not_allowed = |text: &str| Refusal::new(Status::NotAllowed, text);
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
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
            return Err(not_allowed("the capability is another host's"));
        }
        if capability.generation < self.generation() {
            let text = "the capability is from a database that was replaced since";
            return Err(Refusal::new(Status::Ended, text));
        }
        Ok(capability)
    }

    /// No database older than one that was noted counts.
    fn hear_of_noted(&self) {
        let noted = self.fences.newest(GENERATION).unwrap_or_default();
        self.generation.fetch_max(noted, Ordering::SeqCst);
    }

    fn generation(&self) -> u32 {
        self.generation.load(Ordering::SeqCst)
    }

    /// A host shows a capability. When this returns, no older lease of the same
    /// volume is heeded. Waits for what is done under older ones, and for the disk.
    pub(crate) fn show(
        &self,
        signed: &[u8],
        holder: &[u8; 32],
        shown: &Mutex<Shown>,
    ) -> Result<(), Refusal> {
        // The unit may have been mounted since.
        self.fences.read_if_late();
        self.hear_of_noted();
        let capability = self.verify(signed, holder)?;
        if capability.generation > self.generation() {
            self.generation
                .fetch_max(capability.generation, Ordering::SeqCst);
            // Without the note, what is older counts again after a restart, until a
            // controller has answered.
            match self.fences.show(GENERATION, capability.generation) {
                Ok(()) | Err(FenceError::Older { .. }) => {}
                Err(FenceError::Unnoted(why)) => {
                    tracing::warn!(%why, "a newer database cannot be noted");
                }
            }
        }
        if let Some((fence, epoch)) = lease_of(&capability)? {
            self.fences
                .show(fence, epoch)
                .map_err(|error| match error {
                    FenceError::Older { .. } => Refusal::new(Status::Ended, error.to_string()),
                    FenceError::Unnoted(why) => Refusal::new(Status::Failed, why.to_string()),
                })?;
        }
        let connection = lock(shown).connection();
        if !self.turns.show(&self.turns_of(&capability), connection) {
            return Err(shown_elsewhere());
        }
        self.take(capability, shown)
    }

    /// What a capability is good for here that counts on one connection only, and how
    /// new it is.
    fn turns_of(&self, capability: &Capability) -> Vec<(Turn, i64)> {
        match &capability.scope {
            Scope::Lease { fence, epoch, .. } => vec![(Turn::Lease(*fence), i64::from(*epoch))],
            Scope::Repair { copysets, units } if units.contains(&self.unit.id()) => {
                let turns = copysets.iter();
                turns
                    .map(|copyset| (Turn::Repair(*copyset), capability.made.0))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// As [`Keeper::show`], if there is nothing to wait for.
    pub(crate) fn show_now(
        &self,
        signed: &[u8],
        holder: &[u8; 32],
        shown: &Mutex<Shown>,
    ) -> Option<Result<(), Refusal>> {
        let show = || {
            if !self.fences.is_read() {
                return Ok(false);
            }
            let capability = self.verify(signed, holder)?;
            let lease = lease_of(&capability)?;
            let waits = lease.is_some_and(|(fence, epoch)| !self.fences.show_now(fence, epoch));
            if waits || capability.generation > self.generation() {
                return Ok(false);
            }
            let connection = lock(shown).connection();
            match self.turns.show_now(&self.turns_of(&capability), connection) {
                Some(true) => {}
                Some(false) => return Err(shown_elsewhere()),
                None => return Ok(false),
            }
            self.take(capability, shown).map(|()| true)
        };
        let begun = self.clock.monotonic();
        let answer = match show() {
            Ok(true) => Ok(()),
            Ok(false) => return None,
            Err(refusal) => Err(refusal),
        };
        let took = self.clock.monotonic().saturating_sub(begun);
        self.counters.answered(Verb::Show, took);
        Some(answer)
    }

    fn take(&self, capability: Capability, shown: &Mutex<Shown>) -> Result<(), Refusal> {
        let taken = lock(shown).take(capability, self.unit.id(), self.now());
        taken.map_err(|why| Refusal::new(Status::NotAllowed, why))
    }

    /// By what right `action` may be done now, and that right's passage.
    fn allow(
        &self,
        shown: &Mutex<Shown>,
        action: &Action,
    ) -> Result<(Right, Option<Passing<'_>>), Refusal> {
        let (right, connection, as_repairer) = {
            let shown = lock(shown);
            let right = match shown.right(action, self.now()) {
                Ok(_) if shown.generation() < self.generation() => Err(NotAllowed::Ended),
                right => right,
            };
            let as_repairer = shown.puts_as_repairer(action, self.now());
            (right, shown.connection(), as_repairer)
        };
        let enter = |turn| {
            self.turns
                .enter(turn, connection)
                .ok_or_else(shown_elsewhere)
        };
        let repair = |copyset| {
            let _turn = enter(Turn::Repair(copyset))?;
            Ok((
                Right::Repair(copyset),
                Some(Passing {
                    _turn,
                    _lease: None,
                }),
            ))
        };
        match right {
            Ok(right @ Right::Lease { fence, epoch, .. }) => {
                match (self.fences.enter(fence, epoch), as_repairer) {
                    (Some(passage), _) => {
                        let _turn = enter(Turn::Lease(fence))?;
                        let _lease = Some(passage);
                        Ok((right, Some(Passing { _turn, _lease })))
                    }
                    // It has lost the volume, and repairs what was put under that lease.
                    (None, Some(copyset)) => repair(copyset),
                    (None, None) => {
                        let text = "a newer lease of the volume was shown";
                        Err(Refusal::new(Status::Ended, text))
                    }
                }
            }
            Ok(Right::Repair(copyset)) => repair(copyset),
            Ok(Right::Other) => Ok((Right::Other, None)),
            Err(why @ NotAllowed::Never) => Err(Refusal::new(Status::NotAllowed, why.to_string())),
            Err(why @ NotAllowed::Ended) => Err(Refusal::new(Status::Ended, why.to_string())),
        }
    }

    /// The lineage tag of a segment, for checking what a host may do with it.
    fn lineage_tag_of(&self, segment: SegmentId) -> LineageTag {
        lineage_tag_in(&self.unit.lineage_tag_of(segment))
    }

    /// As [`Keeper::allow`], of a segment that is to be read.
    fn allow_reading(
        &self,
        shown: &Mutex<Shown>,
        segment: SegmentId,
    ) -> Result<Option<Passing<'_>>, Refusal> {
        let lineage_tag = self.unit.lineage_tag_of(segment);
        // Whoever may read nothing hears the same of one that is not there.
        let allowed = self.allow(shown, &Action::Read(segment, lineage_tag_in(&lineage_tag)));
        match (allowed, lineage_tag) {
            (Ok((_, passage)), Ok(_)) => Ok(passage),
            (Ok(_), Err(error)) => Err(error.into()),
            (Err(refusal), Ok(_)) => Err(refusal),
            // It is nobody's, but whoever may read there hears why.
            (Err(_), Err(error)) => {
                self.allow(shown, &Action::Read(segment, LineageTag::NONE))?;
                Err(error.into())
            }
        }
    }

    /// Reads a run if that can be done at once, and appends the answer's frame.
    pub(crate) fn read_now(
        &self,
        shown: &Mutex<Shown>,
        run: SlotRun,
        slot_bytes: u32,
        tag: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(lineage_tag) = self.unit.lineage_tag_now(run.segment) else {
            return false;
        };
        let Ok((_, _passage)) = self.allow(shown, &Action::Read(run.segment, lineage_tag)) else {
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

/// Something that is being done, until this is dropped: whoever comes after it waits.
pub(crate) struct Passing<'a> {
    _turn: TurnPassage<'a>,
    _lease: Option<Passage<'a>>,
}

fn shown_elsewhere() -> Refusal {
    let text = "what allows it was shown on a newer connection";
    Refusal::new(Status::Ended, text)
}

/// Which lease a capability is, if it is one.
fn lease_of(capability: &Capability) -> Result<Option<(Fence, u32)>, Refusal> {
    match capability.scope {
        auth::Scope::Lease { fence, .. } if fence == GENERATION => {
            let text = "the lease is of no volume";
            Err(Refusal::new(Status::NotAllowed, text))
        }
        auth::Scope::Lease { fence, epoch, .. } => Ok(Some((fence, epoch))),
        _ => Ok(None),
    }
}

/// The lineage tag to check rights against, from looking it up. A missing segment has no
/// tag, and one that cannot be read has [`UNREADABLE`], which no right names.
fn lineage_tag_in(found: &Result<LineageTag, UnitError>) -> LineageTag {
    match found {
        Ok(lineage_tag) => *lineage_tag,
        Err(UnitError::NoSegment { .. }) => LineageTag::NONE,
        Err(_) => UNREADABLE,
    }
}

/// Appends room for a run's tags and content.
fn room_for(body: &mut Vec<u8>, run: SlotRun, slot_bytes: u32) -> (&mut [Tag], &mut [u8]) {
    let start = body.len();
    body.resize(start + run.answer_bytes(slot_bytes), 0);
    let tags_bytes = usize::from(run.count) * size_of::<Tag>();
    let (tags, data) = body[start..].split_at_mut(tags_bytes);
    let (tags, _) = tags.as_chunks_mut();
    (tags, data)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
