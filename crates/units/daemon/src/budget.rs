//! The budget of a daemon: how many bytes of requests and answers it holds, over all connections.
//!
//! ```text
//!   head of a frame ──► grow: is there room? ──► receive its body ──► job ──► answer
//!                         │ no                                                  │
//!                         └──► wait for the waker ◄──────── dropped ◄────────────┘
//! ```
//!
//! Invariants:
//!
//! * `held <= max + one frame and its answer`: a connection that finds room gets all that
//!   its frame needs.
//! * A frame's body is received only once there is room for all of it. So a request that holds
//!   a share can be completed without another one, and there is no deadlock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use world::Wake;

/// Default budget of all connections together, in bytes. One frame may exceed it.
pub const BUDGET_BYTES: usize = 256 << 20;

/// A limit on bytes that are held. Shared by all connections.
#[derive(Debug)]
pub struct Budget {
    max: usize,
    held: AtomicUsize,
    /// Connections that found no room, by number.
    waiting: Mutex<BTreeMap<u64, Wake>>,
    joined: AtomicU64,
}

/// One connection's membership in a budget.
#[derive(Debug)]
pub(crate) struct Member {
    budget: Arc<Budget>,
    number: u64,
    wake: Wake,
}

/// A part of a budget, returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    /// A budget of `max` bytes.
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            held: AtomicUsize::new(0),
            waiting: Mutex::default(),
            joined: AtomicU64::new(0),
        })
    }

    /// Number of bytes that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    /// Adds a connection, which is woken by `wake`.
    pub(crate) fn join(self: &Arc<Self>, wake: Wake) -> Member {
        Member {
            budget: Arc::clone(self),
            number: self.joined.fetch_add(1, Ordering::Relaxed),
            wake,
        }
    }

    fn add(&self, bytes: usize) -> bool {
        let more = |held| (held < self.max).then_some(held + bytes);
        let order = Ordering::SeqCst;
        self.held.fetch_update(order, order, more).is_ok()
    }

    fn release(&self, bytes: usize) {
        let before = self.held.fetch_sub(bytes, Ordering::SeqCst);
        if before - bytes >= self.max {
            return;
        }
        // Wake all: each knows how much it needs.
        let waiting = std::mem::take(&mut *self.lock());
        for wake in waiting.into_values() {
            wake.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Wake>> {
        self.waiting.lock()
    }
}

impl Member {
    /// An empty share, which can grow.
    pub fn empty_share(&self) -> Share {
        Share {
            budget: Arc::clone(&self.budget),
            bytes: 0,
        }
    }

    /// Grows `share` by `bytes` if the budget is not exhausted. Otherwise returns `false`, and
    /// the connection is woken when there may be room.
    pub fn grow(&self, share: &mut Share, bytes: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        let is_taken = self.budget.add(bytes) || {
            self.budget.lock().insert(self.number, self.wake.clone());
            // A share may have been returned before this connection was waiting.
            self.budget.add(bytes)
        };
        if is_taken {
            share.bytes += bytes;
        }
        is_taken
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.budget.lock().remove(&self.number);
    }
}

impl Share {
    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets the size in bytes even beyond the budget, for memory that is in use already.
    pub fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            let more = bytes - self.bytes;
            self.budget.held.fetch_add(more, Ordering::SeqCst);
        } else if bytes < self.bytes {
            self.budget.release(self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.release(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter() -> (Arc<AtomicUsize>, Wake) {
        let woken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&woken);
        let wake = Wake::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        (woken, wake)
    }

    #[test]
    fn a_connection_without_room_is_woken_when_there_is_some() {
        let budget = Budget::new(100);
        let (woken, wake) = counter();
        let woken = || woken.load(Ordering::SeqCst);
        let member = budget.join(wake);
        let take = |bytes| {
            let mut share = member.empty_share();
            member.grow(&mut share, bytes).then_some(share)
        };
        let one = take(60).expect("room");
        let two = take(60).expect("the one that goes beyond");
        assert!(take(1).is_none() && take(1).is_none());
        assert_eq!((budget.held(), woken()), (120, 0));
        drop(one);
        assert_eq!((budget.held(), woken()), (60, 1));
        let mut three = take(30).expect("room");
        three.set(200);
        drop(two);
        assert!(take(1).is_none(), "still too much");
        three.set(0);
        assert_eq!((three.bytes(), budget.held(), woken()), (0, 0, 2));
    }

    #[test]
    fn shares_of_many_threads_are_bounded_and_returned() {
        let budget = Budget::new(1000);
        std::thread::scope(|scope| {
            for thread in 1..9 {
                let budget = &budget;
                scope.spawn(move || {
                    let member = budget.join(Wake::noop());
                    for _ in 0..1000 {
                        let mut share = member.empty_share();
                        member.grow(&mut share, 100 + thread);
                        assert!(budget.held() < 1000 + 109);
                    }
                });
            }
        });
        assert_eq!(budget.held(), 0);
    }
}
