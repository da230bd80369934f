//! One host: its machine, the volume it has open, and its client.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use base::{BlockDevice, Completion, Durability, IoError, Outcome, Started, Token};
use volume::catalog::Lease;
use volume::{LeaseTerm, Volume};
use world::Clock;

use crate::Check;
use crate::machine::Machine;
use crate::model::{Edit, Timeline, content};

/// A host stops at four fifths of the term.
pub const HOLD: Duration = Duration::from_secs(8);

/// What is known of the volume's content.
#[derive(Debug, Clone, Default)]
pub struct Past {
    /// What was admitted, in order, by one holder after the other.
    pub timeline: Timeline,
    /// Operations up to here were acknowledged.
    pub acknowledged: usize,
    /// Operations up to here were acknowledged as durable.
    pub durable: usize,
}

/// A renewal under way.
pub struct Renewal {
    /// When it was sent, on the host's clock.
    pub sent: Duration,
    /// What the controller said, if it has heard it.
    pub answer: Option<bool>,
}

/// A lease as it was taken.
pub struct Taken {
    pub lease: Lease,
    /// When it was asked for, on the host's clock.
    pub sent: Duration,
    /// Whether another host had one since this host opened the volume last.
    pub taken_over: bool,
}

/// One host.
pub struct Host {
    pub machine: Machine,
    /// It does not reach the controller.
    pub is_cut: bool,
    /// Connections to daemons break.
    pub is_disturbed: bool,
    /// Something went wrong since it opened the volume: it may stop.
    pub may_stop: bool,
    /// A lease that it has taken and not used yet.
    pub taken: Option<Taken>,
    pub attached: Option<Attached>,
    pub renewal: Option<Renewal>,
    /// The lease it opened the volume under last.
    pub opened: u32,
}

/// The volume, as one host has it.
pub struct Attached {
    pub volume: Volume,
    pub term: LeaseTerm,
    pub epoch: u32,
    pub renewed: Duration,
    /// Units have been out of reach: reads may fail.
    pub may_miss: bool,
    /// What the volume held when another host took it over.
    pub left_with: Option<Past>,
    requests: BTreeMap<Token, Request>,
    /// Changes that were taken and not admitted.
    held: VecDeque<(Token, Edit)>,
    token: Token,
}

enum Request {
    Write,
    Durable { covers: usize },
    Flush { covers: usize },
    Read { block: u64, since: usize },
}

impl Host {
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            is_cut: false,
            is_disturbed: false,
            may_stop: false,
            taken: None,
            attached: None,
            renewal: None,
            opened: 0,
        }
    }

    pub fn clock(&self) -> Duration {
        self.machine.simulation.clock.monotonic()
    }

    /// Forgets everything that a process knows.
    pub fn forget(&mut self) {
        self.taken = None;
        self.attached = None;
        self.renewal = None;
    }
}

impl Attached {
    pub fn new(volume: Volume, term: LeaseTerm, epoch: u32, renewed: Duration) -> Self {
        Self {
            volume,
            term,
            epoch,
            renewed,
            may_miss: false,
            left_with: None,
            requests: BTreeMap::new(),
            held: VecDeque::new(),
            token: 0,
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.volume.status().stopped.is_some()
    }

    fn ask(&mut self, request: Request) {
        self.requests.insert(self.token, request);
    }

    fn blocks_written(&self) -> u64 {
        self.volume.status().counters.blocks_written
    }

    /// Writes a block. `is_holder`: nobody has taken the volume since.
    pub fn write(
        &mut self,
        past: &mut Past,
        is_holder: bool,
        edit: Edit,
        durability: Durability,
    ) -> Check {
        let Edit::Write(offset, data) = &edit else {
            return Err("only whole blocks are written here".to_owned());
        };
        self.token += 1;
        let before = self.blocks_written();
        let started = self
            .volume
            .start(base::Request::write(self.token, *offset, data, durability));
        let is_admitted = self.blocks_written() != before;
        if is_admitted {
            self.admit(past, is_holder, &edit)?;
        }
        match started {
            Started::Done => self.acknowledged(past, is_holder, past.timeline.len(), false),
            Started::Pending if is_admitted => {
                let covers = past.timeline.len();
                self.ask(Request::Durable { covers });
                Ok(())
            }
            Started::Pending => {
                self.held.push_back((self.token, edit));
                self.ask(match durability {
                    Durability::Volatile => Request::Write,
                    Durability::Durable => Request::Durable { covers: 0 },
                });
                Ok(())
            }
            Started::Busy => Ok(()),
            Started::Failed(error) => self.failed(&error),
        }
    }

    fn admit(&self, past: &mut Past, is_holder: bool, edit: &Edit) -> Check {
        if !is_holder {
            return Err(format!(
                "lease {} has admitted a write too late",
                self.epoch
            ));
        }
        let operation = past.timeline.operation(edit, base::BlockSize::DEFAULT);
        past.timeline.push(operation);
        Ok(())
    }

    fn acknowledged(
        &self,
        past: &mut Past,
        is_holder: bool,
        covers: usize,
        is_durable: bool,
    ) -> Check {
        if !is_holder {
            return Err(format!(
                "lease {} acknowledged something after another host took the volume",
                self.epoch
            ));
        }
        past.acknowledged = past.acknowledged.max(covers);
        if is_durable {
            past.durable = past.durable.max(covers);
        }
        Ok(())
    }

    /// Makes what was acknowledged durable.
    pub fn flush(&mut self, past: &mut Past, is_holder: bool) -> Check {
        self.token += 1;
        let covers = past.acknowledged;
        match self.volume.start(base::Request::flush(self.token)) {
            Started::Done => self.acknowledged(past, is_holder, covers, true),
            Started::Pending => {
                self.ask(Request::Flush { covers });
                Ok(())
            }
            Started::Busy => Ok(()),
            Started::Failed(error) => self.failed(&error),
        }
    }

    /// Reads a block.
    pub fn read(&mut self, past: &Past, is_holder: bool, block: u64) -> Check {
        self.token += 1;
        let mut out = vec![0xee; 4096];
        let since = past.timeline.len();
        match self
            .volume
            .start(base::Request::read(self.token, block * 4096, &mut out))
        {
            Started::Done => check_read(past, block, since, &out),
            Started::Pending => {
                self.ask(Request::Read { block, since });
                Ok(())
            }
            Started::Busy => Ok(()),
            Started::Failed(error) => self.read_failed(is_holder, &error),
        }
    }

    fn failed(&self, error: &IoError) -> Check {
        match error {
            IoError::Stopped(_) if self.is_stopped() => Ok(()),
            // The journal is full, and nothing is destaged without the
            // controller.
            IoError::Unavailable(_) => Ok(()),
            error => Err(format!("a request failed: {error}")),
        }
    }

    fn read_failed(&self, is_holder: bool, error: &IoError) -> Check {
        match error {
            // The other host has freed it.
            IoError::Unavailable(_) | IoError::Damaged(_) if !is_holder => Ok(()),
            IoError::Unavailable(_) if self.may_miss => Ok(()),
            IoError::Stopped(_) if self.is_stopped() => Ok(()),
            error => Err(format!("a read failed: {error}")),
        }
    }

    /// Collects answers.
    pub fn poll(&mut self, past: &mut Past, is_holder: bool) -> Check {
        let before = self.blocks_written();
        let mut completions = Vec::new();
        self.volume.poll(&mut completions);
        let failed = |token: &Token| {
            let is_failed = |done: &Completion| done.token == *token && done.result.is_err();
            completions.iter().any(is_failed)
        };
        self.held.retain(|(token, _)| !failed(token));
        for _ in before..self.blocks_written() {
            let Some((token, edit)) = self.held.pop_front() else {
                return Err("blocks were written that nobody asked for".to_owned());
            };
            self.admit(past, is_holder, &edit)?;
            // What was admitted is known only now.
            let covers = past.timeline.len();
            match self.requests.get_mut(&token) {
                Some(Request::Durable { covers: known }) => *known = covers,
                _ => {
                    self.requests.insert(token, Request::Write);
                }
            }
        }
        completions
            .into_iter()
            .try_for_each(|completion| self.complete(past, is_holder, completion))
    }

    fn complete(&mut self, past: &mut Past, is_holder: bool, completion: Completion) -> Check {
        let Completion { token, result } = completion;
        let Some(request) = self.requests.remove(&token) else {
            return Err(format!("request {token} was answered twice, or never made"));
        };
        match (request, result) {
            (Request::Read { block, since }, Ok(Outcome::Data(data))) => {
                check_read(past, block, since, &data)
            }
            (Request::Read { .. }, Err(error)) => self.read_failed(is_holder, &error),
            (Request::Write, Ok(_)) => {
                // In order: all before it are admitted.
                self.acknowledged(past, is_holder, 0, false)
            }
            (Request::Durable { covers } | Request::Flush { covers }, Ok(_)) => {
                self.acknowledged(past, is_holder, covers, true)
            }
            (_, Err(error)) => self.failed(&error),
            (_, Ok(outcome)) => Err(format!("request {token} brought {outcome:?}")),
        }
    }
}

fn check_read(past: &Past, block: u64, since: usize, out: &[u8]) -> Check {
    let until = past.timeline.len();
    if past.timeline.held(block, &content(out), since..=until) {
        return Ok(());
    }
    Err(format!(
        "block {block} is wrong: it is not what it held between {since} and {until}"
    ))
}

/// A write of `block` that no other number gives.
pub fn edit(block: u64, number: u64) -> Edit {
    let mut bytes = vec![0; 4096];
    for part in bytes.as_chunks_mut::<8>().0 {
        *part = number.to_le_bytes();
    }
    Edit::Write(block * 4096, Rc::from(bytes))
}
