//! [`Record`]: what happened on the network of a run.

use std::sync::Arc;

use parking_lot::Mutex;

/// Counts of events, over all links and daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Requests that were started.
    pub requests: u64,
    /// Connections that broke before the requests arrived.
    pub broken_before: u64,
    /// Connections that broke after the requests were carried out.
    pub answers_lost: u64,
    /// Connections that broke within the requests or the answers.
    pub cut_in_frame: u64,
    /// Requests that were answered after their connection was abandoned.
    pub late: u64,
    /// Changes among them that were carried out.
    pub late_changes: u64,
    /// Answers that came before that of an earlier request.
    pub reordered: u64,
    /// Connections that timed out.
    pub timed_out: u64,
    /// Partitions.
    pub partitions: u64,
    /// Daemons that were killed.
    pub killed: u64,
    /// Power failures of daemons' machines.
    pub crashed: u64,
    /// Falsified answers to reads.
    pub falsified: u64,
    /// Changes that were refused because a newer lease or *repair* was presented, or the same
    /// one on a newer connection.
    pub refused_older: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.broken_before += other.broken_before;
        self.answers_lost += other.answers_lost;
        self.cut_in_frame += other.cut_in_frame;
        self.late += other.late;
        self.late_changes += other.late_changes;
        self.reordered += other.reordered;
        self.timed_out += other.timed_out;
        self.partitions += other.partitions;
        self.killed += other.killed;
        self.crashed += other.crashed;
        self.falsified += other.falsified;
        self.refused_older += other.refused_older;
    }
}

/// The record of all hosts and daemons of a run.
#[derive(Debug, Default)]
pub struct Record {
    /// Events that were counted.
    pub counts: Counts,
    /// Promises that daemons broke.
    pub violations: Vec<String>,
    /// Whether events are printed.
    pub is_traced: bool,
}

/// The record, shared by links and daemons.
pub type Records = Arc<Mutex<Record>>;
