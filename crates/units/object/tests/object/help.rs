//! A store that counts, fails and is looked into, and units on it.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use base::{ClusterId, CopysetId, LineageTag, SegmentId, Slot, UnitId};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result, UploadPart,
};
use tokio::runtime::{Handle, Runtime};
use unit::{Put, Read, SlotRun, Tag, Unit, UnitError};
use unit_object::{Location, ObjectUnit};
use world::simulated::Simulation;

/// Where all units of these tests wait.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
});

pub fn runtime() -> &'static Handle {
    RUNTIME.handle()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When a request with an injected fault fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fails {
    /// Before anything was done.
    Before,
    /// After it was done: the answer is lost.
    After,
}

/// An object's name, and what it is replaced by, if it is not removed.
pub type Change = (String, Option<Vec<u8>>);

/// A store with injected faults.
#[derive(Debug)]
pub struct TestStore {
    inner: Arc<dyn ObjectStore>,
    prefix: String,
    requests: Mutex<Vec<String>>,
    /// Number of requests that succeed before one fails; negative if none fails.
    failing_in: AtomicI64,
    fails: Mutex<Fails>,
    parts: Arc<AtomicI64>,
    /// What becomes of objects just before one of this name is put.
    before_put: Mutex<Option<(String, Vec<Change>)>>,
}

impl fmt::Display for TestStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TestStore({})", self.inner)
    }
}

fn injected() -> Error {
    Error::Generic {
        store: "test",
        source: "injected".into(),
    }
}

impl TestStore {
    fn new(inner: Arc<dyn ObjectStore>, prefix: &str) -> Self {
        Self {
            inner,
            prefix: prefix.to_owned(),
            requests: Mutex::default(),
            failing_in: AtomicI64::new(-1),
            fails: Mutex::new(Fails::Before),
            parts: Arc::default(),
            before_put: Mutex::default(),
        }
    }

    /// Lets the request after the next `count` fail, and no other.
    pub fn fail_after(&self, count: i64, fails: Fails) {
        *lock(&self.fails) = fails;
        self.failing_in.store(count, Ordering::SeqCst);
    }

    /// Changes objects, as another host does, just before `name` is put next.
    pub fn change_before_put(&self, name: &str, changes: Vec<Change>) {
        *lock(&self.before_put) = Some((name.to_owned(), changes));
    }

    async fn change_now(&self, put: &Path) -> Result<()> {
        let due = lock(&self.before_put).take_if(|(name, _)| self.at(name) == *put);
        for (name, object) in due.into_iter().flat_map(|(_, changes)| changes) {
            match object {
                None => self.inner.delete(&self.at(&name)).await?,
                Some(object) => self
                    .inner
                    .put(&self.at(&name), object.into())
                    .await
                    .map(drop)?,
            }
        }
        Ok(())
    }

    /// Whether the injected failure has not happened.
    pub fn take_unfailed(&self) -> bool {
        self.failing_in.swap(-1, Ordering::SeqCst) >= 0
    }

    fn note(&self, verb: &str, path: &Path, rest: &str) -> Option<Fails> {
        let name = path
            .as_ref()
            .strip_prefix(&self.prefix)
            .unwrap_or(path.as_ref());
        let text = format!("{verb} {} {rest}", name.trim_start_matches('/'));
        lock(&self.requests).push(text.trim_end().to_owned());
        (self.failing_in.fetch_sub(1, Ordering::SeqCst) == 0).then(|| *lock(&self.fails))
    }

    pub fn requests(&self) -> Vec<String> {
        lock(&self.requests).clone()
    }

    pub fn forget_requests(&self) {
        lock(&self.requests).clear();
    }

    /// How many parts of objects were put.
    pub fn parts(&self) -> i64 {
        self.parts.load(Ordering::SeqCst)
    }

    fn at(&self, name: &str) -> Path {
        Path::from(format!("{}/{name}", self.prefix))
    }

    pub fn put_raw(&self, name: &str, bytes: &[u8]) {
        let payload = PutPayload::from_bytes(Bytes::copy_from_slice(bytes));
        let path = self.at(name);
        let put = self.inner.put(&path, payload);
        runtime().block_on(put).expect("put");
    }

    pub fn get_raw(&self, name: &str) -> Vec<u8> {
        let path = self.at(name);
        let got = async { self.inner.get(&path).await?.bytes().await };
        runtime().block_on(got).expect("there").to_vec()
    }

    pub fn remove_raw(&self, name: &str) {
        let path = self.at(name);
        let removed = self.inner.delete(&path);
        runtime().block_on(removed).expect("removed");
    }

    pub fn length(&self, name: &str) -> u64 {
        let path = self.at(name);
        let head = self.inner.head(&path);
        runtime().block_on(head).expect("there").size
    }

    /// What there is, below the unit's prefix.
    pub fn names(&self) -> Vec<String> {
        let listed = self.inner.list(Some(&Path::from(self.prefix.clone())));
        let listed: Vec<ObjectMeta> = runtime().block_on(listed.try_collect()).expect("listed");
        let names = listed.into_iter().map(|object| object.location.to_string());
        let mut names: Vec<String> = names
            .map(|name| name[self.prefix.len() + 1..].to_owned())
            .collect();
        names.sort();
        names
    }
}

/// Counts parts.
#[derive(Debug)]
struct Upload(Box<dyn MultipartUpload>, Arc<AtomicI64>);

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.0.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.0.abort().await
    }
}

#[async_trait]
impl ObjectStore for TestStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let fails = self.note("put", location, "");
        if fails == Some(Fails::Before) {
            return Err(injected());
        }
        self.change_now(location).await?;
        let done = self.inner.put_opts(location, payload, opts).await;
        fails.map_or(done, |_| Err(injected()))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if self.note("parts", location, "").is_some() {
            return Err(injected());
        }
        let upload = self.inner.put_multipart_opts(location, opts).await?;
        Ok(Box::new(Upload(upload, Arc::clone(&self.parts))))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let length = match &options.range {
            Some(object_store::GetRange::Bounded(range)) => (range.end - range.start).to_string(),
            _ => String::new(),
        };
        let verb = if options.head { "head" } else { "get" };
        if self.note(verb, location, &length).is_some() {
            return Err(injected());
        }
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let fails = self.note("delete", &Path::default(), "");
        if fails == Some(Fails::Before) {
            return futures_util::stream::once(async { Err(injected()) }).boxed();
        }
        let done = self.inner.delete_stream(locations);
        match fails {
            None => done,
            Some(_) => done.map(|_| Err(injected())).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if self
            .note("list", prefix.unwrap_or(&Path::default()), "")
            .is_some()
        {
            return futures_util::stream::once(async { Err(injected()) }).boxed();
        }
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        if self.note("list", offset, "").is_some() {
            return futures_util::stream::once(async { Err(injected()) }).boxed();
        }
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// A store in memory, which knows all conditions.
pub fn memory() -> Arc<dyn ObjectStore> {
    Arc::new(InMemory::new())
}

/// A store on a folder, which replaces nothing on condition.
pub fn local() -> (tempfile::TempDir, Arc<dyn ObjectStore>) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = LocalFileSystem::new_with_prefix(folder.path()).expect("a store");
    (folder, Arc::new(store))
}

/// A place for one unit, and the time there.
pub struct Site {
    pub store: Arc<TestStore>,
    pub location: Location,
    pub simulation: Simulation,
}

pub const CLUSTER: ClusterId = ClusterId::from_u128(1);
pub const UNIT: UnitId = UnitId::from_u128(2);

impl Site {
    pub fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self::below(inner, "a/unit")
    }

    pub fn below(inner: Arc<dyn ObjectStore>, prefix: &str) -> Self {
        let store = Arc::new(TestStore::new(inner, prefix));
        let url = format!("test://bucket/{prefix}");
        let shared: Arc<dyn ObjectStore> = Arc::clone(&store) as _;
        Self {
            store,
            location: Location::on(shared, Path::from(prefix), url),
            simulation: Simulation::new(1),
        }
    }

    /// The unit as another process sees it.
    pub fn open(&self) -> ObjectUnit {
        ObjectUnit::open(
            &self.simulation.world(),
            runtime(),
            &self.location,
            CLUSTER,
            UNIT,
        )
    }

    /// The unit, made if it is not there.
    pub fn unit(&self) -> ObjectUnit {
        self.open().created().expect("made")
    }
}

pub fn segment(number: u64) -> SegmentId {
    let copyset = CopysetId::new((number % 7) as u16).expect("under 4096");
    SegmentId::new(copyset, number).expect("under 2^36")
}

pub fn tags(segment: SegmentId, count: u16) -> Vec<Tag> {
    (0..count).map(|slot| tag_of(segment, slot)).collect()
}

fn tag_of(segment: SegmentId, slot: u16) -> Tag {
    let mut tag = [0xa5; 16];
    tag[..8].copy_from_slice(&segment.bits().to_le_bytes());
    tag[8..10].copy_from_slice(&slot.to_le_bytes());
    tag
}

fn content_of(segment: SegmentId, slot: u16, slot_bytes: u32) -> Vec<u8> {
    let seed = segment.bits() as u8 ^ (slot as u8).wrapping_mul(31);
    (0..slot_bytes)
        .map(|at| seed.wrapping_add((at / 7) as u8))
        .collect()
}

pub fn data(segment: SegmentId, slot_bytes: u32, count: u16) -> Vec<u8> {
    (0..count)
        .flat_map(|slot| content_of(segment, slot, slot_bytes))
        .collect()
}

pub fn put_slots(
    unit: &dyn Unit,
    segment: SegmentId,
    slot_bytes: u32,
    count: u16,
) -> std::result::Result<(), UnitError> {
    let (tags, data) = (tags(segment, count), data(segment, slot_bytes, count));
    unit.put(Put {
        lineage_tag: LineageTag::NONE,
        segment,
        slot_bytes,
        first: Slot(0),
        tags: &tags,
        data: &data,
    })
}

/// Reads slots, and panics if they are not what was put.
pub fn read_slots(
    unit: &dyn Unit,
    segment: SegmentId,
    slot_bytes: u32,
    first: u16,
    count: u16,
) -> std::result::Result<(), UnitError> {
    let run = SlotRun {
        segment,
        first: Slot(first),
        count,
    };
    let mut tags = vec![[0; 16]; usize::from(count)];
    let mut data = vec![0; usize::from(count) * slot_bytes as usize];
    unit.read(Read {
        run,
        slot_bytes,
        tags: &mut tags,
        data: &mut data,
    })?;
    let contents = data.chunks_exact(slot_bytes as usize);
    for ((slot, tag), content) in (first..).zip(tags).zip(contents) {
        assert_eq!(tag, tag_of(segment, slot), "{segment}/{slot}");
        let is_right = content == content_of(segment, slot, slot_bytes);
        assert!(is_right, "the content of {segment}/{slot}");
    }
    Ok(())
}

pub fn free(
    unit: &dyn Unit,
    segment: SegmentId,
    slots: impl IntoIterator<Item = u16>,
) -> std::result::Result<(), UnitError> {
    let slots: Vec<Slot> = slots.into_iter().map(Slot).collect();
    unit.free(segment, &slots, true)
}

/// The slots that can be read, each of which must be what was put.
pub fn live(unit: &dyn Unit, segment: SegmentId, slots: Range<u16>) -> Vec<u16> {
    slots
        .filter(|slot| match read_slots(unit, segment, 4096, *slot, 1) {
            Ok(()) => true,
            Err(UnitError::NoSlot { .. } | UnitError::NoSegment { .. }) => false,
            Err(why) => panic!("{segment}/{slot}: {why:?}"),
        })
        .collect()
}

/// A store that never answers.
#[derive(Debug)]
pub struct Unresponsive;

impl fmt::Display for Unresponsive {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Unresponsive")
    }
}

#[async_trait]
impl ObjectStore for Unresponsive {
    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        std::future::pending().await
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        std::future::pending().await
    }

    async fn get_opts(&self, _: &Path, _: GetOptions) -> Result<GetResult> {
        std::future::pending().await
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        futures_util::stream::pending().boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        futures_util::stream::pending().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        std::future::pending().await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        std::future::pending().await
    }
}
