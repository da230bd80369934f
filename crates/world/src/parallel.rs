//! [`parallel`]: runs several tasks that wait, at once, and waits for their results.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::Pool;

type Task<T> = Box<dyn FnOnce() -> T + Send>;

struct Group<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    /// Whether the waiting thread is woken when any task ends, and not only when the last one
    /// does.
    notifies_each: bool,
}

struct State<T> {
    waiting: Vec<(usize, Task<T>)>,
    results: Vec<Option<T>>,
    unfinished: usize,
}

impl<T> Group<T> {
    fn new(tasks: Vec<Task<T>>, notifies_each: bool) -> Arc<Self> {
        let count = tasks.len();
        let mut waiting: Vec<_> = tasks.into_iter().enumerate().collect();
        waiting.reverse();
        Arc::new(Self {
            state: Mutex::new(State {
                waiting,
                results: (0..count).map(|_| None).collect(),
                unfinished: count,
            }),
            changed: Condvar::new(),
            notifies_each,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock()
    }

    /// Runs tasks until all have begun.
    fn work(&self) {
        loop {
            let next = self.lock().waiting.pop();
            let Some((index, task)) = next else { return };
            let mut finish = Finish {
                group: self,
                index,
                result: None,
            };
            finish.result = Some(task());
        }
    }
}

/// Counts a task as finished even if it panics. A task that panics has no result.
struct Finish<'a, T> {
    group: &'a Group<T>,
    index: usize,
    result: Option<T>,
}

impl<T> Drop for Finish<'_, T> {
    fn drop(&mut self) {
        let mut state = self.group.lock();
        // A group that timed out has no room for results any more.
        if let Some(result) = state.results.get_mut(self.index) {
            *result = self.result.take();
        }
        state.unfinished -= 1;
        if state.unfinished == 0 || self.group.notifies_each {
            self.group.changed.notify_all();
        }
    }
}

/// Runs `tasks`, up to `width` at once, and returns their results in the order of the tasks.
///
/// The calling thread runs tasks as well, and waits only for tasks that another thread has begun.
/// So a job of the same pool may call this, and the simulator's single thread runs one task after
/// another.
///
/// # Panics
/// If a task panicked on another thread.
pub fn parallel<T: Send + 'static>(pool: &dyn Pool, width: usize, tasks: Vec<Task<T>>) -> Vec<T> {
    let width = width.min(tasks.len());
    let group = Group::new(tasks, false);
    for _ in 1..width {
        let group = Arc::clone(&group);
        pool.run(Box::new(move || group.work()));
    }
    group.work();
    let mut state = group.lock();
    while state.unfinished > 0 {
        group.changed.wait(&mut state);
    }
    let results = std::mem::take(&mut state.results);
    results
        .into_iter()
        .map(|result| result.expect("no task panicked"))
        .collect()
}

/// Runs `tasks` that may hang in `pool`, up to `width` at once, and returns the results of those
/// that ended, in the order of the tasks. When no task has ended for `timeout`, the others are
/// given up, and those that have not begun are not run.
///
/// The calling thread runs no task, except where the pool has no threads: there it runs all tasks,
/// one after another. So a job of the same pool must not call this: it would wait for tasks that
/// wait for its thread.
pub fn parallel_with_timeout<T: Send + 'static>(
    pool: &dyn Pool,
    width: usize,
    tasks: Vec<Task<T>>,
    timeout: Duration,
) -> Vec<Option<T>> {
    let width = width.min(tasks.len());
    let group = Group::new(tasks, true);
    if pool.has_threads() {
        for _ in 0..width {
            let group = Arc::clone(&group);
            pool.run(Box::new(move || group.work()));
        }
    } else {
        group.work();
    }
    let mut state = group.lock();
    while state.unfinished > 0 {
        let before = state.unfinished;
        let is_same = |state: &mut State<T>| state.unfinished == before;
        let waited = group.changed.wait_while_for(&mut state, is_same, timeout);
        if waited.timed_out() && state.unfinished == before {
            break;
        }
    }
    state.waiting.clear();
    std::mem::take(&mut state.results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Job, real::ThreadPool};

    fn squares() -> Vec<Task<usize>> {
        (0..50_usize)
            .map(|number| Box::new(move || number * number) as Task<usize>)
            .collect()
    }

    #[test]
    fn results_have_the_order_of_the_tasks() {
        let pool = ThreadPool::new(4);
        let expected: Vec<usize> = (0..50).map(|number| number * number).collect();
        assert_eq!(parallel(&pool, 4, squares()), expected);
    }

    #[test]
    fn a_task_that_hangs_is_given_up_and_the_others_have_results() {
        let pool = ThreadPool::new(4);
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        let blocked = Mutex::new(blocked);
        let mut tasks = squares();
        tasks[7] = Box::new(move || {
            let blocked = blocked.lock();
            // Hangs until the test drops the sender.
            blocked.recv().map_or(0, |()| 1)
        });
        let found = parallel_with_timeout(&pool, 4, tasks, Duration::from_secs(2));
        let missing: Vec<usize> = (0..50).filter(|index| found[*index].is_none()).collect();
        assert_eq!(missing, [7]);
        drop(release);
        let all = parallel_with_timeout(&pool, 4, squares(), Duration::from_secs(60));
        assert!(all.iter().all(Option::is_some));
    }

    #[test]
    fn a_pool_that_never_runs_a_job_does_not_block_the_caller() {
        struct Idle;
        impl Pool for Idle {
            fn run(&self, _: Job) {}
        }
        assert_eq!(parallel(&Idle, 8, squares()).len(), 50);
        let found = parallel_with_timeout(&Idle, 8, squares(), Duration::ZERO);
        assert!(found.iter().all(Option::is_some));
    }
}
