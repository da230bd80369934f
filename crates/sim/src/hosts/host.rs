//! [`Host`]: its machine, the volume that it has open, and the volume's client.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use base::{BlockDevice, Completion, Durability, IoError, Outcome, Request, Started, Token};
use catalog::Lease;
use volume::{LeaseTerm, Volume};
use world::Clock;

use crate::Check;
use crate::machine::Machine;
use crate::model::{Edit, Timeline, content};

/// How long a host holds a lease after it has sent a renewal: four fifths of the term.
pub const HOLD: Duration = Duration::from_secs(8);

/// The history of the volume, over all hosts.
#[derive(Debug, Clone, Default)]
pub struct VolumeHistory {
    /// The admitted operations, by one holder after the other.
    pub timeline: Timeline,
    /// Operations up to this boundary were acknowledged.
    pub acknowledged: usize,
    /// Operations up to this boundary were acknowledged as durable.
    pub durable: usize,
}

/// A renewal in progress.
pub struct Renewal {
    /// When it was sent, on the host's clock.
    pub sent: Duration,
    /// Whether the controller has renewed the lease; `None` before it received the
    /// renewal.
    pub answer: Option<bool>,
}

/// A lease that was acquired.
pub struct AcquiredLease {
    pub lease: Lease,
    /// When it was requested, on the host's clock.
    pub sent: Duration,
    /// Whether another host has had the volume since this host last opened it.
    pub taken_over: bool,
}

/// One host.
pub struct Host {
    pub machine: Machine,
    /// Whether the controller is unreachable.
    pub is_controller_unreachable: bool,
    /// Whether connections to daemons break.
    pub has_link_faults: bool,
    /// Whether the volume may stop: there was a fault since it was opened.
    pub may_stop: bool,
    /// A lease that was acquired and not used yet.
    pub acquired: Option<AcquiredLease>,
    pub attached: Option<Attached>,
    pub renewal: Option<Renewal>,
    /// The epoch under which it last opened the volume.
    pub opened_epoch: u32,
}

/// The volume, open on one host.
pub struct Attached {
    pub volume: Volume,
    pub term: LeaseTerm,
    pub epoch: u32,
    pub renewed: Duration,
    /// Whether reads may fail: units have been unreachable.
    pub may_miss: bool,
    /// The volume's history when another host took it over.
    pub last_history: Option<VolumeHistory>,
    requests: BTreeMap<Token, PendingRequest>,
    /// Changes that are not admitted yet.
    held: VecDeque<(Token, Edit)>,
    token: Token,
}

/// The history of the volume as a host sees it.
pub struct HostView<'a> {
    pub history: &'a mut VolumeHistory,
    /// Whether no other host has acquired the lease since.
    pub is_holder: bool,
}

/// A request that was not answered at once. `since` is the newest boundary when it was
/// started, `covers` the boundary that is durable once it is answered.
enum PendingRequest {
    Write,
    DurableWrite { covers: usize },
    Flush { covers: usize },
    Read { block: u64, since: usize },
}

impl Host {
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            is_controller_unreachable: false,
            has_link_faults: false,
            may_stop: false,
            acquired: None,
            attached: None,
            renewal: None,
            opened_epoch: 0,
        }
    }

    /// The time on the host's monotonic clock.
    pub fn now(&self) -> Duration {
        self.machine.simulation.clock.monotonic()
    }

    /// The process has ended: forgets its state.
    pub fn forget(&mut self) {
        self.acquired = None;
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
            last_history: None,
            requests: BTreeMap::new(),
            held: VecDeque::new(),
            token: 0,
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.volume.status().stopped.is_some()
    }

    fn insert(&mut self, request: PendingRequest) {
        self.requests.insert(self.token, request);
    }

    fn blocks_written(&self) -> u64 {
        self.volume.status().counters.blocks_written
    }

    /// Writes a block.
    pub fn write(&mut self, view: &mut HostView<'_>, edit: Edit, durability: Durability) -> Check {
        let Edit::Write { offset, data } = &edit else {
            return Err("only whole blocks are written here".to_owned());
        };
        self.token += 1;
        let before = self.blocks_written();
        let request = Request::write(self.token, *offset, data, durability);
        let started = self.volume.start(request);
        let is_admitted = self.blocks_written() != before;
        if is_admitted {
            self.admit(view, &edit)?;
        }
        match started {
            Started::Done => self.acknowledged(view, view.history.timeline.len(), false),
            Started::Pending if is_admitted => {
                let covers = view.history.timeline.len();
                self.insert(PendingRequest::DurableWrite { covers });
                Ok(())
            }
            Started::Pending => {
                self.held.push_back((self.token, edit));
                self.insert(match durability {
                    Durability::Volatile => PendingRequest::Write,
                    Durability::Durable => PendingRequest::DurableWrite { covers: 0 },
                });
                Ok(())
            }
            Started::Busy => Ok(()),
            Started::Failed(error) => self.check_error(&error),
        }
    }

    fn admit(&self, view: &mut HostView<'_>, edit: &Edit) -> Check {
        if !view.is_holder {
            return Err(format!(
                "a write was admitted under lease {} after another host took the volume",
                self.epoch
            ));
        }
        let timeline = &mut view.history.timeline;
        let operation = timeline.operation(edit, base::BlockSize::DEFAULT);
        timeline.push(operation);
        Ok(())
    }

    fn acknowledged(&self, view: &mut HostView<'_>, covers: usize, is_durable: bool) -> Check {
        if !view.is_holder {
            return Err(format!(
                "a request was acknowledged under lease {} after another host took the volume",
                self.epoch
            ));
        }
        let history = &mut *view.history;
        history.acknowledged = history.acknowledged.max(covers);
        if is_durable {
            history.durable = history.durable.max(covers);
        }
        Ok(())
    }

    /// Flushes everything that was acknowledged.
    pub fn flush(&mut self, view: &mut HostView<'_>) -> Check {
        self.token += 1;
        let covers = view.history.acknowledged;
        match self.volume.start(Request::flush(self.token)) {
            Started::Done => self.acknowledged(view, covers, true),
            Started::Pending => {
                self.insert(PendingRequest::Flush { covers });
                Ok(())
            }
            Started::Busy => Ok(()),
            Started::Failed(error) => self.check_error(&error),
        }
    }

    /// Reads a block.
    pub fn read(&mut self, view: &HostView<'_>, block: u64) -> Check {
        self.token += 1;
        let mut out = vec![0xee; 4096];
        let since = view.history.timeline.len();
        let request = Request::read(self.token, block * 4096, &mut out);
        match self.volume.start(request) {
            Started::Done => check_read(view.history, block, since, &out),
            Started::Pending => {
                self.insert(PendingRequest::Read { block, since });
                Ok(())
            }
            Started::Busy => Ok(()),
            Started::Failed(error) => self.check_read_error(view.is_holder, &error),
        }
    }

    /// Checks that a request may fail with this error.
    fn check_error(&self, error: &IoError) -> Check {
        match error {
            IoError::Stopped(_) if self.is_stopped() => Ok(()),
            // The journal is full, and cannot be destaged without the controller.
            IoError::Unavailable(_) => Ok(()),
            error => Err(format!("a request failed: {error}")),
        }
    }

    /// Checks that a read may fail with this error.
    fn check_read_error(&self, is_holder: bool, error: &IoError) -> Check {
        match error {
            // The other host has freed the block.
            IoError::Unavailable(_) | IoError::Damaged(_) if !is_holder => Ok(()),
            IoError::Unavailable(_) if self.may_miss => Ok(()),
            IoError::Stopped(_) if self.is_stopped() => Ok(()),
            error => Err(format!("a read failed: {error}")),
        }
    }

    /// Polls the volume and checks its completions.
    pub fn poll(&mut self, view: &mut HostView<'_>) -> Check {
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
                return Err("blocks were written without a request".to_owned());
            };
            self.admit(view, &edit)?;
            let covers = view.history.timeline.len();
            match self.requests.get_mut(&token) {
                Some(PendingRequest::DurableWrite { covers: known }) => *known = covers,
                _ => {
                    self.requests.insert(token, PendingRequest::Write);
                }
            }
        }
        completions
            .into_iter()
            .try_for_each(|completion| self.complete(view, completion))
    }

    fn complete(&mut self, view: &mut HostView<'_>, completion: Completion) -> Check {
        let Completion { token, result } = completion;
        let Some(request) = self.requests.remove(&token) else {
            return Err(format!(
                "request {token} was completed twice, or never started"
            ));
        };
        match (request, result) {
            (PendingRequest::Read { block, since }, Ok(Outcome::Data(data))) => {
                check_read(view.history, block, since, &data)
            }
            (PendingRequest::Read { .. }, Err(error)) => {
                self.check_read_error(view.is_holder, &error)
            }
            (PendingRequest::Write, Ok(_)) => self.acknowledged(view, 0, false),
            (PendingRequest::DurableWrite { covers } | PendingRequest::Flush { covers }, Ok(_)) => {
                self.acknowledged(view, covers, true)
            }
            (_, Err(error)) => self.check_error(&error),
            (_, Ok(outcome)) => Err(format!("request {token} has the outcome {outcome:?}")),
        }
    }
}

/// Checks that a block has its content of some boundary from `since` on.
fn check_read(history: &VolumeHistory, block: u64, since: usize, out: &[u8]) -> Check {
    let until = history.timeline.len();
    if history
        .timeline
        .matches(block, &content(out), since..=until)
    {
        return Ok(());
    }
    Err(format!(
        "block {block}: the content is that of no boundary from {since} to {until}"
    ))
}

/// A write of `block` with content that no other number gives.
pub fn edit(block: u64, number: u64) -> Edit {
    let mut bytes = vec![0; 4096];
    for part in bytes.as_chunks_mut::<8>().0 {
        *part = number.to_le_bytes();
    }
    Edit::Write {
        offset: block * 4096,
        data: Rc::from(bytes),
    }
}
