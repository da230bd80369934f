//! Audits: what some units alone reveal of a volume.

use std::fs;
use std::path::Path;
use std::time::Duration;

use api::host::Encryption;
use api::types::AuditBytes;
use api::types::CreateVolume;
use api::words::AuditState;
use control::ControlError;
use control::volume_audits::AuditView;

use super::rig::{Rig, Scree, small};
use super::{end, writes};

const WAIT: Duration = Duration::from_secs(60);

async fn begin(scree: &Scree, units: &[&str]) -> Result<AuditView, ControlError> {
    let units: Vec<String> = units.iter().map(|unit| (*unit).to_owned()).collect();
    scree
        .control
        .audits()
        .begin("disk", &units, None, true)
        .await
}

async fn audited(scree: &Scree, units: &[&str]) -> AuditView {
    let begun = begin(scree, units).await.expect("begun");
    assert_eq!(begun.row.state, AuditState::Waiting);
    let ended = scree
        .control
        .audits()
        .get("disk", begun.row.id, WAIT)
        .await
        .expect("there");
    assert!(ended.row.ended.is_some());
    ended
}

/// Number of blocks filled with `byte` in the files of a unit.
fn blocks_of(unit: &Path, byte: u8) -> u64 {
    let mut count = 0;
    let mut folders = vec![unit.join("segments")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("read") {
            let path = entry.expect("read").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = fs::read(path).expect("read");
            let is_it = |block: &&[u8]| **block == [byte; 4096];
            count += bytes.chunks_exact(4096).filter(is_it).count() as u64;
        }
    }
    count
}

async fn ids(scree: &Scree, rig: &Rig) -> Vec<String> {
    let units = scree.control.unit_registry().all().await.expect("read");
    let of = |number: usize| {
        let folder = rig.unit(number).display().to_string();
        let mut units = units.iter();
        let unit = units.find(|unit| unit.row.url.ends_with(&folder));
        unit.expect("created").row.id.to_string()
    };
    vec![of(1), of(2)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_audit_finds_what_a_compromised_unit_reveals() {
    for seal in [Encryption::None, Encryption::Aes256Gcm] {
        let rig = Rig::new();
        let scree = rig.start().await;
        let new = CreateVolume {
            replicas: Some(1),
            encryption: Some(seal.to_string()),
            ..small("disk")
        };
        scree.control.volumes().create(new).await.expect("made");
        let units = ids(&scree, &rig).await;
        let refused = begin(&scree, &[&units[0]])
            .await
            .expect_err("an audit without findings");
        assert!(
            matches!(refused, ControlError::Conflict { .. }),
            "{refused}"
        );
        for block in 0..40 {
            writes(&scree, block, 7).await;
        }
        let on_first = blocks_of(&rig.unit(1), 7);
        assert_eq!(
            on_first + blocks_of(&rig.unit(2), 7),
            if seal == Encryption::None { 40 } else { 0 }
        );
        let both = audited(&scree, &[&units[0], &units[1]]).await;
        let one = audited(&scree, &[&units[0]]).await;
        assert_eq!((one.placement.units, one.placement.compromised), (2, 1));
        let [both, one] = [both, one].map(|view| view.row.result.expect("found"));
        let all = 40 * 4096;
        match seal {
            Encryption::None => {
                let held = |readable| AuditBytes {
                    total: all,
                    readable,
                    ..AuditBytes::default()
                };
                assert_eq!(both.blocks, held(all));
                assert_eq!(one.blocks, held(on_first * 4096));
            }
            Encryption::Aes256Gcm => {
                assert_eq!((both.blocks.sealed, both.blocks.readable), (all, 0));
                assert_eq!((one.blocks.readable, one.map.readable), (0, 0));
                assert!(one.blocks.sealed < all);
            }
        }
        assert!(both.map.total > 0 && both.map.altered == 0);
        // There is no file system.
        let systems = both.listing.file_systems;
        match seal {
            Encryption::None => assert!(systems[0].problem.is_some() && both.sealed.is_none()),
            Encryption::Aes256Gcm => assert!(systems.is_empty() && both.sealed.is_some()),
        }
        end(scree).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_audit_is_refused_and_an_unavailable_unit_is_named() {
    let rig = Rig::new();
    let scree = rig.start().await;
    let new = CreateVolume {
        replicas: Some(1),
        ..small("disk")
    };
    scree.control.volumes().create(new).await.expect("made");
    for block in 0..40 {
        writes(&scree, block, 7).await;
    }
    let units = ids(&scree, &rig).await;
    let none = begin(&scree, &[]).await.expect_err("no unit");
    assert!(matches!(none, ControlError::Invalid { field: "units", .. }));
    let unknown = begin(&scree, &["u9"]).await.expect_err("no such unit");
    assert!(unknown.to_string().contains("unit u9"), "{unknown}");
    // Files that are open stay open.
    end(scree).await;
    let gone = rig.folder.path().join("gone");
    fs::rename(rig.unit(1), &gone).expect("moved");
    let scree = rig.start().await;
    let failed = audited(&scree, &[&units[0]]).await.row;
    assert_eq!(failed.state, AuditState::Error);
    let reason = failed.message.expect("it says why");
    assert!(
        reason.contains("u1") || reason.contains(&units[0]),
        "{reason}"
    );
    end(scree).await;
    fs::rename(&gone, rig.unit(1)).expect("moved");
    let scree = rig.start().await;
    let found = audited(&scree, &[&units[0], &units[1]]).await.row.result;
    assert_eq!(found.expect("available again").blocks.sealed, 40 * 4096);
    end(scree).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_audit_that_waits_for_its_turn_is_reported() {
    let rig = Rig::new();
    let scree = rig.start().await;
    let new = CreateVolume {
        replicas: Some(1),
        ..small("disk")
    };
    scree.control.volumes().create(new).await.expect("made");
    writes(&scree, 0, 7).await;
    let units = ids(&scree, &rig).await;
    let turn = scree.agent.parts.audits.turn().lock().await;
    let begun = begin(&scree, &[&units[0], &units[1]]).await.expect("begun");
    let audit = async |wait| {
        let found = scree.control.audits().get("disk", begun.row.id, wait);
        found.await.expect("there").row
    };
    let mut seen = begun.row.clone();
    while seen.state == AuditState::Waiting {
        tokio::task::yield_now().await;
        seen = audit(Duration::ZERO).await;
    }
    assert_eq!((seen.state, seen.done_bytes), (AuditState::Running, 0));
    assert_eq!(seen.ended, None, "another audit is running");
    drop(turn);
    let ended = audit(WAIT).await;
    assert_eq!(ended.state, AuditState::Done, "{ended:?}");
    end(scree).await;
}
