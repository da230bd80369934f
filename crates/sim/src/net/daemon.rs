//! A unit's machine: a disk and a clock of its own, and the daemon on it.
//!
//! What hosts have given up stays: bytes on the way, and jobs that nobody waits for,
//! until [`Daemon::haunt`] carries them out or the daemon ends.

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

use super::Records;
use super::tap::{Tap, Witness};

/// What a machine is set up with.
pub struct Params {
    /// Which unit it is, of those of the run.
    pub number: usize,
    /// And of the cluster.
    pub id: UnitId,
    /// The cluster.
    pub cluster: ClusterId,
    /// Size of a segment.
    pub segment_bytes: u64,
    /// For how long what is freed is kept.
    pub keeps: Duration,
    /// Its own.
    pub clock: Arc<dyn Clock>,
    /// Its own.
    pub random: SimulatedRandom,
    /// By which capabilities are verified.
    pub key: VerifyingKey,
    /// Where it is told what happens.
    pub records: Records,
}

/// A unit's simulated machine, with its daemon.
pub struct Daemon {
    params: Params,
    disk: SimulatedDisk,
    state: Mutex<State>,
}

struct State {
    life: Option<Life>,
    /// Of all lives.
    connection_next: u64,
    witness: Witness,
}

/// From a start to an end.
struct Life {
    process: Arc<SimulatedDisk>,
    keeper: Arc<Keeper>,
    budget: Arc<Budget>,
    connections: BTreeMap<u64, Connection>,
}

/// One connection, from the daemon's side.
struct Connection {
    session: Session,
    tap: Tap,
    /// On the way to it.
    coming: VecDeque<u8>,
    /// What waits, in the order in which it came.
    jobs: Vec<Job>,
    /// The host takes no answers any more.
    is_given_up: bool,
    /// Nothing more is heeded.
    is_closing: bool,
}

/// Where unit `number` lies on its machine.
#[must_use]
pub fn unit_path(number: usize) -> PathBuf {
    PathBuf::from(format!("/units/{number}"))
}

impl Daemon {
    /// A machine with an empty unit, whose daemon runs.
    ///
    /// # Errors
    /// If the unit cannot be made.
    pub fn new(params: Params) -> Result<Self, UnitError> {
        let disk = SimulatedDisk::new(params.random.next());
        let daemon = Self {
            disk,
            state: Mutex::new(State {
                life: None,
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

    /// Which unit it keeps.
    #[must_use]
    pub fn id(&self) -> UnitId {
        self.params.id
    }

    /// The machine's disk.
    #[must_use]
    pub fn disk(&self) -> &SimulatedDisk {
        &self.disk
    }

    /// Starts the daemon, if none runs. False if it does not start.
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
                window: self.params.keeps,
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
        self.state.lock().life = Some(Life {
            process,
            keeper: Arc::new(keeper),
            budget: Budget::new(BUDGET_BYTES),
            connections: BTreeMap::new(),
        });
        true
    }

    /// Whether it answers.
    #[must_use]
    pub fn is_running(&self) -> bool {
        let mut state = self.state.lock();
        if self.disk.is_off() {
            state.life = None;
        }
        state.life.is_some()
    }

    /// The process dies; what it wrote is there.
    pub fn kill(&self) {
        if let Some(life) = self.state.lock().life.take() {
            life.process.kill();
        }
    }

    /// The machine loses power: what was not synced may be gone.
    pub fn lose_power(&self) {
        self.state.lock().life = None;
        self.disk.crash(&self.params.random);
        self.params.records.lock().counts.crashed += 1;
    }

    /// The unit is put back to an earlier state: what it was shown since, it does not
    /// know.
    pub fn forget(&self) {
        self.state.lock().witness.forget();
    }

    /// One in so many reads is answered with something else; none if zero.
    pub fn lie(&self, one_in: u64) {
        self.state.lock().witness.lie(one_in);
    }

    /// What the daemon does by itself now and then.
    pub fn look(&self) {
        let keeper = {
            let state = self.state.lock();
            state.life.as_ref().map(|life| Arc::clone(&life.keeper))
        };
        if let Some(keeper) = keeper {
            // What fails is tried again later.
            let _ = keeper.unit().probe().and_then(|()| keeper.unit().reclaim());
        }
    }

    /// A host connects; `None` if nobody listens.
    pub fn connect(&self, holder: [u8; 32]) -> Option<u64> {
        if !self.is_running() {
            return None;
        }
        let mut state = self.state.lock();
        let State {
            life,
            connection_next,
            ..
        } = &mut *state;
        let life = life.as_mut()?;
        let keeper = Arc::clone(&life.keeper);
        let session = Session::new(keeper, holder, &life.budget, Wake::noop());
        let number = *connection_next;
        *connection_next += 1;
        let connection = Connection {
            session,
            tap: Tap::on(number),
            coming: VecDeque::new(),
            jobs: Vec::new(),
            is_given_up: false,
            is_closing: false,
        };
        life.connections.insert(number, connection);
        Some(number)
    }

    /// Whether a connection is still there.
    pub fn has(&self, connection: u64) -> bool {
        let is_running = self.is_running();
        let state = self.state.lock();
        let life = state.life.as_ref().filter(|_| is_running);
        life.is_some_and(|life| life.connections.contains_key(&connection))
    }

    /// Bytes are on the way to a connection.
    pub fn send(&self, connection: u64, bytes: &[u8]) {
        let mut state = self.state.lock();
        let life = state.life.as_mut();
        if let Some(its) = life.and_then(|life| life.connections.get_mut(&connection)) {
            its.coming.extend(bytes);
        }
    }

    /// What has come is read, and becomes jobs. What is answered at once is in `out`.
    /// `false`: there is no such connection any more.
    pub fn read(&self, connection: u64, out: &mut Vec<u8>) -> bool {
        let is_there = self.with(connection, |its, witness, random| {
            its.read(witness, random, out);
        });
        is_there && self.is_running()
    }

    /// Carries out all that waits, in any order; `false` as with [`Daemon::read`].
    pub fn work(&self, connection: u64, out: &mut Vec<u8>) -> bool {
        let is_there = self.with(connection, |its, witness, random| {
            loop {
                its.read(witness, random, out);
                if !its.run_one(witness, random, out) {
                    return;
                }
            }
        });
        is_there && self.is_running()
    }

    /// The host is gone. What is on the way, or waits, is carried out later, or, if it
    /// is not `kept`, never.
    pub fn give_up(&self, connection: u64, kept: bool) {
        let mut state = self.state.lock();
        let Some(life) = &mut state.life else {
            return;
        };
        match life.connections.get_mut(&connection) {
            Some(its) if kept && !(its.coming.is_empty() && its.jobs.is_empty()) => {
                its.is_given_up = true;
            }
            _ => drop(life.connections.remove(&connection)),
        }
    }

    /// Carries out something of a connection that was given up. False if there is
    /// nothing.
    pub fn haunt(&self) -> bool {
        if !self.is_running() {
            return false;
        }
        let given_up: Vec<u64> = {
            let state = self.state.lock();
            let connections = state.life.iter().flat_map(|life| &life.connections);
            let given_up = connections.filter(|(_, its)| its.is_given_up);
            given_up.map(|(number, _)| *number).collect()
        };
        if given_up.is_empty() {
            return false;
        }
        let number = given_up[self.params.random.index(given_up.len())];
        let mut is_over = true;
        self.with(number, |its, witness, random| {
            let mut nobody = Vec::new();
            its.read(witness, random, &mut nobody);
            its.run_one(witness, random, &mut nobody);
            is_over = its.jobs.is_empty() && (its.coming.is_empty() || its.is_closing);
        });
        let is_running = self.is_running();
        let mut state = self.state.lock();
        if let Some(life) = state.life.as_mut().filter(|_| is_over && is_running) {
            life.connections.remove(&number);
        }
        true
    }

    /// Another host shows a capability, on a connection for that.
    pub fn show(&self, cluster: ClusterId, holder: [u8; 32], signed: &[u8]) {
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
        self.give_up(connection, false);
    }

    fn with(
        &self,
        connection: u64,
        act: impl FnOnce(&mut Connection, &mut Witness, &SimulatedRandom),
    ) -> bool {
        let mut state = self.state.lock();
        let State { life, witness, .. } = &mut *state;
        let connections = life.as_mut().map(|life| &mut life.connections);
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
    /// Reads what has come, in pieces, and begins what may be begun.
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
            let is_ahead = !self.jobs.is_empty();
            self.tap
                .answers(&mut answers, self.is_given_up, is_ahead, witness, random);
            out.extend(answers);
            if self.coming.is_empty() || self.is_closing || !self.session.has_room() {
                return;
            }
            let most = match random.below(3) {
                0 => 1 + random.index(40),
                _ => 256 << 10,
            };
            let piece: Vec<u8> = self.coming.drain(..most.min(self.coming.len())).collect();
            self.tap.asked(&piece);
            self.session.receive(&piece);
        }
    }

    /// Carries out one of the jobs that wait; false if none does.
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
        self.tap
            .answers(&mut answer, self.is_given_up, index > 0, witness, random);
        out.extend(answer);
        true
    }
}
