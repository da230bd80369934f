//! Attaching volumes to hosts and to VMs on them, and detaching them.
//!
//! A request changes the desired state in the database, and the host does the rest
//! (docs/internals/desired-state.md). If the host is unresponsive, the answer says so, and what
//! would help.

use std::str::FromStr as _;
use std::time::Duration;

use api::host::{Access, AttachmentState};
use api::types::Message;
use api::vm::VmAddress;
use api::words::MessageCode;
use base::{AttachmentId, PartyId};
use world::{Millis, host};

use crate::authorized_request::AuthorizedRequest;
use crate::database::{
    AttachmentRow, HostRow, Need, NewAttachment, Page, Right, Successor, VolumeName,
};
use crate::error::ControlError;
use crate::host_reports::UNRESPONSIVE_MS;
use crate::timestamp::rfc3339;

/// How often a waiting request looks again even if nothing has changed: a lease may have expired.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A request to attach a volume.
#[derive(Debug, Clone, Default)]
pub struct AttachmentRequest {
    /// Of this volume (name or id).
    pub volume: String,
    /// On this host (name or id).
    pub host: Option<String>,
    /// Plugged into this VM there.
    pub vm: Option<String>,
    /// Refuse writes.
    pub read_only: bool,
}

/// A filter for attachments. By default, all that are not detached.
#[derive(Debug, Clone, Default)]
pub struct AttachmentFilter {
    /// Of this volume (name or id).
    pub volume: Option<String>,
    /// On this host (name or id).
    pub host: Option<String>,
    /// In this state.
    pub state: Option<AttachmentState>,
}

/// An attachment as it is shown.
#[derive(Debug, Clone)]
pub struct AttachmentView {
    /// Its row, with the reason why it gets no further.
    pub row: AttachmentRow,
    /// What the volume is called, if that is still there.
    pub volume: Option<VolumeName>,
    /// The host's name.
    pub host: String,
    /// The name of the host of what follows it, if anything does.
    pub next_host: Option<String>,
}

/// Where an attachment is to be moved to.
#[derive(Debug, Clone, Default)]
pub struct MoveRequest {
    /// This host (name or id).
    pub host: String,
    /// Plugged into this VM there.
    pub vm: Option<String>,
}

/// Refuses a text that is not the address of a VM.
fn check_vm(vm: Option<&str>) -> Result<(), ControlError> {
    match vm.map(VmAddress::from_str) {
        Some(Err(error)) => Err(ControlError::invalid("vm", error.to_string())),
        _ => Ok(()),
    }
}

impl AttachmentView {
    /// Whether its state will change with the host's next report.
    fn is_moving(&self) -> bool {
        let row = &self.row;
        let is_said = row.observed.generation == row.desired.generation
            || row.observed.state == AttachmentState::Detached;
        !is_said
            || matches!(
                row.observed.state,
                AttachmentState::Attaching | AttachmentState::Detaching
            )
    }
}

/// Attachments, as one authorized request may use them.
#[derive(Clone, Copy)]
pub struct Attachments<'a> {
    pub(crate) request: &'a AuthorizedRequest,
}

impl AuthorizedRequest {
    /// Attachments of volumes to hosts and VMs.
    #[must_use]
    pub fn attachments(&self) -> Attachments<'_> {
        Attachments { request: self }
    }
}

impl Attachments<'_> {
    /// Attaches a volume to a host, or to a VM on it. Repeating the request is no error.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] if the VM is none, or several hosts could be meant;
    /// [`ControlError::NotFound`] (the volume, the host); [`ControlError::Forbidden`] if
    /// the volume, the host or the VM is not for the principal; [`ControlError::Conflict`] if
    /// the volume is attached in another way, or being deleted;
    /// [`ControlError::QuotaExceeded`] of read-only attachments;
    /// [`ControlError::Unavailable`] if no host is named and none is there. That it
    /// cannot be opened is no error here: its state says so.
    pub async fn attach(self, request: AttachmentRequest) -> Result<AttachmentView, ControlError> {
        check_vm(request.vm.as_deref())?;
        let host = self
            .request
            .host_or_default(request.host.as_deref())
            .await?;
        // An attachment that is in the way may have expired.
        self.request.end_forced().await?;
        let (access, need) = match request.read_only {
            true => (Access::ReadOnly, Right::Read),
            false => (Access::ReadWrite, Right::Use),
        };
        let volume = self.request.living(&request.volume, need).await?;
        let world = &self.request.inner.world;
        let new = NewAttachment {
            id: AttachmentId::from_u128(world.random.u128()),
            volume: volume.id,
            host,
            vm: request.vm,
            access,
            created: world.clock.wall(),
        };
        let row = self
            .request
            .inner
            .database
            .attachments()
            .attach(self.request.principal(), &new)
            .await?;
        if self.request.is_dry_run() {
            return self.shown(row).await;
        }
        tracing::info!(attachment = %row.id, volume = volume.name, vm = row.vm, %access, "user requested attachment");
        self.seen_attachment(row.id).await
    }

    /// Detaches a volume. If forced, it is detached even if the guest does not release the disk,
    /// and without the host if that is dead.
    ///
    /// # Errors
    /// [`ControlError::NotFound`], also if the principal may not see it. One that has ended
    /// is no error.
    pub async fn detach(
        self,
        id: AttachmentId,
        is_forced: bool,
    ) -> Result<AttachmentView, ControlError> {
        let database = &self.request.inner.database;
        let row = database
            .attachments()
            .detach(self.request.principal(), id, is_forced)
            .await?;
        if self.request.is_dry_run() {
            return self.shown(row).await;
        }
        tracing::info!(attachment = %id, is_forced, state = %row.observed.state, "user requested detachment");
        self.seen_attachment(id).await
    }

    /// Moves an attachment: it is replaced by one elsewhere as soon as it is detached. Repeating
    /// the request is no error, even when the move is done.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] if the VM is none; [`ControlError::NotFound`] (the
    /// attachment, the host); [`ControlError::Forbidden`] if the volume, the host or the
    /// VM is not for the principal; [`ControlError::Conflict`] if it cannot be moved: it has
    /// ended or is ending, is read-only or there already, or the host is not heard of.
    pub async fn move_to(
        self,
        id: AttachmentId,
        request: MoveRequest,
    ) -> Result<AttachmentView, ControlError> {
        check_vm(request.vm.as_deref())?;
        let database = &self.request.inner.database;
        // A principal who may not see the attachment learns nothing of hosts either.
        database
            .attachments()
            .find(self.request.principal(), &id.to_string())
            .await?;
        let next = Successor {
            id: AttachmentId::from_u128(self.request.inner.world.random.u128()),
            host: self.request.host_named(&request.host).await?,
            vm: request.vm,
        };
        let heard_after = self.request.unresponsive_before().await?;
        let row = database
            .attachments()
            .move_to(self.request.principal(), id, &next, heard_after)
            .await?;
        if !self.request.is_dry_run() {
            tracing::info!(attachment = %id, to = request.host, "user requested move");
        }
        self.shown(row).await
    }

    /// Cancels a move.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Forbidden`] if the principal neither
    /// administers the volume nor could attach it there now; [`ControlError::Conflict`]
    /// if nothing is to follow it, or its host has already released the volume.
    pub async fn cancel_move(self, id: AttachmentId) -> Result<AttachmentView, ControlError> {
        let row = self
            .request
            .inner
            .database
            .attachments()
            .cancel_move(self.request.principal(), id)
            .await?;
        if !self.request.is_dry_run() {
            tracing::info!(attachment = %id, "user canceled move");
        }
        self.shown(row).await
    }

    /// Waits until the move of an attachment has ended or `wait` has passed, and returns the
    /// successor if there is one, otherwise the attachment itself, as [`Self::get`] does.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn wait_moved(
        self,
        id: AttachmentId,
        wait: Duration,
    ) -> Result<AttachmentView, ControlError> {
        let clock = &self.request.inner.world.clock;
        let until = clock.monotonic() + wait;
        let old = self.get(id, wait).await?;
        match (&old.row.desired.successor, old.row.observed.state) {
            (Some(next), AttachmentState::Detached) => {
                let rest = until.saturating_sub(clock.monotonic());
                self.get(next.id, rest).await
            }
            _ => Ok(old),
        }
    }

    /// An attachment, as soon as its host has reported on the last request, or when `wait` has
    /// passed.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn get(
        self,
        id: AttachmentId,
        wait: Duration,
    ) -> Result<AttachmentView, ControlError> {
        self.request.end_forced().await?;
        let database = &self.request.inner.database;
        let id = database
            .attachments()
            .find(self.request.principal(), &id.to_string())
            .await?
            .id;
        let settled = async {
            loop {
                let found = self
                    .request
                    .until(LOOK_AGAIN, || async {
                        let view = self.seen_attachment(id).await?;
                        Ok((!view.is_moving()).then_some(view))
                    })
                    .await?;
                if let Some(view) = found {
                    return Ok(view);
                }
                self.request.end_forced().await?;
            }
        };
        match host::timeout(wait, settled).await {
            Some(settled) => settled,
            None => self.seen_attachment(id).await,
        }
    }

    /// A page of the attachments that the principal may see, and after what the
    /// next one begins.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] (the volume or host of the filter);
    /// [`ControlError::Conflict`] if the volume's name could mean those of several
    /// owners.
    pub async fn list(
        self,
        filter: &AttachmentFilter,
        page: &Page,
    ) -> Result<(Vec<AttachmentView>, Option<String>), ControlError> {
        self.request.end_forced().await?;
        let database = &self.request.inner.database;
        let volume = match &filter.volume {
            Some(volume) => {
                let found = database
                    .volumes()
                    .find(self.request.principal(), volume, Need::See)
                    .await?;
                Some(found.id)
            }
            None => None,
        };
        let host = match &filter.host {
            Some(host) => Some(self.request.host_named(host).await?),
            None => None,
        };
        let (rows, next) = database
            .attachments()
            .page(self.request.principal(), volume, host, filter.state, page)
            .await?;
        let names = database
            .volumes()
            .names(rows.iter().map(|row| row.volume))
            .await?;
        let hosts = database.hosts().all().await?;
        let now = self.request.now().await?;
        let views = rows.into_iter().map(|row| {
            let volume = names.get(&row.volume).cloned();
            self.view(row, volume, &hosts, now)
        });
        Ok((views.collect(), next))
    }

    async fn seen_attachment(self, id: AttachmentId) -> Result<AttachmentView, ControlError> {
        let row = self.request.inner.database.attachments().get(id).await?;
        self.shown(row).await
    }

    async fn shown(self, row: AttachmentRow) -> Result<AttachmentView, ControlError> {
        let database = &self.request.inner.database;
        let mut hosts = Vec::from_iter(database.hosts().get(row.host).await?);
        if let Some(next) = &row.desired.successor {
            hosts.extend(database.hosts().get(next.host).await?);
        }
        let mut names = database
            .volumes()
            .names(std::iter::once(row.volume))
            .await?;
        let volume = names.remove(&row.volume);
        Ok(self.view(row, volume, &hosts, self.request.now().await?))
    }

    fn view(
        self,
        mut row: AttachmentRow,
        volume: Option<VolumeName>,
        hosts: &[HostRow],
        now: Millis,
    ) -> AttachmentView {
        let find = |id| hosts.iter().find(|host| host.host == id);
        let name = |id: PartyId| find(id).map_or_else(|| id.to_string(), |host| host.name.clone());
        let next_host = row.desired.successor.as_ref().map(|next| name(next.host));
        let host = name(row.host);
        if row.observed.state != AttachmentState::Detached && row.observed.problem.is_none() {
            row.observed.problem =
                find(row.host).and_then(|host| self.why_unresponsive(host, &row, now));
        }
        AttachmentView {
            row,
            volume,
            host,
            next_host,
        }
    }

    /// What is waited for, and what would help.
    fn why_unresponsive(self, host: &HostRow, row: &AttachmentRow, now: Millis) -> Option<Message> {
        let name = &host.name;
        if let (true, Some(lease)) = (row.desired.is_forced, self.request.inner.lease) {
            let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
            let ends = host.heard.unwrap_or(now).0.saturating_add(lease_ms);
            let text = format!(
                "waits until host {name:?} reports that it is detached; if the host no longer \
                 reports, until {}",
                rfc3339(Millis(ends))
            );
            return Some(Message::new(MessageCode::DetachmentPending, text));
        }
        let since = match host.heard {
            Some(Millis(heard)) if now.0.saturating_sub(heard) < UNRESPONSIVE_MS => return None,
            Some(heard) => format!("last reported at {}", rfc3339(heard)),
            None => "has never reported".to_owned(),
        };
        let help = match (row.desired.is_attached, row.desired.is_forced) {
            (true, _) => {
                "an administrator can start its agent; or attach the volume elsewhere after \
                 `scree detach`"
            }
            (false, false) => {
                "an administrator can start its agent; or detach it with `scree detach VOLUME --force`"
            }
            (false, true) => "an administrator can start its agent",
        };
        let text = format!("host {name:?} {since}; {help}");
        Some(Message::new(MessageCode::HostUnresponsive, text))
    }
}
