//! The unit itself: [`RadosUnit`].

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

use crate::account::Account;
use crate::place::Place;
use crate::pool::{Change, Errno};
use crate::read::Flight;
use crate::site::{Connect, LOOK_WITHIN, Site};
use crate::{SEGMENT_DATA_BYTES, claim};

/// Locks that keep those apart who change one segment.
const WRITER_LOCKS: usize = 64;

/// The note's name, as on a folder.
const NOTE: &str = "leases";

/// A namespace of a pool as a storage unit. Shared by many threads, none of which may
/// be one of librados'.
pub struct RadosUnit {
    core: Arc<Core>,
}

/// What a unit has in common with what it has begun.
pub(crate) struct Core {
    pub(crate) site: Site,
    pub(crate) world: World,
    pub(crate) cluster: ClusterId,
    pub(crate) unit: UnitId,
    pub(crate) owner: Option<Owner>,
    /// Whether to claim it, once, from an owner of the same generation too.
    pub(crate) takes_over: AtomicBool,
    /// Why it could not be claimed when that was last tried.
    pub(crate) unclaimed: Mutex<Option<UnitError>>,
    /// When the marker was last found to be this unit's and its owner's.
    pub(crate) verified: Mutex<Option<Duration>>,
    pub(crate) account: Account,
    pub(crate) flight: Arc<Flight>,
    pub(crate) segment_data_bytes: u64,
    writers: [Mutex<()>; WRITER_LOCKS],
}

impl RadosUnit {
    /// The unit at `place`, which should be unit `unit` of `cluster`. Asks the
    /// cluster nothing yet; ask [`Unit::probe`] whether it is there.
    #[must_use]
    pub fn open(world: &World, place: &Place, cluster: ClusterId, unit: UnitId) -> Self {
        Self::on(world, place, Site::by_librados(place), cluster, unit)
    }

    /// As [`RadosUnit::open`], where `connect` leads to the pool.
    pub(crate) fn on(
        world: &World,
        place: &Place,
        connect: Connect,
        cluster: ClusterId,
        unit: UnitId,
    ) -> Self {
        Self {
            core: Arc::new(Core {
                site: Site::new(place, connect, Arc::clone(&world.clock)),
                world: world.clone(),
                cluster,
                unit,
                owner: None,
                takes_over: AtomicBool::new(false),
                unclaimed: Mutex::default(),
                verified: Mutex::default(),
                account: Account::default(),
                flight: Arc::default(),
                segment_data_bytes: SEGMENT_DATA_BYTES,
                writers: [const { Mutex::new(()) }; WRITER_LOCKS],
            }),
        }
    }

    /// Makes the namespace at `place` into unit `unit` of `cluster`. The pool must
    /// exist, and nothing be in the namespace. One that is that very unit
    /// already is opened.
    ///
    /// # Errors
    /// [`UnitError::Foreign`] if it is another unit or holds other objects.
    pub fn create(
        world: &World,
        place: &Place,
        cluster: ClusterId,
        unit: UnitId,
    ) -> Result<Self, UnitError> {
        Self::open(world, place, cluster, unit).created()
    }

    /// Makes the unit that was opened, as [`RadosUnit::create`].
    ///
    /// # Errors
    /// As [`RadosUnit::create`]; [`UnitError::Held`] if it has another owner.
    pub fn created(self) -> Result<Self, UnitError> {
        self.core.make()?;
        Ok(self)
    }

    /// Whose unit the namespace at `place` is, and which.
    ///
    /// # Errors
    /// [`UnitError::Missing`] if it is none, [`UnitError::Newer`] if it cannot be
    /// read by this program.
    pub fn identify(world: &World, place: &Place) -> Result<Marker, UnitError> {
        let site = Site::new(place, Site::by_librados(place), Arc::clone(&world.clock));
        Ok(claim::read_marker(&site)?.0)
    }

    fn change_core(mut self, change: impl FnOnce(&mut Core)) -> Self {
        let core = Arc::get_mut(&mut self.core).expect("nobody else has it before it is used");
        change(core);
        self
    }

    /// Changes the unit as `owner` only. It is claimed when it is made or probed,
    /// and not used by anybody else from then on; with `takes_over`, the first time
    /// also from an owner of the same generation. Before the unit is used.
    #[must_use]
    pub fn with_owner(self, owner: Owner, takes_over: bool) -> Self {
        self.change_core(|core| {
            core.owner = Some(owner);
            core.takes_over = AtomicBool::new(takes_over);
        })
    }

    /// Gives segments room for `bytes` of data instead of [`SEGMENT_DATA_BYTES`].
    /// Before the unit is used.
    #[must_use]
    pub fn with_segment_data_bytes(self, bytes: u64) -> Self {
        self.change_core(|core| core.segment_data_bytes = bytes)
    }

    /// Which unit this is.
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
        self.look()?;
        match self.site.read(NOTE, 0, NOTE_BYTES, LOOK_WITHIN)? {
            Ok(note) => Ok(<[u8; NOTE_BYTES]>::try_from(&note[..]).ok()),
            Err(Errno(libc::ENOENT)) => Ok(None),
            Err(errno) => Err(self.site.meaning("read its note", errno)),
        }
    }

    fn write_note(&self, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError> {
        // A namespace without the unit's marker is never written to.
        self.verify()?;
        let written = self
            .site
            .change(NOTE, &[Change::Replace(note)], LOOK_WITHIN)?;
        written.map_err(|errno| self.site.meaning_of_write("write its note", errno))
    }
}

impl Unit for RadosUnit {
    fn url(&self) -> &str {
        &self.core.site.url
    }

    fn can_append(&self) -> bool {
        true
    }

    fn put(&self, put: Put<'_>) -> Result<(), UnitError> {
        put.assert_fit();
        let _alone = self.core.writer(put.segment);
        self.core.put(&put)
    }

    /// What was put is durable when the cluster has answered.
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
        self.list_serials(0..SegmentId::SERIAL_MAX)
    }

    fn list_serials(&self, serials: Range<u64>) -> Result<Vec<SegmentId>, UnitError> {
        // No names may be those of another unit's namespace, or of none.
        self.core.look()?;
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

    /// What other hosts have changed may be a minute old, or longer; see the head
    /// of `account`.
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
