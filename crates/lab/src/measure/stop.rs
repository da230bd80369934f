//! [`Stop`]: ends a measurement early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::measure::MeasureError;

/// A flag that stops a measurement, which then closes everything that it opened.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Stops the measurement.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Fails once the measurement is stopped. Its cost is too small to be measured.
    pub(crate) fn check(&self) -> Result<(), MeasureError> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(MeasureError::Stopped),
            false => Ok(()),
        }
    }
}

/// The user who waits for a measurement.
pub struct Waiting<'a> {
    /// Shows the next step.
    pub say: &'a mut dyn FnMut(String),
    /// Stops the measurement.
    pub stop: &'a Stop,
}
