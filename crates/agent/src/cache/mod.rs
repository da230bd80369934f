//! The host's cache (docs/internals/cache.md).
//!
//! * `Caching`: opens its file, writes behind, and opens it again if it could not be opened
//! * `preloads`: reads base images into it
//! * `counts`, `metrics`: its counters, for reports and metrics
//!
//! Nothing waits for the cache: a host whose SSD is slow, full or missing starts and works without.

pub(crate) mod counts;
pub(crate) mod metrics;
mod preloads;

pub(crate) use preloads::Preloads;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::{VolumeId, with_causes};
use cache::host::HostCache;
use cache::store::{Cache, CacheConfig, CacheError, Division, SLOT_BYTES};
use parking_lot::Mutex;
use world::real::ThreadPool;
use world::{World, host};

use crate::context::{TaskEnded, blocking};

/// How long a start waits for the file.
const OPENED_WITHIN: Duration = Duration::from_secs(5);

/// The largest number of jobs that wait for the file at once, in threads of their own, as it may
/// hang.
const THREADS_MAX: usize = 32;

/// The largest note of how often images were unpinned: a number and a line's end.
const UNPINNED_BYTES_MAX: u64 = 32;

/// How often the file is written behind.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// After this many looks a file that could not be opened is opened again.
const LOOKS_UNTIL_TRIED: u32 = 10;

/// How long an ending agent waits for what is to be written.
const FLUSHED_WITHIN: Duration = Duration::from_secs(5);

/// The settings of a host's cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSettings {
    /// Its file, if it has one.
    pub file: Option<CacheFileSettings>,
    /// The memory that it may use, in bytes.
    pub memory_bytes: u64,
}

/// The file of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheFileSettings {
    /// The path of a file or block device.
    pub path: PathBuf,
    /// Its length in bytes; `None` for all of a block device.
    pub bytes: Option<u64>,
    /// How it is divided into areas.
    pub division: Division,
}

/// The host's cache, and its file.
pub(crate) struct Caching {
    world: World,
    cache: Arc<HostCache>,
    config: Option<CacheConfig>,
    /// Why it has no file, if it should have one.
    problem: Mutex<Option<String>>,
    /// The note of how often images had been unpinned when that was last applied.
    unpinned: PathBuf,
    unpins: Mutex<Unpins>,
    /// Held while the file is opened, which may take long.
    opening: Mutex<()>,
}

/// How often images were unpinned.
#[derive(Debug, Clone, Copy, Default)]
struct Unpins {
    /// As the controllers say, once they have.
    desired: Option<u64>,
    /// As of the look before: a reader of an image may have pinned something until a moment ago.
    heard: Option<u64>,
    /// As of the last time that all of the file was unpinned, if that is known.
    done: Option<u64>,
}

impl Caching {
    /// Opens the file, if that is quick; otherwise it is used once it is open.
    pub async fn start(
        world: &World,
        settings: CacheSettings,
        cluster: [u8; 16],
        unpinned: PathBuf,
    ) -> Result<Arc<Self>, TaskEnded> {
        let config = settings.file.map(|file| CacheConfig {
            path: file.path,
            bytes: file.bytes,
            division: file.division,
            cluster,
        });
        let caching = Arc::new(Self {
            world: world.clone(),
            cache: HostCache::new(settings.memory_bytes),
            config,
            problem: Mutex::default(),
            unpinned,
            unpins: Mutex::default(),
            opening: Mutex::default(),
        });
        let opening = Arc::clone(&caching);
        if let Some(opened) = host::timeout(OPENED_WITHIN, blocking(move || opening.open())).await {
            opened?;
        }
        Ok(caching)
    }

    /// The cache.
    pub fn cache(&self) -> &Arc<HostCache> {
        &self.cache
    }

    /// Bounds the share of a volume in the active area, in bytes; `None` is its fair share.
    pub fn bound_share(&self, volume: VolumeId, bytes_max: Option<u64>) {
        if let Some(file) = self.cache.file() {
            file.bound_share(volume, bytes_max.map(|bytes| bytes as usize / SLOT_BYTES));
        }
    }

    /// Images were unpinned this many times. If it is more than before, the whole file is unpinned:
    /// what stays pinned is pinned again when it is read.
    pub fn set_unpins(&self, unpins: u64) {
        self.unpins.lock().desired = Some(unpins);
    }

    /// Maintains the file, if it is open. Waits.
    pub(crate) fn maintain(&self) {
        if let Some(file) = self.cache.file() {
            self.unpin(file);
            file.write_behind();
        }
    }

    /// Unpins the whole file, if that is desired and was not done yet.
    fn unpin(&self, file: &Cache) {
        let Unpins {
            desired,
            heard,
            done,
        } = *self.unpins.lock();
        self.unpins.lock().heard = desired;
        let is_due = |desired: &u64| heard == Some(*desired) && done != heard;
        let Some(desired) = desired.filter(is_due) else {
            return;
        };
        let noted = host::read_small(&*self.world.disk, &self.unpinned, UNPINNED_BYTES_MAX);
        let noted = noted.ok().and_then(|text| {
            let text = std::str::from_utf8(&text).ok()?;
            text.trim().parse().ok()
        });
        if noted != Some(desired) {
            if file.is_unusable() {
                return;
            }
            file.unpin_all();
            // The note must stay true after a power failure.
            if !file.settle() {
                // It is tried again with the next look.
                return;
            }
            let text = format!("{desired}\n");
            let kept = host::write_whole(&*self.world.disk, &self.unpinned, text.as_bytes());
            if let Err(error) = kept {
                // The next process unpins once more.
                tracing::warn!(path = %self.unpinned.display(), %error, "unpinning was not noted");
            }
        }
        self.unpins.lock().done = Some(desired);
    }

    /// Opens the file, unless there is none, or it is open. Waits.
    fn open(&self) {
        // One thread at a time opens it.
        let Some(_opening) = self.opening.try_lock() else {
            return;
        };
        let Some(config) = self.config.as_ref().filter(|_| self.cache.file().is_none()) else {
            return;
        };
        let world = World {
            pool: Arc::new(ThreadPool::new(THREADS_MAX)),
            ..self.world.clone()
        };
        match Cache::open(&world, config) {
            Ok((file, is_new)) => self.opened(file, is_new),
            Err(error) => self.failed(&error),
        }
    }

    fn opened(&self, file: Arc<Cache>, is_new: bool) {
        let areas = file.statistics().areas;
        let blocks: usize = areas.iter().map(|area| area.blocks).sum();
        tracing::info!(is_new, blocks, "cache file is open");
        self.cache.use_file(file);
        *self.problem.lock() = None;
    }

    fn failed(&self, error: &CacheError) {
        let text = with_causes(error);
        let known = self.problem.lock().replace(text.clone());
        if known.as_ref() != Some(&text) {
            tracing::warn!(error = text, "host works without a cache file for now");
        }
    }

    /// Why there is no cache, if there should be one.
    pub fn problem(&self) -> Option<String> {
        if let Some(file) = self.cache.file() {
            let problem = file.problem()?;
            return Some(format!("the host's cache is not used for now: {problem}"));
        }
        let problem = self.problem.lock();
        let problem = problem.as_ref()?;
        Some(format!("the host works without its cache: {problem}"))
    }

    /// Writes behind what the cache says of itself, and opens the file if it could not be opened,
    /// as long as the agent runs.
    pub async fn run(self: &Arc<Self>) {
        if self.config.is_none() {
            return;
        }
        let mut ticks = host::ticks(LOOK_EVERY);
        let mut looks = 0;
        loop {
            ticks.tick().await;
            looks += 1;
            let caching = Arc::clone(self);
            let is_opened_again = looks % LOOKS_UNTIL_TRIED == 0;
            let looked = blocking(move || match caching.cache.file() {
                Some(_) => caching.maintain(),
                None if is_opened_again => caching.open(),
                None => {}
            });
            if let Err(error) = looked.await {
                tracing::error!(%error, "cache file was not written behind");
            }
        }
    }

    /// Writes what the next process is to find. Ends soon, whatever the file does.
    pub async fn leave(&self) {
        let Some(file) = self.cache.file().cloned() else {
            return;
        };
        let flushed = host::timeout(FLUSHED_WITHIN, blocking(move || file.flush())).await;
        if !matches!(flushed, Some(Ok(true))) {
            tracing::warn!("cache file was not flushed; the next start finds less in it");
        }
    }
}
