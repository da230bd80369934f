//! Units that were unavailable for a while, and what is reported about them.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use unit::Unit as _;

use super::rig::{Rig, Scree, eventually, small};
use super::{end, finish, reads, writes};

/// Copies a folder recursively.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("made");
    for entry in fs::read_dir(from).expect("read") {
        let entry = entry.expect("read");
        let to = to.join(entry.file_name());
        match entry.file_type().expect("known").is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).expect("copied")),
        }
    }
}

/// Scans until the second unit is `state`, and once more.
async fn scan_until(scree: &Scree, state: &str) {
    let is_so = async || {
        finish(scree.agent.parts.storage.units.probe(true)).await;
        let units = scree.agent.parts.storage.units.reports();
        (units[1].state == state).then_some(())
    };
    eventually(&format!("the unit is {state}"), is_so).await;
    finish(scree.agent.parts.storage.units.probe(true)).await;
}

/// The reports of hosts about units, newest first.
async fn reported(scree: &Scree) -> Vec<String> {
    let audit = scree
        .control
        .parties()
        .audit(i64::MAX, 100)
        .await
        .expect("read");
    let said = audit.into_iter().filter(|row| row.action == "suspicion");
    said.map(|row| row.target).collect()
}

async fn two_copies(scree: &Scree) {
    let request = api::types::CreateVolume {
        replicas: Some(2),
        ..small("disk")
    };
    scree.control.volumes().create(request).await.expect("made");
    scree.agent.parts.storage.rejoin_reports.report().await;
    // Copysets that were never compared come first.
    while let Ok(true) = scree.agent.parts.maintenance.repair.repair_one().await {}
}

/// Regression: a unit that was missing for a second or more was neither compared nor checked for an
/// earlier state when it rejoined.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_that_was_missing_is_compared_when_it_rejoins() {
    let rig = Rig::new();
    let scree = rig.start().await;
    two_copies(&scree).await;
    writes(&scree, 0, 7).await;
    scree.agent.parts.storage.rejoin_reports.report().await;
    assert_eq!(reported(&scree).await, [""; 0]);

    let away = rig.folder.path().join("away");
    fs::rename(rig.unit(2), &away).expect("renamed");
    scan_until(&scree, "missing").await;
    // Its segments are lost.
    fs::remove_dir_all(away.join("segments")).expect("removed");
    fs::create_dir(away.join("segments")).expect("made");
    fs::rename(&away, rig.unit(2)).expect("renamed");
    scan_until(&scree, "healthy").await;
    scree.agent.parts.storage.rejoin_reports.report().await;
    let unit = scree.agent.parts.storage.units.reports()[1].id;
    assert_eq!(reported(&scree).await, [format!("{unit} restarted")]);
    while let Ok(true) = scree.agent.parts.maintenance.repair.repair_one().await {}
    end(scree).await;

    let first = rig.folder.path().join("first");
    fs::rename(rig.unit(1), first).expect("renamed");
    let scree = rig.start().await;
    reads(&scree, "disk", 0, 7).await;
    end(scree).await;
}

/// Regression: repair had found the unit healthy before the next look at it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_whose_return_another_call_noticed_is_compared_too() {
    let rig = Rig::new();
    let scree = rig.start().await;
    two_copies(&scree).await;
    writes(&scree, 0, 7).await;
    let away = rig.folder.path().join("away");
    fs::rename(rig.unit(2), &away).expect("renamed");
    let unit = Arc::clone(&scree.agent.parts.storage.units.mounted()[1].tracked);
    assert!(unit.probe().is_err());
    fs::rename(&away, rig.unit(2)).expect("renamed");
    unit.probe().expect("available");
    finish(scree.agent.parts.storage.units.probe(true)).await;
    scree.agent.parts.storage.rejoin_reports.report().await;
    let id = scree.agent.parts.storage.units.reports()[1].id;
    assert_eq!(reported(&scree).await, [format!("{id} restarted")]);
    end(scree).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_unit_is_reported_as_older() {
    let rig = Rig::new();
    let scree = rig.start().await;
    two_copies(&scree).await;
    writes(&scree, 0, 7).await;
    let kept = rig.folder.path().join("kept");
    copy(&rig.unit(2), &kept);
    writes(&scree, 1, 8).await;
    scree.agent.parts.storage.rejoin_reports.report().await;

    fs::rename(rig.unit(2), rig.folder.path().join("newer")).expect("renamed");
    scan_until(&scree, "missing").await;
    fs::rename(&kept, rig.unit(2)).expect("renamed");
    scan_until(&scree, "healthy").await;
    scree.agent.parts.storage.rejoin_reports.report().await;
    let unit = scree.agent.parts.storage.units.reports()[1].id;
    assert_eq!(reported(&scree).await, [format!("{unit} older")]);
    // The next stored lease count triggers another check, and then the unit is current.
    writes(&scree, 2, 9).await;
    scree.agent.parts.storage.rejoin_reports.report().await;
    assert_eq!(reported(&scree).await.len(), 1);
    while let Ok(true) = scree.agent.parts.maintenance.repair.repair_one().await {}
    end(scree).await;

    fs::rename(rig.unit(1), rig.folder.path().join("first")).expect("renamed");
    let scree = rig.start().await;
    for (block, content) in [(0, 7), (1, 8), (2, 9)] {
        reads(&scree, "disk", block, content).await;
    }
    end(scree).await;
}

/// Regression: the next lease was stored there, and then the unit seemed to be as new as the
/// others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_noted_on_a_restored_unit_before_it_is_reported() {
    let rig = Rig::new();
    let scree = rig.start().await;
    two_copies(&scree).await;
    writes(&scree, 0, 7).await;
    let kept = rig.folder.path().join("kept");
    copy(&rig.unit(2), &kept);
    writes(&scree, 1, 8).await;
    scree.agent.parts.storage.rejoin_reports.report().await;
    end(scree).await;

    fs::rename(rig.unit(2), rig.folder.path().join("newer")).expect("renamed");
    fs::rename(&kept, rig.unit(2)).expect("renamed");
    let scree = rig.start().await;
    let note = fs::read(rig.unit(2).join("leases")).expect("read");
    writes(&scree, 2, 9).await;
    assert_eq!(fs::read(rig.unit(2).join("leases")).expect("read"), note);
    scree.agent.parts.storage.rejoin_reports.report().await;
    let unit = scree.agent.parts.storage.units.reports()[1].id;
    assert_eq!(reported(&scree).await, [format!("{unit} older")]);
    // From now on it is stored.
    writes(&scree, 3, 10).await;
    assert_ne!(fs::read(rig.unit(2).join("leases")).expect("read"), note);
    end(scree).await;
}

/// A unit that stores no counts is not older for that reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_without_the_note_of_a_lease_is_not_older() {
    let rig = Rig::new();
    let scree = rig.start().await;
    two_copies(&scree).await;
    writes(&scree, 0, 7).await;
    scree.agent.parts.storage.rejoin_reports.report().await;
    let note = fs::read(rig.unit(2).join("leases")).expect("read");
    rig.disk.make_read_only(&rig.unit(2));
    writes(&scree, 1, 8).await;
    scree.agent.parts.storage.rejoin_reports.report().await;
    rig.disk.make_writable();
    assert_eq!(fs::read(rig.unit(2).join("leases")).expect("read"), note);
    end(scree).await;
    let scree = rig.start().await;
    scree.agent.parts.storage.rejoin_reports.report().await;
    assert_eq!(reported(&scree).await, [""; 0]);
    writes(&scree, 2, 9).await;
    assert_ne!(fs::read(rig.unit(2).join("leases")).expect("read"), note);
    assert_eq!(reported(&scree).await, [""; 0]);
    end(scree).await;
}
