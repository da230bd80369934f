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
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, Extent, IoError, Started,
    Token, ZeroMode,
};

/// A verb with what it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// So many bytes from an offset on.
    Read(u64, usize),
    /// These bytes at an offset.
    Write(u64, Vec<u8>, Durability),
    /// All that was acknowledged.
    Flush,
    /// An offset and a length.
    Trim(u64, u64, Durability),
    /// An offset and a length.
    WriteZeroes(u64, u64, ZeroMode),
    /// An offset and a length.
    Extents(u64, u64),
    /// An offset and a length.
    Prefetch(u64, u64),
}

impl Asked {
    /// Whether the disk may be another one afterwards.
    #[must_use]
    pub const fn is_change(&self) -> bool {
        matches!(
            self,
            Self::Write(..) | Self::Trim(..) | Self::WriteZeroes(..)
        )
    }
}

struct Inner {
    geometry: DeviceGeometry,
    capabilities: Capabilities,
    asked: VecDeque<(Token, Asked)>,
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

    fn ask(&self, token: Token, asked: Asked) -> Started {
        self.inner().asked.push_back((token, asked));
        Started::Pending
    }

    /// What the disk is like.
    pub fn describe(&self, geometry: DeviceGeometry, capabilities: Capabilities) {
        let mut inner = self.inner();
        (inner.geometry, inner.capabilities) = (geometry, capabilities);
    }

    /// What was asked, in its order, and not taken yet.
    pub fn take_asked(&self, into: &mut VecDeque<(Token, Asked)>) {
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

    fn read(&mut self, token: Token, offset: u64, out: &mut [u8]) -> Started {
        self.ask(token, Asked::Read(offset, out.len()))
    }

    fn write(&mut self, token: Token, offset: u64, data: &[u8], durability: Durability) -> Started {
        self.ask(token, Asked::Write(offset, data.to_vec(), durability))
    }

    fn flush(&mut self, token: Token) -> Started {
        self.ask(token, Asked::Flush)
    }

    fn trim(&mut self, token: Token, offset: u64, length: u64, durability: Durability) -> Started {
        self.ask(token, Asked::Trim(offset, length, durability))
    }

    fn write_zeroes(&mut self, token: Token, offset: u64, length: u64, mode: ZeroMode) -> Started {
        self.ask(token, Asked::WriteZeroes(offset, length, mode))
    }

    fn extents(&mut self, token: Token, offset: u64, length: u64, _: &mut Vec<Extent>) -> Started {
        self.ask(token, Asked::Extents(offset, length))
    }

    fn prefetch(&mut self, token: Token, offset: u64, length: u64) -> Started {
        self.ask(token, Asked::Prefetch(offset, length))
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
