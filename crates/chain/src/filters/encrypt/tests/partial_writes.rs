//! Writes of parts of sectors.

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, IoError, Op, Outcome,
    Request, Started, Token,
};
use chain_policy::EncryptConfig;
use testkit::memory_device::MemoryDevice;

use super::{Rig, formatted};

/// A write of a part of a sector carries the old content of the rest, so it could undo a write of
/// the whole sector that was started before it completed.
#[test]
fn a_write_that_overlaps_a_pending_write_of_a_part_of_a_sector_waits() {
    for is_read in [false, true] {
        let mut rig = Rig::new(formatted(512, 1), 1);
        rig.attach(&EncryptConfig::new("disk")).expect("attached");
        rig.write(0, &[1; 1024]);
        let misbehavior = &mut rig.chain.bottom().misbehavior;
        misbehavior.pending_one_in = 1;
        misbehavior.holds_completions = true;
        let part = rig
            .chain
            .start(Request::write(2, 10, &[2; 5], Durability::Volatile));
        assert_eq!(part, Started::Pending);
        if is_read {
            // Its sector was read, and the write of the sector is pending.
            rig.chain.bottom().misbehavior.holds_completions = false;
            assert_eq!(rig.poll(), []);
            rig.chain.bottom().misbehavior.holds_completions = true;
        }
        for data in [&[3; 512][..], &[3; 7]] {
            let meets = rig
                .chain
                .start(Request::write(3, 0, data, Durability::Volatile));
            assert_eq!(meets, Started::Busy);
        }
        let beside = rig
            .chain
            .start(Request::write(3, 512, &[3; 512], Durability::Volatile));
        assert_eq!(beside, Started::Pending);
        // And vice versa: a write of a part waits for one of the whole sector.
        let part = rig
            .chain
            .start(Request::write(4, 600, &[4; 5], Durability::Volatile));
        assert_eq!(part, Started::Busy);
        rig.chain.bottom().misbehavior.holds_completions = false;
        let mut answered = Vec::new();
        while answered.len() < 2 {
            answered.extend(rig.poll().iter().map(|one| one.token));
        }
        rig.chain.bottom().misbehavior.pending_one_in = 0;
        rig.write(0, &[3; 8]);
        let mut expected = [1; 1024];
        expected[10..15].fill(2);
        expected[..8].fill(3);
        expected[512..].fill(3);
        assert!(rig.read(0, 1024) == expected);
    }
}

/// Completes reads later and changes at once, the latter only after the end of their batch.
struct Batching {
    disk: MemoryDevice,
    /// The number of changes of the batch that were answered `Done` or `Pending`.
    batch: usize,
    /// Changes that complete with the batch.
    late: Vec<Token>,
    answers_late: bool,
    ended: Vec<Token>,
}

impl BlockDevice for Batching {
    fn geometry(&self) -> DeviceGeometry {
        self.disk.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.disk.capabilities()
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        match op {
            Op::Read { .. } => self.disk.start(Request { token, op }),
            Op::Write { .. } => {
                self.disk.misbehavior.pending_one_in = 0;
                let started = self.disk.start(Request { token, op });
                self.disk.misbehavior.pending_one_in = 1;
                assert_eq!(started, Started::Done);
                self.batch += 1;
                if self.answers_late {
                    self.late.push(token);
                    return Started::Pending;
                }
                Started::Done
            }
            Op::Flush => {
                self.batch = 0;
                Started::Done
            }
            Op::Prefetch { .. } => Started::Done,
            Op::Trim { .. } | Op::WriteZeroes { .. } | Op::Extents { .. } => {
                Started::Failed(IoError::NotSupported)
            }
        }
    }

    fn end_batch(&mut self) -> Result<(), IoError> {
        self.batch = 0;
        self.ended.append(&mut self.late);
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.disk.poll(completions);
        completions.extend(self.ended.drain(..).map(|token| Completion {
            token,
            result: Ok(Outcome::Done),
        }));
    }
}

/// The user of a chain ends a batch in the loop turns in which it starts a request. Here the write
/// began in a poll, and was acknowledged while a journal below had it in memory only; a durable one
/// waited for an end of its batch that never came.
#[test]
fn the_batch_of_a_partial_write_ends_before_the_write_is_acknowledged() {
    for answers_late in [false, true] {
        let device = Batching {
            disk: formatted(4096, 1),
            batch: 0,
            late: Vec::new(),
            answers_late: false,
            ended: Vec::new(),
        };
        let mut rig = Rig::new(device, 1);
        rig.attach(&EncryptConfig::new("disk")).expect("attached");
        rig.chain.bottom().disk.misbehavior.pending_one_in = 1;
        rig.chain.bottom().answers_late = answers_late;
        let written = rig
            .chain
            .start(Request::write(7, 512, &[5; 512], Durability::Durable));
        assert_eq!(written, Started::Pending);
        let mut completions = Vec::new();
        for _ in 0..10 {
            rig.chain.poll(&mut completions);
        }
        let done = Completion {
            token: 7,
            result: Ok(Outcome::Done),
        };
        assert_eq!(completions, [done]);
        assert_eq!(rig.chain.bottom().batch, 0);
    }
}
