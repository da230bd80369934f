//! [`Stop`]: the end before the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::measure::MeasureError;

/// Whether somebody wants it to end now. All that was opened is closed then.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// It is to end.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Goes on, if nobody has said otherwise. It costs nothing that could be measured.
    pub(crate) fn check(&self) -> Result<(), MeasureError> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(MeasureError::Stopped),
            false => Ok(()),
        }
    }
}

/// Who waits for it.
pub struct Waiting<'a> {
    /// Is told what comes next.
    pub say: &'a mut dyn FnMut(String),
    /// May have it end.
    pub stop: &'a Stop,
}
