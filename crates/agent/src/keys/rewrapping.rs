//! [`Rewrapping`]: rotates a wrapping key. Data keys that the retiring key still wraps are wrapped
//! by its successor.
//!
//! 1. *list*: the controllers name the retiring key and its successor;
//! 2. *rewrap* row by row: unwrap with the old key, wrap with the new key, unwrap that once;
//! 3. *replace* the row, if it still has the old bytes.
//!
//! It may be killed at any moment: a row that was not replaced is found again. Each host rewraps
//! the keys of the volumes that it cleans. When no row names the old key, the controllers retire
//! it.

use std::sync::Arc;
use std::time::Duration;

use api::host::catalog_calls::{Rewrap, WrappedBy};
use api::host::{KeyState, WrappedRow};
use base::{KeyId, Lineage, with_causes};
use catalog::CatalogError;
use parking_lot::Mutex;
use volume::seal::KeyError;
use world::host;

use super::host_keys::{HostKeyError, HostKeys};
use super::{VerifiedKey, rewrap};
use crate::context::{TaskFailed, blocking};
use crate::controller::Controller;

/// The most rows that one request fetches.
const ROWS_AT_ONCE: u32 = 64;

/// The pause between passes while a key is retiring: failures may be temporary, and this host may
/// be responsible for more volumes by then.
const PASS_EVERY: Duration = Duration::from_secs(10);

/// Why a key is not rotated yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RewrapError {
    /// The catalog refused a call.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// This host is missing one of the keys.
    #[error("{}", with_causes(.0))]
    HostKey(#[from] HostKeyError),
    /// A data key cannot be unwrapped, or a wrapping key is unavailable.
    #[error("{}", with_causes(.0))]
    Key(#[from] KeyError),
    /// A background task failed.
    #[error(transparent)]
    Task(#[from] TaskFailed),
}

/// A retiring key and its successor.
struct Pair {
    from: Arc<VerifiedKey>,
    from_id: KeyId,
    to: Arc<VerifiedKey>,
    to_id: KeyId,
}

/// Rotates wrapping keys. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Rewrapping {
    controller: Controller,
    keys: Arc<HostKeys>,
    /// Why a retiring key is not rotated.
    problem: Arc<Mutex<Option<String>>>,
}

impl Rewrapping {
    pub fn new(controller: Controller, keys: Arc<HostKeys>) -> Self {
        Self {
            controller,
            keys,
            problem: Arc::default(),
        }
    }

    /// Why a retiring key is not rotated; `None` if there is no problem.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// Rewraps data keys of retiring keys, as long as the agent runs.
    pub async fn run(&self) {
        loop {
            let pass = self.rewrap_some(usize::MAX).await;
            *self.problem.lock() = pass.err().map(|error| error.to_string());
            let listed = self.keys.listed();
            let is_any = listed.iter().any(|key| key.state == KeyState::Retiring);
            let changed = self.keys.changed();
            if is_any {
                host::timeout(PASS_EVERY, changed).await;
            } else {
                changed.await;
            }
        }
    }

    /// Rewraps at most `rows_max` data keys; returns how many. A data key that cannot be unwrapped
    /// does not stop the others.
    pub async fn rewrap_some(&self, rows_max: usize) -> Result<usize, RewrapError> {
        let mut done = 0;
        let mut first_failure = Ok(());
        for key in self.keys.listed() {
            if let (KeyState::Retiring, Some(to)) = (key.state, key.replaced_by) {
                let replaced = self.replace(key.id, to, rows_max, &mut done).await;
                first_failure = first_failure.and(replaced);
            }
        }
        first_failure.map(|()| done)
    }

    async fn replace(
        &self,
        from: KeyId,
        to: KeyId,
        rows_max: usize,
        done: &mut usize,
    ) -> Result<(), RewrapError> {
        let keys = Arc::clone(&self.keys);
        let pair = blocking(move || {
            Ok::<_, HostKeyError>(Pair {
                from: keys.opened(from)?,
                from_id: from,
                to: keys.opened(to)?,
                to_id: to,
            })
        });
        let pair = Arc::new(pair.await??);
        let mut after: Option<Lineage> = None;
        let mut first_failure = Ok(());
        loop {
            let wrapped = WrappedBy {
                key: from,
                after,
                count_max: ROWS_AT_ONCE,
            };
            let rows = self.controller.catalog(wrapped).await?;
            let Some(last) = rows.last() else {
                return first_failure;
            };
            after = Some(last.lineage);
            for row in rows {
                if *done >= rows_max {
                    return first_failure;
                }
                match self.replace_one(&pair, row).await {
                    Ok(replaced) => *done += usize::from(replaced),
                    Err(RewrapError::Key(error @ KeyError::Unwrap { .. })) => {
                        first_failure = first_failure.and(Err(error.into()));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }

    async fn replace_one(&self, pair: &Arc<Pair>, row: WrappedRow) -> Result<bool, RewrapError> {
        let (lineage, before) = (row.lineage, row.wrapped.clone());
        let keys = Arc::clone(pair);
        let rewrapped = blocking(move || rewrap(row.lineage, &row.wrapped, &*keys.from, &*keys.to));
        let rewrap = Rewrap {
            lineage,
            from: pair.from_id,
            to: pair.to_id,
            before,
            after: rewrapped.await??,
        };
        Ok(self.controller.catalog(rewrap).await?)
    }
}
