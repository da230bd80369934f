//! [`Filter`]: what stands between a disk and whoever uses it.

use std::time::Duration;

use base::{BlockDevice, Capabilities, Completion, DeviceGeometry, IoError, Request, Started};

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

    /// Starts a request, as [`BlockDevice::start`] does. A filter matches on the operations that
    /// it takes in hand, and forwards the rest as they are.
    fn start(&mut self, below: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        below.start(request)
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
