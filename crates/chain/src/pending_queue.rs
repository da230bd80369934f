//! [`PendingQueue`]: the disk below an out-of-process filter, as its backend sees it.
//!
//! ```text
//!   backend ── start ──▶ requests ──▶ the filter takes them, and starts them below
//!           ◀─ poll ─── completions ◀─ the filter adds them, when their batch has ended
//! ```
//!
//! Both ends are in the thread that owns the chain; the lock is never held across a call.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, IoError, OwnedOp, Request, Started,
    Token,
};
use parking_lot::{Mutex, MutexGuard};

struct Inner {
    geometry: DeviceGeometry,
    capabilities: Capabilities,
    requests: VecDeque<(Token, OwnedOp)>,
    completions: Vec<Completion>,
}

/// A disk whose requests wait in a queue for a filter that carries them out. Clones share the
/// queue.
#[derive(Clone)]
pub struct PendingQueue(Arc<Mutex<Inner>>);

impl Default for PendingQueue {
    /// A disk of unknown size: [`PendingQueue::describe`] sets it.
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Inner {
            geometry: DeviceGeometry {
                size_bytes: 0,
                block_bytes: 4096,
            },
            capabilities: Capabilities::ALL,
            requests: VecDeque::new(),
            completions: Vec::new(),
        })))
    }
}

impl PendingQueue {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }

    /// Sets the size and the capabilities that the backend sees.
    pub fn describe(&self, geometry: DeviceGeometry, capabilities: Capabilities) {
        let mut inner = self.lock();
        (inner.geometry, inner.capabilities) = (geometry, capabilities);
    }

    /// Moves the requests that were not taken yet to the end of `into`, in order.
    pub fn take_requests(&self, into: &mut VecDeque<(Token, OwnedOp)>) {
        into.append(&mut self.lock().requests);
    }

    /// Completes a request.
    pub fn complete(&self, token: Token, result: Result<base::Outcome, IoError>) {
        self.lock().completions.push(Completion { token, result });
    }
}

impl BlockDevice for PendingQueue {
    fn geometry(&self) -> DeviceGeometry {
        self.lock().geometry
    }

    fn capabilities(&self) -> Capabilities {
        self.lock().capabilities
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let op = request.op.to_owned();
        self.lock().requests.push_back((request.token, op));
        Started::Pending
    }

    fn end_batch(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.lock().completions);
    }

    fn next_timer(&self) -> Option<Duration> {
        (!self.lock().completions.is_empty()).then_some(Duration::ZERO)
    }
}
