//! [`WatchedUnit`]: a unit that may never answer, such as a hard NFS mount whose server is gone.
//!
//! One thread at a time scans a unit, and no caller waits for it. A unit whose answer is overdue
//! is *unresponsive*: until it answers, every call is refused here as if the unit were missing, so
//! that no more threads get stuck and the engine uses other units.
//!
//! Must not know: what a scan does, and when one begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use unit::{ReadDone, SlotRun, Unit, UnitError, UnitLayer, UnitOp, UnitStat};
use world::Clock;

/// The default time without an answer after which a unit is unresponsive.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The last answers of a unit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Found {
    /// The unit's state, if it answered last time.
    pub stat: Option<UnitStat>,
    /// The device of its file system, if it is a folder.
    pub device: Option<u64>,
    /// Whether the unit has ever answered.
    pub was_ever_found: bool,
    /// [`UnitStat::incarnation`] of its last answer.
    pub incarnation: Option<u64>,
    /// The highest known lease count of the unit.
    pub leases: u64,
}

#[derive(Default)]
struct State {
    /// When the scan in progress began, if there is one.
    scan_began: Option<Duration>,
    found: Found,
}

/// A unit whose calls are refused while its answer is overdue.
pub(crate) struct WatchedUnit {
    unit: Arc<dyn Unit>,
    clock: Arc<dyn Clock>,
    answer_within: Duration,
    state: Mutex<State>,
    unresponsive: AtomicBool,
}

/// A scan in progress. It ends when this is dropped.
pub(crate) struct Scan(Arc<WatchedUnit>);

impl Scan {
    /// Stores the answers of the unit.
    pub fn found(&self, stat: Option<UnitStat>, device: Option<u64>) {
        let mut state = self.0.state.lock();
        state.found.stat = stat;
        state.found.device = device;
        if let Some(stat) = stat {
            state.found.was_ever_found = true;
            state.found.incarnation = stat.incarnation;
        }
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        self.0.state.lock().scan_began = None;
        self.0.unresponsive.store(false, Ordering::Relaxed);
    }
}

impl WatchedUnit {
    /// Watches `unit`.
    pub fn new(unit: Arc<dyn Unit>, clock: Arc<dyn Clock>) -> Self {
        Self {
            unit,
            clock,
            answer_within: ANSWER_WITHIN,
            state: Mutex::default(),
            unresponsive: AtomicBool::new(false),
        }
    }

    /// Sets the time after which the unit is unresponsive.
    pub fn answering_within(self, answer_within: Duration) -> Self {
        Self {
            answer_within,
            ..self
        }
    }

    /// Begins a scan; `None` if one is in progress.
    pub fn begin_scan(self: &Arc<Self>) -> Option<Scan> {
        let mut state = self.state.lock();
        if state.scan_began.is_some() {
            return None;
        }
        state.scan_began = Some(self.clock.monotonic());
        Some(Scan(Arc::clone(self)))
    }

    /// The last answers of the unit.
    pub fn last_found(&self) -> Found {
        self.state.lock().found
    }

    /// Notes the unit's lease count.
    pub fn note_leases(&self, leases: u64) {
        let mut state = self.state.lock();
        state.found.leases = state.found.leases.max(leases);
    }

    /// Whether the unit is unresponsive.
    pub fn is_unresponsive(&self) -> bool {
        self.unresponsive.load(Ordering::Relaxed)
    }

    /// Whether a scan is in progress that may still end soon.
    pub fn is_awaited(&self) -> bool {
        self.state.lock().scan_began.is_some() && !self.is_unresponsive()
    }

    /// Whether the unit has just become unresponsive; true once each time.
    pub fn falls_unresponsive(&self) -> bool {
        let state = self.state.lock();
        let overdue = state.scan_began.is_some_and(|scan_began| {
            self.clock.monotonic().saturating_sub(scan_began) >= self.answer_within
        });
        // Under the lock, so that a scan that ends now finds it set.
        overdue && !self.unresponsive.swap(true, Ordering::Relaxed)
    }
}

impl UnitLayer for WatchedUnit {
    fn inner(&self) -> &dyn Unit {
        &*self.unit
    }

    /// Refuses calls to an unresponsive unit. Only scans call `stat` and `probe`, which may hang; a
    /// probe that returns ends the unresponsive state before its caller gets the result.
    fn around<T>(
        &self,
        op: UnitOp,
        call: impl FnOnce(&dyn Unit) -> Result<T, UnitError>,
    ) -> Result<T, UnitError> {
        match op {
            UnitOp::Stat => return call(&*self.unit),
            UnitOp::Probe => {
                let probed = call(&*self.unit);
                self.unresponsive.store(false, Ordering::Relaxed);
                return probed;
            }
            _ if !self.is_unresponsive() => return call(&*self.unit),
            _ => {}
        }
        let seconds = self.state.lock().scan_began.map_or(0, |scan_began| {
            self.clock.monotonic().saturating_sub(scan_began).as_secs()
        });
        Err(UnitError::Missing {
            url: self.unit.url().to_owned(),
            reason: format!("the unit has not answered for {seconds} s"),
        })
    }

    fn on_read_async(&self, run: SlotRun, slot_bytes: u32, done: ReadDone) -> bool {
        !self.is_unresponsive() && self.unit.read_async(run, slot_bytes, done)
    }
}
