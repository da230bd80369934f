//! Making a change again when another one came in between.
//!
//! PostgreSQL gives up one of two changes that are not as if one after another,
//! and has no turns: who comes back may be given up again, by others that came
//! later, any number of times. So every change begins by sharing the lock of
//! the empty table `turns`, and after [`SHARED_MAX`] attempts takes it alone: it
//! waits for those that have begun, those that come later wait for it, and
//! nothing can come in between. The lock is taken before the first read, so
//! whoever waits for it holds nothing, and sees what was done meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::DatabaseError;
use world::host;

/// Makes a change: all of it or nothing, as if nothing else went on. The work
/// sees its transaction under the name given; on PostgreSQL it may be done
/// several times, and must leave nothing behind but rows.
///
/// A macro, since a closure that lends its argument to a future cannot be
/// sent to another thread yet.
macro_rules! change {
    ($database:expr, $change:ident, $work:block) => {
        change!(@ end, $database, $change, $work)
    };
    (@ $end:ident, $database:expr, $change:ident, $work:block) => {{
        let attempts = $crate::database::change::Attempts::default();
        change!(@ $end, attempts, $database, $change, $work)
    }};
    (@ $end:ident, $attempts:expr, $database:expr, $change:ident, $work:block) => {{
        let mut attempts = $attempts;
        loop {
            let mut change = $database.begin(attempts.turn()).await?;
            let $change: &mut sqlx::AnyConnection = &mut change;
            let done = $crate::database::change::typed(async { $work }).await;
            let done = $database.$end(change, done).await;
            if attempts.is_over(&done) {
                break done;
            }
            attempts.pause().await;
        }
    }};
}

/// As [`change!`], and wakes those who may be waiting for it.
macro_rules! change_and_tell {
    ($database:expr, $change:ident, $work:block) => {
        change!(@ end_and_tell, $database, $change, $work)
    };
}

/// As [`change!`], beside no other: what sequences have handed out is in the tables, or
/// will never be.
macro_rules! change_alone {
    ($database:expr, $change:ident, $work:block) => {{
        let attempts = $crate::database::change::Attempts::alone();
        change!(@ end, attempts, $database, $change, $work)
    }};
}

/// As [`change_and_tell!`], on behalf of an [`Principal`](super::Principal).
macro_rules! act {
    ($database:expr, $principal:expr, $change:ident, $work:block) => {
        change_and_tell!($database, $change, {
            $crate::database::principal::begin(&mut *$change, $principal).await?;
            let done = {
                let $change: &mut sqlx::AnyConnection = &mut *$change;
                $crate::database::change::typed(async { $work }).await?
            };
            $crate::database::principal::end(&mut *$change, $principal).await?;
            Ok(done)
        })
    };
}

/// So often a change is tried beside others.
const SHARED_MAX: u32 = 6;

/// And so often in all. Alone nothing comes in between but what takes no turns:
/// a controller of an earlier version, while all are upgraded one by one.
const ATTEMPTS_MAX: u32 = SHARED_MAX + 2;

/// The longest pause between two attempts, in milliseconds.
const PAUSE_MS_MAX: u64 = 64;

#[derive(Default)]
pub(super) struct Attempts {
    count: u32,
    /// One of them found a name taken.
    was_taken: bool,
}

/// Beside whom a change is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Beside any number of others.
    Shared,
    /// Beside none.
    Alone,
}

impl Attempts {
    /// Each of which is made alone.
    pub(super) fn alone() -> Self {
        Self {
            count: SHARED_MAX,
            was_taken: false,
        }
    }

    /// How the next attempt is made.
    pub(super) fn turn(&self) -> Turn {
        match self.count < SHARED_MAX {
            true => Turn::Shared,
            false => Turn::Alone,
        }
    }

    /// Whether that was the last attempt.
    pub(super) fn is_over<T>(&mut self, done: &Result<T, DatabaseError>) -> bool {
        self.count += 1;
        let Err(DatabaseError::Sql(error)) = done else {
            return true;
        };
        match Between::of(error) {
            Some(Between::Change) => self.count >= ATTEMPTS_MAX,
            // By then it says so by itself; if not, it will never be done.
            Some(Between::Name) => std::mem::replace(&mut self.was_taken, true),
            None => true,
        }
    }

    /// Lets the others through: for some time, longer each time, and not the
    /// same for any two.
    pub(super) async fn pause(&self) {
        static TURNS: AtomicU64 = AtomicU64::new(0);
        let turn = TURNS.fetch_add(1, Ordering::Relaxed) ^ u64::from(std::process::id()) << 32;
        let longest = (1 << self.count.min(16)).min(PAUSE_MS_MAX) * 1000;
        let spread = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        host::sleep(Duration::from_micros((spread * longest) >> 32)).await;
    }
}

/// What came in between, so that PostgreSQL could not make a change as if it were
/// alone.
enum Between {
    /// `serialization_failure`, `deadlock_detected`.
    Change,
    /// `unique_violation`, by which PostgreSQL may tell of the same: every change
    /// looks first whether a name is taken, and says so by itself the next time.
    Name,
}

impl Between {
    fn of(error: &sqlx::Error) -> Option<Self> {
        match &*error.as_database_error()?.code()? {
            "40001" | "40P01" => Some(Self::Change),
            "23505" => Some(Self::Name),
            _ => None,
        }
    }
}

/// Says what kind of error a block has.
pub(super) async fn typed<T>(
    work: impl Future<Output = Result<T, DatabaseError>>,
) -> Result<T, DatabaseError> {
    work.await
}
