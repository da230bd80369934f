//! What owners do with volumes.
//!
//! Each change is one transaction. Where a host has to do its part (open,
//! close, grow), that is written down with it, and its word is waited for.

use std::collections::BTreeSet;
use std::time::Duration;

use api::host::{Access, AttachmentState, Seal};
use api::size::{about_bytes, exact_bytes};
use api::types::{Engine, REPLICAS_MAX};
use base::{AttachmentId, Lineage, PartyId, ProjectId, VolumeId};
use catalog::VersionKey;
use world::Millis;

use crate::acting::Acting;
use crate::database::{
    AttachmentRow, DamagedVolume, DatabaseError, Filter, Need, NewAttachment, NewVolume, Page,
    Right, SnapshotRow, Tags, VersionRow, VolumePage, VolumeRow,
};
use crate::error::{ControlError, gone_since};
use crate::parse;
use api::words::VolumeState;

/// A host that is well opens or closes a volume in less.
const HOST_WITHIN: Duration = Duration::from_secs(100);

/// So long it is waited for that a volume's size is seen by its clients.
const GROWN_WITHIN: Duration = Duration::from_secs(5);

/// A volume to be made, as it was asked for.
#[derive(Debug, Clone, Default)]
pub struct VolumeRequest {
    /// Its name.
    pub name: String,
    /// On whose account; on the asker's own, if none is named.
    pub project: Option<String>,
    /// Its tags.
    pub tags: Tags,
    /// Size in bytes; a clone's default is its snapshot's.
    pub size_bytes: Option<u64>,
    /// Start from this snapshot (name or id).
    pub from: Option<String>,
    /// Block size in bytes.
    pub block_bytes: Option<u64>,
    /// How to seal it.
    pub seal: Option<Seal>,
    /// Copies of each segment.
    pub replicas: Option<u8>,
}

/// Where to go back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreTo {
    /// The newest version that is not younger.
    Time(Millis),
    /// This version.
    Version(u64),
}

/// A volume as it is shown.
#[derive(Debug, Clone)]
pub struct VolumeView {
    /// Its row.
    pub row: VolumeRow,
    /// Its tags.
    pub tags: Tags,
    /// Whether it is attached anywhere, or not yet detached.
    pub is_attached: bool,
    /// Where, as far as the asker may see that: where others have it is for
    /// those who administer it.
    pub attachments: Vec<AttachmentRow>,
    /// How its engine is doing, as its host said last, if the asker may see
    /// where that is.
    pub engine: Option<Engine>,
    /// What its owner should know, just after it was made or grown.
    pub notice: Option<String>,
}

/// A page of volumes as they are shown.
#[derive(Debug, Clone)]
pub struct VolumeList {
    /// Those of which everything is known.
    pub volumes: Vec<VolumeView>,
    /// Those whose rows in the database are damaged.
    pub damaged: Vec<DamagedVolume>,
    /// After what the next page begins, if there is one.
    pub next: Option<String>,
}

impl VolumeView {
    /// Its state, in EC2's words.
    #[must_use]
    pub fn state(&self) -> VolumeState {
        if self.row.deleting {
            VolumeState::Deleting
        } else if self.reason().is_some() {
            VolumeState::Error
        } else if self.is_attached {
            VolumeState::InUse
        } else {
            VolumeState::Available
        }
    }

    /// What is wrong with it.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        let mut attachments = self.attachments.iter();
        attachments.find_map(|attachment| attachment.reason.as_deref())
    }

    /// How it is served, if it is.
    #[must_use]
    pub fn served(&self) -> Option<&AttachmentRow> {
        let mut attachments = self.attachments.iter();
        attachments.find(|attachment| attachment.state == AttachmentState::Attached)
    }
}

impl VolumeView {
    /// One that is attached nowhere.
    fn fresh(row: VolumeRow, tags: Tags) -> Self {
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

impl Acting {
    /// Makes a volume.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn create_volume(&self, request: VolumeRequest) -> Result<VolumeView, ControlError> {
        self.to_its_end(|control| async move { control.create(request).await })
            .await
    }

    async fn create(&self, request: VolumeRequest) -> Result<VolumeView, ControlError> {
        let database = &self.inner.database;
        // Whatever has become of what it was made from.
        if let Some(made) = database.made_under_key(self.asker()).await? {
            return self.volume(&made).await.map_err(gone_since);
        }
        let name = parse::name(&request.name)?.to_owned();
        parse::tags(&request.tags)?;
        let origin = match &request.from {
            Some(from) => {
                let need = Need::Have(Right::Read);
                Some(database.snapshot_for(self.asker(), from, need).await?)
            }
            None => None,
        };
        let (size_bytes, block_size, seal) = shape_of(&request, origin.as_ref())?;
        let replicas = match request.replicas {
            Some(replicas) => replicas,
            None => self.default_replicas().await?,
        };
        if !(1..=REPLICAS_MAX).contains(&replicas) {
            let reason = format!("{replicas} replicas; a volume has 1 to {REPLICAS_MAX}");
            return Err(ControlError::invalid("replicas", reason));
        }
        self.refuse_beyond_capacity(size_bytes, replicas).await?;
        self.ensure_copysets(replicas, self.is_dry_run()).await?;
        let world = &self.inner.world;
        let id = VolumeId::from_random(world.random.u128());
        let new = NewVolume {
            id,
            name,
            project: request.project,
            tags: request.tags,
            size_bytes,
            block_size,
            seal,
            replicas,
            // By its name the wrapped key is bound to the volume.
            lineage: Lineage::from_random(id.as_u128()),
            origin: origin.map(|snapshot| snapshot.id),
            created: world.clock.wall(),
        };
        let row = database.insert_volume(self.asker(), &new).await?;
        let mut view = if self.is_dry_run() {
            VolumeView::fresh(row, new.tags)
        } else {
            tracing::info!(volume = %row.id, name = row.name, size_bytes, "volume created");
            self.seen(row.id).await?
        };
        view.notice = self.overcommitted(size_bytes, replicas).await?;
        Ok(view)
    }

    /// Volumes take room only as they are written, so a large one is no
    /// mistake; but one that can never be filled is worth a word.
    async fn overcommitted(
        &self,
        size_bytes: u64,
        replicas: u8,
    ) -> Result<Option<String>, ControlError> {
        let needed = size_bytes.saturating_mul(u64::from(replicas));
        let free = self.free_bytes().await?.filter(|free| *free < needed);
        Ok(free.map(|free| {
            format!(
                "full, it would take {} ({replicas} copies), and the units have {} free; an \
                 administrator should add units before that",
                about_bytes(needed),
                about_bytes(free)
            )
        }))
    }

    /// Refuses what, with all that was promised before, could be filled only
    /// with many times the room that there is.
    async fn refuse_beyond_capacity(
        &self,
        size_bytes: u64,
        replicas: u8,
    ) -> Result<(), ControlError> {
        let Some(free) = self.free_bytes().await? else {
            return Ok(());
        };
        let promised = self.inner.database.promised_bytes().await?;
        let needed = promised.saturating_add(size_bytes.saturating_mul(u64::from(replicas)));
        let overcommit = u64::from(self.inner.overcommit);
        if needed <= free.saturating_mul(overcommit) {
            return Ok(());
        }
        Err(ControlError::NoCapacity {
            reason: format!(
                "full, it would take {}; with what all other volumes would take, that is more \
                 than {overcommit} times the free room; the operator can add units, or raise \
                 `--overcommit`",
                about_bytes(size_bytes.saturating_mul(u64::from(replicas))),
            ),
        })
    }

    /// A volume by name or id, its host asked how it is.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn volume(&self, name: &str) -> Result<VolumeView, ControlError> {
        let database = &self.inner.database;
        let row = database.volume_for(self.asker(), name, Need::See).await?;
        let mut view = self.seen(row.id).await?;
        if view.served().is_some() {
            let hosts = self.ask_hosts().await?;
            view.engine = hosts
                .iter()
                .flat_map(|host| &host.report.volumes)
                .find(|volume| {
                    let mut seen = view.attachments.iter();
                    seen.any(|one| one.id == volume.attachment)
                })
                .map(|volume| volume.engine.clone());
        }
        Ok(view)
    }

    /// Which projects the asker may know of with the volumes of others; `None`
    /// if all.
    async fn projects_known(&self) -> Result<Option<BTreeSet<ProjectId>>, ControlError> {
        let party = &self.asker().party;
        if party.is_administrator {
            return Ok(None);
        }
        Ok(Some(self.inner.database.projects_of(party.id).await?))
    }

    /// The row as it is shown: on whose account something is, is for its owner
    /// and those who are in that project.
    fn known(&self, row: VolumeRow, projects: Option<&BTreeSet<ProjectId>>) -> VolumeRow {
        let is_known = row.owner == Some(self.asker().party.id)
            || projects.is_none_or(|all| row.project.is_some_and(|one| all.contains(&one)));
        VolumeRow {
            project_name: row.project_name.clone().filter(|_| is_known),
            ..row
        }
    }

    /// As [`Acting::volume`], but nobody is asked.
    async fn seen(&self, id: VolumeId) -> Result<VolumeView, ControlError> {
        let database = &self.inner.database;
        let (is_attached, attachments) = database.attachments_seen(self.asker(), id).await?;
        Ok(VolumeView {
            is_attached,
            attachments,
            ..VolumeView::fresh(
                self.known(
                    database.volume(id).await?,
                    self.projects_known().await?.as_ref(),
                ),
                database.tags_of(&id.to_string()).await?,
            )
        })
    }

    /// A page of the volumes that the asker may see, without their engines'
    /// states.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn volumes(&self, filter: &Filter, page: &Page) -> Result<VolumeList, ControlError> {
        let database = &self.inner.database;
        let VolumePage {
            volumes,
            attached,
            mut attachments,
            mut tags,
            next,
        } = database.volume_page(self.asker(), filter, page).await?;
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

    /// Puts `tags` in the place of a volume's.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn tag_volume(&self, name: &str, tags: Tags) -> Result<VolumeView, ControlError> {
        parse::tags(&tags)?;
        let database = &self.inner.database;
        let row = database.tag_volume(self.asker(), name, &tags).await?;
        Ok(VolumeView {
            tags,
            ..self.seen(row.id).await?
        })
    }

    /// Gives a volume to another user.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn give_volume(
        &self,
        name: &str,
        user: &str,
        project: Option<&str>,
    ) -> Result<VolumeView, ControlError> {
        let database = &self.inner.database;
        let row = database
            .give_volume(self.asker(), name, user, project)
            .await?;
        let seen = self.seen(row.id).await?;
        Ok(VolumeView { row, ..seen })
    }

    /// Makes a volume larger. Connections that exist see it when they ask.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn grow_volume(
        &self,
        name: &str,
        size_bytes: u64,
    ) -> Result<VolumeView, ControlError> {
        let name = name.to_owned();
        self.to_its_end(|control| async move { control.grow(&name, size_bytes).await })
            .await
    }

    async fn grow(&self, name: &str, size_bytes: u64) -> Result<VolumeView, ControlError> {
        let row = self.living(name, Right::Administer).await?;
        parse::volume_size(size_bytes, row.block_size)?;
        if size_bytes <= row.size_bytes {
            let reason = format!(
                "volume {:?} has {}; the new size must be larger (a volume is never shrunk: make a \
                 smaller one and copy)",
                row.name,
                exact_bytes(row.size_bytes)
            );
            return Err(ControlError::invalid("size", reason));
        }
        let more = size_bytes - row.size_bytes;
        self.refuse_beyond_capacity(more, row.replicas).await?;
        let database = &self.inner.database;
        let grown = database.set_size(self.asker(), row.id, size_bytes).await?;
        if self.is_dry_run() {
            let mut view = self.seen(row.id).await?;
            view.row.size_bytes = grown.size_bytes;
            return Ok(view);
        }
        let seen = self.until(GROWN_WITHIN, || async {
            let view = self.seen(row.id).await?;
            let is_smaller = |one: &AttachmentRow| {
                one.access == Access::ReadWrite && one.size_bytes.unwrap_or(0) < size_bytes
            };
            let waits = view.served().is_some_and(is_smaller);
            Ok((!waits).then_some(view))
        });
        let (mut view, notice) = match seen.await? {
            Some(view) => (view, self.overcommitted(size_bytes, row.replicas).await?),
            None => (
                self.seen(row.id).await?,
                Some("its host has not said yet that clients see the new size".to_owned()),
            ),
        };
        view.notice = notice;
        Ok(view)
    }

    /// Deletes a volume that is not served. Its snapshots stay. Its room is
    /// given back in the background.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn delete_volume(&self, name: &str) -> Result<VolumeView, ControlError> {
        let name = name.to_owned();
        self.to_its_end(|control| async move { control.delete(&name).await })
            .await
    }

    async fn delete(&self, name: &str) -> Result<VolumeView, ControlError> {
        let row = self.living(name, Right::Administer).await?;
        self.refuse_if_wanted(&row).await?;
        let now = self.inner.world.clock.wall();
        let database = &self.inner.database;
        database.begin_delete(self.asker(), row.id, now).await?;
        if self.is_dry_run() {
            return self.seen(row.id).await;
        }
        tracing::info!(volume = %row.id, name = row.name, "volume is being deleted");
        match self.seen(row.id).await {
            Ok(view) => Ok(view),
            // The cleaner was faster.
            Err(ControlError::NotFound { .. }) => {
                let projects = self.projects_known().await?;
                let row = VolumeRow {
                    deleting: true,
                    ..self.known(row, projects.as_ref())
                };
                Ok(VolumeView::fresh(row, Tags::new()))
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a kept version the state of a volume that is not served.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn restore_volume(
        &self,
        name: &str,
        to: RestoreTo,
    ) -> Result<VolumeView, ControlError> {
        let name = name.to_owned();
        self.to_its_end(|control| async move { control.restore(&name, to).await })
            .await
    }

    async fn restore(&self, name: &str, to: RestoreTo) -> Result<VolumeView, ControlError> {
        let row = self.living(name, Right::Administer).await?;
        self.refuse_if_wanted(&row).await?;
        // What a journal still has becomes a version first, so that going back
        // can itself be undone.
        self.refuse_if_attached(&row).await?;
        let line = self.inner.database.line_of(row.id).await?;
        let version = self.choose(&row, &line, to)?;
        let database = &self.inner.database;
        database.set_head(self.asker(), row.id, version).await?;
        tracing::info!(volume = %row.id, name = row.name, version = version.number, "restored");
        self.seen(row.id).await
    }

    fn choose(
        &self,
        row: &VolumeRow,
        line: &[VersionRow],
        to: RestoreTo,
    ) -> Result<VersionKey, ControlError> {
        let found = match to {
            RestoreTo::Version(number) => line.iter().find(|version| version.key.number == number),
            RestoreTo::Time(time) => {
                if time.0 > self.inner.world.clock.wall().0 {
                    let reason = "that moment lies in the future".to_owned();
                    return Err(ControlError::invalid("time", reason));
                }
                line.iter().rev().find(|version| version.created <= time)
            }
        };
        let name = &row.name;
        let hint = format!("`scree volume versions {name}` shows those that are kept");
        found
            .map(|version| version.key)
            .ok_or_else(|| ControlError::NotFound {
                what: match (to, line.first()) {
                    (RestoreTo::Version(number), _) => format!("version {number} of {name:?}"),
                    (RestoreTo::Time(_), Some(oldest)) => format!(
                        "a version of {name:?} from then (the oldest kept is {} of {})",
                        oldest.key.number,
                        spell_time(oldest.created)
                    ),
                    (RestoreTo::Time(_), None) => format!("any version of {name:?}"),
                },
                hint: hint.into(),
            })
    }

    /// The kept versions that were ever a volume's state, oldest first, and
    /// which of them is its head.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn versions(&self, name: &str) -> Result<(VolumeRow, Vec<VersionRow>), ControlError> {
        let database = &self.inner.database;
        let row = database.volume_for(self.asker(), name, Need::See).await?;
        let line = self.inner.database.line_of(row.id).await?;
        Ok((row, line))
    }

    /// Serves a volume on `host`, until it is asked not to; also after a
    /// restart. Returns when it can be used.
    ///
    /// # Errors
    /// [`ControlError`]. If it cannot be opened now, its host goes on trying.
    pub async fn export_volume(
        &self,
        name: &str,
        host: PartyId,
        access: Access,
    ) -> Result<AttachmentRow, ControlError> {
        let need = match access {
            Access::ReadOnly => Right::Read,
            Access::ReadWrite => Right::Use,
        };
        let row = self.living(name, need).await?;
        let id = AttachmentId::from_random(self.inner.world.random.u128());
        let new = NewAttachment {
            id,
            volume: row.id,
            host,
            vm: None,
            access,
            created: self.inner.world.clock.wall(),
        };
        let asked = self.inner.database.attach(self.asker(), &new).await?;
        let now = self.settled(&asked).await?;
        match now.state {
            AttachmentState::Attached => Ok(now),
            state => Err(ControlError::Unavailable {
                reason: now
                    .reason
                    .unwrap_or_else(|| format!("volume {:?} is {state}", row.name)),
            }),
        }
    }

    /// Stops serving a volume wherever it is: everything that was written is
    /// in a version afterwards.
    ///
    /// # Errors
    /// [`ControlError`]. If it cannot be closed now, its host goes on trying.
    pub async fn unexport_volume(&self, name: &str) -> Result<VolumeView, ControlError> {
        let database = &self.inner.database;
        let need = Need::SeeToChange;
        let row = database.volume_for(self.asker(), name, need).await?;
        let mut attachments = Vec::new();
        for attachment in database.attachments_of(row.id).await? {
            let id = attachment.id.to_string();
            match database.attachment_for(self.asker(), &id).await {
                Ok(seen) => attachments.push(seen),
                // Another user's.
                Err(DatabaseError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let of_vm = attachments.extract_if(.., |one| one.vm.is_some()).next();
        if attachments.is_empty() {
            let name = row.name_for(self.asker().party.id);
            let vm = of_vm.and_then(|one| one.vm);
            return Err(ControlError::conflict(match vm {
                None => format!("volume {name:?} is not exported"),
                Some(vm) => format!(
                    "volume {name:?} is not exported, but attached to {vm}; run `scree detach \
                     {name} --vm {vm}`"
                ),
            }));
        }
        for attachment in attachments {
            let database = &self.inner.database;
            let asked = database.detach(self.asker(), attachment.id, false).await?;
            let now = self.settled(&asked).await?;
            if now.state != AttachmentState::Detached {
                return Err(ControlError::Unavailable {
                    reason: now.reason.unwrap_or_else(|| {
                        format!("the host of volume {:?} does not answer", row.name)
                    }),
                });
            }
        }
        self.seen(row.id).await
    }

    /// The attachment, once its host has said what came of `asked`.
    async fn settled(&self, asked: &AttachmentRow) -> Result<AttachmentRow, ControlError> {
        let database = &self.inner.database;
        let said = self.until(HOST_WITHIN, || async {
            let now = database.attachment(asked.id).await?;
            let is_said = now.generation != asked.generation || now.reported == now.generation;
            let is_over = !matches!(
                now.state,
                AttachmentState::Attaching | AttachmentState::Detaching
            );
            Ok((is_said && is_over).then_some(now))
        });
        match said.await? {
            Some(now) => Ok(now),
            None => Ok(database.attachment(asked.id).await?),
        }
    }

    /// Waits until a volume that is being deleted has gone, or `wait` has
    /// passed.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn volume_gone(&self, id: VolumeId, wait: Duration) -> Result<(), ControlError> {
        let gone = self.until(wait, || async {
            match self.inner.database.volume(id).await {
                Err(DatabaseError::NotFound { .. }) => Ok(Some(())),
                Err(error) => Err(error.into()),
                Ok(_) => Ok(None),
            }
        });
        gone.await.map(|_| ())
    }

    async fn refuse_if_wanted(&self, row: &VolumeRow) -> Result<(), ControlError> {
        let attachments = self.inner.database.attachments_of(row.id).await?;
        let name = row.name_for(self.asker().party.id);
        match attachments.iter().find(|attachment| attachment.is_wanted) {
            None => Ok(()),
            Some(attachment) => Err(ControlError::conflict(match &attachment.vm {
                None => {
                    format!("volume {name:?} is in use; run `scree volume unexport {name}` first")
                }
                Some(vm) => format!(
                    "volume {name:?} is attached to {vm}; run `scree detach {name} --vm {vm}` \
                     first"
                ),
            })),
        }
    }

    async fn refuse_if_attached(&self, row: &VolumeRow) -> Result<(), ControlError> {
        let attachments = self.inner.database.attachments_of(row.id).await?;
        let name = &row.name;
        match attachments.first() {
            None => Ok(()),
            Some(attachment) => Err(ControlError::conflict(match &attachment.reason {
                Some(why) => format!("volume {name:?} is still being closed: {why}"),
                None => format!("volume {name:?} is still being closed; ask again soon"),
            })),
        }
    }
}

/// Size, block size and seal of a new volume.
fn shape_of(
    request: &VolumeRequest,
    origin: Option<&SnapshotRow>,
) -> Result<(u64, base::BlockSize, Seal), ControlError> {
    let asked = request.block_bytes.map(parse::block_size).transpose()?;
    let Some(origin) = origin else {
        let block_size = asked.unwrap_or(base::BlockSize::DEFAULT);
        let size = request.size_bytes.ok_or_else(|| {
            ControlError::invalid("size", "a new volume needs a size, such as --size 10G")
        })?;
        let size = parse::volume_size(size, block_size)?;
        return Ok((size, block_size, request.seal.unwrap_or(Seal::Aes256Gcm)));
    };
    let name = &origin.name;
    if asked.is_some_and(|asked| asked != origin.block_size) {
        let reason = format!(
            "snapshot {name:?} has blocks of {}, and so have its clones; leave the block size out",
            exact_bytes(origin.block_size.bytes() as u64)
        );
        return Err(ControlError::invalid("block_size", reason));
    }
    if request.seal.is_some_and(|seal| seal != origin.seal) {
        let reason = format!(
            "snapshot {name:?} is sealed with {}, and so are its clones; leave the seal out",
            origin.seal
        );
        return Err(ControlError::invalid("seal", reason));
    }
    let size = request.size_bytes.unwrap_or(origin.size_bytes);
    let size = parse::volume_size(size, origin.block_size)?;
    if size < origin.size_bytes {
        let reason = format!(
            "snapshot {name:?} has {}; a clone can be larger, not smaller",
            exact_bytes(origin.size_bytes)
        );
        return Err(ControlError::invalid("size", reason));
    }
    Ok((size, origin.block_size, origin.seal))
}

/// A moment as RFC 3339 writes it.
#[must_use]
pub fn spell_time(time: Millis) -> String {
    jiff::Timestamp::from_millisecond(time.0)
        .map_or_else(|_| format!("{} ms", time.0), |time| time.to_string())
}
