//! [`SimulatedPool`]: a pool whose jobs wait until the driver runs them.

use std::sync::OnceLock;

use parking_lot::Mutex;

use super::SimulatedRandom;
use crate::{Job, Pool};

/// A pool without threads. Jobs wait in a list, and the driver runs one at a time, on its own
/// thread, in an order that a seed chooses.
pub struct SimulatedPool {
    /// `None` once the process has died.
    jobs: Mutex<Option<Vec<Job>>>,
    /// One job in this many runs immediately, as the generator chooses.
    immediate: OnceLock<(u64, SimulatedRandom)>,
}

impl SimulatedPool {
    /// A pool in which no job waits.
    #[must_use]
    pub fn new() -> Self {
        Self {
            jobs: Mutex::new(Some(Vec::new())),
            immediate: OnceLock::new(),
        }
    }

    /// Lets one job in `one_in` run within [`Pool::run`], as if another core ran it immediately;
    /// none if `one_in` is zero. It may be called once.
    pub fn set_immediate(&self, one_in: u64, random: SimulatedRandom) {
        let is_first = self.immediate.set((one_in, random)).is_ok();
        assert!(is_first, "set_immediate may be called once");
    }

    /// The pool of the process that comes after this one.
    pub(super) fn next(&self) -> Self {
        let next = Self::new();
        if let Some((one_in, random)) = self.immediate.get() {
            next.set_immediate(*one_in, random.split());
        }
        next
    }

    fn is_immediate(&self) -> bool {
        let immediate = self.immediate.get();
        immediate.is_some_and(|(one_in, random)| random.one_in(*one_in))
    }

    /// Runs one of the waiting jobs. Returns false if none waits.
    pub fn run_one(&self, random: &SimulatedRandom) -> bool {
        let job = {
            let mut jobs = self.jobs.lock();
            match jobs.as_mut() {
                Some(jobs) if !jobs.is_empty() => jobs.swap_remove(random.index(jobs.len())),
                _ => return false,
            }
        };
        job();
        true
    }

    /// Runs jobs, and those they add, until none waits.
    pub fn run_all(&self, random: &SimulatedRandom) {
        while self.run_one(random) {}
    }

    /// The number of jobs that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let jobs = self.jobs.lock();
        jobs.as_ref().map_or(0, Vec::len)
    }

    /// Drops the waiting jobs and every later one, since the process is dead.
    pub fn close(&self) {
        let jobs = self.jobs.lock().take();
        // Outside the lock, since dropping what a job owns may add a job.
        drop(jobs);
    }
}

impl Default for SimulatedPool {
    fn default() -> Self {
        Self::new()
    }
}

impl Pool for SimulatedPool {
    fn run(&self, job: Job) {
        let mut jobs = self.jobs.lock();
        match jobs.as_mut() {
            Some(_) if self.is_immediate() => {
                drop(jobs);
                job();
            }
            Some(jobs) => jobs.push(job),
            None => {
                drop(jobs);
                drop(job);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    fn order_by(seed: u64) -> Vec<u32> {
        let pool = SimulatedPool::new();
        let (sender, receiver) = mpsc::channel();
        for number in 0..10 {
            let sender = sender.clone();
            pool.run(Box::new(move || sender.send(number).expect("listening")));
        }
        assert_eq!(receiver.try_iter().count(), 0, "no job runs unasked");
        pool.run_all(&SimulatedRandom::new(seed));
        receiver.try_iter().collect()
    }

    #[test]
    fn the_seed_chooses_the_order_of_jobs() {
        assert_eq!(order_by(1), order_by(1));
        assert_ne!(order_by(1), order_by(2));
    }

    #[test]
    fn some_jobs_run_immediately_if_asked() {
        let pool = SimulatedPool::new();
        pool.set_immediate(3, SimulatedRandom::new(1));
        let (sender, receiver) = mpsc::channel();
        for number in 0..300 {
            let sender = sender.clone();
            pool.run(Box::new(move || sender.send(number).expect("listening")));
        }
        let immediate = receiver.try_iter().count();
        assert!((50..150).contains(&immediate), "{immediate}");
        assert_eq!(pool.waiting(), 300 - immediate);
    }

    #[test]
    fn a_dead_process_runs_no_job() {
        let pool = Arc::new(SimulatedPool::new());
        let later = Arc::clone(&pool);
        pool.run(Box::new(move || later.run(Box::new(|| unreachable!()))));
        assert_eq!(pool.waiting(), 1);
        pool.close();
        pool.run(Box::new(|| unreachable!()));
        assert!(!pool.run_one(&SimulatedRandom::new(1)));
    }
}
