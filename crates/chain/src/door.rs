//! [`Door`]: the disk below a filter, for a program that the filter does not call itself.
//!
//! ```text
//!   program ── verbs ──▶ asked ──▶ the filter takes them, and asks below
//!           ◀─ poll ─── answers ◀─ the filter puts them in, when they are committed
//! ```
//!
//! Both ends are in the thread that owns the chain; the lock is never held across a call.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, IoError, OwnedOp, Request, Started,
    Token,
};

struct Inner {
    geometry: DeviceGeometry,
    capabilities: Capabilities,
    asked: VecDeque<(Token, OwnedOp)>,
    answers: Vec<Completion>,
}

/// See the module's head. Cheap to clone; all are the same door.
#[derive(Clone)]
pub struct Door(Arc<Mutex<Inner>>);

impl Default for Door {
    /// To a disk of which nothing is known yet.
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Inner {
            geometry: DeviceGeometry {
                size_bytes: 0,
                block_bytes: 4096,
            },
            capabilities: Capabilities::ALL,
            asked: VecDeque::new(),
            answers: Vec::new(),
        })))
    }
}

impl Door {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the disk is like.
    pub fn describe(&self, geometry: DeviceGeometry, capabilities: Capabilities) {
        let mut inner = self.inner();
        (inner.geometry, inner.capabilities) = (geometry, capabilities);
    }

    /// What was asked, in its order, and not taken yet.
    pub fn take_asked(&self, into: &mut VecDeque<(Token, OwnedOp)>) {
        into.append(&mut self.inner().asked);
    }

    /// Answers something that was asked.
    pub fn answer(&self, token: Token, result: Result<base::Outcome, IoError>) {
        self.inner().answers.push(Completion { token, result });
    }
}

impl BlockDevice for Door {
    fn geometry(&self) -> DeviceGeometry {
        self.inner().geometry
    }

    fn capabilities(&self) -> Capabilities {
        self.inner().capabilities
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let op = request.op.to_owned();
        self.inner().asked.push_back((request.token, op));
        Started::Pending
    }

    fn commit(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.inner().answers);
    }

    fn next_timer(&self) -> Option<Duration> {
        (!self.inner().answers.is_empty()).then_some(Duration::ZERO)
    }
}
