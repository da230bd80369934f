//! What owners do with volumes.

use std::path::Path;
use std::time::Duration;

use base::{Lineage, VolumeId};
use catalog::VersionKey;
use volume::VolumeStatus;
use volume::seal::DataKey;
use world::Millis;

use crate::control::{Control, blocking, lock};
use crate::database::{
    Access, DamagedVolume, DatabaseError, NewVolume, Seal, SnapshotRow, VersionRow, VolumeRow,
};
use crate::error::ControlError;
use crate::parse::{self, REPLICAS_MAX};
use crate::spell::{about_bytes, exact_bytes};
use world::host;

/// A volume to be made, as it was asked for.
#[derive(Debug, Clone, Default)]
pub struct VolumeRequest {
    /// Its name.
    pub name: String,
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
    /// It is served: how, and to how many connections.
    pub served: Option<(Access, u64)>,
    /// How its engine is doing.
    pub engine: Option<VolumeStatus>,
    /// What its owner should know, just after it was made or grown.
    pub notice: Option<String>,
}

/// All volumes as they are shown.
#[derive(Debug, Clone)]
pub struct VolumeList {
    /// Those of which everything is known.
    pub volumes: Vec<VolumeView>,
    /// Those whose rows in the database are damaged.
    pub damaged: Vec<DamagedVolume>,
}

impl VolumeView {
    /// Its state, in EC2's words.
    #[must_use]
    pub fn state(&self) -> &'static str {
        if self.row.deleting {
            "deleting"
        } else if self.row.failure.is_some() {
            "error"
        } else if self.served.is_some() || self.row.exported.is_some() {
            "in-use"
        } else {
            "available"
        }
    }
}

impl Control {
    /// Makes a volume.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn create_volume(&self, request: VolumeRequest) -> Result<VolumeView, ControlError> {
        self.to_its_end(|control| async move { control.create(request).await })
            .await
    }

    async fn create(&self, request: VolumeRequest) -> Result<VolumeView, ControlError> {
        let name = parse::name(&request.name)?.to_owned();
        let origin = match &request.from {
            Some(from) => Some(self.inner.database.snapshot(from).await?),
            None => None,
        };
        let (size_bytes, block_size, seal) = shape_of(&request, origin.as_ref())?;
        let replicas = request.replicas.unwrap_or_else(|| self.default_replicas());
        if !(1..=REPLICAS_MAX).contains(&replicas) {
            let reason = format!("{replicas} replicas; a volume has 1 to {REPLICAS_MAX}");
            return Err(ControlError::invalid("replicas", reason));
        }
        self.ensure_copysets(replicas).await?;
        let world = &self.inner.world;
        let id = VolumeId::from_random(world.random.u128());
        // By its name the wrapped key is bound to the volume: see `attach`.
        let lineage = Lineage::from_random(id.as_u128());
        let wrapped = match seal {
            Seal::Aes256Gcm => {
                let key = DataKey::generate(&*world.random);
                self.inner.key.wrap(lineage, &key, &*world.random)
            }
            Seal::None => self.inner.key.wrap_none(lineage, &*world.random),
        };
        let new = NewVolume {
            id,
            name,
            size_bytes,
            block_size,
            seal,
            replicas,
            lineage,
            wrapped,
            origin: origin.map(|snapshot| snapshot.id),
            created: world.clock.wall(),
        };
        self.inner.database.insert_volume(&new).await?;
        tracing::info!(volume = %new.id, name = new.name, size_bytes, "volume created");
        let mut view = self.volume(&new.id.to_string()).await?;
        view.notice = self.overcommitted(size_bytes, replicas);
        Ok(view)
    }

    /// Volumes take room only as they are written, so a large one is no
    /// mistake; but one that can never be filled is worth a word.
    fn overcommitted(&self, size_bytes: u64, replicas: u8) -> Option<String> {
        let needed = size_bytes.saturating_mul(u64::from(replicas));
        let free = self.free_bytes().filter(|free| *free < needed)?;
        Some(format!(
            "full, it would take {} ({replicas} copies), and the units have {} free; add units \
             before that",
            about_bytes(needed),
            about_bytes(free)
        ))
    }

    /// A volume by name or id.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn volume(&self, name: &str) -> Result<VolumeView, ControlError> {
        let row = self.inner.database.volume(name).await?;
        let mut view = self.view(row);
        if let Some(attached) = self.attached(view.row.id) {
            view.engine = self.engine_status(attached).await.ok();
        }
        Ok(view)
    }

    /// All volumes, without their engines' states.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn volumes(&self) -> Result<VolumeList, ControlError> {
        let volumes = self.inner.database.volumes().await?;
        Ok(VolumeList {
            volumes: volumes.rows.into_iter().map(|row| self.view(row)).collect(),
            damaged: volumes.damaged,
        })
    }

    fn view(&self, row: VolumeRow) -> VolumeView {
        let served = self
            .attached(row.id)
            .map(|attached| (attached.access, attached.export.connections() as u64));
        VolumeView {
            row,
            served,
            engine: None,
            notice: None,
        }
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
        let (row, _door) = self.enter(name).await?;
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
        self.inner.database.set_size(row.id, size_bytes).await?;
        if let Some(attached) = self.attached(row.id) {
            self.on_volume(attached, move |volume| volume.grow(size_bytes))
                .await?;
        }
        let mut view = self.volume(&row.id.to_string()).await?;
        view.notice = self.overcommitted(size_bytes, row.replicas);
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
        let (row, _door) = self.enter(name).await?;
        self.refuse_if_served(&row)?;
        self.inner.database.begin_delete(row.id).await?;
        let journal = self.inner.folder.journal(row.id);
        let world = self.inner.world.clone();
        // Its content is ciphertext whose key goes with the volume.
        blocking(move || remove_if_there(&world, &journal)).await?;
        self.inner.cleaning_wanted.notify_one();
        tracing::info!(volume = %row.id, name = row.name, "volume is being deleted");
        match self.inner.database.volume(&row.id.to_string()).await {
            Ok(row) => Ok(self.view(row)),
            // The cleaner was faster.
            Err(_) => Ok(self.view(VolumeRow {
                deleting: true,
                ..row
            })),
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
        let (row, _door) = self.enter(name).await?;
        self.refuse_if_served(&row)?;
        // What a crash left in the journal becomes a version first, so that
        // going back can itself be undone.
        self.settle(&row).await?;
        let line = self.inner.database.line_of(row.id).await?;
        let version = self.choose(&row, &line, to)?;
        self.inner.database.set_head(row.id, version).await?;
        tracing::info!(volume = %row.id, name = row.name, version = version.number, "restored");
        self.volume(&row.id.to_string()).await
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
        let row = self.inner.database.volume(name).await?;
        let line = self.inner.database.line_of(row.id).await?;
        Ok((row, line))
    }

    /// Serves a volume, until it is asked not to; also after a restart.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn export_volume(
        &self,
        name: &str,
        access: Access,
    ) -> Result<VolumeView, ControlError> {
        let name = name.to_owned();
        self.to_its_end(|control| async move { control.export(&name, access).await })
            .await
    }

    async fn export(&self, name: &str, access: Access) -> Result<VolumeView, ControlError> {
        let (row, _door) = self.enter(name).await?;
        if let Some(attached) = self.attached(row.id) {
            if attached.access == access {
                return self.volume(&row.id.to_string()).await;
            }
            return Err(ControlError::conflict(format!(
                "volume {:?} is exported {}; run `scree volume unexport {}` first",
                row.name, attached.access, row.name
            )));
        }
        self.attach(&row, access).await?;
        self.inner
            .database
            .set_exported(row.id, Some(access))
            .await?;
        self.volume(&row.id.to_string()).await
    }

    /// Stops serving a volume: everything that was written is in a version
    /// afterwards.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn unexport_volume(&self, name: &str) -> Result<VolumeView, ControlError> {
        let name = name.to_owned();
        self.to_its_end(|control| async move { control.unexport(&name).await })
            .await
    }

    async fn unexport(&self, name: &str) -> Result<VolumeView, ControlError> {
        let (row, _door) = self.enter(name).await?;
        if row.exported.is_none() && self.attached(row.id).is_none() {
            return Err(ControlError::conflict(format!(
                "volume {:?} is not exported",
                row.name
            )));
        }
        let detached = self.detach(row.id).await;
        // Also if it did not close cleanly: its owner wants it served no more.
        let row_now = self.inner.database.volume(&row.id.to_string()).await?;
        self.inner.database.set_exported(row.id, None).await?;
        if let (Err(_), Some(why)) = (&detached, &row_now.failure) {
            self.inner.database.set_failure(row.id, why).await?;
        }
        detached?;
        self.inner.cleaning_wanted.notify_one();
        self.volume(&row.id.to_string()).await
    }

    /// Waits until a volume that is being deleted has gone, or `wait` has
    /// passed.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn volume_gone(&self, id: VolumeId, wait: Duration) -> Result<(), ControlError> {
        let mut changes = self.inner.database.changes();
        let gone = async {
            loop {
                changes.mark_unchanged();
                match self.inner.database.volume(&id.to_string()).await {
                    Err(DatabaseError::NotFound { .. }) => return Ok(()),
                    Err(error) => return Err(error.into()),
                    Ok(_) if changes.changed().await.is_err() => return Ok(()),
                    Ok(_) => {}
                }
            }
        };
        host::within(wait, gone).await.unwrap_or(Ok(()))
    }

    /// What to give to clients of the volume `name`: on this host, and over
    /// TCP if that is served.
    #[must_use]
    pub fn uris(&self, name: &str) -> (String, Option<String>) {
        (
            self.inner.serving.uri(name),
            self.inner.serving.tcp_uri(name),
        )
    }

    /// Goes through the door of a volume; returns what it is like inside.
    pub(crate) async fn enter(
        &self,
        name: &str,
    ) -> Result<(VolumeRow, tokio::sync::OwnedMutexGuard<()>), ControlError> {
        let id = self.inner.database.volume(name).await?.id;
        let door = self.door(id).await;
        let row = self.inner.database.volume(&id.to_string()).await?;
        if row.deleting {
            let reason = format!("volume {:?} is being deleted", row.name);
            return Err(ControlError::conflict(reason));
        }
        Ok((row, door))
    }

    fn refuse_if_served(&self, row: &VolumeRow) -> Result<(), ControlError> {
        if row.exported.is_none() && !lock(&self.inner.attached).contains_key(&row.id) {
            return Ok(());
        }
        Err(ControlError::conflict(format!(
            "volume {:?} is in use; run `scree volume unexport {}` first",
            row.name, row.name
        )))
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

fn remove_if_there(world: &world::World, path: &Path) {
    if let Err(error) = world.disk.remove(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "not removed");
    }
}

/// A moment as RFC 3339 writes it.
#[must_use]
pub fn spell_time(time: Millis) -> String {
    jiff::Timestamp::from_millisecond(time.0)
        .map_or_else(|_| format!("{} ms", time.0), |time| time.to_string())
}
