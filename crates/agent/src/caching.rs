//! The host's cache: opened, written behind, and tried again if it cannot be opened
//! (docs/cache.md).
//!
//! A cache is never waited for: a host whose SSD is slow, full or gone starts and works
//! without.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{VolumeId, with_causes};
use cache::host::HostCache;
use cache::store::{Cache, CacheConfig, CacheError, Division, SLOT_BYTES};
use world::real::ThreadPool;
use world::{World, host};

use crate::agent::{Agent, TaskEnded, blocking, lock};

/// A start waits no longer for its file.
const OPENED_WITHIN: Duration = Duration::from_secs(5);

/// So many jobs may wait for the file at once: in threads of their own, as it may hang.
const THREADS_MAX: usize = 32;

/// The note of how often images were pinned no more has a number and a line's end.
const UNPINNED_BYTES_MAX: u64 = 32;

/// What has changed is looked for so often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A file that could not be opened is tried again after so many looks.
const LOOKS_UNTIL_TRIED: u32 = 10;

/// An end waits no longer for what is to be written.
const FLUSHED_WITHIN: Duration = Duration::from_secs(5);

/// What a host's cache is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSettings {
    /// Its file, or block device, if it has one; its length in bytes, none of which is all of a
    /// device; and how it is divided.
    pub file: Option<(PathBuf, Option<u64>, Division)>,
    /// What it may take of memory, in bytes; 0 for nothing.
    pub memory_bytes: u64,
}

/// See the module's head.
pub(crate) struct Caching {
    pub cache: Arc<HostCache>,
    config: Option<CacheConfig>,
    /// Why it has no file, if it should have one.
    problem: Mutex<Option<String>>,
    /// Where it is noted how often images were pinned no more, when it was heard of last.
    unpinned: PathBuf,
    unpins: Mutex<Unpins>,
    /// Whoever opens the file: that may take its time.
    opening: Mutex<()>,
}

/// How often images were pinned no more.
#[derive(Debug, Clone, Copy, Default)]
struct Unpins {
    /// As the controllers say, once they have.
    wanted: Option<u64>,
    /// At the look before: whoever reads an image may have asked for something to stay until
    /// a moment ago.
    heard: Option<u64>,
    /// As of the last time that all of the file was unpinned, if that is known.
    done: Option<u64>,
}

impl Caching {
    /// Opens the file, if that is done soon; otherwise it is used when it is open.
    pub async fn start(
        world: &World,
        settings: CacheSettings,
        cluster: [u8; 16],
        unpinned: PathBuf,
    ) -> Result<Arc<Self>, TaskEnded> {
        let config = settings.file.map(|(path, bytes, division)| CacheConfig {
            path,
            bytes,
            division,
            cluster,
        });
        let caching = Arc::new(Self {
            cache: HostCache::new(settings.memory_bytes),
            config,
            problem: Mutex::default(),
            unpinned,
            unpins: Mutex::default(),
            opening: Mutex::default(),
        });
        let (opening, world) = (Arc::clone(&caching), world.clone());
        if let Some(opened) =
            host::timeout(OPENED_WITHIN, blocking(move || opening.open(&world))).await
        {
            opened?;
        }
        Ok(caching)
    }

    /// What a volume may have of the active area, in bytes; none: its fair share.
    pub fn bound_share(&self, volume: VolumeId, bytes_max: Option<u64>) {
        if let Some(file) = self.cache.file() {
            file.bound_share(volume, bytes_max.map(|bytes| bytes as usize / SLOT_BYTES));
        }
    }

    /// Images were pinned no more so often: if that is news, nothing of the file stays, until
    /// what is to stay is asked for again.
    pub fn want_unpinned(&self, unpins: u64) {
        lock(&self.unpins).wanted = Some(unpins);
    }

    /// Does what is to be done for the file now and then, if there is one. Waits.
    pub fn look_after(&self, world: &World) {
        if let Some(file) = self.cache.file() {
            self.unpin(world, file);
            file.write_behind();
        }
    }

    /// Nothing of the file stays, if that is wanted and was not done yet.
    fn unpin(&self, world: &World, file: &Cache) {
        let Unpins {
            wanted,
            heard,
            done,
        } = *lock(&self.unpins);
        lock(&self.unpins).heard = wanted;
        let is_due = |wanted: &u64| heard == Some(*wanted) && done != heard;
        let Some(wanted) = wanted.filter(is_due) else {
            return;
        };
        let noted = host::read_small(&*world.disk, &self.unpinned, UNPINNED_BYTES_MAX);
        let noted = noted.ok().and_then(|text| {
            let text = std::str::from_utf8(&text).ok()?;
            text.trim().parse().ok()
        });
        if noted != Some(wanted) {
            if file.is_ill() {
                return;
            }
            file.unpin_all();
            // What is noted is so also after a power failure.
            if !file.settle() {
                // It is tried again with the next look.
                return;
            }
            let text = format!("{wanted}\n");
            let kept = host::write_whole(&*world.disk, &self.unpinned, text.as_bytes());
            if let Err(error) = kept {
                // The next process does it once more.
                tracing::warn!(path = %self.unpinned.display(), %error, "not noted");
            }
        }
        lock(&self.unpins).done = Some(wanted);
    }

    /// Opens the file, unless there is none, or it is open. Waits.
    fn open(&self, world: &World) {
        // Two would be in each other's way.
        let Ok(_opening) = self.opening.try_lock() else {
            return;
        };
        let Some(config) = self.config.as_ref().filter(|_| self.cache.file().is_none()) else {
            return;
        };
        let world = World {
            pool: Arc::new(ThreadPool::new(THREADS_MAX)),
            ..world.clone()
        };
        match Cache::open(&world, config) {
            Ok((file, is_new)) => self.opened(file, is_new),
            Err(error) => self.failed(&error),
        }
    }

    fn opened(&self, file: Arc<Cache>, is_new: bool) {
        let areas = file.statistics().areas;
        let blocks: usize = areas.iter().map(|area| area.blocks).sum();
        tracing::info!(is_new, blocks, "the cache is in use");
        self.cache.use_file(file);
        *lock(&self.problem) = None;
    }

    fn failed(&self, error: &CacheError) {
        let text = with_causes(error);
        let known = lock(&self.problem).replace(text.clone());
        if known.as_ref() != Some(&text) {
            tracing::warn!(error = text, "this host works without a cache for now");
        }
    }

    /// Why there is no cache, if there should be one.
    pub fn problem(&self) -> Option<String> {
        if let Some(file) = self.cache.file() {
            let problem = file.problem()?;
            return Some(format!("the host's cache is not used for now: {problem}"));
        }
        let problem = lock(&self.problem);
        let problem = problem.as_ref()?;
        Some(format!("the host works without its cache: {problem}"))
    }
}

impl Agent {
    /// Writes behind what the cache says of itself, and opens it if that was not possible.
    pub(crate) async fn keep_cache(&self) {
        let caching = &self.inner.caching;
        if caching.config.is_none() {
            return;
        }
        let mut ticks = host::ticks(LOOK_EVERY);
        let mut looks = 0;
        loop {
            ticks.tick().await;
            looks += 1;
            let (caching, world) = (Arc::clone(caching), self.inner.world.clone());
            let is_to_be_tried = looks % LOOKS_UNTIL_TRIED == 0;
            let looked = blocking(move || match caching.cache.file() {
                Some(_) => caching.look_after(&world),
                None if is_to_be_tried => caching.open(&world),
                None => {}
            });
            if let Err(error) = looked.await {
                tracing::error!(%error, "the cache is not written behind once");
            }
        }
    }

    /// Writes what the next process is to find. Ends soon, whatever the file does.
    pub(crate) async fn leave_cache(&self) {
        let Some(file) = self.inner.caching.cache.file().cloned() else {
            return;
        };
        let flushed = host::timeout(FLUSHED_WITHIN, blocking(move || file.flush())).await;
        if !matches!(flushed, Some(Ok(true))) {
            tracing::warn!("the next start finds less in the cache");
        }
    }
}
