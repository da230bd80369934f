//! A journal in a chain, over restarts of its host and leases on its volume.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use base::{BlockDevice, Completion, Durability, Outcome, Request, Started, Token};
use chain_policy::Policy;
use world::Wake;
use world::simulated::{SimulatedRandom, Simulation};

use super::{BLOCK, BLOCKS, Below, Platter};
use crate::context::Lease;
use crate::filters::journal::leftover::{journal_leftover, quarantine_journal};
use crate::testing::EventRecorder;
use crate::{
    AttachmentContext, Chain, ChainHistory, DiskLimits, Filter, FilterContext, HotSwap,
    HotSwapError, Opening, SizeRule, StateFolder, build_filters,
};

const PATH: &str = "/state/fast.journal";

/// A lease that may expire.
struct TestLease(AtomicBool);

impl Lease for TestLease {
    fn holds(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A filter that reads a block while it opens, as a monitor reads the disk.
struct ReadsFirst {
    read: Rc<Cell<Option<u8>>>,
    has_started: bool,
}

impl Filter for ReadsFirst {
    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        let mut out = [0; BLOCK];
        let length = below.geometry().size_bytes;
        if length < (4 * BLOCK) as u64 {
            return Opening::Failed("the disk is too small".to_owned().into());
        }
        if !self.has_started {
            match below.start(Request::read(1, (3 * BLOCK) as u64, &mut out)) {
                Started::Done => self.read.set(Some(out[0])),
                Started::Failed(error) => return Opening::Failed(error.to_string().into()),
                Started::Busy => return Opening::Pending,
                Started::Pending => {}
            }
            self.has_started = true;
        }
        match self.read.get() {
            Some(_) => Opening::Ready,
            None => Opening::Pending,
        }
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        below.poll(completions);
        let at = completions
            .iter()
            .position(|completion| completion.token == 1);
        if let Some(at) = at.filter(|_| self.read.get().is_none())
            && let Ok(Outcome::Data(data)) = completions.remove(at).result
        {
            self.read.set(Some(data[0]));
        }
    }
}

/// A host and its volume.
struct Host {
    simulation: Simulation,
    platter: Rc<RefCell<Platter>>,
    chain: Chain<Below>,
    notes: Arc<EventRecorder>,
    lease: Arc<TestLease>,
    /// What a filter above read while it opened.
    read_first: Rc<Cell<Option<u8>>>,
    epoch: u32,
    restores: u64,
    /// The chain that is in use, and the newest one.
    turn: u64,
    last_turn: u64,
    token: Token,
    answers: Vec<Completion>,
}

fn chain_of(simulation: &Simulation, platter: &Rc<RefCell<Platter>>) -> Chain<Below> {
    let below = Below {
        platter: Rc::clone(platter),
        random: simulation.random.split(),
        late: Vec::new(),
    };
    Chain::new(below, simulation.world().clock, Wake::noop())
}

impl Host {
    fn new(seed: u64) -> Self {
        let simulation = Simulation::new(seed);
        let at_once = SimulatedRandom::new(seed);
        simulation.pool.set_immediate(2 * (seed % 2), at_once);
        let disk = simulation.world().disk;
        disk.create_directory(Path::new("/state")).expect("made");
        disk.sync_directory(Path::new("/")).expect("durable");
        let platter = Rc::new(RefCell::new(Platter {
            live: vec![0; BLOCK * BLOCKS],
            durable: vec![0; BLOCK * BLOCKS],
            ..Platter::default()
        }));
        Self {
            chain: chain_of(&simulation, &platter),
            simulation,
            platter,
            notes: Arc::default(),
            lease: Arc::new(TestLease(AtomicBool::new(true))),
            read_first: Rc::default(),
            epoch: 1,
            restores: 0,
            turn: 0,
            last_turn: 0,
            token: 0,
            answers: Vec::new(),
        }
    }

    fn poll(&mut self) {
        let random = &self.simulation.random;
        if random.one_in(2) {
            self.simulation.pool.run_one(random);
        }
        self.simulation.clock.advance(Duration::from_millis(1));
        let mut completions = Vec::new();
        self.chain.poll(&mut completions);
        let _ = self.chain.end_batch();
        self.answers.append(&mut completions);
    }

    fn swap(&mut self, filters: &str) -> Result<(), HotSwapError> {
        let swapped = self.begin_swap(filters);
        let ended = loop {
            self.poll();
            if let Ok(ended) = swapped.try_recv() {
                break ended;
            }
        };
        if ended.is_ok() {
            self.turn = self.last_turn;
        }
        ended
    }

    /// Starts a hot swap to these filters.
    fn begin_swap(&mut self, filters: &str) -> mpsc::Receiver<Result<(), HotSwapError>> {
        let world = self.simulation.world();
        self.last_turn += 1;
        self.read_first.set(None);
        let simulated = FilterContext::simulated(world.clone());
        let context = FilterContext {
            host: simulated.host,
            attachment: AttachmentContext {
                events: Arc::clone(&self.notes) as _,
                history: ChainHistory {
                    epoch: Some(self.epoch),
                    chain: self.last_turn,
                    predecessor: self.turn,
                    restores: Some(self.restores),
                    epoch_first: None,
                },
                lease: Arc::clone(&self.lease) as _,
                disk_limits: DiskLimits {
                    journal_bytes: 8 << 20,
                    trace_bytes: 0,
                },
                state: Some(StateFolder {
                    disk: Arc::clone(&world.disk),
                    path: "/state".into(),
                }),
                ..simulated.attachment
            },
        };
        let mut filters = match filters {
            "" => Vec::new(),
            filters => {
                let policy = Policy::parse(&format!("volume = 'disk'\n{filters}"));
                build_filters(&policy.expect("a policy"), &context)
            }
        };
        let read = Rc::clone(&self.read_first);
        filters.insert(
            0,
            Box::new(ReadsFirst {
                read,
                has_started: false,
            }),
        );
        let (sender, receiver) = mpsc::channel();
        self.chain.hot_swap(HotSwap {
            filters,
            rule: match self.turn {
                0 => SizeRule::First,
                _ => SizeRule::MayChange,
            },
            // A host that was killed does not wait.
            on_swapped: Box::new(move |ended| drop(sender.send(ended))),
        });
        receiver
    }

    /// Kills the host's process, or with `power` everything. The host then has the volume again,
    /// and no other host had it meanwhile.
    fn die(&mut self, power: bool) {
        if power {
            let random = self.simulation.random.split();
            self.simulation.crash();
            self.platter.borrow_mut().crash(&random);
        } else {
            self.simulation.kill();
        }
        self.chain = chain_of(&self.simulation, &self.platter);
        self.answers.clear();
        self.epoch += 1;
        self.turn = 0;
    }

    fn ask(
        &mut self,
        mut ask: impl FnMut(&mut Chain<Below>, Token) -> Started,
    ) -> Result<Outcome, base::IoError> {
        self.token += 1;
        let token = self.token;
        loop {
            match ask(&mut self.chain, token) {
                Started::Busy => self.poll(),
                Started::Done => {
                    self.chain.end_batch()?;
                    return Ok(Outcome::Done);
                }
                Started::Failed(error) => return Err(error),
                Started::Pending => break,
            }
        }
        loop {
            self.poll();
            let at = self.answers.iter().position(|answer| answer.token == token);
            if let Some(at) = at {
                return self.answers.swap_remove(at).result;
            }
        }
    }

    fn write(&mut self, block: usize, version: u8) {
        let offset = (block * BLOCK) as u64;
        let data = [version; BLOCK];
        let done = self.ask(|chain, token| {
            chain.start(Request::write(token, offset, &data, Durability::Volatile))
        });
        assert_eq!(done, Ok(Outcome::Done));
    }

    fn flush(&mut self) {
        assert_eq!(
            self.ask(|chain, token| chain.start(Request::flush(token))),
            Ok(Outcome::Done)
        );
    }

    fn read(&mut self, block: usize) -> u8 {
        let mut out = [0; BLOCK];
        let read = self.ask(|chain, token| {
            chain.start(Request::read(token, (block * BLOCK) as u64, &mut out))
        });
        match read.expect("readable") {
            Outcome::Data(data) => data[0],
            _ => out[0],
        }
    }

    fn names(&self) -> Vec<String> {
        let entries = self.simulation.world().disk.list(Path::new("/state"));
        let entries = entries.expect("listed").into_iter();
        entries.map(|entry| entry.name).collect()
    }
}

const FAST: &str = "[[filter]]\nkind = 'journal'\nname = 'fast'\nsize = '4M'\n";
const QUICK: &str = "[[filter]]\nkind = 'journal'\nname = 'fast'\nsize = '4M'\nflush = 'journal'\n";
const FAILING: &str = "[[filter]]\nkind = 'external'\nprogram = 'none'\n";

/// Writes, flushes, dies and has its filters swapped, as `seed` says; versions only grow.
fn live(seed: u64) {
    let mut host = Host::new(seed);
    let random = SimulatedRandom::new(seed);
    let chains = [FAST, QUICK, ""];
    let mut chain = FAST;
    host.swap(chain).expect("it opens");
    let (mut acknowledged, mut durable) = ([0; BLOCKS], [0; BLOCKS]);
    for version in 1..=200 {
        match random.index(16) {
            0..=9 => {
                let block = random.index(BLOCKS);
                host.write(block, version);
                acknowledged[block] = version;
            }
            10 | 11 => {
                host.flush();
                durable = acknowledged;
            }
            12 => {
                chain = chains[random.index(3)];
                host.swap(chain).expect("swapped");
                // The journal was written back and emptied.
                durable = acknowledged;
            }
            13 => {
                // The old filters stay in use.
                let failed = host.swap(&format!("{FAILING}{FAST}"));
                assert!(matches!(failed, Err(HotSwapError::Open { at: 1, .. })));
            }
            14 => {
                let power = random.one_in(2);
                host.die(power);
                host.swap(chain).expect("it opens");
                for block in 0..BLOCKS {
                    // Only a power failure may lose what was not flushed.
                    let least = if power {
                        durable[block]
                    } else {
                        acknowledged[block]
                    };
                    let is = host.read(block);
                    assert!(
                        (least..=acknowledged[block]).contains(&is),
                        "seed {seed}: block {block} has {is}, of {least} to {} (power {power})",
                        acknowledged[block]
                    );
                    acknowledged[block] = is;
                }
            }
            _ => host.poll(),
        }
    }
    assert_eq!(host.notes.messages(), [""; 0]);
}

#[test]
fn nothing_acknowledged_is_lost_over_restarts_leases_and_hot_swaps() {
    for seed in 0..60 {
        live(seed);
    }
}

/// A host with a write in its journal that is not below.
fn with_leftover(seed: u64) -> Host {
    let mut host = Host::new(seed);
    host.swap(FAST).expect("it opens");
    host.platter.borrow_mut().fails = true;
    host.write(3, 7);
    host.die(false);
    host.platter.borrow_mut().fails = false;
    let leftover = journal_leftover(&*host.simulation.world().disk, Path::new(PATH));
    let leftover = leftover.expect("read").expect("a write");
    assert_eq!(leftover.lease, Some(1));
    host
}

#[test]
fn leftover_writes_are_below_before_any_request_is_answered() {
    let mut host = with_leftover(1);
    host.swap(QUICK).expect("it opens");
    assert_eq!(host.read_first.get(), Some(7), "also for a filter above it");
    assert_eq!(host.read(3), 7);
    let durable = host.platter.borrow().durable[3 * BLOCK];
    assert_eq!(durable, 7, "it is flushed below");
}

#[test]
fn leftover_writes_are_not_written_over_newer_ones() {
    let mut host = with_leftover(2);
    host.swap("").expect("without filters");
    host.write(3, 9);
    host.swap(FAST).expect("it opens");
    assert_eq!(host.read(3), 9);
    host.write(4, 1);
    host.flush();
    assert_eq!(host.names(), ["fast.journal", "fast.journal.quarantined-1"]);
    let notes = host.notes.messages();
    assert!(
        notes[0].contains("are quarantined in fast.journal.quarantined-1"),
        "{notes:?}"
    );
    let quarantined = Path::new("/state/fast.journal.quarantined-1");
    let leftover = journal_leftover(&*host.simulation.world().disk, quarantined);
    assert!(leftover.expect("read").is_some(), "it has the writes");
}

#[test]
fn an_earlier_quarantined_journal_stays() {
    let host = with_leftover(3);
    let disk = host.simulation.world().disk;
    for expected in ["fast.journal.quarantined-1", "fast.journal.quarantined-1-2"] {
        let path = Path::new(PATH);
        if journal_leftover(&*disk, path).expect("read").is_none() {
            disk.open(path, world::OpenMode::CreateNew).expect("made");
        }
        let quarantined = quarantine_journal(&*disk, path, Some(1)).expect("quarantined");
        assert_eq!(quarantined.file_name().expect("a name"), expected);
    }
}

#[test]
fn a_journal_of_a_later_lease_is_refused() {
    let mut host = with_leftover(4);
    host.epoch = 0;
    let refused = host.swap(FAST).expect_err("an older database");
    assert!(
        refused.to_string().contains("of a later lease"),
        "{refused}"
    );
    assert_eq!(host.names(), ["fast.journal"]);
}

#[test]
fn a_smaller_volume_is_refused_and_a_grown_one_gets_the_writes() {
    let mut host = with_leftover(5);
    host.platter.borrow_mut().blocks_less = 1;
    let refused = host.swap(FAST).expect_err("it is smaller");
    assert!(refused.to_string().contains("of a disk of"), "{refused}");
    host.die(false);
    host.platter.borrow_mut().blocks_less = 0;
    host.swap(FAST).expect("it opens");
    assert_eq!(host.read(3), 7);
}

#[test]
fn an_empty_ring_gets_the_length_of_its_new_policy() {
    let mut host = Host::new(6);
    host.swap(FAST).expect("it opens");
    host.write(1, 1);
    let length = |host: &Host| {
        let disk = host.simulation.world().disk;
        let file = disk.open(Path::new(PATH), world::OpenMode::Read);
        file.expect("there").length().expect("known")
    };
    assert_eq!(length(&host), (4 << 20) + 8192);
    host.swap("[[filter]]\nkind = 'journal'\nname = 'fast'\nsize = '100M'\n")
        .expect("it opens");
    host.write(2, 2);
    assert_eq!(length(&host), (8 << 20) + 8192, "the host's limit");
    assert_eq!((host.read(1), host.read(2)), (1, 2));
    let notes = host.notes.messages();
    assert!(notes[0].contains("--filter-journal"), "{notes:?}");
}

/// Writes that were acknowledged before a restore do not belong to the restored volume. Writes for
/// an encryption below would go to the volume in the clear without it.
#[test]
fn leftover_writes_need_the_same_volume_and_the_same_filters_below() {
    let key = "key = 'none'\n";
    let encrypt = format!("{FAST}[[filter]]\nkind = 'encrypt'\n{key}");
    let rate = format!("{FAST}[[filter]]\nkind = 'rate'\niops = 1000000\n");
    for (restores, filters, why) in [
        (1, FAST, Some("restored")),
        (0, FAST, None),
        (0, &rate, None),
    ] {
        let mut host = with_leftover(8);
        host.restores = restores;
        host.swap(filters).expect("it opens");
        let expected = if why.is_none() { 7 } else { 0 };
        assert_eq!(host.read(3), expected, "{filters}");
        let notes = host.notes.messages().join("\n");
        assert!(notes.contains(why.unwrap_or_default()), "{notes}");
        assert_eq!(notes.is_empty(), why.is_none(), "{notes}");
        assert_eq!(host.names().len(), if why.is_none() { 1 } else { 2 });
    }
    // Filters below open first, so this one is compared as it would be built.
    let below = |filters: &str| {
        let policy = Policy::parse(&format!("volume = 'disk'\n{filters}")).expect("a policy");
        crate::filters::transforming_filters(&policy.filters[1..])
    };
    assert_eq!(below(FAST), below(&rate));
    assert_ne!(below(FAST), below(&encrypt));
    assert_ne!(below(FAST), below(&format!("{FAST}{FAILING}")));
}

#[test]
fn a_ring_keeps_its_length_on_a_full_disk() {
    let mut host = Host::new(9);
    host.swap(FAST).expect("it opens");
    host.write(1, 1);
    host.simulation
        .disk
        .set_capacity(Path::new("/state"), 5 << 20);
    host.swap("[[filter]]\nkind = 'journal'\nname = 'fast'\nsize = '8M'\n")
        .expect("it opens");
    host.write(2, 2);
    host.flush();
    assert_eq!((host.read(1), host.read(2)), (1, 2));
    let notes = host.notes.messages().join("\n");
    assert!(notes.contains("keeps 4 MiB instead of 8 MiB"), "{notes}");
    assert_eq!(host.names(), ["fast.journal"]);
}

#[test]
fn a_journal_that_cannot_be_written_back_may_not_be_removed() {
    let mut host = Host::new(10);
    host.swap(FAST).expect("it opens");
    host.write(1, 1);
    host.flush();
    assert_eq!(host.chain.check_removable(), Ok(()));
    host.platter.borrow_mut().fails = true;
    host.write(2, 2);
    while host.chain.check_removable().is_ok() {
        host.poll();
    }
    let why = host.chain.check_removable().expect_err("it fails");
    assert!(
        why.contains("journal fast") && why.contains("on purpose"),
        "{why}"
    );
    let held = host.swap("").expect_err("it may not be removed");
    assert!(
        matches!(held, HotSwapError::NotRemovable { at: 1, .. }),
        "{held}"
    );
    host.platter.borrow_mut().fails = false;
    while host.chain.check_removable().is_err() {
        host.poll();
    }
    // Changes that succeed do not prove that a failed flush works again.
    host.platter.borrow_mut().failing_flushes = usize::MAX;
    assert!(
        host.ask(|chain, token| chain.start(Request::flush(token)))
            .is_err()
    );
    for version in 3..60 {
        host.write(4, version);
        for _ in 0..200 {
            assert!(host.chain.check_removable().is_err());
            host.poll();
        }
    }
    host.platter.borrow_mut().failing_flushes = 0;
    while host.chain.check_removable().is_err() {
        host.poll();
    }
    host.swap("").expect("it is removed");
    assert_eq!(host.read(2), 2);
}

#[test]
fn past_the_end_of_its_lease_a_journal_acknowledges_nothing_and_reads() {
    let mut host = Host::new(7);
    host.swap(QUICK).expect("it opens");
    host.write(1, 5);
    host.flush();
    host.lease.0.store(false, Ordering::Relaxed);
    host.poll();
    for _ in 0..50 {
        let data = [6; BLOCK];
        let started = host
            .chain
            .start(Request::write(90_000, 512, &data, Durability::Volatile));
        assert_eq!(started, Started::Busy);
        assert_eq!(host.chain.start(Request::flush(90_000)), Started::Busy);
        assert!(
            host.chain.next_timer().is_some(),
            "the lease is checked again"
        );
        host.poll();
    }
    assert_eq!(host.read(1), 5);
    host.lease.0.store(true, Ordering::Relaxed);
    host.write(1, 6);
    host.flush();
    assert_eq!(host.read(1), 6);
}

/// An interrupted replay of a large journal began at its first record again.
#[test]
fn an_interrupted_replay_continues_where_it_was() {
    let mut host = Host::new(8);
    host.swap("[[filter]]\nkind = 'journal'\nname = 'fast'\nsize = '8M'\n")
        .expect("it opens");
    host.platter.borrow_mut().fails = true;
    for version in 1..=200 {
        host.write(usize::from(version) % BLOCKS, version);
    }
    host.die(false);
    host.platter.borrow_mut().fails = false;
    let before = host.platter.borrow().writes;
    let writes = |host: &Host| host.platter.borrow().writes - before;
    let swapped = host.begin_swap(FAST);
    while writes(&host) < 100 {
        host.poll();
    }
    drop(swapped);
    host.die(false);
    host.swap(FAST).expect("it opens");
    let count = writes(&host);
    assert!(count < 300, "{count} writes of 200");
    for version in 200 - BLOCKS as u8 + 1..=200 {
        assert_eq!(host.read(usize::from(version) % BLOCKS), version);
    }
}
