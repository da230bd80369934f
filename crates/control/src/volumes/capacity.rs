//! How much may be promised: volumes take room only as they are written, so
//! together they may be larger than the units.

use api::size::about_bytes;

use crate::acting::Acting;
use crate::error::ControlError;

impl Acting {
    /// Volumes take room only as they are written, so a large one is no
    /// mistake; but one that can never be filled is worth a word.
    pub(super) async fn overcommitted(
        &self,
        size_bytes: u64,
        replicas: u8,
    ) -> Result<Option<String>, ControlError> {
        let needed = size_bytes.saturating_mul(u64::from(replicas));
        let free = self.free_bytes().await?.filter(|free| *free < needed);
        Ok(free.map(|free| {
            format!(
                "full, it would take {} ({replicas} copies), and the units have {} free; an \
                 administrator should add units before that",
                about_bytes(needed),
                about_bytes(free)
            )
        }))
    }

    /// Refuses what, with all that was promised before, could be filled only
    /// with many times the room that there is.
    pub(super) async fn refuse_beyond_capacity(
        &self,
        size_bytes: u64,
        replicas: u8,
    ) -> Result<(), ControlError> {
        let Some(free) = self.free_bytes().await? else {
            return Ok(());
        };
        let promised = self.inner.database.promised_bytes().await?;
        let needed = promised.saturating_add(size_bytes.saturating_mul(u64::from(replicas)));
        let overcommit = u64::from(self.inner.overcommit);
        if needed <= free.saturating_mul(overcommit) {
            return Ok(());
        }
        Err(ControlError::NoCapacity {
            reason: format!(
                "full, it would take {}; with what all other volumes would take, that is more \
                 than {overcommit} times the free room; the operator can add units, or raise \
                 `--overcommit`",
                about_bytes(size_bytes.saturating_mul(u64::from(replicas))),
            ),
        })
    }
}
