//! Encrypted disks over a device in memory that is slow and busy at times.

use base::{Durability, Extent, ExtentKind, Op, Request, ZeroMode};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use testkit::memory_device::{MemoryDevice, Misbehavior};
use world::simulated::{SimulatedClock, SimulatedPool, SimulatedRandom};
use world::{Millis, Wake};
use zeroize::Zeroizing;

use chain_policy::{EncryptConfig, Format};

use super::*;
use crate::{
    AttachmentContext, Chain, HostContext, HotSwap, HotSwapError, KeyDerivations, KeyError,
    KeySource, SizeRule,
};
use luks::{Header, Step, Xts};

/// The lowest cost that Argon2 allows.
pub(super) const CHEAP: Argon2Cost = Argon2Cost {
    memory_kib: 32,
    passes: 4,
    lanes: 1,
};

pub(super) const HEADER: usize = DATA_OFFSET as usize;

/// The size of the data, in bytes.
const SIZE: usize = 64 << 10;

/// A source whose only key is `disk`.
struct OneKey(&'static [u8]);

impl KeySource for OneKey {
    fn passphrase(&self, name: &str) -> Result<Zeroizing<Vec<u8>>, KeyError> {
        match name {
            "disk" => Ok(Zeroizing::new(self.0.to_vec())),
            other => Err(KeyError::NotFound(other.to_owned())),
        }
    }
}

type Ended = Rc<RefCell<Vec<Result<(), HotSwapError>>>>;

/// A chain in a simulated world.
pub(super) struct Rig<D> {
    pub chain: Chain<D>,
    clock: Arc<SimulatedClock>,
    pool: Arc<SimulatedPool>,
    pub context: FilterContext,
    random: SimulatedRandom,
    ended: Ended,
}

impl<D: BlockDevice> Rig<D> {
    pub fn new(device: D, seed: u64) -> Self {
        let clock = Arc::new(SimulatedClock::new(Millis(0)));
        let pool = Arc::new(SimulatedPool::new());
        pool.set_immediate(2 * (seed % 2), SimulatedRandom::new(seed));
        let simulated = FilterContext::simulated(world::simulated::Simulation::new(seed).world());
        Self {
            chain: Chain::new(
                device,
                Arc::clone(&clock) as Arc<dyn world::Clock>,
                Wake::noop(),
            ),
            context: FilterContext {
                host: HostContext {
                    clock: Arc::clone(&clock) as _,
                    key_derivations: Arc::new(KeyDerivations::new(Arc::clone(&pool) as _)),
                    pool: Arc::clone(&pool) as _,
                    random: Arc::new(SimulatedRandom::new(seed)),
                    ..simulated.host
                },
                attachment: AttachmentContext {
                    keys: Arc::new(OneKey(b"secret")),
                    ..simulated.attachment
                },
            },
            clock,
            pool,
            random: SimulatedRandom::new(seed),
            ended: Ended::default(),
        }
    }

    pub fn poll(&mut self) -> Vec<Completion> {
        self.pool.run_all(&self.random);
        // Completions arrive before a deadline passes.
        let timer = self.chain.next_timer().unwrap_or_default();
        self.clock.advance(timer.min(RETRY_EVERY));
        let mut completions = Vec::new();
        self.chain.poll(&mut completions);
        // The commit fails on a device that has crashed.
        let _ = self.chain.commit();
        completions
    }

    pub fn begin(&mut self, config: &EncryptConfig) {
        let one = Encrypt::new(config.clone(), self.context.clone()).with_cost(CHEAP);
        let ended = Rc::clone(&self.ended);
        self.chain.hot_swap(HotSwap {
            filters: vec![Box::new(one)],
            rule: SizeRule::MayChange,
            on_swapped: Box::new(move |result| ended.borrow_mut().push(result)),
        });
    }

    pub fn ended(&self) -> Option<Result<(), HotSwapError>> {
        self.ended.borrow_mut().pop()
    }

    /// Puts the filter into the chain.
    pub fn attach(&mut self, config: &EncryptConfig) -> Result<(), String> {
        self.begin(config);
        for _ in 0..1000 {
            assert_eq!(self.poll(), []);
            if let Some(ended) = self.ended() {
                return ended.map_err(|error| error.to_string());
            }
        }
        panic!("the hot swap does not end");
    }

    /// Starts a request, again while the disk is busy, and waits for its completion.
    pub fn wait(
        &mut self,
        token: Token,
        mut start: impl FnMut(&mut Chain<D>) -> Started,
    ) -> Outcome {
        let mut started = start(&mut self.chain);
        for _ in 0..10_000 {
            match &started {
                Started::Done => return Outcome::Done,
                Started::Failed(error) => panic!("{error}"),
                Started::Busy => {
                    assert_eq!(self.poll(), []);
                    started = start(&mut self.chain);
                }
                Started::Pending => {
                    if let Some(completion) = self.poll().pop() {
                        assert_eq!(completion.token, token);
                        return completion.result.expect("done");
                    }
                }
            }
        }
        panic!("it never completes");
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.wait(1, |chain| {
            chain.start(Request::write(1, offset, data, Durability::Volatile))
        });
    }

    pub fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
        let mut out = vec![0; length];
        match self.wait(1, |chain| chain.start(Request::read(1, offset, &mut out))) {
            Outcome::Data(data) => data,
            _ => out,
        }
    }
}

pub(super) fn fresh() -> EncryptConfig {
    EncryptConfig {
        format: Format::IfEmpty,
        ..EncryptConfig::new("disk")
    }
}

fn rig(misbehavior: Misbehavior) -> Rig<MemoryDevice> {
    let seed = misbehavior.seed;
    let device = MemoryDevice::new(HEADER + SIZE).with(misbehavior, Wake::noop());
    Rig::new(device, seed)
}

/// Decrypts the data of a disk without the filter.
pub(super) fn decrypted(disk: &[u8]) -> Vec<u8> {
    let (header, repair) = Header::read(disk).expect("a header");
    assert_eq!(repair, None, "both copies are valid");
    assert_eq!(header.layout().run, None);
    let key = header.unlock(disk, b"secret").expect("it opens");
    let mut data = disk[HEADER..].to_vec();
    let sector_bytes = header.layout().sector_bytes as usize;
    Xts::new(&key).decrypt(0, sector_bytes, &mut data);
    data
}

/// A formatted device with this sector size.
fn formatted(sector_bytes: u32, seed: u64) -> MemoryDevice {
    let mut device = MemoryDevice::new(HEADER + SIZE);
    let random = SimulatedRandom::new(seed);
    let made = Header::format(sector_bytes, 0, CHEAP, b"secret", &random);
    for step in made.expect("made").2 {
        if let Step::Write { offset, bytes } = step {
            device.start(Request::write(0, offset, &bytes, Durability::Volatile));
        }
    }
    device
}

#[test]
fn an_encrypted_disk_is_a_disk() {
    for seed in 0..60 {
        let random = SimulatedRandom::new(seed);
        let sector_bytes = if seed % 3 == 0 { 4096 } else { 512 };
        let misbehavior = Misbehavior {
            pending_one_in: seed % 4,
            busy_one_in: 5,
            seed,
            ..Misbehavior::default()
        };
        let device = formatted(sector_bytes, seed).with(misbehavior, Wake::noop());
        let mut rig = Rig::new(device, seed);
        rig.attach(&EncryptConfig::new("disk")).expect("attached");
        assert_eq!(rig.chain.geometry().size_bytes, SIZE as u64);
        let mut model: Vec<u8> = (0..SIZE).map(|_| random.below(256) as u8).collect();
        rig.write(0, &model);
        // Pending requests, with the expected content of reads.
        let mut waiting: HashMap<Token, (Range<u64>, Option<Vec<u8>>)> = HashMap::new();
        for token in 2..800 {
            // A small range, so that requests overlap; most of them of parts of sectors.
            let align = [1, 16, 512, 4096][random.index(4)];
            let offset = random.below(20_000) / align * align;
            let length = (1 + random.below(9000)).next_multiple_of(align);
            let range = offset..(offset + length).min(SIZE as u64);
            let there = range.start as usize..range.end as usize;
            let is_free = waiting.values().all(|(used, _)| !overlap(used, &range));
            match random.below(8) {
                0..=2 if is_free => {
                    let mut out = vec![0; there.len()];
                    let expected = &model[there];
                    match rig.chain.start(Request::read(token, range.start, &mut out)) {
                        Started::Done => assert!(out == expected, "seed {seed}"),
                        Started::Pending => {
                            waiting.insert(token, (range, Some(expected.to_vec())));
                        }
                        Started::Busy => {}
                        Started::Failed(error) => panic!("seed {seed}: {error}"),
                    }
                }
                3..=5 if is_free => {
                    let data: Vec<u8> = there.clone().map(|_| random.below(256) as u8).collect();
                    let durability = match random.one_in(3) {
                        true => Durability::Durable,
                        false => Durability::Volatile,
                    };
                    match rig
                        .chain
                        .start(Request::write(token, range.start, &data, durability))
                    {
                        Started::Done => model[there].copy_from_slice(&data),
                        Started::Pending => {
                            model[there].copy_from_slice(&data);
                            waiting.insert(token, (range, None));
                        }
                        Started::Busy => {}
                        Started::Failed(error) => panic!("seed {seed}: {error}"),
                    }
                }
                6 if random.one_in(4) => {
                    if rig.chain.start(Request::flush(token)) == Started::Pending {
                        waiting.insert(token, (0..0, None));
                    }
                }
                _ => {
                    for completion in rig.poll() {
                        let pending = waiting.remove(&completion.token);
                        let (_, expected) = pending.expect("it is pending, and completes once");
                        match (completion.result, expected) {
                            (Ok(Outcome::Data(data)), Some(expected)) => {
                                assert!(data == expected, "seed {seed}");
                            }
                            (Ok(Outcome::Done), None) => {}
                            (other, _) => panic!("seed {seed}: {other:?}"),
                        }
                    }
                }
            }
        }
        for _ in 0..1000 {
            for completion in rig.poll() {
                waiting.remove(&completion.token).expect("it is pending");
            }
        }
        assert!(waiting.is_empty(), "seed {seed}: all requests complete");
        assert!(rig.read(0, SIZE) == model, "seed {seed}");
        assert!(
            decrypted(rig.chain.bottom().bytes()) == model,
            "seed {seed}"
        );
    }
}

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

/// Completes reads later and changes at once, the latter only after a commit.
struct Batching {
    disk: MemoryDevice,
    /// The number of changes that were answered `Done` or `Pending` and are not committed.
    batch: usize,
    /// Changes that complete with the commit.
    late: Vec<Token>,
    answers_late: bool,
    committed: Vec<Token>,
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

    fn commit(&mut self) -> Result<(), IoError> {
        self.batch = 0;
        self.committed.append(&mut self.late);
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.disk.poll(completions);
        completions.extend(self.committed.drain(..).map(|token| Completion {
            token,
            result: Ok(Outcome::Done),
        }));
    }
}

/// The user of a chain commits in the loop turns in which it starts a request. Here the write began
/// in a poll, and was acknowledged while a journal below had it in memory only; a durable one waited
/// for a commit that never came.
#[test]
fn a_write_of_a_part_is_committed_before_it_is_acknowledged() {
    for answers_late in [false, true] {
        let device = Batching {
            disk: formatted(4096, 1),
            batch: 0,
            late: Vec::new(),
            answers_late: false,
            committed: Vec::new(),
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

#[test]
fn an_empty_disk_is_formatted_if_the_policy_allows_it() {
    let mut rig = rig(Misbehavior {
        pending_one_in: 2,
        busy_one_in: 3,
        ..Misbehavior::default()
    });
    let refused = rig.attach(&EncryptConfig::new("disk"));
    let reason = refused.expect_err("it has no header");
    assert!(
        reason.contains("the disk has no LUKS2 header; format = \"if-empty\""),
        "{reason}"
    );
    assert_eq!(rig.chain.bottom().calls.writes, 0);
    rig.attach(&fresh()).expect("attached");
    assert_eq!(rig.chain.bottom().calls.writes, 0, "it is not in use yet");
    rig.write(5, b"hello");
    assert_eq!(rig.read(5, 5), b"hello");
    assert_eq!(&decrypted(rig.chain.bottom().bytes())[5..10], b"hello");
    // The next filter finds the same disk.
    rig.attach(&fresh()).expect("attached");
    assert_eq!(rig.read(5, 5), b"hello");
}

#[test]
fn interrupted_formatting_is_repeated() {
    let random = SimulatedRandom::new(3);
    let made = Header::format(512, 0, CHEAP, b"secret", &random);
    let steps = made.expect("made").2;
    for done in 0..steps.len() {
        let mut rig = rig(Misbehavior::default());
        for (at, step) in steps[..=done].iter().enumerate() {
            if let Step::Write { offset, bytes } = step {
                let half = match at == done {
                    true => bytes.len().min(512).max(bytes.len() / 2),
                    false => bytes.len(),
                };
                rig.chain.bottom().start(Request::write(
                    0,
                    *offset,
                    &bytes[..half],
                    Durability::Volatile,
                ));
            }
        }
        rig.attach(&fresh()).expect("attached");
        rig.write(0, b"hello");
        let bytes = rig.chain.bottom().bytes();
        assert_eq!(&decrypted(bytes)[..5], b"hello", "step {done}");
        assert!(!Header::is_being_formatted(bytes));
    }
}

#[test]
fn a_disk_that_is_not_empty_is_not_formatted() {
    for at in [0, 4096, HEADER as u64 - 1] {
        let mut rig = rig(Misbehavior::default());
        rig.chain
            .bottom()
            .start(Request::write(0, at, &[1], Durability::Volatile));
        let reason = rig.attach(&fresh()).expect_err("there is something");
        assert!(reason.contains("not empty"), "{reason}");
    }
    // Nor one with a damaged header.
    let mut device = formatted(512, 1);
    for copy in [0, 16 << 10] {
        device.start(Request::write(0, copy + 300, &[1], Durability::Volatile));
    }
    let reason = Rig::new(device, 1).attach(&fresh()).expect_err("damaged");
    assert!(
        reason.contains("the header at byte 0 is damaged"),
        "{reason}"
    );
    // Nor one that cannot be read.
    let mut rig = rig(Misbehavior {
        damaged: 5000..5001,
        ..Misbehavior::default()
    });
    let reason = rig.attach(&fresh()).expect_err("damaged");
    assert!(reason.contains("its header cannot be read"), "{reason}");
}

#[test]
fn the_error_of_a_disk_that_cannot_be_opened_has_the_reason() {
    let mut rig = Rig::new(formatted(512, 1), 1);
    let reason = rig
        .attach(&EncryptConfig::new("other"))
        .expect_err("no key");
    assert!(reason.ends_with("there is no key other here"), "{reason}");
    rig.context.attachment.keys = Arc::new(OneKey(b"wrong"));
    let reason = rig.attach(&EncryptConfig::new("disk")).expect_err("wrong");
    assert!(
        reason.ends_with("opens none of the 1 key slots"),
        "{reason}"
    );
    let mut small = Rig::new(MemoryDevice::new(1 << 20), 1);
    let reason = small.attach(&fresh()).expect_err("small");
    assert!(
        reason.contains("the header alone takes 16777216"),
        "{reason}"
    );
    // A host that is being stopped runs no jobs.
    rig.pool.close();
    let reason = rig.attach(&EncryptConfig::new("disk")).expect_err("closed");
    assert!(reason.ends_with("the host is being stopped"), "{reason}");
}

/// A header whose key takes a minute was derived again after each timeout, until all threads of the
/// host were deriving keys of one disk.
#[test]
fn a_disk_has_one_key_derivation_at_a_time() {
    let mut rig = Rig::new(formatted(512, 1), 1);
    let config = EncryptConfig::new("disk");
    for _ in 0..3 {
        rig.begin(&config);
        let ended = loop {
            rig.clock.advance(Duration::from_secs(1));
            rig.chain.poll(&mut Vec::new());
            if let Some(ended) = rig.ended() {
                break ended;
            }
        };
        assert!(
            matches!(ended, Err(HotSwapError::TimedOut { .. })),
            "{ended:?}"
        );
        assert_eq!(rig.pool.waiting(), 1);
    }
    // Another disk has its own permit.
    let mut other = Rig::new(formatted(512, 2), 2);
    other.context.host.key_derivations = Arc::clone(&rig.context.host.key_derivations);
    other.context.attachment.attribution = Arc::new(crate::Attribution {
        volume: "other".to_owned(),
        ..(*rig.context.attachment.attribution).clone()
    });
    other.begin(&config);
    for _ in 0..20 {
        other.chain.poll(&mut Vec::new());
    }
    assert_eq!(rig.pool.waiting(), 2);
    rig.attach(&config).expect("attached");
}

#[test]
fn a_damaged_copy_of_the_header_is_repaired() {
    for copy in [0, 16 << 10] {
        let mut device = formatted(512, 1);
        device.start(Request::write(0, copy + 300, &[1], Durability::Volatile));
        let mut rig = Rig::new(device, 1);
        rig.attach(&EncryptConfig::new("disk")).expect("attached");
        rig.write(0, b"hello");
        assert_eq!(rig.poll(), []);
        assert_eq!(&decrypted(rig.chain.bottom().bytes())[..5], b"hello");
    }
}

#[test]
fn a_read_only_disk_can_be_read() {
    let mut rig = Rig::new(formatted(512, 1), 1);
    rig.attach(&EncryptConfig::new("disk")).expect("attached");
    rig.write(0, b"hello");
    let read_only = Capabilities {
        read_only: true,
        ..Capabilities::ALL
    };
    rig.chain
        .bottom()
        .start(Request::write(0, 300, &[1], Durability::Volatile));
    let device = rig.chain.into_bottom().with_capabilities(read_only);
    let mut rig = Rig::new(device, 1);
    let more = EncryptConfig {
        reencrypt: 1,
        ..EncryptConfig::new("disk")
    };
    rig.attach(&more).expect("attached");
    assert_eq!(rig.read(0, 5), b"hello");
    let refused = rig
        .chain
        .start(Request::write(1, 0, &[0; 512], Durability::Volatile));
    assert_eq!(refused, Started::Failed(IoError::ReadOnly));
}

#[test]
fn trims_reach_the_disk_only_if_discards_are_allowed() {
    let mut rig = Rig::new(formatted(512, 1), 1);
    rig.attach(&EncryptConfig::new("disk")).expect("attached");
    rig.write(0, &[7; SIZE]);
    assert!(!rig.chain.capabilities().can_trim);
    let refused = rig
        .chain
        .start(Request::trim(1, 0, 4096, Durability::Volatile));
    assert_eq!(refused, Started::Failed(IoError::NotSupported));
    let config = EncryptConfig {
        allow_discard: true,
        ..EncryptConfig::new("disk")
    };
    rig.attach(&config).expect("attached");
    assert!(rig.chain.capabilities().can_trim);
    rig.wait(1, |chain| {
        chain.start(Request::trim(1, 100, 8192, Durability::Volatile))
    });
    // The device discards whole blocks only.
    let bytes = rig.chain.bottom().bytes();
    assert_ne!(bytes[HEADER + 100..HEADER + 512], [0; 412]);
    assert_eq!(bytes[HEADER + 4096..HEADER + 8192], [0; 4096]);
    assert_ne!(rig.read(4096, 4096), [0; 4096], "it reads as random bytes");
    assert_eq!(rig.read(0, 512), [7; 512]);
    // The filter reports it as data.
    let mut runs = Vec::new();
    let started = rig.chain.start(Request::extents(1, 4096, 8192, &mut runs));
    let kind = ExtentKind::Data;
    assert_eq!(
        (started, &runs[..]),
        (Started::Done, &[Extent { length: 8192, kind }][..])
    );
}

#[test]
fn a_request_beyond_the_end_is_refused_with_the_size_above_the_header() {
    let mut rig = Rig::new(formatted(512, 1), 1);
    rig.attach(&EncryptConfig::new("disk")).expect("attached");
    for (offset, length) in [(SIZE as u64 - 1, 2), (u64::MAX, 1), (u64::MAX - 511, 512)] {
        let refused = rig
            .chain
            .start(Request::read(1, offset, &mut vec![0; length]));
        let expected = IoError::OutOfRange {
            offset,
            length: length as u64,
            size: SIZE as u64,
        };
        assert_eq!(refused, Started::Failed(expected));
    }
    assert_eq!(
        rig.chain.start(Request::read(1, SIZE as u64, &mut [])),
        Started::Done
    );
    let mode = ZeroMode {
        durability: Durability::Volatile,
        may_punch: true,
        fast_only: false,
    };
    let refused = rig.chain.start(Request::write_zeroes(1, 0, 512, mode));
    assert_eq!(refused, Started::Failed(IoError::NotSupported));
    rig.chain.bottom().grow(HEADER + 2 * SIZE + 4095);
    assert_eq!(rig.chain.geometry().size_bytes, 2 * SIZE as u64);
    rig.write(SIZE as u64, &[9; 512]);
    assert_eq!(rig.read(SIZE as u64, 512), [9; 512]);
}
