//! Replication over disks that fail, hang, lose what was not flushed, and become available again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, IoError, Op, Outcome,
    Request, Started, Token,
};
use chain_policy::{FilterKind, Policy};
use parking_lot::{Mutex, MutexGuard};
use world::simulated::{SimulatedClock, SimulatedPool, SimulatedRandom, Simulation};
use world::{Clock, Disk, Millis, Wake};

use super::Replicate;
use crate::testing::EventRecorder;
use crate::{
    AttachmentContext, Chain, ChainHistory, Filter, FilterContext, HostContext, HotSwap, LinkState,
    RemoteDisk, SizeRule, StateFolder, Targets,
};

mod partial;
mod rejoining;

const SIZE: usize = 8 << 20;
const BLOCK: usize = 4096;

/// A disk of a server.
struct Server {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Writes that are not flushed.
    volatile: Vec<(usize, Vec<u8>)>,
    is_up: bool,
    hangs: bool,
    /// The number of flushes that fail from now on. What they should have made durable is lost.
    failing_flushes: u32,
    /// Writes of connections that were dropped while it hung. They are carried out afterwards.
    late: Vec<(usize, Vec<u8>)>,
    /// Grows when it restarts, which ends older connections.
    life: u32,
    random: SimulatedRandom,
    reads: u64,
}

type Shared = Arc<Mutex<Server>>;

fn lock(server: &Shared) -> MutexGuard<'_, Server> {
    server.lock()
}

impl Server {
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

    /// Makes writes durable. Those that a failed flush has dropped stay lost.
    fn flush(&mut self) {
        for (at, data) in self.volatile.drain(..) {
            self.durable[at..at + data.len()].copy_from_slice(&data);
        }
    }
}

/// What a request does when it is answered.
enum Deferred {
    Read(usize, usize),
    Write(usize, Vec<u8>, Durability),
    Flush,
}

/// A connection to a server.
struct Connection {
    server: Shared,
    life: u32,
    pending: Vec<(Token, Deferred)>,
}

impl Connection {
    fn new(server: &Shared) -> Self {
        Self {
            life: lock(server).life,
            server: Arc::clone(server),
            pending: Vec::new(),
        }
    }

    fn later(&mut self, token: Token, request: Deferred) -> Started {
        let random = &lock(&self.server).random;
        if random.below(16) == 0 {
            return Started::Busy;
        }
        self.pending.push((token, request));
        Started::Pending
    }

    fn is_alive(&self) -> bool {
        let server = lock(&self.server);
        server.is_up && server.life == self.life
    }
}

impl BlockDevice for Connection {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: lock(&self.server).live.len() as u64,
            block_bytes: BLOCK as u32,
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        match op {
            Op::Read { offset, out } => {
                self.later(token, Deferred::Read(offset as usize, out.len()))
            }
            Op::Write {
                offset,
                data,
                durability,
            } => self.later(
                token,
                Deferred::Write(offset as usize, data.to_vec(), durability),
            ),
            Op::Flush => self.later(token, Deferred::Flush),
            Op::Trim {
                offset,
                length,
                durability,
            } => {
                let zeroes = vec![0; length as usize];
                self.later(token, Deferred::Write(offset as usize, zeroes, durability))
            }
            Op::WriteZeroes {
                offset,
                length,
                mode,
            } => {
                let zeroes = vec![0; length as usize];
                self.later(
                    token,
                    Deferred::Write(offset as usize, zeroes, mode.durability),
                )
            }
            Op::Prefetch { .. } => Started::Done,
            Op::Extents { .. } => panic!("members may have different holes"),
        }
    }

    fn commit(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let is_alive = self.is_alive();
        let mut server = lock(&self.server);
        if server.hangs {
            return;
        }
        let mut at = 0;
        while at < self.pending.len() {
            if is_alive && server.random.below(3) == 0 {
                at += 1;
                continue;
            }
            let (token, request) = self.pending.remove(at);
            let result = match request {
                _ if !is_alive => Err(IoError::Unavailable("it is unavailable".to_owned())),
                Deferred::Read(at, length) => {
                    server.reads += 1;
                    Ok(Outcome::Data(server.live[at..at + length].to_vec()))
                }
                Deferred::Write(at, data, durability) => {
                    server.write(at, &data);
                    if durability == Durability::Durable {
                        server.flush();
                    }
                    Ok(Outcome::Done)
                }
                Deferred::Flush if server.failing_flushes > 0 => {
                    server.failing_flushes -= 1;
                    server.volatile.clear();
                    Err(IoError::Damaged("it cannot be flushed".to_owned()))
                }
                Deferred::Flush => {
                    server.flush();
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
            return LinkState::Broken("it is unavailable".to_owned());
        }
        let mut server = lock(&self.server);
        if !server.hangs {
            for (at, data) in std::mem::take(&mut server.late) {
                server.write(at, &data);
            }
        }
        // As `Targets` demands: writes of older connections come first.
        match server.late.is_empty() {
            true => LinkState::Ready,
            false => LinkState::Connecting,
        }
    }
}

impl Drop for Connection {
    /// The server may still carry out its writes.
    fn drop(&mut self) {
        if !self.is_alive() {
            return;
        }
        let writes = self
            .pending
            .drain(..)
            .filter_map(|(_, request)| match request {
                Deferred::Write(at, data, _) => Some((at, data)),
                Deferred::Read(..) | Deferred::Flush => None,
            });
        lock(&self.server).late.extend(writes);
    }
}

struct Servers(BTreeMap<String, Shared>);

impl Targets for Servers {
    fn open(&self, server: &chain_policy::ReplicaLocation) -> Result<Box<dyn RemoteDisk>, String> {
        let server = self.0.get(&server.to_string()).ok_or("no such server")?;
        Ok(Box::new(Connection::new(server)))
    }
}

/// A pool. With every other seed some jobs end at once.
fn a_pool(seed: u64) -> Arc<SimulatedPool> {
    let pool = SimulatedPool::new();
    pool.set_immediate(2 * (seed % 2), SimulatedRandom::new(seed));
    Arc::new(pool)
}

/// A chain with the filter, over a volume with replicas.
struct Rig {
    simulation: Simulation,
    clock: Arc<SimulatedClock>,
    pool: Arc<SimulatedPool>,
    /// The servers of the volume and its replicas.
    servers: Vec<Shared>,
    targets: Arc<Servers>,
    chain: Chain<Connection>,
    random: SimulatedRandom,
    token: Token,
    /// The lines of each replica's policy beside its URI.
    more: Vec<String>,
    notes: Arc<EventRecorder>,
    wake: Wake,
    rung: Receiver<()>,
    history: ChainHistory,
}

impl Rig {
    fn new(seed: u64, replicas: usize) -> Self {
        Self::with(seed, vec![0; SIZE], &vec![""; replicas])
    }

    /// A volume with this content, and empty replicas with these lines in their policy.
    fn with(seed: u64, content: Vec<u8>, more: &[&str]) -> Self {
        let simulation = Simulation::new(seed);
        let (ring, rung) = mpsc::channel();
        let ring = Mutex::new(ring);
        let wake = Wake::new(move || {
            // The receiver may be dropped.
            let _ = ring.lock().send(());
        });
        let (length, replicas) = (content.len(), more.len());
        let mut servers = vec![Server::new(seed, content)];
        let empty = (1..=replicas as u64).map(|at| Server::new(seed + at, vec![0; length]));
        servers.extend(empty);
        let named =
            (1..=replicas).map(|at| (format!("nbd://10.0.0.{at}/x"), Arc::clone(&servers[at])));
        let clock = Arc::new(SimulatedClock::new(Millis(0)));
        let chain = Chain::new(
            Connection::new(&servers[0]),
            Arc::clone(&clock) as Arc<dyn Clock>,
            Wake::noop(),
        );
        Self {
            clock,
            chain,
            pool: a_pool(seed),
            targets: Arc::new(Servers(named.collect())),
            random: SimulatedRandom::new(seed),
            simulation,
            servers,
            token: 0,
            more: more.iter().map(|more| (*more).to_owned()).collect(),
            notes: Arc::default(),
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
                targets: Arc::clone(&self.targets) as _,
                wake: self.wake.clone(),
                events: Arc::clone(&self.notes) as _,
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

    fn open(&mut self) -> Result<(), String> {
        let filters = self.build();
        self.hot_swap(filters)
    }

    /// Removes the filter from the chain.
    fn remove(&mut self) -> Result<(), String> {
        self.hot_swap(Vec::new())
    }

    fn hot_swap(&mut self, filters: Vec<Box<dyn Filter>>) -> Result<(), String> {
        let ended = Arc::<Mutex<Option<_>>>::default();
        let result_of_swap = Arc::clone(&ended);
        self.chain.hot_swap(HotSwap {
            filters,
            rule: SizeRule::MayChange,
            on_swapped: Box::new(move |result| {
                *result_of_swap.lock() = Some(result);
            }),
        });
        for _ in 0..20_000 {
            self.wait();
            self.poll();
            if let Some(ended) = ended.lock().take() {
                return ended.map_err(|error| error.to_string());
            }
        }
        panic!("it does not end");
    }

    /// Polls until the first replica is reported to be in sync.
    fn until_in_sync(&mut self) {
        while !self.notes.has_message("r1 is in sync") {
            assert_eq!(self.poll(), []);
        }
    }

    /// Kills the process, fails the power of the volume, and opens the filter again.
    fn crash(&mut self) -> Result<(), String> {
        lock(&self.servers[0]).crash();
        let device = Connection::new(&self.servers[0]);
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        self.chain = Chain::new(device, clock, Wake::noop());
        self.pool = a_pool(self.random.next());
        self.simulation.crash();
        self.open()
    }

    /// Waits for the thread that reads the disk for partial replicas.
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

    /// Starts a request, and polls until it has ended. Others may end meanwhile.
    fn run(&mut self, mut ask: impl FnMut(&mut Chain<Connection>, Token) -> Started) -> Outcome {
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
                    return result.expect("a member has it");
                }
            }
        }
        panic!("it does not end");
    }

    fn write(&mut self, at: usize, data: &[u8]) {
        self.run(|chain, token| {
            chain.start(Request::write(token, at as u64, data, Durability::Volatile))
        });
    }

    fn read(&mut self, at: usize, length: usize) -> Vec<u8> {
        match self
            .run(|chain, token| chain.start(Request::read(token, at as u64, &mut vec![0; length])))
        {
            Outcome::Data(data) => data,
            other => panic!("{other:?}"),
        }
    }

    fn flush(&mut self) {
        self.run(|chain, token| chain.start(Request::flush(token)));
    }

    /// Kills, hangs or revives a replica. The other one stays available.
    fn disturb_a_replica(&mut self) {
        let victim = 1 + self.random.below(2) as usize;
        let other = 3 - victim;
        let is_other_there = {
            let other = lock(&self.servers[other]);
            other.is_up && !other.hangs
        };
        let mut server = lock(&self.servers[victim]);
        match server.is_up && !server.hangs {
            true if is_other_there && server.random.below(2) == 0 => server.hangs = true,
            true if is_other_there => {
                server.is_up = false;
                server.crash();
            }
            true => {}
            false => (server.is_up, server.hangs) = (true, false),
        }
    }

    fn are_equal(&self) -> bool {
        let first = lock(&self.servers[0]).live.clone();
        self.servers.iter().all(|server| lock(server).live == first)
    }

    fn until_equal(&mut self) {
        for _ in 0..200_000 {
            assert_eq!(self.poll(), [], "no request is pending");
            if self.are_equal() {
                return;
            }
        }
        panic!("the members stay different");
    }
}

#[test]
fn replicas_are_rebuilt_and_then_read() {
    let mut rig = Rig::new(1, 2);
    lock(&rig.servers[0]).live[5 << 20..6 << 20].fill(7);
    rig.open().expect("it opens");
    rig.until_equal();
    rig.write(100 * BLOCK, &[9; BLOCK]);
    rig.flush();
    assert!(rig.are_equal());
    // A moment later they are in sync.
    for _ in 0..1000 {
        rig.poll();
    }
    for at in 0..200 {
        let read = rig.read((5 << 20) + at * BLOCK, BLOCK);
        assert_eq!(read, [7; BLOCK]);
    }
    for server in &rig.servers {
        assert!(lock(server).reads >= 20, "all members are read");
    }
}

/// Copied regions counted as rebuilt, and were lost with the replica's power, since nothing had
/// flushed them.
#[test]
fn copies_that_were_not_flushed_are_repeated() {
    for seed in 0..20 {
        let mut rig = Rig::new(seed, 1);
        lock(&rig.servers[0]).live.fill(7);
        rig.open().expect("it opens");
        for _ in 0..seed * 8 {
            rig.poll();
        }
        lock(&rig.servers[1]).crash();
        rig.until_equal();
    }
}

/// A long write over two regions was left to the rebuild of the second one, and the first one
/// counted as rebuilt.
#[test]
fn a_write_over_several_regions_reaches_all_of_a_rebuilding_member() {
    for seed in 0..20 {
        let mut rig = Rig::new(seed, 1);
        lock(&rig.servers[0]).live.fill(7);
        rig.open().expect("it opens");
        for region in 1..7_usize {
            let length = (1 << 20) + 2 * BLOCK;
            rig.write((region << 20) - BLOCK, &vec![region as u8; length]);
        }
        rig.until_equal();
    }
}

#[test]
fn a_member_that_fails_or_hangs_is_out_without_errors_above() {
    for (hangs, victim) in [(false, 1), (true, 1), (true, 0)] {
        let mut rig = Rig::new(3, 2);
        rig.open().expect("it opens");
        rig.until_equal();
        for _ in 0..1000 {
            rig.poll();
        }
        match hangs {
            true => lock(&rig.servers[victim]).hangs = true,
            false => lock(&rig.servers[victim]).is_up = false,
        }
        for at in 0..60 {
            rig.write(at * 3 * BLOCK, &[at as u8 + 1; BLOCK]);
            assert_eq!(rig.read(at * 3 * BLOCK, BLOCK), [at as u8 + 1; BLOCK]);
        }
        rig.flush();
        assert!(!rig.are_equal());
        {
            let mut server = lock(&rig.servers[victim]);
            (server.hangs, server.is_up) = (false, true);
            if victim != 0 {
                server.crash();
            }
        }
        rig.until_equal();
        assert_eq!(rig.read(3 * BLOCK, BLOCK), [2; BLOCK]);
    }
}

/// The only member with the last writes was unavailable, and another one was served.
#[test]
fn a_member_without_the_last_writes_is_never_the_source() {
    let mut rig = Rig::new(4, 1);
    rig.open().expect("it opens");
    rig.until_equal();
    for _ in 0..1000 {
        rig.poll();
    }
    lock(&rig.servers[0]).hangs = true;
    rig.write(0, &[5; BLOCK]);
    rig.flush();
    lock(&rig.servers[0]).hangs = false;
    lock(&rig.servers[1]).is_up = false;
    let why = rig.crash().expect_err("the volume has an older state");
    assert!(why.contains("only replica r1 has the last writes"), "{why}");
    lock(&rig.servers[1]).is_up = true;
    rig.open().expect("the replica is available");
    assert_eq!(rig.read(0, BLOCK), [5; BLOCK]);
    rig.until_equal();
}

#[test]
fn the_volume_is_used_without_a_replica_that_cannot_be_opened() {
    let mut rig = Rig::new(5, 2);
    rig.targets = Arc::new(Servers(BTreeMap::new()));
    rig.open().expect("the volume is available");
    rig.write(0, &[1; BLOCK]);
    assert_eq!(rig.read(0, BLOCK), [1; BLOCK]);
}

#[test]
fn the_only_complete_member_is_waited_for_and_not_put_out() {
    let mut rig = Rig::new(21, 1);
    rig.open().expect("it opens");
    rig.until_in_sync();
    lock(&rig.servers[1]).is_up = false;
    rig.write(0, &[1; BLOCK]);
    lock(&rig.servers[0]).hangs = true;
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
    lock(&rig.servers[0]).hangs = false;
    while rig.poll().is_empty() {}
    assert_eq!(rig.read(0, BLOCK), [2; BLOCK]);
    rig.flush();
    lock(&rig.servers[1]).is_up = true;
    rig.until_equal();
    rig.crash().expect("the volume is complete");
    assert_eq!(rig.read(0, BLOCK), [2; BLOCK]);
}

#[test]
fn an_incomplete_volume_keeps_its_filter() {
    let mut rig = Rig::new(22, 1);
    rig.open().expect("it opens");
    rig.until_in_sync();
    lock(&rig.servers[0]).hangs = true;
    for _ in 0..10 {
        // The volume is put out, and only the replica is complete.
        rig.write(0, &[3; BLOCK]);
    }
    let refused = rig.remove().expect_err("the volume is incomplete");
    assert!(
        refused.contains("cannot be removed: the volume is missing writes"),
        "{refused}"
    );
    lock(&rig.servers[0]).hangs = false;
    rig.until_equal();
    while rig.remove().is_err() {
        rig.poll();
    }
    assert_eq!(rig.read(0, BLOCK), [3; BLOCK]);
}

#[test]
fn replicas_are_missing_what_was_written_without_the_filter() {
    for (epoch, turn, follows, is_rebuilt) in [
        (1, 2, 1, false), // The same filter again, by a hot swap.
        (1, 3, 2, true),  // Another chain was in use meanwhile.
        (2, 2, 1, false), // The volume was opened again.
        (3, 2, 1, true),  // And by another host in between.
    ] {
        let mut rig = Rig::new(23, 1);
        rig.history = ChainHistory {
            epoch: Some(1),
            chain: 1,
            predecessor: 0,
            restores: None,
            epoch_first: None,
        };
        rig.open().expect("it opens");
        rig.write(0, &[4; BLOCK]);
        rig.flush();
        rig.until_equal();
        if is_rebuilt {
            rig.remove().expect("the volume is complete");
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
        rig.open().expect("it opens");
        let expected = if is_rebuilt { 5 } else { 4 };
        for _ in 0..50 {
            assert_eq!(
                rig.read(0, BLOCK),
                [expected; BLOCK],
                "epoch {epoch}, turn {turn}"
            );
        }
        rig.until_equal();
    }
}

/// The values that each block may have after a crash.
struct Model {
    blocks: Vec<BTreeSet<u8>>,
}

impl Model {
    fn wrote(&mut self, block: usize, value: u8) {
        self.blocks[block].insert(value);
    }

    fn allows(&self, block: usize, value: u8) -> bool {
        self.blocks[block].contains(&value)
    }
}

/// Replicas and hosts die and return at random: flushed writes are there, and in the end all
/// members are equal.
#[test]
fn flushed_writes_survive_any_sequence_of_crashes() {
    for seed in 0..40 {
        let mut rig = Rig::new(seed * 10, 2);
        rig.open().expect("it opens");
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
                16 => rig.disturb_a_replica(),
                17 => {
                    for _ in 0..rig.random.below(3000) {
                        assert_eq!(rig.poll(), []);
                    }
                }
                _ => {
                    for server in &rig.servers {
                        let mut server = lock(server);
                        (server.is_up, server.hangs) = (true, false);
                    }
                    // Some writes are pending at the crash: each may be there or not.
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
                    rig.crash().expect("all are available");
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
        for server in &rig.servers {
            let mut server = lock(server);
            (server.is_up, server.hangs) = (true, false);
        }
        rig.until_equal();
        let live = lock(&rig.servers[0]).live.clone();
        for (block, value) in now.iter().enumerate() {
            assert_eq!(live[block * BLOCK], *value, "seed {seed}: block {block}");
        }
    }
}
