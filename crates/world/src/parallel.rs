//! Running several pieces of waiting work at once, and waiting for them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Pool;

type Task<T> = Box<dyn FnOnce() -> T + Send>;

struct Group<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    /// Whoever waits wants to know of each task that ends, and not only of the last one.
    tells_each: bool,
}

struct State<T> {
    waiting: Vec<(usize, Task<T>)>,
    results: Vec<Option<T>>,
    unfinished: usize,
}

impl<T> Group<T> {
    fn new(tasks: Vec<Task<T>>, tells_each: bool) -> Arc<Self> {
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
            tells_each,
        })
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs tasks until none waits.
    fn work(&self) {
        loop {
            let next = self.state().waiting.pop();
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

/// Counts a task as finished even if it panics: then it has no result.
struct Finish<'a, T> {
    group: &'a Group<T>,
    index: usize,
    result: Option<T>,
}

impl<T> Drop for Finish<'_, T> {
    fn drop(&mut self) {
        let mut state = self.group.state();
        // Nobody waits for the results of a group that was given up.
        if let Some(result) = state.results.get_mut(self.index) {
            *result = self.result.take();
        }
        state.unfinished -= 1;
        if state.unfinished == 0 || self.group.tells_each {
            self.group.changed.notify_all();
        }
    }
}

/// Runs `tasks`, up to `width` at once, and returns their results in order.
///
/// The calling thread takes part, and waits only for tasks that another thread
/// has begun: so this may be called from a job of the same pool, and on the
/// simulator's single thread it simply runs one task after another.
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
    let mut state = group.state();
    while state.unfinished > 0 {
        state = group
            .changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner);
    }
    let results = std::mem::take(&mut state.results);
    results
        .into_iter()
        .map(|result| result.expect("no task panicked"))
        .collect()
}

/// Runs `tasks` in `pool`, up to `width` at once, and returns the results of those
/// that ended, in order: what is asked may hang. When none has ended for as long
/// as `patience`, the others are given up: those that have not begun are not run.
///
/// The calling thread takes no part; but where the pool has no threads, it runs all
/// tasks, one after another.
pub fn parallel_within<T: Send + 'static>(
    pool: &dyn Pool,
    width: usize,
    tasks: Vec<Task<T>>,
    patience: Duration,
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
    let mut state = group.state();
    while state.unfinished > 0 {
        let before = state.unfinished;
        let is_same = |state: &mut State<T>| state.unfinished == before;
        let (now, waited) = group
            .changed
            .wait_timeout_while(state, patience, is_same)
            .unwrap_or_else(PoisonError::into_inner);
        state = now;
        if waited.timed_out() {
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
    fn results_come_in_the_order_of_the_tasks() {
        let pool = ThreadPool::new(4);
        let expected: Vec<usize> = (0..50).map(|number| number * number).collect();
        assert_eq!(parallel(&pool, 4, squares()), expected);
    }

    #[test]
    fn what_hangs_is_given_up_and_the_rest_is_there() {
        let pool = ThreadPool::new(4);
        let (let_go, held) = std::sync::mpsc::channel::<()>();
        let held = Mutex::new(held);
        let mut tasks = squares();
        tasks[7] = Box::new(move || {
            let held = held.lock().expect("no panic");
            // Until the test lets go of it.
            held.recv().map_or(0, |()| 1)
        });
        let found = parallel_within(&pool, 4, tasks, Duration::from_millis(50));
        let missing: Vec<usize> = (0..50).filter(|index| found[*index].is_none()).collect();
        assert_eq!(missing, [7]);
        drop(let_go);
        let all = parallel_within(&pool, 4, squares(), Duration::from_secs(60));
        assert!(all.iter().all(Option::is_some));
    }

    #[test]
    fn a_pool_that_never_runs_anything_does_not_block_the_caller() {
        struct Idle;
        impl Pool for Idle {
            fn run(&self, _: Job) {}
        }
        assert_eq!(parallel(&Idle, 8, squares()).len(), 50);
        let found = parallel_within(&Idle, 8, squares(), Duration::ZERO);
        assert!(found.iter().all(Option::is_some));
    }
}
