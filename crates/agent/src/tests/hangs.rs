//! Units that stop answering.

use std::sync::Arc;
use std::time::Duration;

use api::words::VolumeState;
use base::{BlockDevice as _, Durability, Request};

use super::rig::{Rig, Scree, aside, eventually};
use super::{end, finish};
use world::host;

async fn served(control: &Scree) {
    let exported = control.export("disk").await;
    exported.expect("served");
}

/// A block that is only in the journal, and units that accept nothing.
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
    let open_volume = control.open(id).expect("attached");
    let started = open_volume
        .on_volume(|volume| volume.start(Request::write(1, 0, &[7; 4096], Durability::Volatile)));
    started.await.expect("answers");
    rig.disk.hold(&rig.path().join("units"));
}

/// The most minutes that a test waits.
const MINUTES_MAX: u32 = 100;

/// Waits for a task that waits for the clock, which only tests move: it is moved repeatedly,
/// because a test cannot see when the task begins to read it.
async fn as_time_passes<T>(rig: &Rig, mut task: tokio::task::JoinHandle<T>) -> T {
    let held = Arc::clone(&rig.disk);
    aside(move || held.wait_for_one()).await;
    for _ in 0..MINUTES_MAX {
        rig.clock.advance(Duration::from_secs(61));
        if let Some(ended) = host::timeout(Duration::from_millis(500), &mut task).await {
            return ended.expect("no panic");
        }
    }
    panic!("the task did not end in {MINUTES_MAX} minutes of the rig's clock");
}

/// Regression: a detach and the end of `scree up` waited for a destage that a unit never answered
/// until the process was killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_unit_delays_neither_a_detach_nor_a_shutdown() {
    let rig = Rig::new();
    let control = rig.start().await;
    control.create("disk").await;

    written_and_held(&rig, &control).await;
    let ending = tokio::spawn({
        let control = control.control.clone();
        async move { control.volumes().unexport("disk").await }
    });
    let why = as_time_passes(&rig, ending).await;
    let why = why.expect_err("it is not destaged");
    let why = why.to_string();
    for word in ["no unit accepted data for 60 s", "in its journal"] {
        assert!(why.contains(word), "{why}");
    }
    let shown = control.control.volumes().get("disk").await.expect("there");
    assert_eq!(
        (shown.state(), shown.attachments.len()),
        (VolumeState::Error, 1)
    );
    rig.disk.release();
    finish(control.agent.parts.storage.units.probe(true)).await;
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
    assert_eq!(
        as_time_passes(&rig, ending).await,
        1,
        "one volume is not closed"
    );
    rig.disk.release();
    end(control).await;
    let control = rig.start().await;
    let shown = control.control.volumes().get("disk").await.expect("there");
    assert!(shown.served().is_some() && shown.problem().is_none());
    end(control).await;
}

/// Regression: every unit was probed and waited for: one hard NFS mount without its server was
/// enough to hang.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_unit_delays_neither_a_running_agent_nor_a_start() {
    let rig = Rig::new();
    let control = rig.start().await;
    control.create("disk").await;
    let state = |control: &Scree| control.agent.parts.storage.units.reports()[0].state.clone();
    assert_eq!(state(&control), "healthy");

    rig.disk.hold(&rig.unit(1));
    let mut scans = control.agent.parts.storage.units.probe(true);
    let held = Arc::clone(&rig.disk);
    aside(move || held.wait_for_one()).await;
    assert_eq!(state(&control), "healthy", "its last state");
    finish(scans.pop()).await;
    let again = control.agent.parts.storage.units.probe(true);
    assert_eq!(again.len(), 1, "only of the unit that answers");
    finish(again).await;
    rig.clock.advance(Duration::from_secs(6));
    finish(control.agent.parts.storage.units.probe(false)).await;
    let shown = &control.agent.parts.storage.units.reports()[0];
    assert_eq!(shown.state, "missing");
    let reason = shown.problem.as_deref().expect("a problem");
    assert!(reason.contains("has not answered for 6 s"), "{reason}");
    let status = control.control.status().await.expect("answers");
    assert_eq!((status.units, status.units_healthy), (2, 1));
    control
        .export("disk")
        .await
        .expect("the other unit accepts it");

    rig.disk.release();
    finish(scans).await;
    finish(control.agent.parts.storage.units.probe(true)).await;
    assert_eq!(state(&control), "healthy", "it answers again");
    end(control).await;

    rig.disk.hold(&rig.unit(1));
    let settings = rig.settings();
    let world = rig.world();
    let starting = tokio::spawn(Scree::start(world, settings));
    let held = Arc::clone(&rig.disk);
    aside(move || held.wait_for_one()).await;
    rig.clock.advance(Duration::from_secs(6));
    let control = starting.await.expect("no panic").expect("starts");
    assert_eq!(state(&control), "missing");
    // The clock may have advanced past the timeout of the other unit, too.
    let is_healthy = async || {
        finish(control.agent.parts.storage.units.probe(true)).await;
        (control.agent.parts.storage.units.reports()[1].state == "healthy").then_some(())
    };
    eventually("the other unit is healthy", is_healthy).await;
    let served = control.export("disk").await;
    served.expect("the other unit serves it");
    rig.disk.release();
    end(control).await;
}
