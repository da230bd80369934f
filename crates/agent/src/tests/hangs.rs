//! Units that answer until something has been written, and then no more.

use std::sync::Arc;
use std::time::Duration;

use api::words::VolumeState;
use base::{BlockDevice as _, Durability, Request};

use super::rig::{Rig, Scree, aside, small};
use super::{end, finish};
use world::host;

async fn served(control: &Scree) {
    let exported = control.export("disk").await;
    exported.expect("served");
}

/// One block that lies in the journal only, and units that take nothing.
async fn written_and_held(rig: &Rig, control: &Scree) {
    served(control).await;
    let id = control
        .control
        .volumes()
        .get("disk")
        .await
        .expect("there")
        .row
        .id;
    let attached = control.open(id).expect("attached");
    let started = attached
        .on_volume(|volume| volume.start(Request::write(1, 0, &[7; 4096], Durability::Volatile)));
    started.await.expect("answers");
    rig.disk.hold(&rig.path().join("units"));
}

/// Nothing here waits for more minutes than that.
const MINUTES_MAX: u32 = 100;

/// What comes of a task that waits for the clock, which stands still unless it
/// is moved: again and again, since it cannot be seen when the task begins to
/// look at it.
async fn as_time_passes<T>(rig: &Rig, mut task: tokio::task::JoinHandle<T>) -> T {
    let held = Arc::clone(&rig.disk);
    aside(move || held.wait_for_one()).await;
    for _ in 0..MINUTES_MAX {
        rig.clock.advance(Duration::from_secs(61));
        if let Some(ended) = host::timeout(Duration::from_millis(500), &mut task).await {
            return ended.expect("no panic");
        }
    }
    panic!("it did not end in {MINUTES_MAX} minutes of the rig's clock");
}

/// A destage that a unit never answered was waited for until the process was
/// killed: by a detach, and by the end of `scree up`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_unit_delays_neither_a_detach_nor_a_shutdown() {
    let rig = Rig::new();
    let control = rig.start().await;
    control
        .control
        .volumes()
        .create(small("disk"))
        .await
        .expect("made");

    written_and_held(&rig, &control).await;
    let ending = tokio::spawn({
        let control = control.control.clone();
        async move { control.volumes().unexport("disk").await }
    });
    let why = as_time_passes(&rig, ending).await;
    let why = why.expect_err("nothing destaged");
    let why = why.to_string();
    for word in ["nothing was put on any unit for 60 s", "in its journal"] {
        assert!(why.contains(word), "{why}");
    }
    let shown = control.control.volumes().get("disk").await.expect("there");
    assert_eq!(
        (shown.state(), shown.attachments.len()),
        (VolumeState::Error, 1)
    );
    rig.disk.let_go();
    finish(control.agent.parts.units.probe(true)).await;
    served(&control).await;
    control
        .control
        .volumes()
        .unexport("disk")
        .await
        .expect("it answers");

    written_and_held(&rig, &control).await;
    let ending = tokio::spawn({
        let agent = control.agent.clone();
        async move { agent.shut_down().await }
    });
    assert_eq!(as_time_passes(&rig, ending).await, 1, "it says so");
    rig.disk.let_go();
    end(control).await;
    let control = rig.start().await;
    let shown = control.control.volumes().get("disk").await.expect("there");
    assert!(shown.served().is_some() && shown.problem().is_none());
    end(control).await;
}
