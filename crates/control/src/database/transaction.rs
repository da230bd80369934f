//! Transactions: a change is applied completely or not at all, as if no other one ran at the same
//! time.
//!
//! PostgreSQL aborts one of two transactions that cannot be serialized, and guarantees no progress:
//! a retried one may be aborted again, any number of times. So every transaction begins by sharing
//! the lock of the empty table `turns`, and after [`SHARED_MAX`] attempts takes the lock
//! exclusively: it waits for those that have begun, later ones wait for it, and nothing can come in
//! between. The lock is taken before the first read, so a transaction that waits for it holds
//! nothing, and sees what was done meanwhile.
//!
//! SQLite has one writer, and its transactions need one attempt.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::AnyConnection;
use world::host;

use crate::database::tenancy::principal;
use crate::database::{Backend, Database, DatabaseError, OpenTransaction, Principal, begun, open};

/// The number of attempts at a transaction beside others.
const SHARED_MAX: u32 = 6;

/// The number of all attempts. Alone, the first attempt succeeds, except beside a program that does
/// not take the lock, such as an administrator's `psql`.
const ATTEMPTS_MAX: u32 = SHARED_MAX + 2;

/// The longest pause between two attempts, in milliseconds.
const PAUSE_MS_MAX: u64 = 64;

/// A transaction. It commits when its work returns `Ok`, and rolls back when it
/// returns an error.
///
/// The work may run several times on PostgreSQL, so it may change nothing but rows.
#[must_use]
pub(in crate::database) struct Transaction<'a> {
    database: &'a Database,
    principal: Option<&'a Principal>,
    notifies: bool,
    attempts: Attempts,
}

impl Database {
    /// A transaction that no one waits for.
    pub(in crate::database) fn transaction(&self) -> Transaction<'_> {
        Transaction {
            database: self,
            principal: None,
            notifies: false,
            attempts: Attempts::default(),
        }
    }

    /// A transaction on behalf of `principal`, which notifies waiting requests. If the principal
    /// requested a dry run, everything is checked and the changes are rolled back.
    pub(in crate::database) fn transaction_for<'a>(
        &'a self,
        principal: &'a Principal,
    ) -> Transaction<'a> {
        Transaction {
            principal: Some(principal),
            ..self.transaction().notify()
        }
    }

    /// Begins one attempt.
    pub(in crate::database) async fn begin(
        &self,
        turn: Turn,
    ) -> Result<OpenTransaction, DatabaseError> {
        let (begin, lock) = match (self.backend, turn) {
            // No other transaction can change anything until it ends.
            (Backend::Sqlite, _) => ("BEGIN IMMEDIATE", None),
            (Backend::Postgres, Turn::Shared) => (
                "BEGIN ISOLATION LEVEL SERIALIZABLE",
                Some("LOCK TABLE turns IN ROW SHARE MODE"),
            ),
            (Backend::Postgres, Turn::Alone) => (
                "BEGIN ISOLATION LEVEL SERIALIZABLE",
                Some("LOCK TABLE turns IN EXCLUSIVE MODE"),
            ),
        };
        let mut change = begun(&self.writer, begin).await?;
        if let Some(lock) = lock {
            // Within the transaction: giving up waiting rolls it back.
            sqlx::Executor::execute(&mut *change, lock).await?;
        }
        Ok(change)
    }
}

impl Transaction<'_> {
    /// Wakes requests that wait for a change of state ([`Database::changes`]), on all controllers.
    pub(in crate::database) fn notify(self) -> Self {
        Self {
            notifies: true,
            ..self
        }
    }

    /// Runs alone: every number that a sequence has handed out is then in
    /// the tables, or never will be.
    pub(in crate::database) fn alone(self) -> Self {
        Self {
            attempts: Attempts::alone(),
            ..self
        }
    }

    /// Runs the transaction: calls `work` with a connection in the transaction, once for each
    /// attempt.
    ///
    /// # Errors
    /// Those of the work, and of the database.
    pub(in crate::database) async fn run<T, W>(
        mut self,
        mut work: impl FnMut(Change) -> W,
    ) -> Result<T, DatabaseError>
    where
        W: Future<Output = Result<T, DatabaseError>>,
    {
        loop {
            let open = self.database.begin(self.attempts.turn()).await?;
            let ended = self.attempt(open, &mut work).await;
            if self.attempts.is_over(&ended) {
                break ended;
            }
            self.attempts.pause().await;
        }
    }

    /// One attempt. Dropping `open` rolls it back.
    async fn attempt<T, W>(
        &self,
        mut open: OpenTransaction,
        work: &mut impl FnMut(Change) -> W,
    ) -> Result<T, DatabaseError>
    where
        W: Future<Output = Result<T, DatabaseError>>,
    {
        if let Some(principal) = self.principal {
            principal::begin(&mut open, principal).await?;
        }
        let slot = Arc::new(Mutex::new(None));
        let change = Change {
            open: Some(open),
            slot: Arc::clone(&slot),
        };
        let done = work(change).await?;
        let mut open = slot.lock().take().expect("the work has dropped its change");
        if let Some(principal) = self.principal {
            principal::end(&mut open, principal).await?;
        }
        self.database.commit(open, self.notifies).await?;
        Ok(done)
    }
}

/// The connection of a running transaction. The work owns it, so that its future borrows nothing
/// from [`Transaction::run`] and can be sent to another thread; dropping it gives it back.
pub(in crate::database) struct Change {
    open: Option<OpenTransaction>,
    slot: Arc<Mutex<Option<OpenTransaction>>>,
}

impl Deref for Change {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        self.open.as_ref().expect("it is open until it is dropped")
    }
}

impl DerefMut for Change {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        self.open.as_mut().expect("it is open until it is dropped")
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        *self.slot.lock() = self.open.take();
    }
}

impl Database {
    async fn commit(
        &self,
        mut change: OpenTransaction,
        notifies: bool,
    ) -> Result<(), DatabaseError> {
        if notifies && self.backend == Backend::Postgres {
            // Delivered when, and only if, the transaction is committed.
            sqlx::query(open::NOTIFY).execute(&mut *change).await?;
        }
        change.commit().await?;
        if notifies {
            self.changes.send_modify(|count| *count += 1);
        }
        Ok(())
    }
}

/// The attempts at one transaction.
#[derive(Default)]
struct Attempts {
    count: u32,
    /// Whether an attempt found a name taken.
    was_taken: bool,
}

/// How an attempt takes the lock of the table `turns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::database) enum Turn {
    /// Beside any number of other transactions.
    Shared,
    /// Alone.
    Alone,
}

impl Attempts {
    /// Attempts that all run alone.
    fn alone() -> Self {
        Self {
            count: SHARED_MAX,
            was_taken: false,
        }
    }

    /// How the next attempt is made.
    fn turn(&self) -> Turn {
        match self.count < SHARED_MAX {
            true => Turn::Shared,
            false => Turn::Alone,
        }
    }

    /// Whether that was the last attempt.
    fn is_over<T>(&mut self, done: &Result<T, DatabaseError>) -> bool {
        self.count += 1;
        let Err(DatabaseError::Sql(error)) = done else {
            return true;
        };
        match Conflict::of(error) {
            Some(Conflict::Serialization) => self.count >= ATTEMPTS_MAX,
            // The next attempt finds the name taken by itself. Otherwise no attempt will.
            Some(Conflict::Name) => std::mem::replace(&mut self.was_taken, true),
            None => true,
        }
    }

    /// Waits longer after each attempt, and never equally long for two transactions.
    async fn pause(&self) {
        static TURNS: AtomicU64 = AtomicU64::new(0);
        let turn = TURNS.fetch_add(1, Ordering::Relaxed) ^ u64::from(std::process::id()) << 32;
        let longest = (1 << self.count.min(16)).min(PAUSE_MS_MAX) * 1000;
        let spread = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        host::sleep(Duration::from_micros((spread * longest) >> 32)).await;
    }
}

/// Why PostgreSQL could not run a transaction as if it were alone.
enum Conflict {
    /// `serialization_failure` or `deadlock_detected`.
    Serialization,
    /// `unique_violation`, by which PostgreSQL may report the same. Every transaction first looks
    /// whether a name is taken, so the next attempt reports that itself.
    Name,
}

impl Conflict {
    fn of(error: &sqlx::Error) -> Option<Self> {
        match &*error.as_database_error()?.code()? {
            "40001" | "40P01" => Some(Self::Serialization),
            "23505" => Some(Self::Name),
            _ => None,
        }
    }
}
