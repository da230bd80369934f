//! Base images in the host's cache: their blocks count as an image's as soon as a volume is one,
//! they stay if they are pinned, and they can be read before clients read them.

use std::sync::Arc;
use std::time::Duration;

use api::types::CreateVolume;
use cache::store::{AreaKind, Cache, CacheConfig, Division};
use control::database::PreloadRow;
use control::images::ImageView;

use api::words::PreloadState;
use base::{BlockDevice as _, Durability, Outcome, Request, SnapshotId, Started};

use super::rig::{Rig, Scree, eventually, small};
use super::{end, finish, reads, writes};

/// Every area has 64 blocks of it, and the image area twice as many.
const CACHE_BYTES: u64 = 1 << 20;

/// A Scree whose host has a cache file.
async fn cached(rig: &Rig) -> (Scree, Arc<Cache>) {
    let scree = rig.start().await;
    let parts = &scree.agent.parts;
    let config = CacheConfig {
        path: rig.folder.path().join("cache"),
        bytes: Some(CACHE_BYTES),
        division: Division::default(),
        cluster: parts.foundation.context.cluster.as_u128().to_be_bytes(),
    };
    let (file, _) = Cache::open(&rig.world(), &config).expect("made");
    parts.storage.caching.cache().use_file(Arc::clone(&file));
    (scree, file)
}

/// A volume with two blocks, and a clone of it.
async fn base_and_clone(scree: &Scree) {
    let control = &scree.control;
    scree.create("disk").await;
    writes(scree, 0, 7).await;
    writes(scree, 100, 8).await;
    let snapshot = control
        .snapshots()
        .create("disk", Some("moment"), Default::default())
        .await
        .expect("taken");
    let id: SnapshotId = snapshot.id;
    eventually("the snapshot is completed", async || {
        let found = control.snapshots().get(&id.to_string()).await.ok()?;
        matches!(
            found.state,
            control::database::SnapshotState::Completed(Some(_))
        )
        .then_some(())
    })
    .await;
    let clone = CreateVolume {
        name: "clone".to_owned(),
        from: Some("moment".to_owned()),
        ..CreateVolume::default()
    };
    control.volumes().create(clone).await.expect("made");
}

/// Number of blocks in the image area and in the active area.
fn kept(file: &Cache) -> [usize; 2] {
    let areas = file.statistics().areas;
    [AreaKind::Image, AreaKind::Active].map(|kind| areas[kind as usize].blocks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_of_an_image_are_cached_as_image_blocks_once_it_is_marked() {
    let rig = Rig::new();
    let (scree, file) = cached(&rig).await;
    base_and_clone(&scree).await;
    let exported = scree.export("clone").await.expect("served");
    let open_volume = scree.open(exported.volume).expect("attached");
    let read = async |block: u64, content: u8| {
        let read = open_volume.on_volume(move |volume| {
            // The cache is not used for blocks that a unit has at hand.
            let started = volume.start(Request::prefetch(1, block * 4096, 4096));
            assert_eq!(started, Started::Pending);
            assert_eq!(super::completed(volume), Outcome::Done);
            super::read_block(volume, block) == vec![content; 4096]
        });
        assert!(read.await.expect("answers"), "block {block}");
    };
    read(0, 7).await;
    eventually("it is cached", async || {
        (kept(&file) == [0, 1]).then_some(())
    })
    .await;
    let mark = async |pinned| {
        scree
            .control
            .images()
            .mark("disk", pinned)
            .await
            .expect("kept")
    };
    mark(None).await;
    // The agent is notified while the volume is used.
    eventually("it is cached as an image block", async || {
        read(100, 8).await;
        (kept(&file)[0] > 0).then_some(())
    })
    .await;
    mark(Some(true)).await;
    eventually("it stays", async || {
        read(0, 7).await;
        read(100, 8).await;
        (file.statistics().pinned == 2).then_some(())
    })
    .await;
    assert_eq!(
        kept(&file),
        [2, 0],
        "blocks that were read before have moved"
    );
    mark(Some(false)).await;
    let caching = &scree.agent.parts.storage.caching;
    eventually("it may be evicted", async || {
        let caching = Arc::clone(caching);
        super::aside(move || caching.maintain()).await;
        (file.statistics().pinned == 0).then_some(())
    })
    .await;
    scree
        .control
        .volumes()
        .unexport("clone")
        .await
        .expect("closed");
    end(scree).await;
}

async fn preloaded(scree: &Scree) -> ImageView {
    preloaded_of(scree, "disk").await
}

async fn preloaded_of(scree: &Scree, name: &str) -> ImageView {
    eventually("the preload ends", async || {
        let image = scree.control.images().get(name).await.expect("there");
        let one = image.preloads.first()?;
        one.ended.is_some().then_some(image)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preloaded_image_is_read_from_the_cache() {
    let rig = Rig::new();
    let (scree, file) = cached(&rig).await;
    base_and_clone(&scree).await;
    let control = &scree.control;
    control
        .images()
        .mark("disk", Some(true))
        .await
        .expect("kept");
    let begun = control.images().preload("disk", &[]).await;
    assert_eq!(begun.expect("begun").preloads.len(), 1);
    let image = preloaded(&scree).await;
    let one = &image.preloads[0];
    assert_eq!((one.state, &one.message), (PreloadState::Done, &None));
    assert_eq!((one.done_bytes, one.total_bytes), (8192, Some(8192)));
    eventually("both are cached", async || {
        (kept(&file) == [2, 0]).then_some(())
    })
    .await;
    assert_eq!(file.statistics().pinned, 2);
    let before = scree.agent.parts.storage.caching.cache().counts();
    reads(&scree, "clone", 0, 7).await;
    reads(&scree, "clone", 100, 8).await;
    let after = scree.agent.parts.storage.caching.cache().counts();
    let missed = |counts: [cache::host::AreaCounts; 3]| counts[AreaKind::Image as usize].units;
    assert_eq!(missed(after), missed(before));
    end(scree).await;
}

/// Preloads an image of `blocks` blocks, and returns the outcome.
async fn preloads(scree: &Scree, name: &str, blocks: usize, pinned: bool) -> PreloadRow {
    let control = &scree.control;
    if control.images().get(name).await.is_err() {
        control.volumes().create(small(name)).await.expect("made");
        let exported = scree.export(name).await.expect("served");
        let open_volume = scree.open(exported.volume).expect("attached");
        let written = open_volume.on_volume(move |volume| {
            volume.start(Request::write(
                1,
                0,
                &vec![5; blocks * 4096],
                Durability::Volatile,
            ))
        });
        written.await.expect("answers");
        control.volumes().unexport(name).await.expect("closed");
        let marked = control.images().mark(name, pinned.then_some(true)).await;
        marked.expect("marked");
    }
    control.images().preload(name, &[]).await.expect("begun");
    let mut image = preloaded_of(scree, name).await;
    image.preloads.remove(0)
}

/// Regression: in a full area each block evicted the one before it, and the preload reported
/// success.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preloaded_image_replaces_an_unpinned_one() {
    let rig = Rig::new();
    let (scree, file) = cached(&rig).await;
    for name in ["one", "two"] {
        let came = preloads(&scree, name, 100, false).await;
        assert_eq!((came.state, came.message), (PreloadState::Done, None));
    }
    let added = || file.statistics().areas[AreaKind::Image as usize].inserted;
    let before = added();
    let again = preloads(&scree, "two", 100, false).await;
    assert_eq!(again.state, PreloadState::Done);
    assert_eq!(added(), before, "it was cached");
    end(scree).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_was_evicted_is_not_reported_as_preloaded() {
    let rig = Rig::new();
    let (scree, file) = cached(&rig).await;
    let came = preloads(&scree, "stays", 100, true).await;
    assert_eq!((came.state, came.message), (PreloadState::Done, None));
    assert_eq!(file.statistics().pinned, 100);
    let came = preloads(&scree, "more", 100, false).await;
    let why = came.message.unwrap_or_default();
    assert_eq!(came.state, PreloadState::Error);
    assert!(why.contains("were not in the host's cache"), "{why}");
    end(scree).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reason_for_a_failed_preload_is_reported() {
    let rig = Rig::new();
    let scree = rig.start().await;
    base_and_clone(&scree).await;
    let control = &scree.control;
    control.images().mark("disk", None).await.expect("kept");
    control.images().preload("disk", &[]).await.expect("begun");
    let why = preloaded(&scree).await.preloads[0].message.clone();
    assert!(
        why.as_ref().is_some_and(|why| why.contains("--cache")),
        "{why:?}"
    );
    let skipped = control.images().get("disk").await.expect("there");
    assert_eq!(skipped.preloads[0].state, PreloadState::Skipped);
    end(scree).await;

    let (scree, _) = cached(&rig).await;
    let control = &scree.control;
    let away = |number: u32| rig.folder.path().join(format!("away-{number}"));
    for number in [1, 2] {
        std::fs::rename(rig.unit(number as usize), away(number)).expect("renamed");
    }
    finish(scree.agent.parts.storage.units.probe(true)).await;
    control.images().preload("disk", &[]).await.expect("begun");
    let why = preloaded(&scree).await.preloads[0].message.clone();
    assert!(
        why.as_ref().is_some_and(|why| why.contains("unit")),
        "{why:?}"
    );
    for number in [1, 2] {
        std::fs::rename(away(number), rig.unit(number as usize)).expect("renamed");
    }
    rig.clock.advance(Duration::from_secs(60));
    finish(scree.agent.parts.storage.units.probe(true)).await;

    // It is larger than the area for images.
    let exported = scree.export("disk").await.expect("served");
    let open_volume = scree.open(exported.volume).expect("attached");
    let written = open_volume.on_volume(|volume| {
        volume.start(Request::write(1, 0, &[3; 1 << 20], Durability::Volatile))
    });
    written.await.expect("answers");
    control.volumes().unexport("disk").await.expect("closed");
    control.images().preload("disk", &[]).await.expect("begun");
    let why = preloaded(&scree).await.preloads[0].message.clone();
    assert!(
        why.as_ref().is_some_and(|why| why.contains("has room for")),
        "{why:?}"
    );
    end(scree).await;
}
