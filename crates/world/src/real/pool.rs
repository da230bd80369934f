//! [`ThreadPool`]: threads that are started when a job waits and no thread is idle.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use crate::{Job, Pool};

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    threads_max: usize,
}

/// A pool of at most `threads_max` threads, started on demand.
pub struct ThreadPool {
    shared: Arc<Shared>,
}

impl ThreadPool {
    /// A pool of at most `threads_max` threads (at least one).
    #[must_use]
    pub fn new(threads_max: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                queue: Mutex::default(),
                changed: Condvar::new(),
                threads_max: threads_max.max(1),
            }),
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job();
                queue = self.queue.lock();
            } else if queue.closed {
                queue.threads -= 1;
                return;
            } else {
                queue.idle += 1;
                self.changed.wait(&mut queue);
                queue.idle -= 1;
            }
        }
    }
}

impl Pool for ThreadPool {
    fn has_threads(&self) -> bool {
        true
    }

    fn run(&self, job: Job) {
        let mut queue = self.shared.queue.lock();
        if queue.closed {
            return;
        }
        queue.jobs.push_back(job);
        if queue.jobs.len() > queue.idle && queue.threads < self.shared.threads_max {
            let shared = Arc::clone(&self.shared);
            let started = thread::Builder::new()
                .name("scree-pool".into())
                .spawn(move || shared.work());
            match started {
                Ok(_) => queue.threads += 1,
                // The existing threads run the job later.
                Err(_) if queue.threads > 0 => {}
                Err(error) => panic!("cannot start a first worker thread: {error}"),
            }
        }
        drop(queue);
        self.shared.changed.notify_one();
    }
}

impl Drop for ThreadPool {
    /// Drops the jobs that wait. Jobs that have begun still end.
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.closed = true;
        let dropped = std::mem::take(&mut queue.jobs);
        drop(queue);
        self.shared.changed.notify_all();
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn every_job_runs_once() {
        let pool = ThreadPool::new(3);
        let (sender, receiver) = mpsc::channel();
        for number in 0..100 {
            let sender = sender.clone();
            pool.run(Box::new(move || {
                sender.send(number).expect("the test listens")
            }));
        }
        drop(sender);
        let mut seen: Vec<i32> = receiver.iter().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
    }
}
