//! Replication over disks that fail, hang, lose what was not flushed, and become available again.

mod crashes;
mod members;
mod partial;
mod rejoining;

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
    /// Whether it is not found: no connection to it can begin.
    is_unknown: bool,
    /// Grows when it restarts, which ends older connections.
    life: u32,
    random: SimulatedRandom,
    reads: u64,
    /// The number of times that `live` has changed through a request or a crash.
    changes: u64,
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
            is_unknown: false,
            life: 0,
            random: SimulatedRandom::new(seed),
            reads: 0,
            changes: 0,
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
        self.changes += 1;
        self.late.clear();
        self.life += 1;
    }

    fn write(&mut self, at: usize, data: &[u8]) {
        self.live[at..at + data.len()].copy_from_slice(data);
        self.changes += 1;
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

    fn end_batch(&mut self) -> Result<(), IoError> {
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
        let is_unknown = lock(server).is_unknown;
        match is_unknown {
            true => Err("no such server".to_owned()),
            false => Ok(Box::new(Connection::new(server))),
        }
    }
}

/// A chain that was applied as change `chain` of its volume, after `predecessor`, under the lease
/// with the given epoch.
fn history(epoch: u32, chain: u64, predecessor: u64) -> ChainHistory {
    ChainHistory {
        epoch: Some(epoch),
        chain,
        predecessor,
        restores: None,
        epoch_first: None,
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
        self.chain.end_batch().expect("nothing stops it");
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
        let first = lock(&self.servers[0]);
        let mut others = self.servers[1..].iter();
        others.all(|server| lock(server).live == first.live)
    }

    fn until_equal(&mut self) {
        let is_equal = self.are_equal_after(|completions| {
            assert_eq!(completions, [], "no request is pending");
        });
        assert!(is_equal, "the members stay different");
    }

    /// Polls until all members are equal, or 200,000 times. They are compared only after a change,
    /// since that takes longer than many polls.
    fn are_equal_after(&mut self, each_poll: impl Fn(Vec<Completion>)) -> bool {
        let mut compared = None;
        for _ in 0..200_000 {
            each_poll(self.poll());
            let changes = self.servers.iter().map(|server| lock(server).changes);
            let changes = Some(changes.collect::<Vec<_>>());
            if changes != compared {
                if self.are_equal() {
                    return true;
                }
                compared = changes;
            }
        }
        false
    }
}
