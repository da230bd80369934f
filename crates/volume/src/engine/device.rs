//! The volume as a [`BlockDevice`].

use std::time::Duration;

use base::{
    BlockDevice, ByteRange, Capabilities, Completion, DeviceGeometry, IoError, Op, Request,
    Started, Token,
};

use super::volume::Volume;
use crate::lease_term::LeaseStatus;

impl BlockDevice for Volume {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: self.reader.size_bytes,
            block_bytes: self.env.slot_bytes(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        if let Err(error) = self.check_range(op.range()) {
            return Started::Failed(error);
        }
        match op {
            Op::Read { offset, mut out } => out.fill_as_single(
                |out| {
                    let journal = Some(&self.journal);
                    self.reader.start_read(journal, token, offset, out)
                },
                |started| *started == Started::Done,
            ),
            Op::Write { .. } | Op::WriteZeroes { .. } => self.start_change(token, &op),
            Op::Flush => self.start_flush(token),
            Op::Trim {
                offset,
                length,
                durability,
            } => {
                let ByteRange { offset, length } = self.whole_blocks(offset, length);
                let op = Op::Trim {
                    offset,
                    length,
                    durability,
                };
                self.start_change(token, &op)
            }
            Op::Extents {
                offset,
                length,
                runs,
            } => self.reader.start_extents(token, offset, length, runs),
            Op::Prefetch { offset, length } => self.reader.start_prefetch(token, offset, length),
        }
    }

    fn end_batch(&mut self) -> Result<(), IoError> {
        self.end_batch_or_stop();
        self.lease.end_batch();
        match &self.stopped {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.reader.refresh();
        while let Ok(event) = self.inbox.try_recv() {
            self.handle(event);
        }
        self.apply_lease_status();
        self.admit_held();
        self.reader.hedge_slow_reads();
        self.reader.retry_unavailable();
        self.end_batch_or_stop();
        self.acknowledge_written();
        self.lease.end_batch();
        completions.append(&mut self.reader.ready);
    }

    fn next_timer(&self) -> Option<Duration> {
        if self.stopped.is_some() {
            return None;
        }
        let reader = self.reader.timer();
        let own = self.own_timer();
        reader.into_iter().chain(own).min()
    }

    fn stop_waiting(&mut self) {
        self.reader.fail_waiting();
    }
}

impl Volume {
    fn start_flush(&mut self, token: Token) -> Started {
        if self.journal.head() <= self.flush.synced && !self.is_held() {
            return Started::Done;
        }
        self.wait_for_sync(token);
        Started::Pending
    }

    /// The blocks that a range covers as a whole: those that it covers in part keep their
    /// content when it is trimmed.
    fn whole_blocks(&self, offset: u64, length: u64) -> ByteRange {
        let block_bytes = self.env.block_size.bytes() as u64;
        let start = offset.next_multiple_of(block_bytes);
        let end = match offset + length {
            end if end == self.reader.size_bytes => end,
            end => end - end % block_bytes,
        };
        ByteRange::new(start.min(end), end.saturating_sub(start))
    }

    /// When it must be called although nothing happened, the reader's times aside.
    fn own_timer(&self) -> Option<Duration> {
        if !self.reader.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        if self.lease.stalled {
            // The renewal wakes; this is for one that came before this call.
            return (self.lease_status() != LeaseStatus::Expired).then_some(Duration::ZERO);
        }
        if self.has_acknowledgments() {
            return Some(Duration::ZERO);
        }
        self.destage_timer()
    }
}
