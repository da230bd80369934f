//! Units that may not answer at all: a hard NFS mount whose server is gone
//! keeps a call for ever.
//!
//! Each unit is looked at by one thread at a time, which nobody waits for. A
//! unit that owes an answer for too long is *unresponsive*: until it answers, every
//! call to it is refused here as to one that is missing, so that no more
//! threads get stuck and the engine goes elsewhere.
//!
//! Must not know: what is looked at, nor when.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use unit::{ReadDone, SlotRun, Unit, UnitError, UnitLayer, UnitOp, UnitStat};
use world::Clock;

use crate::agent::lock;

/// A unit that has not answered for longer is unresponsive, unless said otherwise.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What was last learnt of a unit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Found {
    /// What it holds.
    pub stat: Option<UnitStat>,
    /// Which file system it lies on.
    pub device: Option<u64>,
    /// Whether it was ever found.
    pub was_ever_found: bool,
    /// As [`UnitStat::incarnation`], when it was found last.
    pub incarnation: Option<u64>,
    /// How many leases it is known to have known of.
    pub leases: u64,
}

#[derive(Default)]
struct State {
    /// Since when somebody looks.
    asked: Option<Duration>,
    found: Found,
}

/// See the module's head.
pub(crate) struct WatchedUnit {
    unit: Arc<dyn Unit>,
    clock: Arc<dyn Clock>,
    answer_within: Duration,
    state: Mutex<State>,
    unresponsive: AtomicBool,
}

/// Somebody looks at a unit; ends when it is dropped.
pub(crate) struct Look(Arc<WatchedUnit>);

impl Look {
    /// Keeps what was learnt.
    pub fn found(&self, stat: Option<UnitStat>, device: Option<u64>) {
        let mut state = lock(&self.0.state);
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
        lock(&self.0.state).asked = None;
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

    /// It is unresponsive only after this time.
    pub fn answering_within(self, answer_within: Duration) -> Self {
        Self {
            answer_within,
            ..self
        }
    }

    /// Begins to look; `None` if somebody does already.
    pub fn look(self: &Arc<Self>) -> Option<Look> {
        let mut state = lock(&self.state);
        if state.asked.is_some() {
            return None;
        }
        state.asked = Some(self.clock.monotonic());
        Some(Look(Arc::clone(self)))
    }

    /// What was last learnt.
    pub fn last_found(&self) -> Found {
        lock(&self.state).found
    }

    /// It was told of so many leases, or says so itself.
    pub fn knows_leases(&self, leases: u64) {
        let mut state = lock(&self.state);
        state.found.leases = state.found.leases.max(leases);
    }

    /// Whether it is unresponsive.
    pub fn is_unresponsive(&self) -> bool {
        self.unresponsive.load(Ordering::Relaxed)
    }

    /// Whether it owes an answer that may still come soon.
    pub fn is_awaited(&self) -> bool {
        lock(&self.state).asked.is_some() && !self.is_unresponsive()
    }

    /// Notices that it owes an answer for too long. True once each time.
    pub fn falls_unresponsive(&self) -> bool {
        let state = lock(&self.state);
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
        let seconds = lock(&self.state).asked.map_or(0, |asked| {
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
