//! [`SequenceSource`]: the write counter of a lease.

use std::sync::atomic::{AtomicU64, Ordering};

use base::Sequence;

/// The lease has used all 2^40 sequences; the volume must be attached again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this lease has used up its write counter; detach the volume and attach it again")]
pub struct SequenceExhausted;

/// The source of a lease's sequences, each of which it returns once, to the owner's
/// thread or to a job.
#[derive(Debug)]
pub struct SequenceSource {
    epoch: u32,
    next: AtomicU64,
}

impl SequenceSource {
    /// The sequences of lease `epoch`, which must be below
    /// [`Sequence::EPOCH_END`].
    #[must_use]
    pub fn new(epoch: u32) -> Self {
        assert!(
            epoch < Sequence::EPOCH_END,
            "the catalog keeps epochs below 2^24"
        );
        Self {
            epoch,
            next: AtomicU64::new(1),
        }
    }

    /// The next sequence.
    ///
    /// # Errors
    /// [`SequenceExhausted`] after 2^40 of them.
    pub fn take(&self) -> Result<Sequence, SequenceExhausted> {
        let counter = self.next.fetch_add(1, Ordering::Relaxed);
        Sequence::new(self.epoch, counter).ok_or(SequenceExhausted)
    }

    /// The next `count` sequences, without a gap.
    ///
    /// # Errors
    /// As [`SequenceSource::take`]. Nothing may then be sealed under any.
    pub fn take_run(
        &self,
        count: u64,
    ) -> Result<impl Iterator<Item = Sequence> + use<>, SequenceExhausted> {
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        let end = first.checked_add(count).ok_or(SequenceExhausted)?;
        if end > Sequence::COUNTER_END {
            return Err(SequenceExhausted);
        }
        let epoch = self.epoch;
        Ok((first..end).filter_map(move |counter| Sequence::new(epoch, counter)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_grow_and_end() {
        let source = SequenceSource::new(3);
        let first = source.take().expect("many left");
        let second = source.take().expect("many left");
        assert!(first < second);
        let run: Vec<Sequence> = source.take_run(3).expect("many left").collect();
        assert_eq!(run.len(), 3);
        let last = source.take().expect("many left");
        assert!(run.iter().all(|taken| second < *taken && *taken < last));
        source.next.store(Sequence::COUNTER_END, Ordering::Relaxed);
        assert_eq!(source.take(), Err(SequenceExhausted));
        source
            .next
            .store(Sequence::COUNTER_END - 2, Ordering::Relaxed);
        assert!(source.take_run(3).is_err());
    }
}
