//! [`Filter`]: a service between a disk and its user.

use std::time::Duration;

use base::{BlockDevice, Capabilities, Completion, DeviceGeometry, IoError, Request, Started};

/// The result of one attempt to open a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opening {
    /// The filter can be used.
    Ready,
    /// The filter waits for something: open it again after the next poll.
    Pending,
    /// The filter cannot be used here.
    Failed(FilterError),
}

/// Why a filter cannot be used. Its owner reads the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The disk has too little free space for the file of the filter, or holds no file of that
    /// size.
    #[error("{0}")]
    StorageFull(String),
    /// Any other reason.
    #[error("{0}")]
    Other(String),
}

impl FilterError {
    /// The reason, for people.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::StorageFull(reason) | Self::Other(reason) => reason,
        }
    }
}

impl From<String> for FilterError {
    fn from(reason: String) -> Self {
        Self::Other(reason)
    }
}

/// A service in a chain. Its methods are those of [`BlockDevice`] with the device *below* it. By
/// default each forwards to that device, which costs one call.
///
/// Invariants, beside those of [`BlockDevice`]:
///
/// * A filter either forwards all tokens as they are, or chooses all tokens below itself.
/// * If it answers [`Started::Done`] without a request below, it makes that good in its own
///   `end_batch`, before it ends the batch below.
/// * It forwards a flush only when everything acknowledged before has been carried out below,
///   unless the filter's own storage keeps it.
/// * Until [`Filter::resume`] is called, when it comes into use, it only reads.
pub trait Filter {
    /// The size and block size above the filter, given those below. Pure. The size may grow, as
    /// that of any device may.
    fn geometry(&self, below: DeviceGeometry) -> DeviceGeometry {
        below
    }

    /// The operations that work above the filter, given those that work below. Pure, and constant
    /// once the filter is open.
    fn capabilities(&self, below: Capabilities) -> Capabilities {
        below
    }

    /// Opens the filter, before any request. It is polled between two calls that return
    /// [`Opening::Pending`].
    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        let _ = below;
        Opening::Ready
    }

    /// Starts a request, as [`BlockDevice::start`] does. A filter matches on the operations that
    /// it handles and forwards the others unchanged.
    fn start(&mut self, below: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        below.start(request)
    }

    /// As [`BlockDevice::end_batch`].
    ///
    /// # Errors
    /// Those of [`BlockDevice::end_batch`].
    fn end_batch(&mut self, below: &mut dyn BlockDevice) -> Result<(), IoError> {
        below.end_batch()
    }

    /// As [`BlockDevice::poll`].
    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        below.poll(completions);
    }

    /// As [`BlockDevice::stop_waiting`].
    fn stop_waiting(&mut self, below: &mut dyn BlockDevice) {
        below.stop_waiting();
    }

    /// The time until the filter itself needs a poll; `None` if it needs none.
    fn next_timer(&self) -> Option<Duration> {
        None
    }

    /// Checks that the filter may be removed from the chain now.
    ///
    /// # Errors
    /// The reason why it may not, for people.
    fn check_removable(&self) -> Result<(), String> {
        Ok(())
    }

    /// Stops the filter from starting requests of its own below until [`Filter::resume`]. Returns
    /// whether none of them is pending; called again after each poll until then.
    fn quiesce(&mut self) -> bool {
        true
    }

    /// Lets the filter start requests of its own below: it is in use from now on.
    fn resume(&mut self) {}

    /// Whether everything that the filter had acknowledged before it was opened has been replayed
    /// to the device below. Called after each poll from [`Filter::resume`] on, until it has.
    fn has_replayed(&self) -> bool {
        true
    }
}
