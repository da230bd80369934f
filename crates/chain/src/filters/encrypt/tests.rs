//! Encrypted disks over a device in memory that is slow and busy at times.

mod opening;
mod partial_writes;

use base::{Durability, Extent, ExtentKind, Request, ZeroMode};
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
        // A batch fails on a device that has crashed.
        let _ = self.chain.end_batch();
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
