//! [`Preloads`]: reads base images into the host's cache before clients read them.
//!
//! ```text
//!  1. open    the version, read-only, as for an attachment
//!  2. plan    find the written ranges
//!  3. read    in order, a few pieces at once, as fast as the cache accepts them; again, if the
//!             cache may have dropped some
//!  4. report  the progress each second; then the outcome
//! ```
//!
//! Each image has at most one preload. A canceled preload ends with its next piece, and reports
//! nothing. A preload bypasses the cache's memory: blocks that are only there are not in the file,
//! and the memory is for clients.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use api::host::calls::ReportPreload;
use api::host::{BaseImage, DesiredPreload, PreloadOutcome, PreloadReport};
use base::size::exact_bytes;
use base::{
    BlockDevice, Completion, ExtentKind, IoError, Outcome, Request, Started, Token, VolumeId,
};
use cache::host::HostCache;
use cache::store::{AreaKind, Cache, SLOT_BYTES, Statistics};
use parking_lot::Mutex;
use volume::ReadOnlyVolume;
use volume::scatter::CacheView;

use super::Caching;
use crate::background::{self, Canceled, JobProgress, TICK, VersionError, VersionReader, rest};
use crate::context::{Shutdown, blocking};
use crate::controller::Controller;
use crate::export::VolumeCache;

/// The length of one read, in bytes.
const PIECE_BYTES: u64 = 1 << 20;

/// The most reads at once: as many as a cache accepts before it has written some.
const PIECES: usize = 4;

/// How often the cache is checked while it writes accepted blocks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The most ticks to wait for a file that does not answer: 10 s.
const ILL_TICKS_MAX: u32 = 50;

/// The most passes over an image: other writes may have left no room for a piece.
const PASSES_MAX: usize = 4;

/// Why an image was not preloaded completely.
#[derive(Debug, thiserror::Error)]
enum PreloadError {
    #[error("this host has no cache file; start its agent with --cache")]
    NoCache,
    #[error("the host's cache does not work: {0}")]
    Broken(String),
    #[error(
        "{written} of the image are written, but the host's cache has room for {room} of images: \
         make it larger (--cache-size), or give images a larger share (--cache-division)"
    )]
    TooLarge { written: String, room: String },
    #[error(transparent)]
    Version(#[from] VersionError),
    #[error("the image cannot be read: {0}")]
    Read(#[from] IoError),
    #[error("the cache's file has failed")]
    Failed,
    #[error(
        "{missing} of the image were not in the host's cache after {} passes: other writes evict \
         them, or the area for images is too small",
        PASSES_MAX - 1
    )]
    NotKept { missing: String },
    #[error(transparent)]
    Canceled(#[from] Canceled),
}

/// A running preload.
struct Preload {
    generation: u64,
    progress: JobProgress,
    is_pinned: AtomicBool,
    total_bytes: AtomicU64,
}

impl Preload {
    fn new(request: &DesiredPreload, shutdown: Shutdown) -> Self {
        Self {
            generation: request.generation,
            progress: JobProgress::new(shutdown),
            is_pinned: AtomicBool::new(request.is_pinned),
            total_bytes: AtomicU64::new(0),
        }
    }

    fn report(&self, end: Option<PreloadOutcome>, has_no_cache: bool) -> PreloadReport {
        PreloadReport {
            generation: self.generation,
            done_bytes: self.progress.done_bytes(),
            total_bytes: self.total_bytes.load(Ordering::Relaxed),
            end,
            has_no_cache,
        }
    }
}

/// The preloads of this host.
#[derive(Clone)]
pub(crate) struct Preloads {
    controller: Controller,
    caching: Arc<Caching>,
    reader: VersionReader,
    shutdown: Shutdown,
    running: Arc<Mutex<HashMap<VolumeId, Arc<Preload>>>>,
}

impl Preloads {
    pub fn new(
        controller: Controller,
        caching: Arc<Caching>,
        reader: VersionReader,
        shutdown: Shutdown,
    ) -> Self {
        Self {
            controller,
            caching,
            reader,
            shutdown,
            running: Arc::default(),
        }
    }

    /// Starts the desired preloads, and cancels all others.
    pub fn set_desired(&self, desired: Vec<DesiredPreload>) {
        let mut running = self.running.lock();
        running.retain(|volume, preload| {
            let is_same = |request: &DesiredPreload| {
                (request.volume, request.generation) == (*volume, preload.generation)
            };
            let request = desired.iter().find(|request| is_same(request));
            match request {
                Some(request) => preload
                    .is_pinned
                    .store(request.is_pinned, Ordering::Relaxed),
                None => preload.progress.cancel(),
            }
            request.is_some()
        });
        for request in desired {
            if self.shutdown.has_begun() || running.contains_key(&request.volume) {
                continue;
            }
            let preload = Arc::new(Preload::new(&request, self.shutdown.clone()));
            running.insert(request.volume, Arc::clone(&preload));
            tokio::spawn(self.clone().run(request, preload));
        }
    }

    /// Runs one preload, and reports its outcome.
    async fn run(self, request: DesiredPreload, preload: Arc<Preload>) {
        let (volume, controller) = (request.volume, &self.controller);
        let (preloads, of_preload) = (self.clone(), Arc::clone(&preload));
        let read = blocking(move || preloads.read_image(&request, &of_preload));
        let report_progress = || async {
            let report = preload.report(None, false);
            controller
                .call_once(&ReportPreload { volume, report })
                .await
        };
        let mut has_no_cache = false;
        let end = match preload.progress.follow(read, report_progress).await {
            Ok(Ok(())) => Some(Ok(())),
            Ok(Err(PreloadError::Canceled(_))) => None,
            Ok(Err(error)) => {
                has_no_cache = matches!(error, PreloadError::NoCache);
                Some(Err(error.to_string()))
            }
            Err(error) => Some(Err(error.to_string())),
        };
        if let Some(end) = end {
            if let Err(why) = &end {
                tracing::warn!(%volume, error = why, "preload failed");
            }
            let report = preload.report(Some(end), has_no_cache);
            let report = ReportPreload { volume, report };
            if let Err(error) = controller.call_until_answered(&report).await {
                tracing::error!(%volume, %error, "controller did not accept preload outcome");
            }
        }
        background::forget(&self.running, &volume, &preload);
    }

    /// Runs steps 1 to 3. Blocks.
    fn read_image(&self, request: &DesiredPreload, preload: &Preload) -> Result<(), PreloadError> {
        let Some(file) = self.caching.cache().file().cloned() else {
            return Err(match self.caching.problem() {
                Some(why) => PreloadError::Broken(why),
                None => PreloadError::NoCache,
            });
        };
        let version = self.reader.find(request.version)?;
        let lineage = version.version.lineage;
        let is_pinned = || preload.is_pinned.load(Ordering::Relaxed);
        let image = |is_pinned| {
            let image = BaseImage { lineage, is_pinned };
            Some(image)
        };
        let cache = HostCache::new(0);
        cache.use_file(Arc::clone(&file));
        let view = CacheView::new(cache, request.volume);
        let of_image = VolumeCache::new(view.clone(), &version.keys, image(is_pinned()));
        let (size_bytes, block_size) = (request.size_bytes, request.block_size);
        let reader = &self.reader;
        let mut volume = reader.open(&version, size_bytes, block_size, Some(view))?;
        let check = || {
            of_image.follow(image(is_pinned()));
            Ok(preload.progress.check()?)
        };
        let pieces = pieces(&mut volume, size_bytes, &check)?;
        let all: u64 = pieces.iter().map(|(_, length)| length).sum();
        preload.total_bytes.store(all, Ordering::Relaxed);
        let capacity = file.statistics().areas[AreaKind::Image as usize].capacity;
        let room = (capacity * SLOT_BYTES) as u64;
        if all > room {
            return Err(PreloadError::TooLarge {
                written: exact_bytes(all),
                room: exact_bytes(room),
            });
        }
        let failures = file.statistics().failures;
        let mut missing = 0;
        for pass in 0..PASSES_MAX {
            let lost_before = lost(&file.statistics());
            let missed_before = missed(&of_image.view);
            read_pieces(&mut volume, &file, &pieces, &check, |bytes| {
                // The first pass has counted it.
                if pass == 0 {
                    preload.progress.add_done(bytes);
                }
            })?;
            let statistics = file.statistics();
            if statistics.failures != failures {
                return Err(PreloadError::Failed);
            }
            missing = missed(&of_image.view) - missed_before;
            if lost(&statistics) == lost_before || missing == 0 {
                return Ok(());
            }
        }
        Err(PreloadError::NotKept {
            missing: exact_bytes(missing * SLOT_BYTES as u64),
        })
    }
}

/// Number of blocks, perhaps of an image, that the cache did not store or has evicted.
fn lost(statistics: &Statistics) -> u64 {
    statistics.refused + statistics.areas[AreaKind::Image as usize].evicted
}

/// Number of blocks of an image, of 4 KiB, that were read from units because the cache did not have
/// them.
fn missed(view: &CacheView) -> u64 {
    view.counts().areas[AreaKind::Image as usize].units
}

/// Runs step 2: the written pieces, as offset and length in bytes, in order.
fn pieces(
    volume: &mut ReadOnlyVolume,
    size_bytes: u64,
    check: &dyn Fn() -> Result<(), PreloadError>,
) -> Result<Vec<(u64, u64)>, PreloadError> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    let mut runs = Vec::new();
    while at < size_bytes {
        check()?;
        runs.clear();
        match volume.start(Request::extents(0, at, size_bytes - at, &mut runs)) {
            Started::Done => {}
            Started::Failed(error) => return Err(error.into()),
            Started::Pending => match ended(volume, check)? {
                Outcome::Extents(found) => runs = found,
                Outcome::Done | Outcome::Data(_) => {}
            },
            Started::Busy => {
                rest(volume, TICK);
                volume.poll(&mut Vec::new());
            }
        }
        for run in &runs {
            if run.kind == ExtentKind::Data {
                let end = at + run.length;
                let starts = (at..end).step_by(PIECE_BYTES as usize);
                pieces.extend(starts.map(|start| (start, PIECE_BYTES.min(end - start))));
            }
            at += run.length;
        }
    }
    Ok(pieces)
}

/// Waits for the completion of the only request in progress.
fn ended(
    volume: &mut ReadOnlyVolume,
    check: &dyn Fn() -> Result<(), PreloadError>,
) -> Result<Outcome, PreloadError> {
    let mut completions = Vec::new();
    loop {
        volume.poll(&mut completions);
        if let Some(Completion { result, .. }) = completions.pop() {
            return Ok(result?);
        }
        check()?;
        rest(volume, TICK);
    }
}

/// Runs step 3; `done` is called with the length of each piece.
fn read_pieces(
    volume: &mut ReadOnlyVolume,
    file: &Cache,
    pieces: &[(u64, u64)],
    check: &dyn Fn() -> Result<(), PreloadError>,
    done: impl Fn(u64),
) -> Result<(), PreloadError> {
    let mut left = pieces.iter();
    let mut next = left.next();
    let mut under_way = HashMap::<Token, u64>::new();
    let mut completions = Vec::new();
    let mut ill_ticks = 0;
    while next.is_some() || !under_way.is_empty() {
        check()?;
        let is_room = |under_way: usize| {
            let blocks = PIECE_BYTES as usize / SLOT_BYTES * (under_way + 1);
            under_way < PIECES && file.takes() >= blocks
        };
        while let Some(&(offset, length)) = next.filter(|_| is_room(under_way.len())) {
            match volume.start(Request::prefetch(offset, offset, length)) {
                Started::Done => done(length),
                Started::Pending => drop(under_way.insert(offset, length)),
                Started::Failed(error) => return Err(error.into()),
                Started::Busy => break,
            }
            next = left.next();
        }
        volume.end_batch()?;
        volume.poll(&mut completions);
        let is_idle = completions.is_empty();
        for Completion { token, result } in completions.drain(..) {
            result?;
            done(under_way.remove(&token).unwrap_or_default());
        }
        let is_held_up = is_idle && next.is_some() && under_way.len() < PIECES;
        if !(is_held_up && file.is_unusable()) {
            ill_ticks = 0;
        } else if ill_ticks < ILL_TICKS_MAX {
            ill_ticks += 1;
            rest(volume, TICK);
        } else {
            return Err(PreloadError::Failed);
        }
        if is_idle {
            rest(volume, if is_held_up { POLL_INTERVAL } else { TICK });
        }
    }
    Ok(())
}
