//! Requests on wrapping keys. A controller has only their names and parameters.

use std::time::Duration;

use api::host::calls::RegisterKey;
use api::host::{JobKind, JobOutput, KeyState, ListedKey};
use base::{KeyId, PartyId};

use crate::authorized_request::AuthorizedRequest;
use crate::control::Control;
use crate::database::{DatabaseError, KeyRow};
use crate::error::ControlError;
use crate::host_jobs::wrong_output;
use crate::parse;

impl Control {
    /// All wrapping keys, as hosts know them.
    pub(crate) async fn wrapping_keys(&self) -> Result<Vec<ListedKey>, ControlError> {
        let rows = self.all_keys().await?;
        Ok(rows.into_iter().map(|row| row.key).collect())
    }

    /// All wrapping keys, oldest first.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn all_keys(&self) -> Result<Vec<KeyRow>, ControlError> {
        Ok(self.inner.database.keys().all().await?)
    }

    /// The wrapping key with this name or id.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn key(&self, name: &str) -> Result<KeyRow, ControlError> {
        Ok(self.inner.database.keys().get(name).await?)
    }

    /// Records a wrapping key that a host has created.
    ///
    /// # Errors
    /// [`ControlError::Exists`] if another one has its name.
    pub async fn key_created(&self, key: &RegisterKey) -> Result<ListedKey, ControlError> {
        let name = parse::name(&key.name)?;
        let id = KeyId::from_u128(self.inner.world.random.u128());
        let now = self.inner.world.clock.wall();
        let database = &self.inner.database;
        Ok(database
            .keys()
            .insert(id, name, &key.parameters, now)
            .await?)
    }
}

/// Wrapping keys, as one authorized request may change them.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    pub(crate) request: &'a AuthorizedRequest,
}

impl AuthorizedRequest {
    /// Wrapping keys.
    #[must_use]
    pub fn keys(&self) -> Keys<'_> {
        Keys { request: self }
    }
}

impl Keys<'_> {
    /// Creates the wrapping key that the `keys.toml` of `host` calls `name`.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn add(self, host: PartyId, name: &str) -> Result<KeyRow, ControlError> {
        self.request.must_administer()?;
        let name = parse::name(name)?;
        match self.request.key(name).await {
            Err(ControlError::NotFound { .. }) => {}
            Err(error) => return Err(error),
            Ok(_) => {
                return Err(ControlError::Exists {
                    what: format!("wrapping key {name:?}"),
                    remedy: "choose another name",
                });
            }
        }
        let what = JobKind::AddKey {
            name: name.to_owned(),
        };
        let hint = "it will create the key when it is back, and `scree key list` will show the key";
        let JobOutput::Key(key) = self.request.run_job(host, &what, "name", hint).await? else {
            return Err(wrong_output());
        };
        tracing::info!(key = %key.id, name = key.name, "user added wrapping key");
        self.request.key(&key.id.to_string()).await
    }

    /// Replaces the key `old` by `new`; waits up to `wait` until nothing is wrapped by `old`.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn rotate(
        self,
        old: &str,
        new: &str,
        wait: Duration,
    ) -> Result<KeyRow, ControlError> {
        self.request.must_administer()?;
        let database = &self.request.inner.database;
        let begun = database
            .keys()
            .rotate(self.request.principal(), old, new)
            .await?;
        if self.request.is_dry_run() {
            return Ok(begun);
        }
        let id = begun.key.id.to_string();
        tracing::info!(
            key = id,
            name = begun.key.name,
            "controller replaces wrapping key"
        );
        self.request
            .until(wait, || async {
                match database.keys().get(&id).await {
                    Ok(row) => Ok((row.key.state != KeyState::Retiring).then_some(())),
                    Err(DatabaseError::NotFound { .. }) => Ok(Some(())),
                    Err(error) => Err(error.into()),
                }
            })
            .await?;
        self.request.key(&id).await
    }

    /// Deletes a wrapping key that wraps nothing any more.
    ///
    /// # Errors
    /// [`ControlError::Conflict`] if it is not retired.
    pub async fn delete(self, name: &str) -> Result<KeyRow, ControlError> {
        self.request.must_administer()?;
        let database = &self.request.inner.database;
        Ok(database
            .keys()
            .delete(self.request.principal(), name)
            .await?)
    }
}
