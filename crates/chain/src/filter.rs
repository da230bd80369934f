//! [`Filter`]: what stands between a disk and whoever uses it.

use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, Extent, IoError, Started,
    Token, ZeroMode,
};

/// How far a filter has come with beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opening {
    /// It may be used.
    Ready,
    /// It waits for something: it is to be asked again after the next poll.
    UnderWay,
    /// It cannot be used here, and why, for its owner to read.
    Failed(String),
}

/// A service in a chain. Each verb is that of [`BlockDevice`] with the device *below*, and
/// passes through unless a filter says otherwise; so a filter that forwards costs a call.
///
/// Invariants, beside those of [`BlockDevice`]:
///
/// * If it passes on any token that it is asked with, it chooses none itself; if it chooses
///   any, it chooses all that it asks below with.
/// * What it answers [`Started::Done`] without having asked below it makes good in its own
///   `commit`, before it passes that on.
/// * A flush is passed on when all that was acknowledged before it was carried out below,
///   unless the filter's own storage keeps it.
/// * Until it is told to [`Filter::resume`], when it has come into use, it only reads.
pub trait Filter {
    /// What it makes of the size and the blocks below. Pure; the size may grow as that of
    /// any device.
    fn geometry(&self, below: DeviceGeometry) -> DeviceGeometry {
        below
    }

    /// Which verbs work, if these do below. Pure, and always the same.
    fn capabilities(&self, below: Capabilities) -> Capabilities {
        below
    }

    /// Begins, before anything else is asked. Between two calls that say
    /// [`Opening::UnderWay`] it is polled.
    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        let _ = below;
        Opening::Ready
    }

    /// As [`BlockDevice::read`].
    fn read(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        out: &mut [u8],
    ) -> Started {
        below.read(token, offset, out)
    }

    /// As [`BlockDevice::write`].
    fn write(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        data: &[u8],
        durability: Durability,
    ) -> Started {
        below.write(token, offset, data, durability)
    }

    /// As [`BlockDevice::flush`].
    fn flush(&mut self, below: &mut dyn BlockDevice, token: Token) -> Started {
        below.flush(token)
    }

    /// As [`BlockDevice::trim`].
    fn trim(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        length: u64,
        durability: Durability,
    ) -> Started {
        below.trim(token, offset, length, durability)
    }

    /// As [`BlockDevice::write_zeroes`].
    fn write_zeroes(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        length: u64,
        mode: ZeroMode,
    ) -> Started {
        below.write_zeroes(token, offset, length, mode)
    }

    /// As [`BlockDevice::extents`].
    fn extents(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        length: u64,
        runs: &mut Vec<Extent>,
    ) -> Started {
        below.extents(token, offset, length, runs)
    }

    /// As [`BlockDevice::prefetch`].
    fn prefetch(
        &mut self,
        below: &mut dyn BlockDevice,
        token: Token,
        offset: u64,
        length: u64,
    ) -> Started {
        below.prefetch(token, offset, length)
    }

    /// As [`BlockDevice::commit`].
    ///
    /// # Errors
    /// As there.
    fn commit(&mut self, below: &mut dyn BlockDevice) -> Result<(), IoError> {
        below.commit()
    }

    /// As [`BlockDevice::poll`].
    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        below.poll(completions);
    }

    /// As [`BlockDevice::stop_waiting`].
    fn stop_waiting(&mut self, below: &mut dyn BlockDevice) {
        below.stop_waiting();
    }

    /// How long it may be left without a poll, as far as it is concerned itself.
    fn next_timer(&self) -> Option<Duration> {
        None
    }

    /// Whether others may take its place now; if not, why, for people.
    ///
    /// # Errors
    /// What keeps it.
    fn may_leave(&self) -> Result<(), String> {
        Ok(())
    }

    /// It is to begin nothing of its own below, until it is told to [`Filter::resume`].
    /// Whether nothing of its own is under way there: it is asked again after each poll.
    fn rest(&mut self) -> bool {
        true
    }

    /// It may begin something of its own below: it is used from now on, or again.
    fn resume(&mut self) {}

    /// Whether what it had acknowledged in an earlier life is below, since it was told to
    /// [`Filter::resume`]: it is asked again after each poll.
    fn has_carried_out(&self) -> bool {
        true
    }
}
