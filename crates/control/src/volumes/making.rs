//! Creating a volume, empty or from a snapshot: the checks of names, sizes and capacity before the
//! transaction (`database::volumes::create`).

use api::types::Message;
use std::str::FromStr;

use api::host::Encryption;
use api::types::{CreateVolume, REPLICAS_MAX};
use base::size::exact_bytes;
use base::{Lineage, VolumeId};
use catalog::Erasure;

use super::{Redundancy, VolumeView};
use crate::database::{Need, NewVolume, Right, SnapshotRow, VolumeSettings};
use crate::error::{ControlError, gone_since};
use crate::parse;
use crate::volumes::Volumes;

impl Volumes<'_> {
    /// Creates a volume.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] if a name, tag, size or number of replicas is invalid, or does not
    /// match the snapshot; [`ControlError::NotFound`] (the snapshot, the
    /// project); [`ControlError::Exists`]; [`ControlError::QuotaExceeded`] of the project, which
    /// `Volumes::insert` of the database checks in its transaction;
    /// [`ControlError::NoCapacity`] if it would exceed the limit on the total size;
    /// [`ControlError::Conflict`] if the snapshot is not completed, it is ambiguous which
    /// project it is charged to, or the object of the idempotency key was deleted;
    /// [`ControlError::IdempotencyConflict`] if the key was used for another request.
    pub async fn create(self, request: CreateVolume) -> Result<VolumeView, ControlError> {
        self.request
            .to_completion(
                |authorized| async move { authorized.volumes().create_now(request).await },
            )
            .await
    }

    async fn create_now(self, request: CreateVolume) -> Result<VolumeView, ControlError> {
        let database = &self.request.inner.database;
        // A repeated request succeeds even if the snapshot was deleted since.
        if let Some(made) = database
            .parties()
            .made_under_key(self.request.principal())
            .await?
        {
            return self.get(&made).await.map_err(gone_since);
        }
        let name = parse::name(&request.name)?.to_owned();
        parse::tags(&request.tags)?;
        let settings = VolumeSettings::from(&request);
        settings.check()?;
        let encryption = word("encryption", request.encryption.as_deref())?;
        let erasure: Option<Erasure> = word("erasure", request.erasure.as_deref())?;
        let origin = self.origin_of(request.from.as_deref()).await?;
        let (size_bytes, block_size, encryption) = shape_of(&request, encryption, origin.as_ref())?;
        let redundancy = self.redundancy_of(request.replicas, erasure).await?;
        self.refuse_beyond_capacity(size_bytes, redundancy).await?;
        let zones = self.check_zones(redundancy, request.strict_zones).await?;
        self.request
            .unit_registry()
            .ensure_copysets(redundancy, self.request.is_dry_run())
            .await?;
        let world = &self.request.inner.world;
        let id = VolumeId::from_u128(world.random.u128());
        let new = NewVolume {
            id,
            name,
            project: request.project,
            tags: request.tags,
            size_bytes,
            block_size,
            encryption,
            replicas: redundancy.replicas,
            erasure,
            // The wrapped key is bound to the volume by its lineage's number.
            lineage: Lineage::from_u128(id.as_u128()),
            settings,
            origin: origin.map(|snapshot| snapshot.id),
            created: world.clock.wall(),
        };
        let row = database
            .volumes()
            .insert(self.request.principal(), &new)
            .await?;
        let mut view = if self.request.is_dry_run() {
            VolumeView::fresh(row, new.tags)
        } else {
            tracing::info!(volume = %row.id, name = row.name, size_bytes, "user created volume");
            self.reported_view(row.id).await?
        };
        let notices = [self.overcommitted(size_bytes, redundancy).await?, zones];
        view.notice = Message::joined(notices.into_iter().flatten());
        Ok(view)
    }

    /// The snapshot that a volume is cloned from, if one is named.
    async fn origin_of(self, from: Option<&str>) -> Result<Option<SnapshotRow>, ControlError> {
        let Some(from) = from else {
            return Ok(None);
        };
        let snapshots = self.request.inner.database.snapshots();
        let need = Need::Have(Right::Read);
        let found = snapshots.find(self.request.principal(), from, need);
        Ok(Some(found.await?))
    }

    /// The redundancy of a new volume. The number of copies has a default that depends on the
    /// units.
    async fn redundancy_of(
        self,
        replicas: Option<u8>,
        erasure: Option<Erasure>,
    ) -> Result<Redundancy, ControlError> {
        if replicas.is_some() && erasure.is_some() {
            let reason = "give `replicas` or `erasure`, not both";
            return Err(ControlError::invalid("erasure", reason.to_owned()));
        }
        let replicas = match (replicas, erasure) {
            (Some(replicas), _) => replicas,
            (None, Some(_)) => 1,
            (None, None) => self.request.unit_registry().default_replicas().await?,
        };
        if !(1..=REPLICAS_MAX).contains(&replicas) {
            let reason = format!("a volume has 1 to {REPLICAS_MAX} replicas, not {replicas}");
            return Err(ControlError::invalid("replicas", reason));
        }
        Ok(Redundancy { replicas, erasure })
    }

    /// What is wrong if there are fewer zones than the volume has members. It is an error if
    /// `is_strict`.
    async fn check_zones(
        self,
        redundancy: Redundancy,
        is_strict: bool,
    ) -> Result<Option<Message>, ControlError> {
        let zones = self
            .request
            .unit_registry()
            .missing_zones(redundancy)
            .await?;
        if let Some(missing) = zones.as_ref().filter(|_| is_strict) {
            let field = match redundancy.erasure {
                Some(_) => "erasure",
                None => "replicas",
            };
            return Err(ControlError::invalid(field, missing.text.clone()));
        }
        Ok(zones)
    }
}

/// Parses a field that may be left out.
fn word<W: FromStr<Err = String>>(
    field: &'static str,
    text: Option<&str>,
) -> Result<Option<W>, ControlError> {
    text.map(|text| parse::word(field, text)).transpose()
}

/// Size, block size and encryption of a new volume.
fn shape_of(
    request: &CreateVolume,
    encryption: Option<Encryption>,
    origin: Option<&SnapshotRow>,
) -> Result<(u64, base::BlockSize, Encryption), ControlError> {
    let asked = request.block_size.map(parse::block_size).transpose()?;
    let Some(origin) = origin else {
        let block_size = asked.unwrap_or(base::BlockSize::DEFAULT);
        let size = request.size.ok_or_else(|| {
            ControlError::invalid("size", "a new volume needs a size, such as --size 10G")
        })?;
        let size = parse::volume_size(size, block_size)?;
        return Ok((
            size,
            block_size,
            encryption.unwrap_or(Encryption::Aes256Gcm),
        ));
    };
    let name = &origin.name;
    if asked.is_some_and(|asked| asked != origin.block_size) {
        let reason = format!(
            "clones of snapshot {name:?} have its block size, {}; leave the block size out",
            exact_bytes(origin.block_size.bytes() as u64)
        );
        return Err(ControlError::invalid("block_size", reason));
    }
    if encryption.is_some_and(|encryption| encryption != origin.encryption) {
        let reason = format!(
            "clones of snapshot {name:?} have its encryption, {}; leave the encryption out",
            origin.encryption
        );
        return Err(ControlError::invalid("encryption", reason));
    }
    let size = request.size.unwrap_or(origin.size_bytes);
    let size = parse::volume_size(size, origin.block_size)?;
    if size < origin.size_bytes {
        let reason = format!(
            "snapshot {name:?} has {}; a clone can be larger, not smaller",
            exact_bytes(origin.size_bytes)
        );
        return Err(ControlError::invalid("size", reason));
    }
    Ok((size, origin.block_size, origin.encryption))
}
