//! Blocks with fewer copies than their volume should have.

use std::fs;

use base::{BlockDevice as _, Durability};

use super::rig::{Rig, Scree, small};
use super::{end, finish};

pub async fn write(control: &Scree, block: u64) {
    let exported = control.export("disk").await;
    let id = exported.expect("served").volume;
    let attached = control.open(id).expect("attached");
    let started = control.agent.on_volume(&attached, move |volume| {
        volume.write(1, block * 4096, &[7; 4096], Durability::Volatile)
    });
    started.await.expect("answers");
    control
        .control
        .unexport_volume("disk")
        .await
        .expect("closed");
}

async fn thin(control: &Scree) -> (u64, Vec<String>) {
    let report = control.control.report().await.expect("answers");
    assert_eq!(report.thin_segments > 0, report.thin_blocks > 0);
    (report.thin_blocks, report.problems)
}

/// When the unit was back, all was said to be well, and what had been written
/// without it had one copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_without_a_unit_is_shown_until_it_is_gone() {
    let rig = Rig::new();
    let control = rig.start().await;
    control
        .control
        .create_volume(small("disk"))
        .await
        .expect("made");
    write(&control, 0).await;
    assert_eq!(thin(&control).await, (0, vec![]));

    let away = rig.folder.path().join("away");
    fs::rename(rig.unit(2), &away).expect("renamed");
    finish(control.agent.probe_units(true)).await;
    write(&control, 1).await;
    fs::rename(&away, rig.unit(2)).expect("renamed");
    end(control).await;

    let control = rig.start().await;
    let states = control.agent.units_as_known();
    assert!(states.iter().all(|unit| unit.state == "healthy"));
    let (blocks, problems) = thin(&control).await;
    assert!(blocks >= 1 && problems.len() == 1, "{problems:?}");
    assert!(
        problems[0].contains("volume \"disk\" have fewer copies"),
        "{problems:?}"
    );
    control.agent.forget_thin(0).await.expect("looked");
    assert_eq!(thin(&control).await.0, blocks, "it is still there");

    control
        .control
        .delete_volume("disk")
        .await
        .expect("deleted");
    let removed = control.agent.remove_what_nothing_needs().await;
    removed.expect("removed");
    control.agent.free_what_is_due().await.expect("freed");
    control.agent.forget_thin(0).await.expect("looked");
    assert_eq!(thin(&control).await, (0, vec![]));
    end(control).await;
}
