//! Blocks with fewer copies than their volume should have, and their repair.

use std::fs;

use super::rig::{Rig, Scree};
use super::{end, finish, writes};

async fn degraded(control: &Scree) -> (u64, Vec<String>) {
    let status = control.control.status().await.expect("answers");
    assert_eq!(status.degraded_segments > 0, status.degraded_blocks > 0);
    (status.degraded_blocks, status.problems)
}

/// Regression: when the unit was available again, everything was reported as healthy, although
/// blocks written meanwhile had one copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn degraded_segments_are_shown_until_they_are_repaired() {
    let rig = Rig::new();
    let control = rig.start().await;
    control.create("disk").await;
    writes(&control, 0, 7).await;
    // All copysets are compared once.
    while control
        .agent
        .parts
        .maintenance
        .repair
        .repair_one()
        .await
        .expect("read")
    {}
    assert_eq!(degraded(&control).await, (0, vec![]));

    let away = rig.folder.path().join("away");
    fs::rename(rig.unit(2), &away).expect("renamed");
    finish(control.agent.parts.storage.units.probe(true)).await;
    writes(&control, 1, 7).await;
    let is_well = control
        .agent
        .parts
        .maintenance
        .repair
        .repair_one()
        .await
        .expect("answers");
    assert!(!is_well, "it is unavailable");
    fs::rename(&away, rig.unit(2)).expect("renamed");
    end(control).await;

    let control = rig.start().await;
    let states = control.agent.parts.storage.units.reports();
    assert!(states.iter().all(|unit| unit.state == "healthy"));
    let (blocks, problems) = degraded(&control).await;
    assert!(blocks >= 1, "{problems:?}");
    let of_disk = |problem: &&String| problem.contains("volume \"disk\" have fewer copies");
    assert_eq!(problems.iter().filter(of_disk).count(), 1, "{problems:?}");

    // Obstacles are retried after some seconds.
    let database = control.control.database();
    for _ in 0..20 {
        control
            .agent
            .parts
            .maintenance
            .repair
            .repair_one()
            .await
            .expect("repaired");
        let copysets = database.units().copysets().await.expect("read");
        if copysets.iter().all(|copyset| copyset.rebuilding.is_empty()) {
            break;
        }
        rig.clock.advance(std::time::Duration::from_secs(5));
        finish(control.agent.parts.storage.units.probe(true)).await;
    }
    assert_eq!(degraded(&control).await, (0, vec![]));
    end(control).await;
}
