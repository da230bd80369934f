//! Running several pieces of waiting work at once, and waiting for them.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::Pool;

type Task<T> = Box<dyn FnOnce() -> T + Send>;

struct Group<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    waiting: Vec<(usize, Task<T>)>,
    results: Vec<Option<T>>,
    unfinished: usize,
}

impl<T> Group<T> {
    /// Runs tasks until none waits.
    fn work(&self) {
        loop {
            let next = self
                .state
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .waiting
                .pop();
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
        let mut state = self
            .group
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        state.results[self.index] = self.result.take();
        state.unfinished -= 1;
        if state.unfinished == 0 {
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
    let count = tasks.len();
    let mut waiting: Vec<_> = tasks.into_iter().enumerate().collect();
    waiting.reverse();
    let group = Arc::new(Group {
        state: Mutex::new(State {
            waiting,
            results: (0..count).map(|_| None).collect(),
            unfinished: count,
        }),
        changed: Condvar::new(),
    });
    for _ in 1..width.min(count) {
        let group = Arc::clone(&group);
        pool.run(Box::new(move || group.work()));
    }
    group.work();
    let mut state = group.state.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn a_pool_that_never_runs_anything_does_not_block_the_caller() {
        struct Idle;
        impl Pool for Idle {
            fn run(&self, _: Job) {}
        }
        assert_eq!(parallel(&Idle, 8, squares()).len(), 50);
    }
}
