//! Opening volumes and versions on a [`Machine`], and the keys for that.

use std::path::PathBuf;
use std::sync::Arc;

use base::{BlockSize, Lineage, VolumeId};
use catalog::{Catalog, Lease, LineageKey, StoredVersion};
use volume::journal::JournalLocation;
use volume::map::PageBudget;
use volume::scatter::{CacheView, ImagePart};
use volume::seal::{DataKey, Keyring};
use volume::{LeaseTerm, OpenError, OpenParams, ReadOnlyParams, ReadOnlyVolume, Volume};
use world::Wake;
use world::simulated::SimulatedRandom;

use super::Machine;

impl Machine {
    /// The wrapped key of a new lineage; without a data key unless `is_sealed`.
    #[must_use]
    pub fn new_key(
        &self,
        lineage: Lineage,
        is_sealed: bool,
        random: &SimulatedRandom,
    ) -> LineageKey {
        let key = DataKey::generate(random);
        let wrapped = match is_sealed {
            true => self.config.wrapping_key.wrap(lineage, &key, random),
            false => self.config.wrapping_key.wrap_none(lineage, random),
        };
        LineageKey {
            lineage,
            epoch_first: 0,
            wrapped: Some(wrapped),
            wrapped_by: None,
            salts: Vec::new(),
        }
    }

    /// The keyring of a lineage.
    #[must_use]
    pub fn keyring(&self, keys: &[LineageKey]) -> Arc<Keyring> {
        Arc::new(Keyring::unwrap(keys, &self.config.wrapping_key).expect("wrapped with this key"))
    }

    /// Opens a volume under a lease that does not expire.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&self, lease: Lease) -> Result<Volume, OpenError> {
        let journal = self.journal(lease.volume);
        self.open_until(lease, LeaseTerm::unlimited(), journal, false)
    }

    /// Opens a volume under a lease with a term. `taken_over`: the journal may be another
    /// host's.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_until(
        &self,
        lease: Lease,
        term: LeaseTerm,
        journal: PathBuf,
        taken_over: bool,
    ) -> Result<Volume, OpenError> {
        let location = JournalLocation::of(&lease, &journal, None);
        self.open_at(lease, term, location, taken_over)
    }

    /// As [`Machine::open_until`], with any location of the journal.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_at(
        &self,
        lease: Lease,
        term: LeaseTerm,
        journal: JournalLocation,
        taken_over: bool,
    ) -> Result<Volume, OpenError> {
        let keyring = self.keyring(&lease.keys);
        Volume::open(OpenParams {
            world: self.world.clone(),
            wake: Wake::noop(),
            store: Arc::clone(&self.store),
            catalog: Arc::clone(&self.catalog) as Arc<dyn Catalog>,
            journal,
            taken_over,
            cache: Some(self.view(lease.volume)),
            lease,
            term,
            keyring,
            config: self.config.volume,
            pages: PageBudget::new(0),
        })
    }

    /// A volume's view of the cache. A random part of the volume counts as an image's.
    fn view(&self, volume: VolumeId) -> CacheView {
        let view = CacheView::new(Arc::clone(&self.cache), volume);
        let random = &self.simulation.random;
        view.set_image(ImagePart {
            of: Some(Lineage::from_u128(random.below(3).into())),
            below: random.below(4) as u32,
            is_pinned: random.one_in(4),
        });
        view
    }

    /// Opens a version for reading.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_read_only(
        &self,
        version: Option<StoredVersion>,
        keys: &[LineageKey],
        size_bytes: u64,
        block_size: BlockSize,
    ) -> Result<ReadOnlyVolume, OpenError> {
        ReadOnlyVolume::open(ReadOnlyParams {
            cache: version
                .as_ref()
                .map(|version| self.view(version.key.volume)),
            wake: Wake::noop(),
            clock: Arc::clone(&self.world.clock),
            store: Arc::clone(&self.store),
            version: version.map(|version| (version, self.keyring(keys))),
            size_bytes,
            block_size,
            pages: PageBudget::new(0),
        })
    }
}
