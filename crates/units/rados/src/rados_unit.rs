//! [`RadosUnit`]: the operations of a unit on a namespace of a pool.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use base::{ClusterId, LineageTag, SegmentId, Slot, UnitId};
use parking_lot::{Mutex, MutexGuard};
use unit::{
    Marker, NOTE_BYTES, Owner, Put, Read, ReadDone, Replacement, SegmentSlots, SegmentStat,
    SlotRun, Unit, UnitError, UnitStat,
};
use world::World;

use crate::access::{Connect, METADATA_TIMEOUT, PoolAccess};
use crate::account::Account;
use crate::location::Location;
use crate::pool::{Change, Errno};
use crate::read::ReadBudget;
use crate::{SEGMENT_DATA_BYTES, claim};

/// Number of locks that keep the writers of one segment apart.
const WRITER_LOCKS: usize = 64;

/// Name of the note, as on a folder.
const NOTE: &str = "leases";

/// A namespace of a pool as a storage unit. Shared by many threads, which must not be threads of
/// librados.
pub struct RadosUnit {
    core: Arc<Core>,
}

/// State that is shared with jobs and callbacks.
pub(crate) struct Core {
    pub(crate) access: PoolAccess,
    pub(crate) world: World,
    pub(crate) cluster: ClusterId,
    pub(crate) unit: UnitId,
    pub(crate) owner: Option<Owner>,
    /// Whether the next claim also succeeds against an owner of the same generation.
    pub(crate) takes_over: AtomicBool,
    /// The error of the last claim.
    pub(crate) claim_error: Mutex<Option<UnitError>>,
    /// When the marker was last verified.
    pub(crate) verified: Mutex<Option<Duration>>,
    pub(crate) account: Account,
    pub(crate) read_budget: Arc<ReadBudget>,
    pub(crate) segment_data_bytes: u64,
    writers: [Mutex<()>; WRITER_LOCKS],
}

impl RadosUnit {
    /// The unit at `location`, which should be unit `unit` of `cluster`. Sends no request yet;
    /// [`Unit::probe`] checks it.
    #[must_use]
    pub fn open(world: &World, location: &Location, cluster: ClusterId, unit: UnitId) -> Self {
        Self::on(
            world,
            location,
            PoolAccess::by_librados(location),
            cluster,
            unit,
        )
    }

    /// As [`RadosUnit::open`], with `connect` to reach the pool.
    pub(crate) fn on(
        world: &World,
        location: &Location,
        connect: Connect,
        cluster: ClusterId,
        unit: UnitId,
    ) -> Self {
        Self {
            core: Arc::new(Core {
                access: PoolAccess::new(location, connect, Arc::clone(&world.clock)),
                world: world.clone(),
                cluster,
                unit,
                owner: None,
                takes_over: AtomicBool::new(false),
                claim_error: Mutex::default(),
                verified: Mutex::default(),
                account: Account::default(),
                read_budget: Arc::default(),
                segment_data_bytes: SEGMENT_DATA_BYTES,
                writers: [const { Mutex::new(()) }; WRITER_LOCKS],
            }),
        }
    }

    /// Creates unit `unit` of `cluster` at `location`. The pool must exist and the namespace must
    /// be empty. A namespace that is that very unit already is opened.
    ///
    /// # Errors
    /// [`UnitError::Foreign`] if it is another unit or holds other objects.
    pub fn create(
        world: &World,
        location: &Location,
        cluster: ClusterId,
        unit: UnitId,
    ) -> Result<Self, UnitError> {
        Self::open(world, location, cluster, unit).created()
    }

    /// Creates the unit that was opened, as [`RadosUnit::create`] does.
    ///
    /// # Errors
    /// As [`RadosUnit::create`]; [`UnitError::Held`] if it has another owner.
    pub fn created(self) -> Result<Self, UnitError> {
        self.core.create()?;
        Ok(self)
    }

    /// Reads the marker of the unit at `location`.
    ///
    /// # Errors
    /// [`UnitError::Missing`] if it is no unit, [`UnitError::Newer`] if this program cannot read
    /// it.
    pub fn identify(world: &World, location: &Location) -> Result<Marker, UnitError> {
        let access = PoolAccess::new(
            location,
            PoolAccess::by_librados(location),
            Arc::clone(&world.clock),
        );
        Ok(claim::read_marker(&access)?.0)
    }

    fn change_core(mut self, change: impl FnOnce(&mut Core)) -> Self {
        let core = Arc::get_mut(&mut self.core).expect("it is not shared before it is used");
        change(core);
        self
    }

    /// Lets only `owner` change the unit, which is claimed when it is created or probed. With
    /// `takes_over`, the first claim also succeeds against an owner of the same generation. Must
    /// be called before the unit is used.
    #[must_use]
    pub fn with_owner(self, owner: Owner, takes_over: bool) -> Self {
        self.change_core(|core| {
            core.owner = Some(owner);
            core.takes_over = AtomicBool::new(takes_over);
        })
    }

    /// Gives segments room for `bytes` of data instead of [`SEGMENT_DATA_BYTES`]. Must be called
    /// before the unit is used.
    #[must_use]
    pub fn with_segment_data_bytes(self, bytes: u64) -> Self {
        self.change_core(|core| core.segment_data_bytes = bytes)
    }

    /// The unit's id.
    #[must_use]
    pub fn id(&self) -> UnitId {
        self.core.unit
    }

    /// The lineage tag of a segment.
    ///
    /// # Errors
    /// [`UnitError::NoSegment`] and the others.
    pub fn lineage_tag_of(&self, segment: SegmentId) -> Result<LineageTag, UnitError> {
        Ok(self.core.load(segment)?.head.lineage_tag)
    }
}

impl Core {
    fn writer(&self, segment: SegmentId) -> MutexGuard<'_, ()> {
        self.writers[segment.serial() as usize % WRITER_LOCKS].lock()
    }

    fn read_note(&self) -> Result<Option<[u8; NOTE_BYTES]>, UnitError> {
        self.check()?;
        match self.access.read(NOTE, 0, NOTE_BYTES, METADATA_TIMEOUT)? {
            Ok(note) => Ok(<[u8; NOTE_BYTES]>::try_from(&note[..]).ok()),
            Err(Errno(libc::ENOENT)) => Ok(None),
            Err(errno) => Err(self.access.read_error("read its note", errno)),
        }
    }

    fn write_note(&self, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError> {
        // A namespace without the unit's marker is never written to.
        self.verify()?;
        let written = self
            .access
            .change(NOTE, &[Change::Replace(note)], METADATA_TIMEOUT)?;
        written.map_err(|errno| self.access.write_error("write its note", errno))
    }
}

impl Unit for RadosUnit {
    fn url(&self) -> &str {
        &self.core.access.url
    }

    fn can_append(&self) -> bool {
        true
    }

    fn put(&self, put: Put<'_>) -> Result<(), UnitError> {
        put.assert_fit();
        let _alone = self.core.writer(put.segment);
        self.core.put(&put)
    }

    /// Puts are durable on return; this checks that the segments exist.
    fn sync(&self, segments: &[SegmentId]) -> Result<(), UnitError> {
        self.core.check_put(segments)
    }

    fn read(&self, read: Read<'_>) -> Result<(), UnitError> {
        read.assert_fit();
        self.core.read_run(read)
    }

    fn read_async(&self, run: SlotRun, slot_bytes: u32, done: ReadDone) -> bool {
        self.core.read_run_async(run, slot_bytes, done)
    }

    fn free(&self, segment: SegmentId, slots: &[Slot], closed: bool) -> Result<(), UnitError> {
        let _alone = self.core.writer(segment);
        self.core.free_slots(segment, slots, closed)
    }

    fn delete(&self, segment: SegmentId) -> Result<(), UnitError> {
        let _alone = self.core.writer(segment);
        self.core.verify()?;
        self.core.remove(segment, &[])?;
        Ok(())
    }

    fn replace(&self, segment: SegmentId, by: Replacement<'_>) -> Result<(), UnitError> {
        by.assert_fit();
        let _alone = self.core.writer(segment);
        self.core.replace_whole(segment, &by)
    }

    fn list(&self) -> Result<Vec<SegmentId>, UnitError> {
        self.list_serials(0..SegmentId::SERIAL_END)
    }

    fn list_serials(&self, serials: Range<u64>) -> Result<Vec<SegmentId>, UnitError> {
        // An empty list may be that of another namespace: check the marker.
        self.core.check()?;
        self.core.list_segments(&serials)
    }

    fn stat_segment(&self, segment: SegmentId) -> Result<SegmentStat, UnitError> {
        Ok(self.core.load(segment)?.stat())
    }

    fn segment_slots(&self, segment: SegmentId) -> Result<SegmentSlots, UnitError> {
        let state = self.core.load(segment)?;
        let freed = (0..state.slots.count).filter(|slot| state.freed.contains(*slot));
        Ok(SegmentSlots {
            stat: state.stat(),
            lineage_tag: state.head.lineage_tag,
            freed: freed
                .filter_map(|slot| u16::try_from(slot).ok().map(Slot))
                .collect(),
        })
    }

    /// Changes of other hosts may be missing for a minute or longer, as `account` explains.
    fn stat(&self) -> Result<UnitStat, UnitError> {
        self.core.stat()
    }

    fn scrub(&self, segment: SegmentId) -> Result<Vec<Slot>, UnitError> {
        self.core.scrub_segment(segment)
    }

    fn read_note(&self) -> Result<Option<[u8; NOTE_BYTES]>, UnitError> {
        self.core.read_note()
    }

    fn write_note(&self, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError> {
        self.core.write_note(note)
    }

    fn probe(&self) -> Result<(), UnitError> {
        let probed = self.core.try_probe();
        if let Err(UnitError::Missing { .. } | UnitError::Foreign { .. } | UnitError::Held { .. }) =
            probed
        {
            self.core.forget();
        }
        probed
    }
}
