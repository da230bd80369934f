//! Replication against disks that fail, hang, forget what was not flushed, and come back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{BlockDevice, DeviceGeometry, Durability, Op, Request, Started, Token};
use chain_policy::{FilterKind, Policy};
use world::simulated::{SimulatedClock, SimulatedPool, SimulatedRandom, Simulation};
use world::{Clock, Disk, Millis, Wake};

use super::*;
use crate::filters::Event;
use crate::{
    AttachmentContext, Chain, ChainHistory, EventSink, HostContext, HotSwap, LinkState, RemoteDisk,
    SizeRule, StateFolder, Targets,
};

mod partial;
mod returning;

const SIZE: usize = 8 << 20;
const BLOCK: usize = 4096;

/// A disk, as its server has it.
struct Place {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Written and not flushed.
    volatile: Vec<(usize, Vec<u8>)>,
    is_up: bool,
    hangs: bool,
    /// So many flushes fail, and what they should have made durable never is.
    failing_flushes: u32,
    /// What was asked over connections that were left while it hangs, and is carried out when
    /// it goes on.
    late: Vec<(usize, Vec<u8>)>,
    /// Grows when it comes back: older connections are over.
    life: u32,
    random: SimulatedRandom,
    reads: u64,
}

type Shared = Arc<Mutex<Place>>;

fn lock(place: &Shared) -> MutexGuard<'_, Place> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Place {
    fn new(seed: u64, content: Vec<u8>) -> Shared {
        Arc::new(Mutex::new(Self {
            durable: content.clone(),
            live: content,
            volatile: Vec::new(),
            is_up: true,
            hangs: false,
            failing_flushes: 0,
            late: Vec::new(),
            life: 0,
            random: SimulatedRandom::new(seed),
            reads: 0,
        }))
    }

    /// Its power fails: some of what was not flushed is lost.
    fn crash(&mut self) {
        for (at, data) in std::mem::take(&mut self.volatile) {
            if self.random.below(2) == 0 {
                self.durable[at..at + data.len()].copy_from_slice(&data);
            }
        }
        self.live.clone_from(&self.durable);
        self.late.clear();
        self.life += 1;
    }

    fn write(&mut self, at: usize, data: &[u8]) {
        self.live[at..at + data.len()].copy_from_slice(data);
        self.volatile.push((at, data.to_vec()));
    }

    /// What is dirty: what a flush that failed has made clean is not.
    fn flush(&mut self) {
        for (at, data) in self.volatile.drain(..) {
            self.durable[at..at + data.len()].copy_from_slice(&data);
        }
    }
}

/// What a request does when it is answered.
enum Todo {
    Read(usize, usize),
    Write(usize, Vec<u8>, Durability),
    Flush,
}

/// A connection to it.
struct Connection {
    place: Shared,
    life: u32,
    pending: Vec<(Token, Todo)>,
}

impl Connection {
    fn new(place: &Shared) -> Self {
        Self {
            life: lock(place).life,
            place: Arc::clone(place),
            pending: Vec::new(),
        }
    }

    fn later(&mut self, token: Token, todo: Todo) -> Started {
        let random = &lock(&self.place).random;
        if random.below(16) == 0 {
            return Started::Busy;
        }
        self.pending.push((token, todo));
        Started::Pending
    }

    fn is_alive(&self) -> bool {
        let place = lock(&self.place);
        place.is_up && place.life == self.life
    }
}

impl BlockDevice for Connection {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: lock(&self.place).live.len() as u64,
            block_bytes: BLOCK as u32,
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        match op {
            Op::Read { offset, out } => self.later(token, Todo::Read(offset as usize, out.len())),
            Op::Write {
                offset,
                data,
                durability,
            } => self.later(
                token,
                Todo::Write(offset as usize, data.to_vec(), durability),
            ),
            Op::Flush => self.later(token, Todo::Flush),
            Op::Trim {
                offset,
                length,
                durability,
            } => {
                let zeroes = vec![0; length as usize];
                self.later(token, Todo::Write(offset as usize, zeroes, durability))
            }
            Op::WriteZeroes {
                offset,
                length,
                mode,
            } => {
                let zeroes = vec![0; length as usize];
                self.later(token, Todo::Write(offset as usize, zeroes, mode.durability))
            }
            Op::Prefetch { .. } => Started::Done,
            Op::Extents { .. } => panic!("each has its own holes"),
        }
    }

    fn commit(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let is_alive = self.is_alive();
        let mut place = lock(&self.place);
        if place.hangs {
            return;
        }
        let mut at = 0;
        while at < self.pending.len() {
            if is_alive && place.random.below(3) == 0 {
                at += 1;
                continue;
            }
            let (token, todo) = self.pending.remove(at);
            let result = match todo {
                _ if !is_alive => Err(IoError::Unavailable("it is away".to_owned())),
                Todo::Read(at, length) => {
                    place.reads += 1;
                    Ok(Outcome::Data(place.live[at..at + length].to_vec()))
                }
                Todo::Write(at, data, durability) => {
                    place.write(at, &data);
                    if durability == Durability::Durable {
                        place.flush();
                    }
                    Ok(Outcome::Done)
                }
                Todo::Flush if place.failing_flushes > 0 => {
                    place.failing_flushes -= 1;
                    place.volatile.clear();
                    Err(IoError::Damaged("it cannot be flushed".to_owned()))
                }
                Todo::Flush => {
                    place.flush();
                    Ok(Outcome::Done)
                }
            };
            completions.push(Completion { token, result });
        }
    }
}

impl RemoteDisk for Connection {
    fn link_state(&self) -> LinkState {
        if !self.is_alive() {
            return LinkState::Broken("it is away".to_owned());
        }
        let mut place = lock(&self.place);
        if !place.hangs {
            for (at, data) in std::mem::take(&mut place.late) {
                place.write(at, &data);
            }
        }
        // As `Targets` says: what older connections have asked comes first.
        match place.late.is_empty() {
            true => LinkState::Ready,
            false => LinkState::Connecting,
        }
    }
}

impl Drop for Connection {
    /// Its server knows nothing of that yet.
    fn drop(&mut self) {
        if !self.is_alive() {
            return;
        }
        let writes = self.pending.drain(..).filter_map(|(_, todo)| match todo {
            Todo::Write(at, data, _) => Some((at, data)),
            Todo::Read(..) | Todo::Flush => None,
        });
        lock(&self.place).late.extend(writes);
    }
}

struct Servers(BTreeMap<String, Shared>);

impl Targets for Servers {
    fn open(&self, place: &chain_policy::ReplicaLocation) -> Result<Box<dyn RemoteDisk>, String> {
        let place = self.0.get(&place.to_string()).ok_or("no such server")?;
        Ok(Box::new(Connection::new(place)))
    }
}

/// In every other one, some jobs end at once.
fn a_pool(seed: u64) -> Arc<SimulatedPool> {
    let pool = SimulatedPool::new();
    pool.set_immediate(2 * (seed % 2), SimulatedRandom::new(seed));
    Arc::new(pool)
}

/// A chain of one filter over a volume, with replicas.
struct Rig {
    simulation: Simulation,
    clock: Arc<SimulatedClock>,
    pool: Arc<SimulatedPool>,
    /// The volume, and its replicas.
    places: Vec<Shared>,
    servers: Arc<Servers>,
    chain: Chain<Connection>,
    random: SimulatedRandom,
    token: Token,
    /// What is said of each replica beside its place.
    more: Vec<String>,
    heard: Arc<Heard>,
    wake: Wake,
    rung: Receiver<()>,
    history: ChainHistory,
}

#[derive(Default)]
struct Heard(Mutex<Vec<Event>>);

impl EventSink for Heard {
    fn report(&self, events: Vec<Event>) {
        self.0.lock().expect("not poisoned").extend(events);
    }
}

impl Rig {
    fn new(seed: u64, replicas: usize) -> Self {
        Self::with(seed, vec![0; SIZE], &vec![""; replicas])
    }

    /// A volume with this content, and empty replicas with this in their policy.
    fn with(seed: u64, content: Vec<u8>, more: &[&str]) -> Self {
        let simulation = Simulation::new(seed);
        let (ring, rung) = mpsc::channel();
        let ring = Mutex::new(ring);
        let wake = Wake::new(move || {
            // Nobody may listen any more.
            let _ = ring.lock().expect("not poisoned").send(());
        });
        let (length, replicas) = (content.len(), more.len());
        let mut places = vec![Place::new(seed, content)];
        let empty = (1..=replicas as u64).map(|at| Place::new(seed + at, vec![0; length]));
        places.extend(empty);
        let named =
            (1..=replicas).map(|at| (format!("nbd://10.0.0.{at}/x"), Arc::clone(&places[at])));
        let clock = Arc::new(SimulatedClock::new(Millis(0)));
        let chain = Chain::new(
            Connection::new(&places[0]),
            Arc::clone(&clock) as Arc<dyn Clock>,
            Wake::noop(),
        );
        Self {
            clock,
            chain,
            pool: a_pool(seed),
            servers: Arc::new(Servers(named.collect())),
            random: SimulatedRandom::new(seed),
            simulation,
            places,
            token: 0,
            more: more.iter().map(|more| (*more).to_owned()).collect(),
            heard: Arc::default(),
            wake,
            rung,
            history: ChainHistory::default(),
        }
    }

    fn build(&self) -> Vec<Box<dyn Filter>> {
        let mut text = "volume = 'a'\n[[filter]]\nkind = 'replicate'\n".to_owned();
        for (at, more) in (1..).zip(&self.more) {
            text += &format!(
                "[[filter.replica]]\nname = 'r{at}'\nuri = 'nbd://10.0.0.{at}/x'\n{more}\n"
            );
        }
        let policy = Policy::parse(&text).expect("a policy");
        let FilterKind::Replicate(config) = &policy.filters[0].kind else {
            panic!("{policy:?}");
        };
        let world = self.simulation.world();
        let path = Path::new("/state").to_owned();
        if world.disk.list(&path).is_err() {
            world.disk.create_directory(&path).expect("made");
            world.disk.sync_directory(Path::new("/")).expect("synced");
        }
        let simulated = FilterContext::simulated(world.clone());
        let context = FilterContext {
            host: HostContext {
                clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
                pool: Arc::clone(&self.pool) as _,
                ..simulated.host
            },
            attachment: AttachmentContext {
                targets: Arc::clone(&self.servers) as _,
                wake: self.wake.clone(),
                events: Arc::clone(&self.heard) as _,
                history: self.history,
                state: Some(StateFolder {
                    disk: Arc::clone(&world.disk) as Arc<dyn Disk>,
                    path,
                }),
                ..simulated.attachment
            },
        };
        vec![Box::new(Replicate::new("copies", config, context))]
    }

    fn begin(&mut self) -> Result<(), String> {
        let filters = self.build();
        self.hot_swap(filters)
    }

    /// The filter is left: nothing stands before the volume.
    fn leave(&mut self) -> Result<(), String> {
        self.hot_swap(Vec::new())
    }

    fn hot_swap(&mut self, filters: Vec<Box<dyn Filter>>) -> Result<(), String> {
        let ended = Arc::<Mutex<Option<_>>>::default();
        let told = Arc::clone(&ended);
        self.chain.hot_swap(HotSwap {
            filters,
            rule: SizeRule::MayChange,
            on_swapped: Box::new(move |result| {
                *told.lock().expect("not poisoned") = Some(result);
            }),
        });
        for _ in 0..20_000 {
            self.wait();
            self.poll();
            if let Some(ended) = ended.lock().expect("not poisoned").take() {
                return ended.map_err(|error| error.to_string());
            }
        }
        panic!("it does not end");
    }

    /// Until the one replica has said that it has all.
    fn until_in_sync(&mut self) {
        let is_in_sync = |rig: &Self| {
            let notes = format!("{:?}", rig.heard.0.lock().expect("not poisoned"));
            notes.contains("r1 is in sync")
        };
        while !is_in_sync(self) {
            assert_eq!(self.poll(), []);
        }
    }

    /// The process ends at once, and so does the power of the volume.
    fn crash(&mut self) -> Result<(), String> {
        lock(&self.places[0]).crash();
        let device = Connection::new(&self.places[0]);
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        self.chain = Chain::new(device, clock, Wake::noop());
        self.pool = a_pool(self.random.next());
        self.simulation.crash();
        self.begin()
    }

    /// Of replicas of chosen files the disk is read in another thread.
    fn wait(&self) {
        if self.more.iter().any(|more| !more.is_empty()) {
            let _ = self.rung.recv_timeout(Duration::from_micros(200));
        }
    }

    fn poll(&mut self) -> Vec<Completion> {
        self.pool.run_all(&self.random);
        let timer = self.chain.next_timer().unwrap_or_default();
        self.clock.advance(timer.min(Duration::from_millis(2)));
        let mut completions = Vec::new();
        self.chain.poll(&mut completions);
        self.chain.commit().expect("nothing stops it");
        completions
    }

    fn next(&mut self) -> Token {
        self.token += 1;
        self.token
    }

    /// Until a request may begin, and has ended; others may end meanwhile.
    fn all(&mut self, mut ask: impl FnMut(&mut Chain<Connection>, Token) -> Started) -> Outcome {
        let token = self.next();
        let mut is_begun = false;
        for _ in 0..200_000 {
            if !is_begun {
                match ask(&mut self.chain, token) {
                    Started::Done => return Outcome::Done,
                    Started::Pending => is_begun = true,
                    Started::Busy => {}
                    Started::Failed(error) => panic!("{error}"),
                }
            }
            for Completion { token: of, result } in self.poll() {
                if of == token {
                    return result.expect("some member has it");
                }
            }
        }
        panic!("it does not end");
    }

    fn write(&mut self, at: usize, data: &[u8]) {
        self.all(|chain, token| {
            chain.start(Request::write(token, at as u64, data, Durability::Volatile))
        });
    }

    fn read(&mut self, at: usize, length: usize) -> Vec<u8> {
        match self
            .all(|chain, token| chain.start(Request::read(token, at as u64, &mut vec![0; length])))
        {
            Outcome::Data(data) => data,
            other => panic!("{other:?}"),
        }
    }

    fn flush(&mut self) {
        self.all(|chain, token| chain.start(Request::flush(token)));
    }

    fn are_alike(&self) -> bool {
        let first = lock(&self.places[0]).live.clone();
        self.places.iter().all(|place| lock(place).live == first)
    }

    fn until_alike(&mut self) {
        for _ in 0..200_000 {
            assert_eq!(self.poll(), [], "nobody asks");
            if self.are_alike() {
                return;
            }
        }
        panic!("they stay different");
    }
}

#[test]
fn replicas_get_what_they_lack_and_are_read_then() {
    let mut rig = Rig::new(1, 2);
    lock(&rig.places[0]).live[5 << 20..6 << 20].fill(7);
    rig.begin().expect("it begins");
    rig.until_alike();
    rig.write(100 * BLOCK, &[9; BLOCK]);
    rig.flush();
    assert!(rig.are_alike());
    // A moment later they are in sync.
    for _ in 0..1000 {
        rig.poll();
    }
    for at in 0..200 {
        let read = rig.read((5 << 20) + at * BLOCK, BLOCK);
        assert_eq!(read, [7; BLOCK]);
    }
    for place in &rig.places {
        assert!(lock(place).reads >= 20, "reads are dealt");
    }
}

/// What had been copied counted as there, and was lost with the replica's power: nobody
/// had flushed it.
#[test]
fn what_was_copied_and_not_flushed_is_copied_again() {
    for seed in 0..20 {
        let mut rig = Rig::new(seed, 1);
        lock(&rig.places[0]).live.fill(7);
        rig.begin().expect("it begins");
        for _ in 0..seed * 8 {
            rig.poll();
        }
        lock(&rig.places[1]).crash();
        rig.until_alike();
    }
}

/// A long write over a region that was being filled was for the next one to get, which lacked
/// all; and the first one counted as filled.
#[test]
fn a_write_over_several_regions_is_in_all_of_a_member_that_is_filled() {
    for seed in 0..20 {
        let mut rig = Rig::new(seed, 1);
        lock(&rig.places[0]).live.fill(7);
        rig.begin().expect("it begins");
        for region in 1..7_usize {
            let length = (1 << 20) + 2 * BLOCK;
            rig.write((region << 20) - BLOCK, &vec![region as u8; length]);
        }
        rig.until_alike();
    }
}

#[test]
fn who_fails_or_hangs_is_out_and_nobody_hears_of_it() {
    for (hangs, victim) in [(false, 1), (true, 1), (true, 0)] {
        let mut rig = Rig::new(3, 2);
        rig.begin().expect("it begins");
        rig.until_alike();
        for _ in 0..1000 {
            rig.poll();
        }
        match hangs {
            true => lock(&rig.places[victim]).hangs = true,
            false => lock(&rig.places[victim]).is_up = false,
        }
        for at in 0..60 {
            rig.write(at * 3 * BLOCK, &[at as u8 + 1; BLOCK]);
            assert_eq!(rig.read(at * 3 * BLOCK, BLOCK), [at as u8 + 1; BLOCK]);
        }
        rig.flush();
        assert!(!rig.are_alike());
        {
            let mut place = lock(&rig.places[victim]);
            (place.hangs, place.is_up) = (false, true);
            if victim != 0 {
                place.crash();
            }
        }
        rig.until_alike();
        assert_eq!(rig.read(3 * BLOCK, BLOCK), [2; BLOCK]);
    }
}

/// The only member that had the last writes was away: whoever was left had been served.
#[test]
fn who_lacks_what_was_acknowledged_is_not_taken_for_the_source() {
    let mut rig = Rig::new(4, 1);
    rig.begin().expect("it begins");
    rig.until_alike();
    for _ in 0..1000 {
        rig.poll();
    }
    lock(&rig.places[0]).hangs = true;
    rig.write(0, &[5; BLOCK]);
    rig.flush();
    lock(&rig.places[0]).hangs = false;
    lock(&rig.places[1]).is_up = false;
    let why = rig.crash().expect_err("the volume has an older state");
    assert!(
        why.contains("only replica r1 has what was written last"),
        "{why}"
    );
    lock(&rig.places[1]).is_up = true;
    rig.begin().expect("it is there");
    assert_eq!(rig.read(0, BLOCK), [5; BLOCK]);
    rig.until_alike();
}

#[test]
fn a_replica_that_is_too_small_or_missing_is_said_and_the_volume_goes_on() {
    let mut rig = Rig::new(5, 2);
    rig.servers = Arc::new(Servers(BTreeMap::new()));
    rig.begin().expect("the volume is there");
    rig.write(0, &[1; BLOCK]);
    assert_eq!(rig.read(0, BLOCK), [1; BLOCK]);
}

/// Each block has a value that was durable, and later ones that may be.
#[test]
fn whoever_alone_has_all_is_waited_for_and_not_put_out() {
    let mut rig = Rig::new(21, 1);
    rig.begin().expect("it begins");
    rig.until_in_sync();
    lock(&rig.places[1]).is_up = false;
    rig.write(0, &[1; BLOCK]);
    lock(&rig.places[0]).hangs = true;
    let begun = rig.clock.monotonic();
    let token = rig.next();
    while rig
        .chain
        .start(Request::write(token, 0, &[2; BLOCK], Durability::Volatile))
        == Started::Busy
    {
        rig.poll();
    }
    while rig.clock.monotonic() < begun + Duration::from_secs(30) {
        assert_eq!(rig.poll(), []);
        rig.clock.advance(Duration::from_millis(10));
    }
    lock(&rig.places[0]).hangs = false;
    while rig.poll().is_empty() {}
    assert_eq!(rig.read(0, BLOCK), [2; BLOCK]);
    rig.flush();
    lock(&rig.places[1]).is_up = true;
    rig.until_alike();
    rig.crash().expect("the volume has all");
    assert_eq!(rig.read(0, BLOCK), [2; BLOCK]);
}

#[test]
fn a_volume_that_lacks_something_keeps_its_filter() {
    let mut rig = Rig::new(22, 1);
    rig.begin().expect("it begins");
    rig.until_in_sync();
    lock(&rig.places[0]).hangs = true;
    for _ in 0..10 {
        // It is out after a while, and the replica has all.
        rig.write(0, &[3; BLOCK]);
    }
    let refused = rig.leave().expect_err("the volume lacks something");
    assert!(
        refused.contains("cannot be removed: the volume lacks"),
        "{refused}"
    );
    lock(&rig.places[0]).hangs = false;
    rig.until_alike();
    while rig.leave().is_err() {
        rig.poll();
    }
    assert_eq!(rig.read(0, BLOCK), [3; BLOCK]);
}

#[test]
fn what_was_written_without_the_filter_its_replicas_lack() {
    for (epoch, turn, follows, is_filled) in [
        (1, 2, 1, false), // The same filter once more, in its own place.
        (1, 3, 2, true),  // Another chain was there meanwhile.
        (2, 2, 1, false), // The volume was opened anew.
        (3, 2, 1, true),  // And by somebody else in between.
    ] {
        let mut rig = Rig::new(23, 1);
        rig.history = ChainHistory {
            epoch: Some(1),
            chain: 1,
            predecessor: 0,
            restores: None,
            epoch_first: None,
        };
        rig.begin().expect("it begins");
        rig.write(0, &[4; BLOCK]);
        rig.flush();
        rig.until_alike();
        if is_filled {
            rig.leave().expect("the volume has all");
            rig.write(0, &[5; BLOCK]);
            rig.flush();
        }
        rig.history = ChainHistory {
            epoch: Some(epoch),
            chain: turn,
            predecessor: follows,
            restores: None,
            epoch_first: None,
        };
        rig.begin().expect("it begins");
        let expected = if is_filled { 5 } else { 4 };
        for _ in 0..50 {
            assert_eq!(
                rig.read(0, BLOCK),
                [expected; BLOCK],
                "epoch {epoch}, turn {turn}"
            );
        }
        rig.until_alike();
    }
}

struct Model {
    blocks: Vec<BTreeSet<u8>>,
}

impl Model {
    fn wrote(&mut self, block: usize, value: u8) {
        self.blocks[block].insert(value);
    }

    /// A crash later it is one of these.
    fn allows(&self, block: usize, value: u8) -> bool {
        self.blocks[block].contains(&value)
    }
}

/// Whatever dies, and comes back, and dies again: what was flushed is there, and all members
/// have the same in the end.
#[test]
fn nothing_that_was_flushed_is_lost_whoever_dies() {
    for seed in 0..40 {
        let mut rig = Rig::new(seed * 10, 2);
        rig.begin().expect("it begins");
        let blocks = SIZE / BLOCK;
        let mut now = vec![0_u8; blocks];
        let mut model = Model {
            blocks: vec![BTreeSet::from([0]); blocks],
        };
        for step in 0..150 {
            match rig.random.below(20) {
                0..10 => {
                    let block = rig.random.below(blocks as u64 / 8) as usize * 8;
                    let value = (step % 250) as u8 + 1;
                    rig.write(block * BLOCK, &[value; BLOCK]);
                    now[block] = value;
                    model.wrote(block, value);
                }
                10..14 => {
                    let block = rig.random.below(blocks as u64 / 8) as usize * 8;
                    let read = rig.read(block * BLOCK, BLOCK);
                    assert_eq!(read, vec![now[block]; BLOCK], "seed {seed}, step {step}");
                }
                14..16 => {
                    rig.flush();
                    for (values, value) in model.blocks.iter_mut().zip(&now) {
                        *values = BTreeSet::from([*value]);
                    }
                }
                16 => {
                    // One replica dies, or hangs, or is back: never all at once.
                    let victim = 1 + rig.random.below(2) as usize;
                    let other = 3 - victim;
                    let is_other_there = {
                        let other = lock(&rig.places[other]);
                        other.is_up && !other.hangs
                    };
                    let mut place = lock(&rig.places[victim]);
                    match place.is_up && !place.hangs {
                        true if is_other_there && place.random.below(2) == 0 => place.hangs = true,
                        true if is_other_there => {
                            place.is_up = false;
                            place.crash();
                        }
                        true => {}
                        false => (place.is_up, place.hangs) = (true, false),
                    }
                }
                17 => {
                    for _ in 0..rig.random.below(3000) {
                        assert_eq!(rig.poll(), []);
                    }
                }
                _ => {
                    for place in &rig.places {
                        let mut place = lock(place);
                        (place.is_up, place.hangs) = (true, false);
                    }
                    // Some writes are under way as it ends: each may be there, or not.
                    for _ in 0..rig.random.below(6) {
                        let block = rig.random.below(blocks as u64 / 8) as usize * 8;
                        let (token, value) = (rig.next(), (step % 250) as u8 + 1);
                        let (at, data) = ((block * BLOCK) as u64, [value; BLOCK]);
                        model.wrote(block, value);
                        let started =
                            rig.chain
                                .start(Request::write(token, at, &data, Durability::Volatile));
                        assert!(!matches!(started, Started::Failed(_)), "{started:?}");
                        if rig.random.below(2) == 0 {
                            rig.poll();
                        }
                    }
                    rig.crash().expect("all are there");
                    for (block, now) in now.iter_mut().enumerate() {
                        let read = rig.read(block * BLOCK, BLOCK);
                        assert!(
                            read.iter().all(|byte| *byte == read[0])
                                && model.allows(block, read[0]),
                            "seed {seed}, step {step}: block {block} has {}, and may have {:?}",
                            read[0],
                            model.blocks[block]
                        );
                        *now = read[0];
                    }
                    for (values, value) in model.blocks.iter_mut().zip(&now) {
                        values.insert(*value);
                    }
                }
            }
        }
        for place in &rig.places {
            let mut place = lock(place);
            (place.is_up, place.hangs) = (true, false);
        }
        rig.until_alike();
        let live = lock(&rig.places[0]).live.clone();
        for (block, value) in now.iter().enumerate() {
            assert_eq!(live[block * BLOCK], *value, "seed {seed}: block {block}");
        }
    }
}
