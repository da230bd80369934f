//! The host's cache (docs/internals/cache.md).
//!
//! * `Caching`: opens the cache file, and retries if that fails; writes behind
//! * `preloads`: reads base images into the cache
//! * `counts`, `metrics`: its counters, for reports and metrics
//!
//! No start and no read waits long for the cache: a host with a slow, full or missing SSD works
//! without it.

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

use crate::context::{TaskFailed, blocking};

/// How long the start of the agent waits for the cache file.
const OPENED_WITHIN: Duration = Duration::from_secs(5);

/// The most operations on the file at once. They have threads of their own, because they may hang.
const THREADS_MAX: usize = 32;

/// The largest file with the count of unpinned images, in bytes: a number and a line feed.
const UNPINNED_BYTES_MAX: u64 = 32;

/// How often the file is written behind.
const MAINTAIN_INTERVAL: Duration = Duration::from_secs(1);

/// A file that could not be opened is opened again after this many passes.
const PASSES_UNTIL_REOPENED: u32 = 10;

/// How long a shutdown waits for the file to be written.
const FLUSHED_WITHIN: Duration = Duration::from_secs(5);

/// The settings of a host's cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSettings {
    /// The cache file; `None`: the cache uses memory only.
    pub file: Option<CacheFileSettings>,
    /// Memory of the cache, in bytes.
    pub memory_bytes: u64,
}

/// The file of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheFileSettings {
    /// Path of a file or block device.
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
    /// Why the configured file is not open.
    problem: Mutex<Option<String>>,
    /// File with the count of unpinned images that was applied last.
    unpinned: PathBuf,
    unpins: Mutex<Unpins>,
    /// Held while the file is opened, which may take long.
    opening: Mutex<()>,
}

/// How often images have been unpinned.
#[derive(Debug, Clone, Copy, Default)]
struct Unpins {
    /// The count that the controllers have reported; `None` before the first report.
    desired: Option<u64>,
    /// `desired` as of the last pass: a reader of an image may have pinned blocks since.
    heard: Option<u64>,
    /// The count at which the whole file was unpinned last, if known.
    done: Option<u64>,
}

impl Caching {
    /// Opens the file. If that takes longer than 5 s, the cache is used without it until it is
    /// open.
    pub async fn start(
        world: &World,
        settings: CacheSettings,
        cluster: [u8; 16],
        unpinned: PathBuf,
    ) -> Result<Arc<Self>, TaskFailed> {
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

    /// Limits the share of a volume in the active area, in bytes; `None`: its fair share.
    pub fn bound_share(&self, volume: VolumeId, bytes_max: Option<u64>) {
        if let Some(file) = self.cache.file() {
            file.bound_share(volume, bytes_max.map(|bytes| bytes as usize / SLOT_BYTES));
        }
    }

    /// Sets how often images have been unpinned. If the count has grown, the whole file is
    /// unpinned: blocks of images that are still pinned are pinned again when they are read.
    pub fn set_unpins(&self, unpins: u64) {
        self.unpins.lock().desired = Some(unpins);
    }

    /// Maintains the file, if it is open. Blocks.
    pub(crate) fn maintain(&self) {
        if let Some(file) = self.cache.file() {
            self.unpin(file);
            file.write_behind();
        }
    }

    /// Unpins the whole file, if that is desired and not done yet.
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
            // The stored count must stay true after a power failure.
            if !file.settle() {
                // The next pass retries.
                return;
            }
            let text = format!("{desired}\n");
            let kept = host::write_whole(&*self.world.disk, &self.unpinned, text.as_bytes());
            if let Err(error) = kept {
                // The next process unpins again.
                tracing::warn!(path = %self.unpinned.display(), %error, "cache could not store the count of unpinned images");
            }
        }
        self.unpins.lock().done = Some(desired);
    }

    /// Opens the file, unless it is open or not configured. Blocks.
    fn open(&self) {
        // Only one thread opens it at a time.
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
        tracing::info!(is_new, blocks, "cache opened its file");
        self.cache.use_file(file);
        *self.problem.lock() = None;
    }

    fn failed(&self, error: &CacheError) {
        let text = with_causes(error);
        let known = self.problem.lock().replace(text.clone());
        if known.as_ref() != Some(&text) {
            tracing::warn!(error = text, "cache works without its file");
        }
    }

    /// Why the configured file is not used.
    pub fn problem(&self) -> Option<String> {
        if let Some(file) = self.cache.file() {
            let problem = file.problem()?;
            return Some(format!("the host's cache is not used: {problem}"));
        }
        let problem = self.problem.lock();
        let problem = problem.as_ref()?;
        Some(format!("the host works without its cache: {problem}"))
    }

    /// Maintains the file, and opens it again if that failed, as long as the agent runs.
    pub async fn run(self: &Arc<Self>) {
        if self.config.is_none() {
            return;
        }
        let mut ticks = host::ticks(MAINTAIN_INTERVAL);
        let mut passes = 0;
        loop {
            ticks.tick().await;
            passes += 1;
            let caching = Arc::clone(self);
            let is_opened_again = passes % PASSES_UNTIL_REOPENED == 0;
            let pass = blocking(move || match caching.cache.file() {
                Some(_) => caching.maintain(),
                None if is_opened_again => caching.open(),
                None => {}
            });
            if let Err(error) = pass.await {
                tracing::error!(%error, "cache could not write behind");
            }
        }
    }

    /// Flushes the file for the next process. Ends within 5 s even if the file does not answer.
    pub async fn leave(&self) {
        let Some(file) = self.cache.file().cloned() else {
            return;
        };
        let flushed = host::timeout(FLUSHED_WITHIN, blocking(move || file.flush())).await;
        if !matches!(flushed, Some(Ok(true))) {
            tracing::warn!("cache did not flush its file; the next start finds less in it");
        }
    }
}
