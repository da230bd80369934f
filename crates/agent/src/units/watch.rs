//! [`WatchedUnit`]: a unit that may not answer at all, as a hard NFS mount whose server is gone
//! keeps a call for ever.
//!
//! One thread at a time looks at a unit, and no caller waits for it. A unit that owes an answer for
//! too long is *unresponsive*: until it answers, every call is refused here as if the unit were
//! missing, so that no more threads get stuck and the engine uses other units.
//!
//! Must not know: what a look asks, nor when one begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use unit::{ReadDone, SlotRun, Unit, UnitError, UnitLayer, UnitOp, UnitStat};
use world::Clock;

/// After this long without an answer a unit is unresponsive, unless its backend says otherwise.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What was last learnt about a unit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Found {
    /// What the unit holds, if it answered last time.
    pub stat: Option<UnitStat>,
    /// The device of its file system, if it is a folder.
    pub device: Option<u64>,
    /// Whether the unit has ever answered.
    pub was_ever_found: bool,
    /// [`UnitStat::incarnation`] of its last answer.
    pub incarnation: Option<u64>,
    /// The largest lease count that the unit is known to have had.
    pub leases: u64,
}

#[derive(Default)]
struct State {
    /// When the look under way began, if there is one.
    asked: Option<Duration>,
    found: Found,
}

/// A unit whose calls are refused while it owes an answer.
pub(crate) struct WatchedUnit {
    unit: Arc<dyn Unit>,
    clock: Arc<dyn Clock>,
    answer_within: Duration,
    state: Mutex<State>,
    unresponsive: AtomicBool,
}

/// A look at a unit. It ends when this is dropped.
pub(crate) struct Look(Arc<WatchedUnit>);

impl Look {
    /// Keeps what was learnt.
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

impl Drop for Look {
    fn drop(&mut self) {
        self.0.state.lock().asked = None;
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

    /// Begins a look; `None` if one is under way.
    pub fn look(self: &Arc<Self>) -> Option<Look> {
        let mut state = self.state.lock();
        if state.asked.is_some() {
            return None;
        }
        state.asked = Some(self.clock.monotonic());
        Some(Look(Arc::clone(self)))
    }

    /// What was last learnt.
    pub fn last_found(&self) -> Found {
        self.state.lock().found
    }

    /// Notes that the unit knows of this many leases.
    pub fn knows_leases(&self, leases: u64) {
        let mut state = self.state.lock();
        state.found.leases = state.found.leases.max(leases);
    }

    /// Whether the unit is unresponsive.
    pub fn is_unresponsive(&self) -> bool {
        self.unresponsive.load(Ordering::Relaxed)
    }

    /// Whether a look is under way that may still end soon.
    pub fn is_awaited(&self) -> bool {
        self.state.lock().asked.is_some() && !self.is_unresponsive()
    }

    /// Whether the unit has just become unresponsive: true once each time.
    pub fn falls_unresponsive(&self) -> bool {
        let state = self.state.lock();
        let overdue = state.asked.is_some_and(|asked| {
            self.clock.monotonic().saturating_sub(asked) >= self.answer_within
        });
        // Under the lock: a look that ends now must find it set.
        overdue && !self.unresponsive.swap(true, Ordering::Relaxed)
    }
}

impl UnitLayer for WatchedUnit {
    fn inner(&self) -> &dyn Unit {
        &*self.unit
    }

    /// Refuses calls to an unresponsive unit. Only looks call `stat` and `probe`, which
    /// may hang; a probe that returns ends the unresponsive state before its caller learns
    /// of it.
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
        let seconds = self.state.lock().asked.map_or(0, |asked| {
            self.clock.monotonic().saturating_sub(asked).as_secs()
        });
        Err(UnitError::Missing {
            url: self.unit.url().to_owned(),
            reason: format!("it has not answered for {seconds} s"),
        })
    }

    fn on_read_async(&self, run: SlotRun, slot_bytes: u32, done: ReadDone) -> bool {
        !self.is_unresponsive() && self.unit.read_async(run, slot_bytes, done)
    }
}
