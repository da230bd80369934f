//! Leases that expire: a host that is unresponsive, one that comes back, and its journal.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use api::host::catalog_calls::Acquire;
use api::host::{Access, AttachmentState};
use base::{AttachmentId, BlockDevice as _, PartyId, Request, VolumeId};
use catalog::LeaseSalt;
use control::database::{Database, Membership, NewAttachment, PartyRow, Reach};
use world::{Clock as _, Millis};

use super::end;
use super::rig::{Rig, RigSettings, Scree, aside, eventually};
use crate::export::OpenVolume;

const LEASE: Duration = Duration::from_secs(10);

async fn start(rig: &Rig) -> Scree {
    let settings = RigSettings {
        lease: Some(LEASE),
        ..rig.settings()
    };
    rig.try_start(settings).await.expect("starts")
}

async fn renew_leases(scree: &Scree) {
    let renewed = scree.agent.parts.storage.leases.renew();
    renewed.await.expect("heard");
}

async fn reconcile_journals(scree: &Scree) {
    let cleaning = &scree.agent.parts.maintenance.journal_cleaning;
    cleaning.reconcile().await;
}

/// A volume that is served and has writes.
async fn written(scree: &Scree) -> (VolumeId, AttachmentId, Arc<OpenVolume>) {
    let volume = scree.create("disk").await.row.id;
    let id = scree.export("disk").await.expect("served").id;
    let open_volume = scree.open(volume).expect("open");
    renew_leases(scree).await;
    let write = |volume: &mut volume::Volume| {
        volume.start(Request::write(1, 0, &[7; 8192], base::Durability::Volatile))
    };
    let started = open_volume.on_volume(write).await;
    started.expect("answers");
    (volume, id, open_volume)
}

fn journals(scree: &Scree) -> Vec<String> {
    let names = fs::read_dir(scree.agent.folder().journals()).expect("there");
    let mut names: Vec<String> = names
        .map(|entry| {
            entry
                .expect("read")
                .file_name()
                .into_string()
                .expect("text")
        })
        .collect();
    names.sort();
    names
}

/// Waits until the volume is not open on this host.
async fn is_closed_here(scree: &Scree, volume: VolumeId) {
    let is_closed = async || scree.open(volume).is_none().then_some(());
    eventually("the volume is closed", is_closed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_hosts_volume_is_taken_by_force_when_its_lease_has_ended() {
    let rig = Rig::new();
    let mut scree = start(&rig).await;
    let (volume, id, open_volume) = written(&scree).await;
    scree.cut_off();
    rig.clock.advance(Duration::from_secs(5));

    // Without force the detachment waits, and reports why.
    let view = scree
        .control
        .attachments()
        .detach(id, false)
        .await
        .expect("asked");
    assert_eq!(view.row.observed.state, AttachmentState::Detaching);
    rig.clock.advance(Duration::from_secs(100));
    let view = scree.control.attachments().get(id, Duration::ZERO).await;
    let view = view.expect("there");
    let reason = &*view.row.observed.problem.as_ref().expect("a problem").text;
    assert_eq!(view.row.observed.state, AttachmentState::Detaching);
    assert!(
        reason.contains("last reported") && reason.contains("--force"),
        "{reason}"
    );

    // The host renews its leases once more.
    renew_leases(&scree).await;
    let view = scree
        .control
        .attachments()
        .detach(id, true)
        .await
        .expect("asked");
    let reason = &*view.row.observed.problem.as_ref().expect("a problem").text;
    assert_eq!(view.row.observed.state, AttachmentState::Detaching);
    assert!(reason.contains("until"), "{reason}");
    rig.clock.advance(LEASE - Duration::from_millis(1));
    let view = scree.control.attachments().get(id, Duration::ZERO).await;
    assert_eq!(
        view.expect("there").row.observed.state,
        AttachmentState::Detaching
    );
    rig.clock.advance(Duration::from_millis(1));
    let view = scree.control.attachments().get(id, Duration::ZERO).await;
    let view = view.expect("there");
    assert_eq!(view.row.observed.state, AttachmentState::Detached);
    let reason = view.row.observed.problem.expect("a problem").text;
    assert!(
        reason.contains("taken by force") && reason.contains("journal"),
        "{reason}"
    );

    // The host comes back: it serves nothing, and its journal stays.
    renew_leases(&scree).await;
    // Its thread notices at its next iteration.
    let stopped = eventually("the volume stops", async || {
        let status = open_volume.engine_status().await;
        status.expect("answers").stopped
    });
    let stopped = stopped.await;
    assert!(stopped.contains("the lease is lost"), "{stopped}");
    drop(open_volume);
    scree.connect();
    is_closed_here(&scree, volume).await;
    assert_eq!(journals(&scree), [volume.to_string()]);
    reconcile_journals(&scree).await;
    renew_leases(&scree).await;
    reconcile_journals(&scree).await;
    let fenced = format!("{volume}.fenced-2");
    assert_eq!(journals(&scree), std::slice::from_ref(&fenced));
    let problems = scree.agent.parts.reporter.problems().await;
    assert!(problems[0].contains(&fenced), "{problems:?}");

    let row = scree.export("disk").await.expect("served again");
    assert_eq!(row.observed.notice.map(|notice| notice.text), Some(reason));
    assert_eq!(journals(&scree), [volume.to_string(), fenced]);
    end(scree).await;
}

/// Waits until the host has renewed its leases again and again, for longer than one term.
async fn is_renewed_beyond_the_term(rig: &Rig, database: &Database) {
    for _ in 0..3 {
        rig.clock.advance(LEASE / 2);
        let now = rig.clock.wall();
        eventually("the host has reported", async || {
            let hosts = database.hosts().all().await.expect("read");
            hosts[0]
                .heard
                .is_some_and(|heard| heard >= now)
                .then_some(())
        })
        .await;
    }
}

/// Regression: an ending agent did not renew its leases, so that a longer destage was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_renewed_while_the_agent_ends() {
    let rig = Rig::new();
    let scree = start(&rig).await;
    written(&scree).await;
    rig.disk.hold(&rig.path().join("units"));
    // As at the end of a process.
    scree.cut_off();
    let ending = tokio::spawn({
        let agent = scree.agent.clone();
        async move { agent.shut_down().await }
    });
    let held = Arc::clone(&rig.disk);
    aside(move || held.wait_for_one()).await;
    is_renewed_beyond_the_term(&rig, scree.control.database()).await;
    rig.disk.release();
    assert_eq!(ending.await.expect("no panic"), 0, "it has committed");
    end(scree).await;
}

/// Regression: a starting agent renewed its leases only when every volume had been tried, so that
/// one long replay lost the leases of all other volumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_renewed_while_the_agent_starts() {
    let rig = Rig::new();
    let scree = start(&rig).await;
    let (slow, _, open_volume) = written(&scree).await;
    drop(open_volume);
    scree.create("other").await;
    scree.export("other").await.expect("served");
    end(scree).await;

    // One journal hangs; the other volume opens.
    rig.disk
        .hold(&rig.path().join("journal").join(slow.to_string()));
    let settings = RigSettings {
        lease: Some(LEASE),
        ..rig.settings()
    };
    let world = rig.world();
    let starting = tokio::spawn(async move { Scree::start(world, settings).await });
    let held = Arc::clone(&rig.disk);
    aside(move || held.wait_for_one()).await;
    assert!(!starting.is_finished());
    let database = Database::open(&rig.path().join("scree.db")).await;
    let database = database.expect("opened");
    is_renewed_beyond_the_term(&rig, &database).await;
    rig.disk.release();
    let scree = starting.await.expect("no panic").expect("starts");
    end(scree).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_living_host_loses_no_volume_by_force() {
    let rig = Rig::new();
    let scree = start(&rig).await;
    let (volume, id, _) = written(&scree).await;
    scree
        .control
        .attachments()
        .detach(id, true)
        .await
        .expect("asked");
    let wait = Duration::from_secs(60);
    let view = scree
        .control
        .attachments()
        .get(id, wait)
        .await
        .expect("there");
    assert_eq!(view.row.observed.state, AttachmentState::Detached);
    assert_eq!(view.row.observed.problem, None);
    let view = scree.control.volumes().get("disk").await.expect("there");
    assert!(view.row.head.is_some(), "what it wrote is in a version");
    assert_eq!(journals(&scree), Vec::<String>::new());
    let row = scree.export("disk").await.expect("served");
    assert!(row.observed.notice.is_none() && scree.open(volume).is_some());
    end(scree).await;
}

/// An unrenewed lease holds acknowledgments back, and continues when it is renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_renewed_late_continues() {
    let rig = Rig::new();
    let scree = start(&rig).await;
    let (_, _, open_volume) = written(&scree).await;
    rig.clock.advance(LEASE);
    let flush = |volume: &mut volume::Volume| volume.start(Request::flush(2));
    let started = open_volume.on_volume(flush).await;
    assert!(matches!(started, Ok(base::Started::Pending)), "it waits");
    renew_leases(&scree).await;
    let status = open_volume.engine_status().await.expect("answers");
    assert_eq!(status.stopped, None);
    drop(open_volume);
    let view = scree.control.volumes().unexport("disk").await;
    assert!(view.expect("closed").row.head.is_some());
    end(scree).await;
}

/// Regression: a disk that hung cost the leases of all volumes, because the renewal read the folder
/// of journals first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_renewed_while_the_disk_with_the_journals_hangs() {
    let rig = Rig::new();
    let scree = start(&rig).await;
    let (_, _, open_volume) = written(&scree).await;
    let folder = scree.agent.folder().journals();
    rig.disk.hold(&folder);
    let cleaning = tokio::spawn({
        let agent = scree.agent.clone();
        async move { agent.parts.maintenance.journal_cleaning.reconcile().await }
    });
    aside({
        let disk = Arc::clone(&rig.disk);
        move || disk.wait_for_one()
    })
    .await;
    rig.clock.advance(LEASE / 2);
    let renewed = world::host::timeout(
        Duration::from_secs(60),
        scree.agent.parts.storage.leases.renew(),
    )
    .await;
    renewed
        .expect("it does not wait for the disk")
        .expect("heard");
    rig.clock.advance(LEASE / 2);
    let flush = |volume: &mut volume::Volume| volume.start(Request::flush(2));
    let started = open_volume.on_volume(flush).await;
    assert!(!cleaning.is_finished(), "it waits for the disk");
    rig.disk.release();
    cleaning.await.expect("it continues");
    assert!(started.is_ok(), "the lease holds: {started:?}");
    let status = open_volume.engine_status().await.expect("answers");
    assert_eq!(status.stopped, None);
    drop(open_volume);
    end(scree).await;
}

/// Regression: a folder of journals that could not be read counted as empty: quarantined journals
/// were no longer reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn journals_that_cannot_be_listed_are_a_problem_of_the_host() {
    let rig = Rig::new();
    let scree = start(&rig).await;
    let journals = scree.agent.folder().journals();
    let away = rig.folder.path().join("away");
    fs::rename(&journals, &away).expect("moved");
    fs::write(&journals, "no folder").expect("written");
    let renewed = scree.agent.parts.storage.leases.renew().await;
    renewed.expect("leases are renewed anyway");
    let problems = scree.control.status().await.expect("answers").problems;
    let at = journals.display().to_string();
    let reported = |why: &&String| why.contains(&at) && why.contains("cannot be listed");
    assert_eq!(problems.iter().filter(reported).count(), 1, "{problems:?}");

    fs::remove_file(&journals).expect("removed");
    fs::rename(&away, &journals).expect("moved");
    let problems = scree.control.status().await.expect("answers").problems;
    assert_eq!(problems.iter().filter(reported).count(), 0, "{problems:?}");
    end(scree).await;
}

/// Journals of filters stay while their volume is on another host, whatever the controllers answer:
/// they are applied when the volume is here again. Regression: files and events of filters of a
/// volume that was deleted on another host were never removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_filters_stay_as_long_as_their_volume() {
    let rig = Rig::new();
    let scree = start(&rig).await;
    let (volume, id, open_volume) = written(&scree).await;
    drop(open_volume);
    scree
        .control
        .attachments()
        .detach(id, true)
        .await
        .expect("asked");
    is_closed_here(&scree, volume).await;
    let kept = |volume: VolumeId| scree.agent.folder().chain(volume).join("fast.journal");
    let (there, gone) = (kept(volume), kept(VolumeId::from_u128(99)));
    for file in [&there, &gone] {
        fs::create_dir_all(file.parent().expect("a folder")).expect("made");
        // This journal cannot be proven empty.
        fs::write(file, [7; 9000]).expect("written");
    }
    let events = scree.agent.folder().events();
    fs::create_dir_all(&events).expect("made");
    let reported = |volume: VolumeId, age: &str| events.join(format!("{volume}.jsonl{age}"));
    let remembered = reported(volume, ".1");
    // This volume has no filters any more.
    let other = VolumeId::from_u128(98);
    let forgotten = [
        reported(other, ""),
        reported(other, ".4"),
        reported(VolumeId::from_u128(99), ""),
    ];
    for file in forgotten.iter().chain([&remembered]) {
        fs::write(file, "{}\n").expect("written");
    }
    for _ in 0..3 {
        reconcile_journals(&scree).await;
        renew_leases(&scree).await;
    }
    reconcile_journals(&scree).await;
    assert_eq!((there.exists(), gone.exists()), (true, false));
    assert!(remembered.exists());
    for file in forgotten {
        assert!(!file.exists(), "{}", file.display());
    }
    end(scree).await;
}

/// A local journal is obsolete once another host has had the volume: a replay would mix two states.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_from_before_another_hosts_lease_is_not_replayed() {
    let rig = Rig::new();
    let mut scree = start(&rig).await;
    let (volume, id, open_volume) = written(&scree).await;
    drop(open_volume);
    scree.cut_off();
    scree
        .control
        .attachments()
        .detach(id, true)
        .await
        .expect("asked");
    rig.clock.advance(LEASE);
    let view = scree.control.attachments().get(id, Duration::ZERO).await;
    assert_eq!(
        view.expect("there").row.observed.state,
        AttachmentState::Detached
    );

    let other = PartyId::from_u128(7);
    let principal = scree.control.principal();
    let party = PartyRow {
        id: other,
        subject: "scree://host/other".parse().expect("a subject"),
        is_administrator: false,
        is_disabled: false,
        created: Millis(0),
    };
    let database = scree.control.database();
    let made = database
        .parties()
        .insert(principal, &party, &Membership::None);
    made.await.expect("made");
    let new = NewAttachment {
        id: AttachmentId::from_u128(8),
        volume,
        host: other,
        vm: None,
        access: Access::ReadWrite,
        created: Millis(0),
    };
    database
        .attachments()
        .attach(principal, &new)
        .await
        .expect("asked");
    let salt = LeaseSalt([8; 16]);
    let lease = database
        .catalog()
        .answer(
            &Reach::new(other, Millis(0)),
            Acquire {
                volume,
                salt,
                journals: None,
            }
            .into(),
        )
        .await;
    let lease = String::from_utf8(lease.into_bytes()).expect("JSON");
    assert!(lease.starts_with("{\"Ok\":"), "{lease}");
    scree
        .control
        .attachments()
        .detach(new.id, true)
        .await
        .expect("asked");
    rig.clock.advance(LEASE);
    let view = scree
        .control
        .attachments()
        .get(new.id, Duration::ZERO)
        .await;
    assert_eq!(
        view.expect("there").row.observed.state,
        AttachmentState::Detached
    );

    scree.connect();
    is_closed_here(&scree, volume).await;
    // No renewal ran: the worker itself finds the journal.
    let row = scree.export("disk").await.expect("served");
    let note = row.observed.notice.expect("a notice").text;
    assert!(note.contains("\"other\""), "{note}");
    let kept = journals(&scree);
    assert_eq!(kept.len(), 2, "{kept:?}");
    assert!(kept[1].contains(".fenced-"), "{kept:?}");
    end(scree).await;
}
