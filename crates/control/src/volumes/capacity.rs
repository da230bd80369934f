//! The limit on the total size of all volumes. Volumes take space only as they are written, so
//! together they may be larger than the units.

use api::types::Message;
use api::words::MessageCode;
use std::fmt;

use base::size::about_bytes;

use catalog::Erasure;

use crate::database::VolumeRow;
use crate::error::ControlError;
use crate::volumes::Volumes;

/// The redundancy of a volume against the loss of units.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Redundancy {
    /// The number of copies of each segment; 1 with `erasure`.
    pub replicas: u8,
    /// Erasure coding in place of copies.
    pub erasure: Option<Erasure>,
}

impl Redundancy {
    /// The number of members of a copyset for it.
    pub fn members(self) -> u8 {
        self.erasure.map_or(self.replicas, Erasure::members)
    }

    /// The space that `bytes` take on units, in bytes.
    pub fn taken(self, bytes: u64) -> u64 {
        let (times, of) = match self.erasure {
            None => (self.replicas, 1),
            Some(erasure) => (erasure.members(), erasure.data()),
        };
        bytes
            .div_ceil(u64::from(of))
            .saturating_mul(u64::from(times))
    }
}

impl VolumeRow {
    /// The redundancy against the loss of units.
    pub(crate) fn redundancy(&self) -> Redundancy {
        Redundancy {
            replicas: self.replicas,
            erasure: self.erasure,
        }
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.erasure {
            Some(erasure) => write!(f, "erasure {erasure}"),
            None => write!(f, "{} copies", self.replicas),
        }
    }
}

impl Volumes<'_> {
    /// The notice if a volume could never be filled. Volumes take space only as they are written,
    /// so a large one is not an error.
    pub(super) async fn overcommitted(
        self,
        size_bytes: u64,
        redundancy: Redundancy,
    ) -> Result<Option<Message>, ControlError> {
        let needed = redundancy.taken(size_bytes);
        let free = self
            .request
            .unit_registry()
            .free_bytes()
            .await?
            .filter(|free| *free < needed);
        Ok(free.map(|free| {
            let text = format!(
                "when full, it takes {} ({redundancy}), but the units have {} free; an \
                 administrator should add units before that",
                about_bytes(needed),
                about_bytes(free)
            );
            Message::new(MessageCode::SpaceOvercommitted, text)
        }))
    }

    /// Refuses a volume with which the total size of all volumes would exceed the free space by
    /// more than the allowed factor.
    pub(super) async fn refuse_beyond_capacity(
        self,
        size_bytes: u64,
        redundancy: Redundancy,
    ) -> Result<(), ControlError> {
        let Some(free) = self.request.unit_registry().free_bytes().await? else {
            return Ok(());
        };
        let promised = self
            .request
            .inner
            .database
            .volumes()
            .promised_bytes()
            .await?;
        let needed = promised.saturating_add(redundancy.taken(size_bytes));
        let overcommit = u64::from(self.request.inner.overcommit);
        if needed <= free.saturating_mul(overcommit) {
            return Ok(());
        }
        Err(ControlError::NoCapacity {
            reason: format!(
                "when full, it takes {}; together with all other volumes, that is more than \
                 {overcommit} times the free space; the operator can add units, or raise \
                 `--overcommit`",
                about_bytes(redundancy.taken(size_bytes)),
            ),
        })
    }
}
