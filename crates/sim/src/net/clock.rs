//! [`SteadyClock`]: the clock of controllers and daemons.

use std::sync::Arc;
use std::time::Duration;

use world::simulated::SimulatedClock;
use world::{Clock, Millis};

/// The clock of controllers and daemons: its wall clock never jumps.
pub struct SteadyClock(pub Arc<SimulatedClock>);

impl Clock for SteadyClock {
    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn wall(&self) -> Millis {
        let start_ms = 1_767_225_600_000;
        Millis(start_ms + i64::try_from(self.0.monotonic().as_millis()).expect("some years"))
    }
}
