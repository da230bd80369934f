//! Volumes on hosts, and in VMs there: asking for them, and for their end.
//!
//! What is asked for is a row, and the host does the rest (docs/service.md). A
//! host that is silent is never waited for without a word: what would help is
//! part of the reason.

use std::str::FromStr as _;
use std::time::Duration;

use api::host::{Access, AttachmentState};
use api::vm::VmAddress;
use base::{AttachmentId, PartyId};
use world::{Millis, host};

use crate::control::Control;
use crate::database::{AttachmentRow, HeardRow, NewAttachment};
use crate::error::ControlError;
use crate::volumes::spell_time;

/// A host that was not heard of for longer is said to be silent, in
/// milliseconds.
const SILENT_MS: i64 = 10_000;

/// Who waits looks again after so long, even if nothing is known to have
/// changed: time itself may have.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// So many that have ended are shown.
const ENDED_MAX: u32 = 100;

/// An attachment as it was asked for.
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

/// Which attachments are meant; all that are not detached, if nothing is said.
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
    /// The volume's name, if that is still there.
    pub volume: Option<String>,
    /// The host's name.
    pub host: String,
}

impl AttachmentView {
    /// Whether its host has still something to say before it stays as it is.
    fn is_moving(&self) -> bool {
        let row = &self.row;
        let is_said = row.reported == row.generation || row.state == AttachmentState::Detached;
        !is_said
            || matches!(
                row.state,
                AttachmentState::Attaching | AttachmentState::Detaching
            )
    }
}

impl Control {
    /// Asks for a volume on a host, and in a VM there. The same again is asked
    /// for once more.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn attach(&self, request: AttachmentRequest) -> Result<AttachmentView, ControlError> {
        if let Some(vm) = &request.vm {
            VmAddress::from_str(vm)
                .map_err(|error| ControlError::invalid("vm", error.to_string()))?;
        }
        let host = match &request.host {
            Some(host) => self.host_named(host).await?.host,
            None => self.default_host().await?,
        };
        // Perhaps what is in the way has ended by now.
        self.end_forced().await?;
        let volume = self.living(&request.volume).await?;
        let access = match request.read_only {
            true => Access::ReadOnly,
            false => Access::ReadWrite,
        };
        let world = &self.inner.world;
        let new = NewAttachment {
            id: AttachmentId::from_random(world.random.u128()),
            volume: volume.id,
            host,
            vm: request.vm,
            access,
            created: world.clock.wall(),
        };
        let row = self.inner.database.attach(&new).await?;
        tracing::info!(attachment = %row.id, volume = volume.name, vm = ?row.vm, %access, "asked for");
        self.seen_attachment(row.id).await
    }

    /// Asks for the end of an attachment. By force it ends whether or not the
    /// guest lets go of the disk, and without its host if that is dead.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn detach(
        &self,
        id: AttachmentId,
        is_forced: bool,
    ) -> Result<AttachmentView, ControlError> {
        let row = self.inner.database.detach(id, is_forced).await?;
        tracing::info!(attachment = %id, is_forced, state = %row.state, "its end was asked for");
        self.seen_attachment(id).await
    }

    /// An attachment, once its host has said what came of what was asked last,
    /// or `wait` has passed.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn attachment(
        &self,
        id: AttachmentId,
        wait: Duration,
    ) -> Result<AttachmentView, ControlError> {
        self.end_forced().await?;
        let settled = async {
            loop {
                let found = self
                    .until(LOOK_AGAIN, || async {
                        let view = self.seen_attachment(id).await?;
                        Ok((!view.is_moving()).then_some(view))
                    })
                    .await?;
                if let Some(view) = found {
                    return Ok(view);
                }
                self.end_forced().await?;
            }
        };
        match host::within(wait, settled).await {
            Some(settled) => settled,
            None => self.seen_attachment(id).await,
        }
    }

    /// Attachments, in the order in which they were asked for.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn attachments(
        &self,
        filter: &AttachmentFilter,
    ) -> Result<Vec<AttachmentView>, ControlError> {
        self.end_forced().await?;
        let database = &self.inner.database;
        let volume = match &filter.volume {
            Some(volume) => Some(database.volume(volume).await?.id),
            None => None,
        };
        let host = match &filter.host {
            Some(host) => Some(self.host_named(host).await?.host),
            None => None,
        };
        let mut rows = match filter.state {
            Some(AttachmentState::Detached) => database.ended_attachments(ENDED_MAX).await?,
            _ => database.attachments().await?,
        };
        rows.retain(|row| {
            volume.is_none_or(|volume| row.volume == volume)
                && host.is_none_or(|host| row.host == host)
                && filter.state.is_none_or(|state| row.state == state)
        });
        let (hosts, volumes) = (database.heard().await?, database.volumes().await?);
        let now = self.now().await?;
        let views = rows.into_iter().map(|row| {
            let volume = volumes.name_of(row.volume).map(str::to_owned);
            self.view(row, volume, &hosts, now)
        });
        Ok(views.collect())
    }

    async fn seen_attachment(&self, id: AttachmentId) -> Result<AttachmentView, ControlError> {
        let database = &self.inner.database;
        let row = database.attachment(id).await?;
        let hosts = database.heard().await?;
        let volume = database.volume(&row.volume.to_string()).await;
        let volume = volume.ok().map(|volume| volume.name);
        Ok(self.view(row, volume, &hosts, self.now().await?))
    }

    fn view(
        &self,
        mut row: AttachmentRow,
        volume: Option<String>,
        hosts: &[HeardRow],
        now: Millis,
    ) -> AttachmentView {
        let found = hosts.iter().find(|host| host.host == row.host);
        if row.state != AttachmentState::Detached && row.reason.is_none() {
            row.reason = found.and_then(|host| self.why_silent(host, &row, now));
        }
        let host = found.map_or_else(|| row.host.to_string(), |host| host.name.clone());
        AttachmentView { row, volume, host }
    }

    /// What is waited for, and what would help.
    fn why_silent(&self, host: &HeardRow, row: &AttachmentRow, now: Millis) -> Option<String> {
        let name = &host.name;
        if let (true, Some(lease)) = (row.is_forced, self.inner.lease) {
            let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
            let ends = host.heard.unwrap_or(now).0.saturating_add(lease_ms);
            return Some(format!(
                "waits until host {name:?} says that it has let go; if it is heard of no more, \
                 until {}",
                spell_time(Millis(ends))
            ));
        }
        let since = match host.heard {
            Some(Millis(heard)) if now.0.saturating_sub(heard) < SILENT_MS => return None,
            Some(heard) => format!("was last heard of at {}", spell_time(heard)),
            None => "was never heard of".to_owned(),
        };
        let help = match (row.is_wanted, row.is_forced) {
            (true, _) => "start its agent, or attach the volume elsewhere after `scree detach`",
            (false, false) => "start its agent, or give it up with `scree detach --force`",
            (false, true) => "start its agent",
        };
        Some(format!("host {name:?} {since}; {help}"))
    }

    async fn host_named(&self, name: &str) -> Result<HeardRow, ControlError> {
        let hosts = self.inner.database.heard().await?;
        let id: Option<PartyId> = name.parse().ok();
        let found = hosts
            .into_iter()
            .find(|host| host.name == name || Some(host.host) == id);
        found.ok_or_else(|| ControlError::NotFound {
            what: format!("host {name:?}"),
            hint: "`scree host list` shows those there are".into(),
        })
    }
}
