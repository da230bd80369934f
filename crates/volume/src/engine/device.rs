//! The volume as a [`BlockDevice`].

use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, Extent, IoError, Started,
    Token, ZeroMode,
};

use super::volume::Volume;
use super::write::Incoming;
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

    fn read(&mut self, token: Token, offset: u64, out: &mut [u8]) -> Started {
        if let Err(error) = self.check_range(offset, out.len() as u64) {
            return Started::Failed(error);
        }
        self.reader
            .start_read(Some(&self.journal), token, offset, out)
    }

    fn write(&mut self, token: Token, offset: u64, data: &[u8], durability: Durability) -> Started {
        self.start_change(token, offset, Incoming::Data(data), durability)
    }

    fn flush(&mut self, token: Token) -> Started {
        if let Some(error) = &self.stopped {
            return Started::Failed(error.clone());
        }
        if self.journal.head() <= self.flush.synced && !self.is_held() {
            return Started::Done;
        }
        self.wait_for_sync(token);
        Started::Pending
    }

    fn trim(&mut self, token: Token, offset: u64, length: u64, durability: Durability) -> Started {
        if let Err(error) = self.check_range(offset, length) {
            return Started::Failed(error);
        }
        // Blocks that the range covers in part keep their content.
        let block_bytes = self.env.block_size.bytes() as u64;
        let start = offset.next_multiple_of(block_bytes);
        let end = match offset + length {
            end if end == self.reader.size_bytes => end,
            end => end - end % block_bytes,
        };
        self.start_change(
            token,
            start.min(end),
            Incoming::Zeroes(end.saturating_sub(start)),
            durability,
        )
    }

    fn write_zeroes(&mut self, token: Token, offset: u64, length: u64, mode: ZeroMode) -> Started {
        self.start_change(token, offset, Incoming::Zeroes(length), mode.durability)
    }

    fn extents(
        &mut self,
        token: Token,
        offset: u64,
        length: u64,
        runs: &mut Vec<Extent>,
    ) -> Started {
        if let Err(error) = self.check_range(offset, length) {
            return Started::Failed(error);
        }
        self.reader.start_extents(token, offset, length, runs)
    }

    fn prefetch(&mut self, token: Token, offset: u64, length: u64) -> Started {
        if let Err(error) = self.check_range(offset, length) {
            return Started::Failed(error);
        }
        self.reader.start_prefetch(token, offset, length)
    }

    fn commit(&mut self) -> Result<(), IoError> {
        self.commit_or_stop();
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
        self.look_at_lease();
        self.admit_held();
        self.reader.hedge_slow_reads();
        self.reader.retry_unavailable();
        self.commit_or_stop();
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
    /// When it must be called although nothing happened, the reader's times aside.
    fn own_timer(&self) -> Option<Duration> {
        if !self.reader.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        if self.lease.stalled {
            // The renewal wakes; this is for one that came before this call.
            return (self.lease_status() != LeaseStatus::Expired).then_some(Duration::ZERO);
        }
        if self.has_acknowledgements() {
            return Some(Duration::ZERO);
        }
        self.destage_timer()
    }
}
