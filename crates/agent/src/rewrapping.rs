//! Replacing a wrapping key: what one that is retiring still wraps is wrapped
//! by the one that takes its place.
//!
//! 1. *list*: the controllers say which key retires, and which follows it;
//! 2. *rewrap*, row by row: open with the old one, wrap with the new one, open
//!    that once;
//! 3. *replace* the row, if it still has the old bytes.
//!
//! All of it may be killed at any moment: what was not replaced is found again.
//! Each host does it for the volumes that are its own to clean. When no row
//! names the old key, the controllers retire it.

use std::sync::Arc;
use std::time::Duration;

use api::host::{KeyState, WrappedRow};
use base::{KeyId, Lineage, with_causes};
use catalog::CatalogError;
use volume::seal::KeyError;
use world::host;

use crate::agent::{Agent, TaskEnded, blocking, lock};
use crate::host_keys::HostKeyError;
use crate::keys::{WrappingKey, rewrap};

/// How many rows are fetched at a time.
const ROWS_AT_ONCE: u32 = 64;

/// While a key is retiring, it is looked again after this long: what failed may
/// do, and more may have become this host's to rewrap.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Why a key is not replaced yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RewrapError {
    /// The controllers.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// This host has not both keys.
    #[error("{}", with_causes(.0))]
    HostKey(#[from] HostKeyError),
    /// A data key does not open, or a wrapping key cannot be asked.
    #[error("{}", with_causes(.0))]
    Key(#[from] KeyError),
    /// A task ended before its time.
    #[error(transparent)]
    Task(#[from] TaskEnded),
}

/// An old key and the one that follows it.
struct Pair {
    from: (KeyId, Arc<WrappingKey>),
    to: (KeyId, Arc<WrappingKey>),
}

impl Agent {
    /// Rewraps whenever there is something to.
    pub(crate) async fn keep_rewrapping(&self) {
        loop {
            let pass = self.rewrap_some(usize::MAX).await;
            let problem = pass.err().map(|error| error.to_string());
            *lock(&self.inner.rewrap_problem) = problem;
            let listed = self.inner.keys.listed();
            let is_any = listed.iter().any(|key| key.state == KeyState::Retiring);
            let wanted = self.inner.keys_changed.notified();
            if is_any {
                host::timeout(LOOK_AGAIN, wanted).await;
            } else {
                wanted.await;
            }
        }
    }

    /// Rewraps at most `rows_max` data keys; returns how many it did. One that
    /// does not open keeps no other from being rewrapped.
    pub(crate) async fn rewrap_some(&self, rows_max: usize) -> Result<usize, RewrapError> {
        let mut done = 0;
        let mut first_failure = Ok(());
        for key in self.inner.keys.listed() {
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
        let keys = Arc::clone(&self.inner.keys);
        let pair = blocking(move || {
            Ok::<_, HostKeyError>(Pair {
                from: (from, keys.at_hand(from)?),
                to: (to, keys.at_hand(to)?),
            })
        });
        let pair = Arc::new(pair.await??);
        let controller = &self.inner.controller;
        let mut after: Option<Lineage> = None;
        let mut first_failure = Ok(());
        loop {
            let rows = controller.wrapped_by(from, after, ROWS_AT_ONCE).await?;
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
        let rewrapped =
            blocking(move || rewrap(row.lineage, &row.wrapped, &*keys.from.1, &*keys.to.1));
        let rewrapped = rewrapped.await??;
        let controller = &self.inner.controller;
        Ok(controller
            .rewrap(lineage, pair.from.0, pair.to.0, before, rewrapped)
            .await?)
    }
}
