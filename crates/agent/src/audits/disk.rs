//! [`Disk`]: a version as whoever reads file systems asks for it, one reading at a time.

use std::cell::RefCell;

use base::{BlockDevice as _, Completion, IoError, Outcome, Started};
use extfs::Source;
use volume::ReadOnlyVolume;

use crate::jobs::{TICK, rest};

/// Where nothing was written lie zeroes. It is read by one thread, which waits.
pub struct Disk<W> {
    volume: RefCell<ReadOnlyVolume>,
    is_wanted: W,
}

impl<W: Fn() -> bool> Disk<W> {
    /// A version that is read as long as it is wanted. The volume wakes this thread.
    pub fn new(volume: ReadOnlyVolume, is_wanted: W) -> Self {
        Self {
            volume: RefCell::new(volume),
            is_wanted,
        }
    }
}

impl<W: Fn() -> bool> Source for Disk<W> {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
        let volume = &mut *self.volume.borrow_mut();
        let mut completions = Vec::new();
        loop {
            match volume.read(0, offset, out) {
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
            if !(self.is_wanted)() {
                return Err(IoError::Unavailable("it is not wanted any more".to_owned()));
            }
            rest(volume, TICK);
        }
    }
}
