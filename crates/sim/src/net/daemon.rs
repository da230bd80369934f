//! [`Daemon`]: the machine of a unit, with a disk and a clock of its own, and the daemon on
//! it.
//!
//! Bytes in transit and jobs of abandoned connections stay until
//! [`Daemon::deliver_abandoned`] carries them out, or the daemon ends.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use auth::VerifyingKey;
use base::{ClusterId, UnitId};
use parking_lot::Mutex;
use unit::{Unit, UnitError};
use unit_daemon::{BUDGET_BYTES, Budget, Job, Keeper, KeeperConfig, Session, Step, UndeletePolicy};
use unit_folder::FolderUnit;
use unit_wire::{Request, VERSION};
use world::simulated::{SimulatedDisk, SimulatedPool, SimulatedRandom};
use world::{Clock, Disk, Wake, World};

use super::record::Records;
use super::tap::{Arrival, Tap, Witness};

/// The parts of a daemon's machine.
pub struct Params {
    /// The unit's number within the run.
    pub number: usize,
    /// The unit's id.
    pub id: UnitId,
    /// The cluster.
    pub cluster: ClusterId,
    /// Size of a segment in bytes.
    pub segment_bytes: u64,
    /// How long freed content is kept.
    pub undelete_window: Duration,
    /// The machine's clock.
    pub clock: Arc<dyn Clock>,
    /// The machine's own random numbers.
    pub random: SimulatedRandom,
    /// The key that verifies capabilities.
    pub key: VerifyingKey,
    /// The record of events.
    pub records: Records,
}

/// A unit's simulated machine, with its daemon.
pub struct Daemon {
    params: Params,
    disk: SimulatedDisk,
    state: Mutex<State>,
}

struct State {
    process: Option<Process>,
    /// The number of the next connection. Numbers grow over all processes.
    connection_next: u64,
    witness: Witness,
}

/// A running daemon.
struct Process {
    disk: Arc<SimulatedDisk>,
    keeper: Arc<Keeper>,
    budget: Arc<Budget>,
    connections: BTreeMap<u64, Connection>,
}

/// One connection, from the daemon's side.
struct Connection {
    session: Session,
    tap: Tap,
    /// Bytes in transit to the daemon.
    incoming: VecDeque<u8>,
    /// Jobs that wait, in the order of their requests.
    jobs: Vec<Job>,
    /// Whether the host has abandoned the connection.
    is_abandoned: bool,
    /// Whether further requests are ignored.
    is_closing: bool,
}

/// What happens to the requests of an abandoned connection that were not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abandoned {
    /// They are carried out later.
    ArrivesLater,
    /// They are lost.
    Lost,
}

/// The folder of unit `number` on its machine.
#[must_use]
pub fn unit_path(number: usize) -> PathBuf {
    PathBuf::from(format!("/units/{number}"))
}

impl Daemon {
    /// A machine with an empty unit and a running daemon.
    ///
    /// # Errors
    /// [`UnitError`] if the unit cannot be created.
    pub fn new(params: Params) -> Result<Self, UnitError> {
        let disk = SimulatedDisk::new(params.random.next());
        let daemon = Self {
            disk,
            state: Mutex::new(State {
                process: None,
                connection_next: 1,
                witness: Witness::new(params.id, params.key, Arc::clone(&params.records)),
            }),
            params,
        };
        let process = Arc::new(daemon.disk.spawn());
        let made = process.create_directory(Path::new("/units"));
        made.and_then(|()| process.sync_directory(Path::new("/")))
            .expect("an empty disk takes folders");
        let world = daemon.world(process);
        let Params {
            number,
            cluster,
            id,
            ..
        } = daemon.params;
        FolderUnit::create(&world, &unit_path(number), cluster, id)?;
        daemon.start();
        Ok(daemon)
    }

    fn world(&self, process: Arc<SimulatedDisk>) -> World {
        World {
            disk: process,
            clock: Arc::clone(&self.params.clock),
            random: Arc::new(self.params.random.split()),
            pool: Arc::new(SimulatedPool::new()),
        }
    }

    /// The unit's id.
    #[must_use]
    pub fn id(&self) -> UnitId {
        self.params.id
    }

    /// The machine's disk.
    #[must_use]
    pub fn disk(&self) -> &SimulatedDisk {
        &self.disk
    }

    /// Starts the daemon, unless it runs. Returns `false` if it does not start.
    pub fn start(&self) -> bool {
        if self.is_running() {
            return true;
        }
        if self.disk.is_off() {
            self.lose_power();
        }
        let process = Arc::new(self.disk.spawn());
        let world = self.world(Arc::clone(&process));
        let Params {
            number,
            cluster,
            id,
            key,
            ..
        } = self.params;
        let path = unit_path(number);
        let unit = FolderUnit::open(&world, &path, cluster, id)
            .with_segment_data_bytes(self.params.segment_bytes)
            .with_open_segments(8)
            .with_undelete(UndeletePolicy {
                window: self.params.undelete_window,
                ..UndeletePolicy::default()
            });
        let config = KeeperConfig {
            cluster,
            keys: vec![key],
            generation: 1,
        };
        let Ok(keeper) = Keeper::open(&world, unit, &path, config) else {
            return false;
        };
        self.state.lock().process = Some(Process {
            disk: process,
            keeper: Arc::new(keeper),
            budget: Budget::new(BUDGET_BYTES),
            connections: BTreeMap::new(),
        });
        true
    }

    /// Whether the daemon runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        let mut state = self.state.lock();
        if self.disk.is_off() {
            state.process = None;
        }
        state.process.is_some()
    }

    /// Kills the daemon. Everything that it wrote stays.
    pub fn kill(&self) {
        if let Some(process) = self.state.lock().process.take() {
            process.disk.kill();
        }
    }

    /// The machine loses power: content that was not synced may be lost.
    pub fn lose_power(&self) {
        self.state.lock().process = None;
        self.disk.crash(&self.params.random);
        self.params.records.lock().counts.crashed += 1;
    }

    /// The unit is rolled back to an earlier state: it no longer knows the fences that it
    /// was presented since.
    pub fn forget_fences(&self) {
        self.state.lock().witness.forget_fences();
    }

    /// Falsifies one of `one_in` reads; none if zero.
    pub fn falsify_reads(&self, one_in: u64) {
        self.state.lock().witness.falsify_reads(one_in);
    }

    /// Runs the daemon's own periodic work.
    pub fn run_maintenance(&self) {
        let keeper = {
            let state = self.state.lock();
            let process = state.process.as_ref();
            process.map(|process| Arc::clone(&process.keeper))
        };
        if let Some(keeper) = keeper {
            // A failure is retried later.
            let _ = keeper.unit().probe().and_then(|()| keeper.unit().reclaim());
        }
    }

    /// Connects a host, and returns the connection's number. `None` if the daemon does not
    /// run.
    pub fn connect(&self, holder: [u8; 32]) -> Option<u64> {
        if !self.is_running() {
            return None;
        }
        let mut state = self.state.lock();
        let State {
            process,
            connection_next,
            ..
        } = &mut *state;
        let process = process.as_mut()?;
        let keeper = Arc::clone(&process.keeper);
        let session = Session::new(keeper, holder, &process.budget, Wake::noop());
        let number = *connection_next;
        *connection_next += 1;
        let connection = Connection {
            session,
            tap: Tap::on(number),
            incoming: VecDeque::new(),
            jobs: Vec::new(),
            is_abandoned: false,
            is_closing: false,
        };
        process.connections.insert(number, connection);
        Some(number)
    }

    /// Whether a connection is open.
    pub fn has(&self, connection: u64) -> bool {
        let is_running = self.is_running();
        let state = self.state.lock();
        let process = state.process.as_ref().filter(|_| is_running);
        process.is_some_and(|process| process.connections.contains_key(&connection))
    }

    /// Sends bytes on a connection: they are in transit.
    pub fn send(&self, connection: u64, bytes: &[u8]) {
        let mut state = self.state.lock();
        let process = state.process.as_mut();
        let connections = process.map(|process| &mut process.connections);
        if let Some(its) = connections.and_then(|all| all.get_mut(&connection)) {
            its.incoming.extend(bytes);
        }
    }

    /// Reads the bytes in transit: requests become jobs, or are answered in `out` at once.
    /// Returns `false` if the connection is closed.
    pub fn read(&self, connection: u64, out: &mut Vec<u8>) -> bool {
        let is_open = self.with(connection, |its, witness, random| {
            its.read(witness, random, out);
        });
        is_open && self.is_running()
    }

    /// Reads, and carries out all jobs in random order. Returns `false` as [`Daemon::read`].
    pub fn work(&self, connection: u64, out: &mut Vec<u8>) -> bool {
        let is_open = self.with(connection, |its, witness, random| {
            loop {
                its.read(witness, random, out);
                if !its.run_one(witness, random, out) {
                    return;
                }
            }
        });
        is_open && self.is_running()
    }

    /// The host abandons a connection.
    pub fn abandon(&self, connection: u64, abandoned: Abandoned) {
        let mut state = self.state.lock();
        let Some(process) = &mut state.process else {
            return;
        };
        let arrives = abandoned == Abandoned::ArrivesLater;
        match process.connections.get_mut(&connection) {
            Some(its) if arrives && !(its.incoming.is_empty() && its.jobs.is_empty()) => {
                its.is_abandoned = true;
            }
            _ => drop(process.connections.remove(&connection)),
        }
    }

    /// Reads from an abandoned connection, and carries out one of its jobs. Returns `false`
    /// if there is no such connection.
    pub fn deliver_abandoned(&self) -> bool {
        if !self.is_running() {
            return false;
        }
        let abandoned: Vec<u64> = {
            let state = self.state.lock();
            let connections = state
                .process
                .iter()
                .flat_map(|process| &process.connections);
            let abandoned = connections.filter(|(_, its)| its.is_abandoned);
            abandoned.map(|(number, _)| *number).collect()
        };
        if abandoned.is_empty() {
            return false;
        }
        let number = abandoned[self.params.random.index(abandoned.len())];
        let mut is_finished = true;
        self.with(number, |its, witness, random| {
            let mut ignored = Vec::new();
            its.read(witness, random, &mut ignored);
            its.run_one(witness, random, &mut ignored);
            is_finished = its.jobs.is_empty() && (its.incoming.is_empty() || its.is_closing);
        });
        let is_running = self.is_running();
        let mut state = self.state.lock();
        let process = state.process.as_mut();
        if let Some(process) = process.filter(|_| is_finished && is_running) {
            process.connections.remove(&number);
        }
        true
    }

    /// Another host presents a capability, on a connection of its own.
    pub fn present(&self, cluster: ClusterId, holder: [u8; 32], signed: &[u8]) {
        let Some(connection) = self.connect(holder) else {
            return;
        };
        let mut bytes = Vec::new();
        let hello = Request::Hello {
            version: VERSION,
            cluster,
        };
        hello.encode(1, &mut bytes);
        Request::Present(signed).encode(2, &mut bytes);
        self.send(connection, &bytes);
        self.work(connection, &mut Vec::new());
        self.abandon(connection, Abandoned::Lost);
    }

    /// Calls `act` with a connection. Returns `false` if it is closed.
    fn with(
        &self,
        connection: u64,
        act: impl FnOnce(&mut Connection, &mut Witness, &SimulatedRandom),
    ) -> bool {
        let mut state = self.state.lock();
        let State {
            process, witness, ..
        } = &mut *state;
        let connections = process.as_mut().map(|process| &mut process.connections);
        match connections.and_then(|all| all.get_mut(&connection)) {
            Some(its) => {
                witness.now = self.params.clock.wall();
                act(its, witness, &self.params.random);
                true
            }
            None => false,
        }
    }
}

impl Connection {
    /// When an answer arrives. `is_ahead`: a job of an earlier request still waits.
    fn arrival(&self, is_ahead: bool) -> Arrival {
        match (self.is_abandoned, is_ahead) {
            (true, _) => Arrival::Late,
            (false, true) => Arrival::Reordered,
            (false, false) => Arrival::InOrder,
        }
    }

    /// Reads the bytes in transit, in pieces of random length, as far as the session has
    /// room.
    fn read(&mut self, witness: &mut Witness, random: &SimulatedRandom, out: &mut Vec<u8>) {
        loop {
            let mut answers = Vec::new();
            while !self.is_closing {
                match self.session.step(&mut answers) {
                    Ok(Step::Wait) => break,
                    Ok(Step::Answered) => {}
                    Ok(Step::Job(job)) => self.jobs.push(job),
                    Err(_) => self.is_closing = true,
                }
            }
            let arrival = self.arrival(!self.jobs.is_empty());
            self.tap.answers(&mut answers, arrival, witness, random);
            out.extend(answers);
            if self.incoming.is_empty() || self.is_closing || !self.session.has_room() {
                return;
            }
            let length_max = match random.below(3) {
                0 => 1 + random.index(40),
                _ => 256 << 10,
            };
            let piece: Vec<u8> = self
                .incoming
                .drain(..length_max.min(self.incoming.len()))
                .collect();
            self.tap.requests(&piece);
            self.session.receive(&piece);
        }
    }

    /// Carries out one of the waiting jobs. Returns `false` if there is none.
    fn run_one(
        &mut self,
        witness: &mut Witness,
        random: &SimulatedRandom,
        out: &mut Vec<u8>,
    ) -> bool {
        if self.jobs.is_empty() {
            return false;
        }
        let index = random.index(self.jobs.len());
        let job = self.jobs.remove(index);
        let tag = job.tag();
        let mut answer = job.run();
        self.session.answered(tag);
        let arrival = self.arrival(index > 0);
        self.tap.answers(&mut answer, arrival, witness, random);
        out.extend(answer);
        true
    }
}
