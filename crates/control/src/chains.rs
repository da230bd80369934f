//! Requests on chains: the filters between a volume and its users.
//!
//! A policy is checked here as far as possible without the host. What only the host can know, such
//! as whether a key exists, it reports for each attachment.

use std::str::FromStr as _;
use std::time::Duration;

use api::host::{EventLines, JobKind, JobOutput};
use api::vm::VmAddress;
use base::{AttachmentId, ChainId};
use chain_policy::Policy;

use crate::authorized_request::AuthorizedRequest;
use crate::database::{
    AttachmentRow, ChainRow, ChainVolumes, Need, NewChain, Page, Right, VolumeName,
};
use crate::error::ControlError;

/// The time within which a responsive host answers a query.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// A chain as it is shown.
#[derive(Debug, Clone)]
pub struct ChainView {
    /// The row.
    pub row: ChainRow,
    /// The volume's name, if it still exists.
    pub volume: Option<VolumeName>,
    /// The attachments that it applies to.
    pub attachments: Vec<AttachmentRow>,
}

impl ChainView {
    /// Whether every host has reported on the current revision.
    fn is_settled(&self) -> bool {
        let mut attachments = self.attachments.iter();
        attachments
            .all(|attachment| attachment.observed.generation == attachment.desired.generation)
    }
}

fn invalid(reason: impl ToString) -> ControlError {
    ControlError::invalid("policy", reason.to_string())
}

/// Parses a policy on the blocking pool: compiling its patterns may take tenths of a second.
async fn parse(text: &str) -> Result<Policy, ControlError> {
    let text = text.to_owned();
    let parsed = tokio::task::spawn_blocking(move || Policy::parse(&text)).await;
    let parsed = parsed.map_err(|error| ControlError::Internal {
        reason: format!("a policy was not parsed to completion: {error}"),
    })?;
    let policy = parsed.map_err(invalid)?;
    policy.check_locations(true).map_err(invalid)?;
    if let Some(vm) = &policy.vm {
        VmAddress::from_str(vm).map_err(|error| invalid(format!("vm: {error}")))?;
    }
    Ok(policy)
}

/// Chains of filters, as one authorized request may use them.
#[derive(Clone, Copy)]
pub struct Chains<'a> {
    pub(crate) request: &'a AuthorizedRequest,
}

impl AuthorizedRequest {
    /// Chains of filters.
    #[must_use]
    pub fn chains(&self) -> Chains<'_> {
        Chains { request: self }
    }
}

impl Chains<'_> {
    /// Replaces the chain of a volume by the one that `policy` describes. Hosts that have the
    /// volume attached exchange the filters while it is in use.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for an invalid policy; [`ControlError::NotFound`] (the volume);
    /// [`ControlError::Forbidden`] unless the principal administers and may use the volume and the
    /// volumes that its filters write; [`ControlError::Conflict`] if it is being deleted, its name
    /// is ambiguous, or its filters would write in a loop, or a volume that other filters write;
    /// [`ControlError::QuotaExceeded`] of chains. If a host cannot apply it, its attachments say
    /// so.
    pub async fn apply(self, policy: &str) -> Result<ChainView, ControlError> {
        let policy = policy.to_owned();
        self.request
            .to_completion(|authorized| async move { authorized.chains().apply_now(policy).await })
            .await
    }

    async fn apply_now(self, text: String) -> Result<ChainView, ControlError> {
        let volume = chain_policy::volume_of(&text).map_err(invalid)?;
        let volume = self.request.living(&volume, Right::Administer).await?;
        let policy = parse(&text).await?;
        let mut volumes = ChainVolumes::new();
        for name in policy.volumes() {
            let replica = self.request.living(name, Right::Use).await?;
            volumes.insert(name.to_owned(), replica.id);
        }
        let world = &self.request.inner.world;
        let new = NewChain {
            id: ChainId::from_u128(world.random.u128()),
            volume: volume.id,
            addresses: policy.addresses(),
            vm: policy.vm,
            policy: text,
            volumes,
            changed: world.clock.wall(),
        };
        let (row, is_new) = self
            .request
            .inner
            .database
            .chains()
            .set(self.request.principal(), &new)
            .await?;
        if is_new && !self.request.is_dry_run() {
            let revision = row.revision;
            tracing::info!(chain = %row.id, volume = volume.name, revision, "user applied chain");
        }
        self.view(row).await
    }

    /// Deletes a chain. Hosts that have the volume attached remove its filters.
    ///
    /// # Errors
    /// [`ControlError::NotFound`], [`ControlError::Forbidden`] as
    /// [`Self::apply`].
    pub async fn delete(self, id: ChainId) -> Result<ChainView, ControlError> {
        self.request
            .to_completion(|authorized| async move {
                let database = &authorized.inner.database;
                let row = database.chains().delete(authorized.principal(), id).await?;
                if !authorized.is_dry_run() {
                    tracing::info!(chain = %row.id, volume = %row.volume, "user deleted chain");
                }
                authorized.chains().view_left(row).await
            })
            .await
    }

    /// A deleted chain, as soon as all hosts have removed it, or when `wait` has passed; with the
    /// attachments where it is still active.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn wait_until_removed(
        self,
        row: ChainRow,
        wait: Duration,
    ) -> Result<ChainView, ControlError> {
        let left = self.request.until(wait, || async {
            let view = self.view_left(row.clone()).await?;
            Ok(view.is_settled().then_some(view))
        });
        match left.await? {
            Some(view) => Ok(view),
            None => self.view_left(row).await,
        }
    }

    /// A chain, as soon as all hosts have reported on it, or when `wait` has passed.
    ///
    /// # Errors
    /// [`ControlError::NotFound`], also if the principal does not administer its volume.
    pub async fn get(self, id: ChainId, wait: Duration) -> Result<ChainView, ControlError> {
        let settled = self.request.until(wait, || async {
            let view = self.get_now(id).await?;
            Ok(view.is_settled().then_some(view))
        });
        match settled.await? {
            Some(view) => Ok(view),
            None => self.get_now(id).await,
        }
    }

    async fn get_now(self, id: ChainId) -> Result<ChainView, ControlError> {
        let row = self
            .request
            .inner
            .database
            .chains()
            .find(self.request.principal(), id)
            .await?;
        self.view(row).await
    }

    /// A page of the chains of the volumes that the principal administers, and the value of `after`
    /// for the next page.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] (the volume).
    pub async fn list(
        self,
        volume: Option<&str>,
        page: &Page,
    ) -> Result<(Vec<ChainView>, Option<String>), ControlError> {
        let database = &self.request.inner.database;
        let volume = match volume {
            Some(volume) => {
                let need = Need::Have(Right::Administer);
                Some(
                    database
                        .volumes()
                        .find(self.request.principal(), volume, need)
                        .await?
                        .id,
                )
            }
            None => None,
        };
        let (rows, next) = database
            .chains()
            .page(self.request.principal(), volume, page)
            .await?;
        let mut views = Vec::with_capacity(rows.len());
        for row in rows {
            views.push(self.view(row).await?);
        }
        Ok((views, next))
    }

    /// The events of an attachment's filters after `after`, or from now on; as soon as there are
    /// any, or when `wait` has passed.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] (the attachment); [`ControlError::Forbidden`] unless the
    /// principal administers the volume and may read it; [`ControlError::Conflict`] if it has no
    /// filters with events; [`ControlError::Unavailable`] if its host does not answer.
    pub async fn events(
        self,
        id: AttachmentId,
        after: Option<u64>,
        count_max: u32,
        wait: Duration,
    ) -> Result<EventLines, ControlError> {
        let database = &self.request.inner.database;
        let row = database
            .attachments()
            .find(self.request.principal(), &id.to_string())
            .await?;
        database
            .chains()
            .check_watcher(self.request.principal(), row.volume)
            .await?;
        let host = database.hosts().get(row.host).await?;
        let unresponsive_before = self.request.unresponsive_before().await?;
        let heard = host.as_ref().and_then(|host| host.heard);
        if heard.is_none_or(|heard| heard <= unresponsive_before) {
            return Err(ControlError::Unavailable {
                reason: "its host does not report; an administrator can start its \
                         agent"
                    .to_owned(),
            });
        }
        let job = JobKind::ReadEvents {
            attachment: id,
            after,
            count_max,
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
        };
        let now = self.request.principal().by.at;
        let number = database.hosts().insert_query(row.host, &job, now).await?;
        match self
            .request
            .job_done_within(number, wait + ANSWERED_WITHIN)
            .await?
        {
            Some(Ok(JobOutput::Events(events))) => Ok(events),
            Some(Ok(_)) => Err(ControlError::Internal {
                reason: "the host answered another job".to_owned(),
            }),
            Some(Err(refusal)) => Err(ControlError::conflict(format!(
                "attachment {id}: {}",
                refusal.message
            ))),
            None => Err(ControlError::Unavailable {
                reason: "the host does not answer; try again".to_owned(),
            }),
        }
    }

    /// A chain that was deleted.
    async fn view_left(self, row: ChainRow) -> Result<ChainView, ControlError> {
        let mut view = self.view(row).await?;
        let attachments = self
            .request
            .inner
            .database
            .attachments()
            .of_volume(view.row.volume)
            .await?;
        let id = view.row.id;
        let is_left = |attachment: &AttachmentRow| {
            attachment
                .observed
                .chain
                .is_some_and(|chain| chain.id == id)
        };
        view.attachments = attachments.into_iter().filter(is_left).collect();
        Ok(view)
    }

    async fn view(self, row: ChainRow) -> Result<ChainView, ControlError> {
        let database = &self.request.inner.database;
        let mut names = database
            .volumes()
            .names(std::iter::once(row.volume))
            .await?;
        let chains = database.chains().of_volume(row.volume).await?;
        let mut attachments = database.attachments().of_volume(row.volume).await?;
        attachments.retain(|attachment| {
            let chosen = chains.for_one(row.volume, attachment.vm.as_deref());
            attachment.desired.is_attached && chosen.is_some_and(|chosen| chosen.id == row.id)
        });
        Ok(ChainView {
            volume: names.remove(&row.volume),
            row,
            attachments,
        })
    }
}
