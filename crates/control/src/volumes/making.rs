//! Making a volume, empty or from a snapshot.

use api::host::Encryption;
use api::types::REPLICAS_MAX;
use base::size::exact_bytes;
use base::{Lineage, VolumeId};
use catalog::Erasure;

use super::{Redundancy, VolumeView};
use crate::acting::Acting;
use crate::database::{Need, NewVolume, Right, SnapshotRow, Tags, VolumeSizes};
use crate::error::{ControlError, gone_since};
use crate::parse;

/// A volume to be made, as it was asked for.
#[derive(Debug, Clone, Default)]
pub struct VolumeRequest {
    /// Its name.
    pub name: String,
    /// On whose account; on the principal's own, if none is named.
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
    pub encryption: Option<Encryption>,
    /// Copies of each segment.
    pub replicas: Option<u8>,
    /// Whether it is refused if two copies had to lie in one zone.
    pub strict_zones: bool,
    /// What is in their place.
    pub erasure: Option<Erasure>,
    /// What it may take of hosts.
    pub sizes: VolumeSizes,
}

impl Acting {
    /// Makes a volume.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] if a name, tag, size or number of replicas is none, or
    /// does not fit the snapshot; [`ControlError::NotFound`] (the snapshot, the
    /// project); [`ControlError::Exists`]; [`ControlError::QuotaExceeded`];
    /// [`ControlError::NoCapacity`] if the units could never be enough;
    /// [`ControlError::Conflict`] if the snapshot is not completed, it is not clear on
    /// whose account it should be, or what was made under the idempotency key is gone;
    /// [`ControlError::IdempotencyConflict`] if that was another request.
    pub async fn create_volume(&self, request: VolumeRequest) -> Result<VolumeView, ControlError> {
        self.to_its_end(|control| async move { control.create(request).await })
            .await
    }

    async fn create(&self, request: VolumeRequest) -> Result<VolumeView, ControlError> {
        let database = &self.inner.database;
        // Whatever has become of what it was made from.
        if let Some(made) = database.parties().made_under_key(self.principal()).await? {
            return self.volume(&made).await.map_err(gone_since);
        }
        let name = parse::name(&request.name)?.to_owned();
        parse::tags(&request.tags)?;
        parse::sizes(request.sizes)?;
        let origin = match &request.from {
            Some(from) => {
                let need = Need::Have(Right::Read);
                Some(
                    database
                        .snapshots()
                        .find(self.principal(), from, need)
                        .await?,
                )
            }
            None => None,
        };
        let (size_bytes, block_size, encryption) = shape_of(&request, origin.as_ref())?;
        if request.replicas.is_some() && request.erasure.is_some() {
            let reason = "a volume has replicas or erasure, and not both";
            return Err(ControlError::invalid("erasure", reason.to_owned()));
        }
        let replicas = match (request.replicas, request.erasure) {
            (Some(replicas), _) => replicas,
            (None, Some(_)) => 1,
            (None, None) => self.default_replicas().await?,
        };
        let redundancy = Redundancy {
            replicas,
            erasure: request.erasure,
        };
        if !(1..=REPLICAS_MAX).contains(&replicas) {
            let reason = format!("{replicas} replicas; a volume has 1 to {REPLICAS_MAX}");
            return Err(ControlError::invalid("replicas", reason));
        }
        self.refuse_beyond_capacity(size_bytes, redundancy).await?;
        let zones = self.missing_zones(redundancy).await?;
        if let Some(missing) = zones.as_ref().filter(|_| request.strict_zones) {
            let field = match request.erasure {
                Some(_) => "erasure",
                None => "replicas",
            };
            return Err(ControlError::invalid(field, missing.clone()));
        }
        self.ensure_copysets(redundancy, self.is_dry_run()).await?;
        let world = &self.inner.world;
        let id = VolumeId::from_u128(world.random.u128());
        let new = NewVolume {
            id,
            name,
            project: request.project,
            tags: request.tags,
            size_bytes,
            block_size,
            encryption,
            replicas,
            erasure: request.erasure,
            // By its name the wrapped key is bound to the volume.
            lineage: Lineage::from_u128(id.as_u128()),
            sizes: request.sizes,
            origin: origin.map(|snapshot| snapshot.id),
            created: world.clock.wall(),
        };
        let row = database.volumes().insert(self.principal(), &new).await?;
        let mut view = if self.is_dry_run() {
            VolumeView::fresh(row, new.tags)
        } else {
            tracing::info!(volume = %row.id, name = row.name, size_bytes, "volume created");
            self.seen(row.id).await?
        };
        let notices = [self.overcommitted(size_bytes, redundancy).await?, zones];
        let notices: Vec<String> = notices.into_iter().flatten().collect();
        view.notice = (!notices.is_empty()).then(|| notices.join("; "));
        Ok(view)
    }
}

/// Size, block size and encryption of a new volume.
fn shape_of(
    request: &VolumeRequest,
    origin: Option<&SnapshotRow>,
) -> Result<(u64, base::BlockSize, Encryption), ControlError> {
    let asked = request.block_bytes.map(parse::block_size).transpose()?;
    let Some(origin) = origin else {
        let block_size = asked.unwrap_or(base::BlockSize::DEFAULT);
        let size = request.size_bytes.ok_or_else(|| {
            ControlError::invalid("size", "a new volume needs a size, such as --size 10G")
        })?;
        let size = parse::volume_size(size, block_size)?;
        return Ok((
            size,
            block_size,
            request.encryption.unwrap_or(Encryption::Aes256Gcm),
        ));
    };
    let name = &origin.name;
    if asked.is_some_and(|asked| asked != origin.block_size) {
        let reason = format!(
            "snapshot {name:?} has blocks of {}, and so have its clones; leave the block size out",
            exact_bytes(origin.block_size.bytes() as u64)
        );
        return Err(ControlError::invalid("block_size", reason));
    }
    if request
        .encryption
        .is_some_and(|encryption| encryption != origin.encryption)
    {
        let reason = format!(
            "snapshot {name:?} is sealed with {}, and so are its clones; leave the encryption out",
            origin.encryption
        );
        return Err(ControlError::invalid("encryption", reason));
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
    Ok((size, origin.block_size, origin.encryption))
}
