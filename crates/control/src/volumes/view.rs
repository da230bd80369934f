//! Volumes as the API shows them. Where other users have a volume attached, and which project it is
//! charged to, is not shown to everyone who may see it.
//!
//! [`VolumeSettings`](crate::database::VolumeSettings) convert themselves, so that a new setting is
//! added in one place.

use std::collections::BTreeSet;

use api::host::{Access, AttachmentState};
use api::types::{Engine, Export, ListedVolume, Message, Volume};
use api::words::{MessageCode, VolumeState};
use base::{ProjectId, VolumeId};

use crate::database::{
    AttachmentRow, DamagedVolume, Filter, Need, Page, Tags, VolumePage, VolumeRow,
};
use crate::error::ControlError;
use crate::timestamp::rfc3339;
use crate::volumes::Volumes;

/// A volume as the API shows it.
#[derive(Debug, Clone)]
pub struct VolumeView {
    /// The row.
    pub row: VolumeRow,
    /// The tags.
    pub tags: Tags,
    /// Whether it is attached anywhere, or not detached yet.
    pub is_attached: bool,
    /// The attachments that the principal may see: their own, and all if they administer the
    /// volume.
    pub attachments: Vec<AttachmentRow>,
    /// The last reported state of its engine, if the principal may see the attachment.
    pub engine: Option<Engine>,
    /// What its owner should know after it was created or grown.
    pub notice: Option<Message>,
}

/// A page of volumes.
#[derive(Debug, Clone)]
pub struct VolumeList {
    /// The volumes.
    pub volumes: Vec<VolumeView>,
    /// The volumes with damaged rows.
    pub damaged: Vec<DamagedVolume>,
    /// The value of `after` for the next page; `None` on the last one.
    pub next: Option<String>,
}

impl VolumeView {
    /// The state, in EC2's words.
    #[must_use]
    pub fn state(&self) -> VolumeState {
        if self.row.deleting {
            VolumeState::Deleting
        } else if self.problem().is_some() {
            VolumeState::Error
        } else if self.is_attached {
            VolumeState::InUse
        } else {
            VolumeState::Available
        }
    }

    /// What is wrong with it.
    #[must_use]
    pub fn problem(&self) -> Option<&Message> {
        let mut attachments = self.attachments.iter();
        attachments.find_map(|attachment| attachment.observed.problem.as_ref())
    }

    /// The attachment that is active, if there is one.
    #[must_use]
    pub fn served(&self) -> Option<&AttachmentRow> {
        let mut attachments = self.attachments.iter();
        attachments.find(|attachment| attachment.observed.state == AttachmentState::Attached)
    }

    /// A detached volume.
    pub(super) fn fresh(row: VolumeRow, tags: Tags) -> Self {
        Self {
            row,
            tags,
            is_attached: false,
            attachments: Vec::new(),
            engine: None,
            notice: None,
        }
    }
}

impl Volumes<'_> {
    /// A volume by name or id, with the state of its engine from a fresh report of its host.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn get(self, name: &str) -> Result<VolumeView, ControlError> {
        let database = &self.request.inner.database;
        let row = database
            .volumes()
            .find(self.request.principal(), name, Need::See)
            .await?;
        let mut view = self.reported_view(row.id).await?;
        if view.served().is_some() {
            self.request.request_reports().await?;
            let on = BTreeSet::from_iter(view.attachments.iter().map(|attachment| attachment.host));
            for host in on {
                let Some(said) = database.hosts().report(host).await? else {
                    continue;
                };
                let mut open = said.report.volumes.into_iter();
                let is_seen = |id| {
                    view.attachments
                        .iter()
                        .any(|attachment| attachment.id == id)
                };
                if let Some(open) = open.find(|volume| is_seen(volume.attachment)) {
                    view.engine = Some(open.engine);
                    break;
                }
            }
        }
        Ok(view)
    }

    /// A page of the volumes that the principal may see, without the states of their engines.
    ///
    /// # Errors
    /// Only those of the database. A volume whose row is damaged is listed as that.
    pub async fn list(self, filter: &Filter, page: &Page) -> Result<VolumeList, ControlError> {
        let database = &self.request.inner.database;
        let VolumePage {
            volumes,
            attached,
            mut attachments,
            mut tags,
            next,
        } = database
            .volumes()
            .page(self.request.principal(), filter, page)
            .await?;
        let projects = self.projects_known().await?;
        let mut view = |row: VolumeRow| VolumeView {
            is_attached: attached.contains(&row.id),
            attachments: attachments
                .extract_if(.., |attachment| attachment.volume == row.id)
                .collect(),
            ..VolumeView::fresh(
                self.known(row.clone(), projects.as_ref()),
                tags.remove(&row.id.to_string()).unwrap_or_default(),
            )
        };
        Ok(VolumeList {
            volumes: volumes.rows.into_iter().map(&mut view).collect(),
            damaged: volumes.damaged,
            next,
        })
    }

    /// As [`Self::get`], without requesting a fresh report.
    pub(super) async fn reported_view(self, id: VolumeId) -> Result<VolumeView, ControlError> {
        let database = &self.request.inner.database;
        let (is_attached, attachments) = database
            .attachments()
            .visible_of_volume(self.request.principal(), id)
            .await?;
        Ok(VolumeView {
            is_attached,
            attachments,
            ..VolumeView::fresh(
                self.known(
                    database.volumes().get(id).await?,
                    self.projects_known().await?.as_ref(),
                ),
                database.tags_of(&id.to_string()).await?,
            )
        })
    }

    /// The projects whose names the principal may see on volumes of others; `None`: all.
    pub(super) async fn projects_known(self) -> Result<Option<BTreeSet<ProjectId>>, ControlError> {
        let party = &self.request.principal().party;
        if party.is_administrator {
            return Ok(None);
        }
        Ok(Some(
            self.request
                .inner
                .database
                .projects()
                .of_party(party.id)
                .await?,
        ))
    }

    /// The row without the project's name, unless the principal owns the volume or is a member of
    /// the project.
    pub(super) fn known(self, row: VolumeRow, projects: Option<&BTreeSet<ProjectId>>) -> VolumeRow {
        let is_known = row.owner == Some(self.request.principal().party.id)
            || projects.is_none_or(|all| row.project.is_some_and(|one| all.contains(&one)));
        VolumeRow {
            project_name: row.project_name.clone().filter(|_| is_known),
            ..row
        }
    }
}

impl From<VolumeView> for Volume {
    fn from(view: VolumeView) -> Self {
        let state = view.state();
        let export = view.served().filter(|one| one.vm.is_none());
        let export = export.map(Export::from);
        let messages = view
            .problem()
            .cloned()
            .into_iter()
            .chain(view.notice.clone());
        let message = Message::joined(messages);
        let row = view.row;
        let mut volume = Self {
            id: row.id.to_string(),
            name: row.name,
            owner: row.owner_name,
            project: row.project_name,
            tags: view.tags,
            size: row.size_bytes,
            state: state.as_str().to_owned(),
            block_size: row.block_size.bytes() as u64,
            encryption: row.encryption.to_string(),
            replicas: row.replicas,
            erasure: row.erasure.map(|erasure| erasure.to_string()),
            image: row.image.map(|mark| mark.as_str().to_owned()),
            created: rfc3339(row.created),
            from: row.origin.map(|origin| origin.to_string()),
            export,
            message,
            engine: view.engine,
            ..Self::default()
        };
        row.settings.show(&mut volume);
        volume
    }
}

impl From<VolumeView> for ListedVolume {
    fn from(view: VolumeView) -> Self {
        Self::Readable(Box::new(view.into()))
    }
}

impl From<DamagedVolume> for ListedVolume {
    fn from(volume: DamagedVolume) -> Self {
        Self::Damaged(api::types::DamagedVolume {
            id: volume.id,
            name: volume.name,
            state: VolumeState::Error.as_str().to_owned(),
            message: Message::new(MessageCode::DatabaseDamaged, volume.reason),
        })
    }
}

impl From<&AttachmentRow> for Export {
    fn from(attachment: &AttachmentRow) -> Self {
        Self {
            uri: attachment.observed.uri.clone().unwrap_or_default(),
            tcp_uri: attachment.observed.tcp_uri.clone(),
            read_only: attachment.access == Access::ReadOnly,
        }
    }
}
