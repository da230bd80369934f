//! A faulty unit, for tests and the simulator.
//!
//! It forwards every call to another unit and injects faults at random, by its seed: errors,
//! delays, flipped bits, content of another slot or of an earlier time, and puts that are
//! acknowledged and lost. None of these may make a volume return wrong data.
//!
//! Must not know the kind of the inner unit.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::{SegmentId, Slot};
use parking_lot::{Mutex, MutexGuard};
use unit::{
    OpClass, Put, Read, ReadDone, ReadSlots, Replacement, SlotRun, Tag, Unit, UnitError, UnitLayer,
    UnitOp,
};
use world::simulated::SimulatedRandom;

/// Rates of faults: one in this many calls, never if zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InjectedFaults {
    /// Reads and listings fail.
    pub read_errors_one_in: u64,
    /// Puts and syncs fail. A put may have been carried out.
    pub write_errors_one_in: u64,
    /// Frees, reclaims and deletes fail. They may have been carried out.
    pub release_errors_one_in: u64,
    /// One bit of a read is flipped.
    pub flipped_bits_one_in: u64,
    /// Tag and content are those of another slot that was read or put before.
    pub misdirected_one_in: u64,
    /// A put is acknowledged and lost.
    pub lost_puts_one_in: u64,
    /// A call takes `delay`.
    pub delays_one_in: u64,
    /// Duration of a delayed call.
    pub delay: Duration,
    /// A read is not answered at once but asynchronously, where the caller can do that.
    /// Not counted as a fault.
    pub async_reads_one_in: u64,
    /// Asynchronous reads hang, and fail when this ends. Not counted as a fault.
    pub holds_reads: bool,
    /// The unit is missing.
    pub is_missing: bool,
}

/// The tag and the content of a slot that was read or put before.
type RecordedSlot = (Tag, Vec<u8>);

/// Number of slots that are recorded, to be returned in place of others.
const SEEN_MAX: usize = 64;

/// A unit with faults.
pub struct FaultyUnit {
    unit: Arc<dyn Unit>,
    random: SimulatedRandom,
    takes_whole: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    faults: InjectedFaults,
    waited: Duration,
    /// Slots by their size in bytes.
    seen: BTreeMap<u32, Vec<RecordedSlot>>,
    injected: u64,
    held: Vec<ReadDone>,
}

impl FaultyUnit {
    /// `unit`, without faults so far; `seed` chooses which calls they strike.
    #[must_use]
    pub fn new(unit: Arc<dyn Unit>, seed: u64) -> Self {
        Self {
            unit,
            random: SimulatedRandom::new(seed),
            takes_whole: false,
            state: Mutex::default(),
        }
    }

    /// From here on every put makes a whole segment, as on an object store.
    #[must_use]
    pub fn taking_whole_segments(self) -> Self {
        Self {
            takes_whole: true,
            ..self
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Changes what goes wrong from here on.
    pub fn set(&self, faults: InjectedFaults) {
        let mut state = self.lock();
        state.faults = faults;
        let held = match faults.holds_reads {
            true => Vec::new(),
            false => std::mem::take(&mut state.held),
        };
        drop(state);
        for done in held {
            done(Err(self.error()));
        }
    }

    /// The number of reads that hang.
    #[must_use]
    pub fn held(&self) -> usize {
        self.lock().held.len()
    }

    /// How many calls were spoilt so far, delays not counted.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.lock().injected
    }

    /// How long calls were delayed since this was last asked; the driver may
    /// advance its clock by it.
    pub fn take_waited(&self) -> Duration {
        std::mem::take(&mut self.lock().waited)
    }

    fn is_struck(&self, one_in: u64) -> bool {
        let is_struck = self.random.one_in(one_in);
        if is_struck {
            self.lock().injected += 1;
        }
        is_struck
    }

    /// Delays the call, or fails it because the unit is missing.
    fn begin(&self) -> Result<InjectedFaults, UnitError> {
        let mut state = self.lock();
        let faults = state.faults;
        if self.random.one_in(faults.delays_one_in) {
            state.waited += faults.delay;
        }
        if faults.is_missing {
            return Err(UnitError::Missing {
                url: self.unit.url().to_owned(),
                reason: "injected".to_owned(),
            });
        }
        Ok(faults)
    }

    fn error(&self) -> UnitError {
        UnitError::Io {
            url: self.unit.url().to_owned(),
            doing: "do what was asked".to_owned(),
            source: Arc::new(io::Error::other("injected")),
        }
    }

    /// Carries out a change that may fail before or after it is done.
    fn change<T>(
        &self,
        one_in: u64,
        change: impl FnOnce(&dyn Unit) -> Result<T, UnitError>,
    ) -> Result<T, UnitError> {
        if self.is_struck(one_in) {
            if self.random.below(2) == 0 {
                let _ = change(&*self.unit);
            }
            return Err(self.error());
        }
        change(&*self.unit)
    }

    fn remember(&self, slot_bytes: u32, tags: &[Tag], data: &[u8]) {
        let mut state = self.lock();
        if state.faults.misdirected_one_in == 0 {
            return;
        }
        let seen = state.seen.entry(slot_bytes).or_default();
        for (tag, content) in tags.iter().zip(data.chunks_exact(slot_bytes as usize)) {
            let slot = (*tag, content.to_vec());
            if seen.len() < SEEN_MAX {
                seen.push(slot);
            } else {
                seen[self.random.index(SEEN_MAX)] = slot;
            }
        }
    }

    /// Spoils what was read.
    fn spoil(&self, faults: InjectedFaults, read: Read<'_>) {
        let Read {
            slot_bytes,
            tags,
            data,
            ..
        } = read;
        self.remember(slot_bytes, tags, data);
        if self.is_struck(faults.misdirected_one_in) {
            let slot = self.random.index(tags.len());
            let state = self.lock();
            if let Some(seen) = state.seen.get(&slot_bytes).filter(|seen| !seen.is_empty()) {
                let (tag, content) = &seen[self.random.index(seen.len())];
                tags[slot] = *tag;
                data[slot * content.len()..][..content.len()].copy_from_slice(content);
            }
        }
        if self.is_struck(faults.flipped_bits_one_in) {
            let at = self.random.index(data.len() + tags.len() * 16);
            let bit = 1 << self.random.below(8);
            match at.checked_sub(data.len()) {
                None => data[at] ^= bit,
                Some(at) => tags[at / 16][at % 16] ^= bit,
            }
        }
    }
}

impl UnitLayer for FaultyUnit {
    fn inner(&self) -> &dyn Unit {
        &*self.unit
    }

    /// Fails by the class of the call. A change may fail before or after it is carried out.
    fn around<T>(
        &self,
        op: UnitOp,
        call: impl FnOnce(&dyn Unit) -> Result<T, UnitError>,
    ) -> Result<T, UnitError> {
        let faults = self.begin()?;
        match op.class() {
            OpClass::Write => self.change(faults.write_errors_one_in, call),
            OpClass::Release => self.change(faults.release_errors_one_in, call),
            OpClass::Read | OpClass::Probe if self.is_struck(faults.read_errors_one_in) => {
                Err(self.error())
            }
            OpClass::Read | OpClass::Probe => call(&*self.unit),
        }
    }

    fn on_can_append(&self) -> bool {
        !self.takes_whole && self.unit.can_append()
    }

    fn on_put(&self, put: Put<'_>) -> Result<(), UnitError> {
        let faults = self.begin()?;
        if self.takes_whole && put.first != Slot(0) {
            let found = self.unit.stat_segment(put.segment)?;
            return Err(UnitError::Misplaced {
                segment: put.segment,
                slots: found.slots,
                slot_bytes: found.slot_bytes,
            });
        }
        self.remember(put.slot_bytes, put.tags, put.data);
        if self.is_struck(faults.lost_puts_one_in) {
            return Ok(());
        }
        self.change(faults.write_errors_one_in, |unit| unit.put(put))
    }

    fn on_replace(&self, segment: SegmentId, by: Replacement<'_>) -> Result<(), UnitError> {
        let faults = self.begin()?;
        self.remember(by.slot_bytes, by.tags, by.data);
        if self.is_struck(faults.lost_puts_one_in) {
            return Ok(());
        }
        self.change(faults.write_errors_one_in, |unit| unit.replace(segment, by))
    }

    /// Does not confess a lost put either.
    fn on_sync(
        &self,
        op: UnitOp,
        sync: impl FnOnce(&dyn Unit) -> Result<(), UnitError>,
    ) -> Result<(), UnitError> {
        match self.around(op, sync) {
            Err(UnitError::NoSegment { .. }) if self.lock().faults.lost_puts_one_in > 0 => Ok(()),
            other => other,
        }
    }

    fn on_read(&self, mut read: Read<'_>) -> Result<(), UnitError> {
        let faults = self.begin()?;
        if self.is_struck(faults.read_errors_one_in) {
            return Err(self.error());
        }
        self.unit.read(read.reborrow())?;
        self.spoil(faults, read);
        Ok(())
    }

    fn on_read_now(&self, mut read: Read<'_>) -> Result<bool, UnitError> {
        let faults = self.begin()?;
        if self.random.one_in(faults.async_reads_one_in) {
            return Ok(false);
        }
        if self.is_struck(faults.read_errors_one_in) {
            return Err(self.error());
        }
        let is_read = self.unit.read_now(read.reborrow())?;
        if is_read {
            self.spoil(faults, read);
        }
        Ok(is_read)
    }

    fn on_read_async(&self, run: SlotRun, slot_bytes: u32, done: ReadDone) -> bool {
        let mut state = self.lock();
        let is_begun = self.random.one_in(state.faults.async_reads_one_in);
        if is_begun && state.faults.holds_reads {
            state.held.push(done);
            return true;
        }
        drop(state);
        if is_begun {
            let mut tags = vec![[0; 16]; usize::from(run.count)];
            let mut data = vec![0; usize::from(run.count) * slot_bytes as usize];
            let read = self.on_read(Read {
                run,
                slot_bytes,
                tags: &mut tags,
                data: &mut data,
            });
            done(read.map(|()| ReadSlots::Apart {
                tags: &tags,
                data: &data,
            }));
        }
        is_begun
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base::{ClusterId, UnitId};
    use unit_folder::FolderUnit;
    use world::simulated::Simulation;

    use super::*;
    use crate::units::conformance;
    use crate::units::conformance::{SLOT_BYTES, content_of, put, segment, tag_of};

    fn faulty(seed: u64) -> FaultyUnit {
        let world = Simulation::new(seed).world();
        let (cluster, unit) = (ClusterId::from_u128(1), UnitId::from_u128(2));
        let unit = FolderUnit::create(&world, Path::new("/unit"), cluster, unit);
        FaultyUnit::new(Arc::new(unit.expect("made")), seed)
    }

    #[test]
    fn without_faults_it_is_a_unit_like_any_other() {
        conformance::run(&|| Arc::new(faulty(1)));
        conformance::run(&|| Arc::new(faulty(1).taking_whole_segments()));
    }

    /// Reads each of 20 slots 50 times; how many were right, wrong, errors.
    fn read_often(unit: &FaultyUnit) -> (u32, u32, u32) {
        let mut counts = (0, 0, 0);
        for _ in 0..50 {
            for slot in 0..20 {
                let run = SlotRun {
                    segment: segment(1),
                    first: Slot(slot),
                    count: 1,
                };
                let mut tags = [[0; 16]];
                let mut data = vec![0; SLOT_BYTES as usize];
                match unit.read(Read {
                    run,
                    slot_bytes: SLOT_BYTES,
                    tags: &mut tags,
                    data: &mut data,
                }) {
                    Err(_) => counts.2 += 1,
                    Ok(()) => {
                        let is_right = tags[0] == tag_of(segment(1), slot)
                            && data == content_of(segment(1), slot, SLOT_BYTES);
                        *(if is_right {
                            &mut counts.0
                        } else {
                            &mut counts.1
                        }) += 1;
                    }
                }
            }
        }
        counts
    }

    #[test]
    fn each_fault_strikes_as_often_as_it_was_told_to() {
        let faults = [
            InjectedFaults {
                read_errors_one_in: 4,
                ..InjectedFaults::default()
            },
            InjectedFaults {
                flipped_bits_one_in: 4,
                ..InjectedFaults::default()
            },
            InjectedFaults {
                misdirected_one_in: 4,
                ..InjectedFaults::default()
            },
        ];
        for (kind, faults) in faults.into_iter().enumerate() {
            let unit = faulty(3);
            put(&unit, segment(1), SLOT_BYTES, 0, 20).expect("put");
            assert_eq!(read_often(&unit), (1000, 0, 0));
            unit.set(faults);
            let (right, wrong, errors) = read_often(&unit);
            assert_eq!(right + wrong + errors, 1000);
            assert!((150..350).contains(&(1000 - right)), "{right}");
            assert_eq!(if kind == 0 { wrong } else { errors }, 0);
            assert!((200..300).contains(&unit.injected()));
            unit.set(InjectedFaults::default());
            assert_eq!(read_often(&unit), (1000, 0, 0));
        }
    }

    #[test]
    fn a_lost_put_is_acknowledged_and_not_there() {
        let unit = faulty(1);
        unit.set(InjectedFaults {
            lost_puts_one_in: 1,
            ..InjectedFaults::default()
        });
        put(&unit, segment(1), SLOT_BYTES, 0, 4).expect("acknowledged");
        unit.sync(&[segment(1)]).expect("acknowledged");
        assert_eq!(unit.list().expect("listed"), []);
    }

    #[test]
    fn a_change_that_fails_may_have_been_carried_out() {
        let done = (0..100).filter(|seed| {
            let unit = faulty(*seed);
            unit.set(InjectedFaults {
                write_errors_one_in: 1,
                ..InjectedFaults::default()
            });
            assert!(put(&unit, segment(1), SLOT_BYTES, 0, 4).is_err());
            !unit.list().expect("listed").is_empty()
        });
        assert!((20..80).contains(&done.count()));
    }

    #[test]
    fn delays_are_counted_and_a_missing_unit_answers_nothing() {
        let unit = faulty(1);
        unit.set(InjectedFaults {
            delays_one_in: 1,
            delay: Duration::from_millis(7),
            is_missing: true,
            ..InjectedFaults::default()
        });
        assert!(matches!(unit.probe(), Err(UnitError::Missing { .. })));
        assert!(matches!(unit.list(), Err(UnitError::Missing { .. })));
        assert_eq!(unit.take_waited(), Duration::from_millis(14));
    }
}
