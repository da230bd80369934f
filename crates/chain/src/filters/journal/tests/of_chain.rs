//! A journal in a chain, over lives of its host and leases on its volume.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{BlockDevice, Completion, Durability, Outcome, Request, Started, Token};
use chain_policy::Policy;
use world::Wake;
use world::simulated::{SimulatedRandom, Simulation};

use super::{BLOCK, BLOCKS, Below, Platter};
use crate::context::Lease;
use crate::filters::journal::left::{journal_left, put_journal_aside};
use crate::filters::{Event, EventKind};
use crate::{
    AttachmentContext, Chain, ChainHistory, DiskLimits, EventSink, Filter, FilterContext, HotSwap,
    HotSwapError, Opening, SizeRule, StateFolder, build_filters,
};

const PATH: &str = "/state/fast.journal";

/// A lease that may run out.
struct Term(AtomicBool);

impl Lease for Term {
    fn holds(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl EventSink for Heard {
    fn report(&self, events: Vec<Event>) {
        let notes = events.into_iter().filter_map(|event| match event.kind {
            EventKind::Message(note) => Some(note),
            _ => None,
        });
        self.0.lock().expect("not poisoned").extend(notes);
    }
}

/// A filter that reads a block before it begins, as a monitor reads the disk.
struct Looks {
    looked: Rc<Cell<Option<u8>>>,
    is_asked: bool,
}

impl Filter for Looks {
    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        let mut out = [0; BLOCK];
        let length = below.geometry().size_bytes;
        if length < (4 * BLOCK) as u64 {
            return Opening::Failed("the disk is too small".to_owned());
        }
        if !self.is_asked {
            match below.start(Request::read(1, (3 * BLOCK) as u64, &mut out)) {
                Started::Done => self.looked.set(Some(out[0])),
                Started::Failed(error) => return Opening::Failed(error.to_string()),
                Started::Busy => return Opening::Pending,
                Started::Pending => {}
            }
            self.is_asked = true;
        }
        match self.looked.get() {
            Some(_) => Opening::Ready,
            None => Opening::Pending,
        }
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        below.poll(completions);
        let at = completions.iter().position(|one| one.token == 1);
        if let Some(at) = at.filter(|_| self.looked.get().is_none())
            && let Ok(Outcome::Data(data)) = completions.remove(at).result
        {
            self.looked.set(Some(data[0]));
        }
    }
}

/// A host, and the volume that it has for a time.
struct Host {
    simulation: Simulation,
    platter: Rc<RefCell<Platter>>,
    chain: Chain<Below>,
    heard: Arc<Heard>,
    term: Arc<Term>,
    /// What a filter above has read before it began.
    looked: Rc<Cell<Option<u8>>>,
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
            heard: Arc::default(),
            term: Arc::new(Term(AtomicBool::new(true))),
            looked: Rc::default(),
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
        let _ = self.chain.commit();
        self.answers.append(&mut completions);
    }

    fn put(&mut self, filters: &str) -> Result<(), HotSwapError> {
        let told = self.begin(filters);
        let ended = loop {
            self.poll();
            if let Ok(ended) = told.try_recv() {
                break ended;
            }
        };
        if ended.is_ok() {
            self.turn = self.last_turn;
        }
        ended
    }

    /// Begins to put these in place.
    fn begin(&mut self, filters: &str) -> mpsc::Receiver<Result<(), HotSwapError>> {
        let world = self.simulation.world();
        self.last_turn += 1;
        self.looked.set(None);
        let simulated = FilterContext::simulated(world.clone());
        let context = FilterContext {
            host: simulated.host,
            attachment: AttachmentContext {
                events: Arc::clone(&self.heard) as _,
                history: ChainHistory {
                    epoch: Some(self.epoch),
                    chain: self.last_turn,
                    predecessor: self.turn,
                    restores: Some(self.restores),
                    epoch_first: None,
                },
                lease: Arc::clone(&self.term) as _,
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
        let looked = Rc::clone(&self.looked);
        filters.insert(
            0,
            Box::new(Looks {
                looked,
                is_asked: false,
            }),
        );
        let (tell, told) = mpsc::channel();
        self.chain.hot_swap(HotSwap {
            filters,
            rule: match self.turn {
                0 => SizeRule::First,
                _ => SizeRule::MayChange,
            },
            // Who has died does not wait.
            on_swapped: Box::new(move |ended| drop(tell.send(ended))),
        });
        told
    }

    /// The host's process dies, or the power of all fails; it has the volume anew, and
    /// nobody else had it meanwhile.
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
                    self.chain.commit()?;
                    return Ok(Outcome::Done);
                }
                Started::Failed(error) => return Err(error),
                Started::Pending => break,
            }
        }
        loop {
            self.poll();
            let at = self.answers.iter().position(|one| one.token == token);
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
fn lives(seed: u64) {
    let mut host = Host::new(seed);
    let random = SimulatedRandom::new(seed);
    let chains = [FAST, QUICK, ""];
    let mut chain = FAST;
    host.put(chain).expect("it begins");
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
                host.put(chain).expect("it is swapped");
                // Both have it, and nothing is left behind.
                durable = acknowledged;
            }
            13 => {
                // The old filters go on.
                let failed = host.put(&format!("{FAILING}{FAST}"));
                assert!(matches!(failed, Err(HotSwapError::Open { at: 1, .. })));
            }
            14 => {
                let power = random.one_in(2);
                host.die(power);
                host.put(chain).expect("it begins");
                for block in 0..BLOCKS {
                    // Of a volume without filters what was not flushed may be lost by any death
                    // of the disk only.
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
    assert_eq!(
        host.heard.0.lock().expect("not poisoned").as_slice(),
        [""; 0]
    );
}

#[test]
fn nothing_acknowledged_is_lost_over_deaths_leases_and_exchanges() {
    for seed in 0..60 {
        lives(seed);
    }
}

/// A host with something in its journal that is not below.
fn with_something_left(seed: u64) -> Host {
    let mut host = Host::new(seed);
    host.put(FAST).expect("it begins");
    host.platter.borrow_mut().fails = true;
    host.write(3, 7);
    host.die(false);
    host.platter.borrow_mut().fails = false;
    let left = journal_left(&*host.simulation.world().disk, Path::new(PATH));
    let left = left.expect("read").expect("something");
    assert_eq!(left.lease, Some(1));
    host
}

#[test]
fn what_is_left_goes_below_before_anything_is_answered() {
    let mut host = with_something_left(1);
    host.put(QUICK).expect("it begins");
    assert_eq!(host.looked.get(), Some(7), "also not by a filter above it");
    assert_eq!(host.read(3), 7);
    let durable = host.platter.borrow().durable[3 * BLOCK];
    assert_eq!(durable, 7, "it is flushed there");
}

#[test]
fn what_is_left_is_not_carried_out_over_what_was_written_without_it() {
    let mut host = with_something_left(2);
    host.put("").expect("without filters");
    host.write(3, 9);
    host.put(FAST).expect("it begins");
    assert_eq!(host.read(3), 9);
    host.write(4, 1);
    host.flush();
    assert_eq!(host.names(), ["fast.journal", "fast.journal.aside-1"]);
    let notes = host.heard.0.lock().expect("not poisoned").clone();
    assert!(
        notes[0].contains("is kept in fast.journal.aside-1"),
        "{notes:?}"
    );
    let aside = Path::new("/state/fast.journal.aside-1");
    let left = journal_left(&*host.simulation.world().disk, aside);
    assert!(left.expect("read").is_some(), "it is all there");
}

#[test]
fn what_was_put_aside_before_stays_as_it_is() {
    let host = with_something_left(3);
    let disk = host.simulation.world().disk;
    for expected in ["fast.journal.aside-1", "fast.journal.aside-1-2"] {
        let path = Path::new(PATH);
        if journal_left(&*disk, path).expect("read").is_none() {
            disk.open(path, world::OpenMode::CreateNew).expect("made");
        }
        let aside = put_journal_aside(&*disk, path, Some(1)).expect("put aside");
        assert_eq!(aside.file_name().expect("a name"), expected);
    }
}

#[test]
fn a_journal_of_a_later_lease_is_refused() {
    let mut host = with_something_left(4);
    host.epoch = 0;
    let refused = host.put(FAST).expect_err("an older database");
    assert!(
        refused.to_string().contains("of a later lease"),
        "{refused}"
    );
    assert_eq!(host.names(), ["fast.journal"]);
}

#[test]
fn a_volume_that_is_smaller_gets_nothing_and_one_that_has_grown_all() {
    let mut host = with_something_left(5);
    host.platter.borrow_mut().blocks_less = 1;
    let refused = host.put(FAST).expect_err("it is smaller");
    assert!(refused.to_string().contains("of a disk of"), "{refused}");
    host.die(false);
    host.platter.borrow_mut().blocks_less = 0;
    host.put(FAST).expect("it begins");
    assert_eq!(host.read(3), 7);
}

#[test]
fn an_empty_ring_gets_the_length_that_its_policy_says_now() {
    let mut host = Host::new(6);
    host.put(FAST).expect("it begins");
    host.write(1, 1);
    let length = |host: &Host| {
        let disk = host.simulation.world().disk;
        let file = disk.open(Path::new(PATH), world::OpenMode::Read);
        file.expect("there").length().expect("known")
    };
    assert_eq!(length(&host), (4 << 20) + 8192);
    host.put("[[filter]]\nkind = 'journal'\nname = 'fast'\nsize = '100M'\n")
        .expect("it begins");
    host.write(2, 2);
    assert_eq!(length(&host), (8 << 20) + 8192, "as much as the host gives");
    assert_eq!((host.read(1), host.read(2)), (1, 2));
    let notes = host.heard.0.lock().expect("not poisoned").clone();
    assert!(notes[0].contains("--filter-journal"), "{notes:?}");
}

/// A volume that went back has nothing to do with what was acknowledged before; and what was
/// written for an encryption below would go to the volume in the clear.
#[test]
fn what_is_left_is_for_the_same_volume_with_the_same_filters_below() {
    let key = "key = 'none'\n";
    let encrypt = format!("{FAST}[[filter]]\nkind = 'encrypt'\n{key}");
    let rate = format!("{FAST}[[filter]]\nkind = 'rate'\niops = 1000000\n");
    for (restores, filters, why) in [
        (1, FAST, Some("went back")),
        (0, FAST, None),
        (0, &rate, None),
    ] {
        let mut host = with_something_left(8);
        host.restores = restores;
        host.put(filters).expect("it begins");
        let expected = if why.is_none() { 7 } else { 0 };
        assert_eq!(host.read(3), expected, "{filters}");
        let notes = host.heard.0.lock().expect("not poisoned").join("\n");
        assert!(notes.contains(why.unwrap_or_default()), "{notes}");
        assert_eq!(notes.is_empty(), why.is_none(), "{notes}");
        assert_eq!(host.names().len(), if why.is_none() { 1 } else { 2 });
    }
    // The filters below begin first, so this one is looked at as it would be built.
    let below = |filters: &str| {
        let policy = Policy::parse(&format!("volume = 'disk'\n{filters}")).expect("a policy");
        crate::filters::below_of(&policy.filters[1..])
    };
    assert_eq!(below(FAST), below(&rate));
    assert_ne!(below(FAST), below(&encrypt));
    assert_ne!(below(FAST), below(&format!("{FAST}{FAILING}")));
}

#[test]
fn a_full_disk_leaves_a_ring_its_length() {
    let mut host = Host::new(9);
    host.put(FAST).expect("it begins");
    host.write(1, 1);
    host.simulation
        .disk
        .set_capacity(Path::new("/state"), 5 << 20);
    host.put("[[filter]]\nkind = 'journal'\nname = 'fast'\nsize = '8M'\n")
        .expect("it begins");
    host.write(2, 2);
    host.flush();
    assert_eq!((host.read(1), host.read(2)), (1, 2));
    let notes = host.heard.0.lock().expect("not poisoned").join("\n");
    assert!(notes.contains("it has 4 MiB, and not 8"), "{notes}");
    assert_eq!(host.names(), ["fast.journal"]);
}

#[test]
fn a_journal_that_cannot_be_carried_out_may_not_be_left() {
    let mut host = Host::new(10);
    host.put(FAST).expect("it begins");
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
    let held = host.put("").expect_err("it is not left");
    assert!(
        matches!(held, HotSwapError::NotRemovable { at: 1, .. }),
        "{held}"
    );
    host.platter.borrow_mut().fails = false;
    while host.chain.check_removable().is_err() {
        host.poll();
    }
    // What succeeds meanwhile says nothing of a flush that failed.
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
    host.put("").expect("it is left");
    assert_eq!(host.read(2), 2);
}

#[test]
fn past_the_end_of_its_lease_it_acknowledges_nothing_and_reads() {
    let mut host = Host::new(7);
    host.put(QUICK).expect("it begins");
    host.write(1, 5);
    host.flush();
    host.term.0.store(false, Ordering::Relaxed);
    host.poll();
    for _ in 0..50 {
        let data = [6; BLOCK];
        let started = host
            .chain
            .start(Request::write(90_000, 512, &data, Durability::Volatile));
        assert_eq!(started, Started::Busy);
        assert_eq!(host.chain.start(Request::flush(90_000)), Started::Busy);
        assert!(host.chain.next_timer().is_some(), "it is looked again");
        host.poll();
    }
    assert_eq!(host.read(1), 5);
    host.term.0.store(true, Ordering::Relaxed);
    host.write(1, 6);
    host.flush();
    assert_eq!(host.read(1), 6);
}

/// A relay was started anew from the beginning if it ended while it carried out what a large
/// journal had.
#[test]
fn what_was_carried_out_at_the_beginning_is_not_carried_out_once_more() {
    let mut host = Host::new(8);
    host.put("[[filter]]\nkind = 'journal'\nname = 'fast'\nsize = '8M'\n")
        .expect("it begins");
    host.platter.borrow_mut().fails = true;
    for version in 1..=200 {
        host.write(usize::from(version) % BLOCKS, version);
    }
    host.die(false);
    host.platter.borrow_mut().fails = false;
    let before = host.platter.borrow().writes;
    let writes = |host: &Host| host.platter.borrow().writes - before;
    let told = host.begin(FAST);
    while writes(&host) < 100 {
        host.poll();
    }
    drop(told);
    host.die(false);
    host.put(FAST).expect("it begins");
    let count = writes(&host);
    assert!(count < 300, "{count} writes of 200");
    for version in 200 - BLOCKS as u8 + 1..=200 {
        assert_eq!(host.read(usize::from(version) % BLOCKS), version);
    }
}
