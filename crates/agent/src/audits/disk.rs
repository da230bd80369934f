//! [`Disk`]: a version as a source for readers of file systems.

use std::cell::RefCell;

use base::{BlockDevice as _, Completion, IoError, Outcome, Request, Started};
use extfs::Source;
use volume::ReadOnlyVolume;

use crate::background::{TICK, rest};

/// A version that one thread reads, blocking. Unwritten blocks are zeroes.
pub(super) struct Disk<W> {
    volume: RefCell<ReadOnlyVolume>,
    is_desired: W,
}

impl<W: Fn() -> bool> Disk<W> {
    /// Reads `volume` while `is_desired` holds. The volume wakes the calling thread.
    pub fn new(volume: ReadOnlyVolume, is_desired: W) -> Self {
        Self {
            volume: RefCell::new(volume),
            is_desired,
        }
    }
}

impl<W: Fn() -> bool> Source for Disk<W> {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
        let volume = &mut *self.volume.borrow_mut();
        let mut completions = Vec::new();
        loop {
            match volume.start(Request::read(0, offset, out)) {
                Started::Done => return Ok(()),
                Started::Failed(error) => return Err(error),
                Started::Pending => break,
                Started::Busy => {
                    rest(volume, TICK);
                    volume.poll(&mut completions);
                }
            }
        }
        loop {
            volume.poll(&mut completions);
            if let Some(Completion { result, .. }) = completions.pop() {
                if let Outcome::Data(read) = result? {
                    out.copy_from_slice(&read);
                }
                return Ok(());
            }
            if !(self.is_desired)() {
                return Err(IoError::Unavailable("the audit was canceled".to_owned()));
            }
            rest(volume, TICK);
        }
    }
}
