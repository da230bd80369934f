//! Health and metrics of a host: leases, units and volumes, and those that do not answer.

use std::sync::mpsc;
use std::time::Duration;

use metrics::Part as _;

use super::rig::{Rig, RigSettings, Scree, eventually};
use super::{end, finish};

const LEASE: Duration = Duration::from_secs(10);

async fn start(rig: &Rig) -> Scree {
    let settings = RigSettings {
        lease: Some(LEASE),
        ..rig.settings()
    };
    rig.try_start(settings).await.expect("starts")
}

/// The number after the prefix `row`, up to the next space.
fn number(text: &str, row: &str) -> Option<f64> {
    let rest = text
        .lines()
        .find_map(|line| line.strip_prefix(row)?.strip_prefix(' '));
    rest.map(|rest| rest.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_without_a_controller_is_not_ready_and_shows_stalled_volumes() {
    let rig = Rig::new();
    let mut scree = start(&rig).await;
    let volume = scree.create("disk").await.row.id;
    scree.export("disk").await.expect("served");
    scree
        .agent
        .parts
        .storage
        .leases
        .renew()
        .await
        .expect("heard");
    assert_eq!(scree.agent.reasons().await, [""; 0]);
    let stalled = format!("scree_volume_stalled{{volume=\"{volume}\"}}");
    let text = scree.agent.measure().await.whole();
    assert_eq!(number(&text, &stalled), Some(0.0), "{text}");
    assert_eq!(number(&text, "scree_volumes_stalled"), Some(0.0));
    assert_eq!(number(&text, "scree_leases"), Some(1.0));
    assert_eq!(number(&text, "scree_repair_copysets_waiting"), Some(0.0));
    assert!(number(&text, "scree_repair_passes_total").is_some());

    scree.cut_off();
    rig.clock.advance(Duration::from_secs(8));
    let reasons = scree.agent.reasons().await;
    assert_eq!(reasons, ["no controller has answered for 8 s"]);
    let text = scree.agent.measure().await.whole();
    assert_eq!(number(&text, &stalled), Some(1.0), "{text}");
    assert_eq!(number(&text, "scree_volumes_stalled"), Some(1.0));
    assert_eq!(number(&text, "scree_lease_age_seconds"), Some(8.0));
    assert_eq!(number(&text, "scree_lease_stall_seconds"), Some(8.0));

    scree
        .agent
        .parts
        .storage
        .leases
        .renew()
        .await
        .expect("heard");
    assert_eq!(scree.agent.reasons().await, [""; 0]);
    let text = scree.agent.measure().await.whole();
    assert_eq!(number(&text, &stalled), Some(0.0), "{text}");
    scree.connect();
    end(scree).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_does_not_answer_keeps_its_last_status_and_is_asked_once() {
    let rig = Rig::new();
    let scree = rig.start().await;
    let volume = scree.create("disk").await.row.id;
    scree.export("disk").await.expect("served");
    let unresponsive = format!("scree_volume_unresponsive{{volume=\"{volume}\"}}");
    let journal = format!("scree_volume_journal_bytes{{volume=\"{volume}\"}}");
    let text = scree.agent.measure().await.whole();
    assert_eq!(number(&text, &unresponsive), Some(0.0), "{text}");
    let bytes = number(&text, &journal).expect("known");
    assert!(bytes > 0.0);

    // Its thread is busy until it is released.
    let open_volume = scree.open(volume).expect("open");
    let (let_go, held) = mpsc::channel::<()>();
    let (tell, holds) = tokio::sync::oneshot::channel();
    let busy = tokio::spawn(async move {
        let wait = move |_: &mut volume::Volume| {
            let _ = tell.send(());
            let _ = held.recv();
        };
        open_volume.on_volume(wait).await
    });
    holds.await.expect("started");
    for _ in 0..2 {
        let text = scree.agent.measure().await.whole();
        assert_eq!(number(&text, &unresponsive), Some(1.0), "{text}");
        assert_eq!(number(&text, &journal), Some(bytes), "the last status");
    }
    drop(let_go);
    busy.await.expect("no panic").expect("it continues");
    // The overdue answer arrives by itself.
    let answers = async || {
        let text = scree.agent.measure().await.whole();
        (number(&text, &unresponsive) == Some(0.0)).then_some(())
    };
    eventually("its answer is shown", answers).await;
    end(scree).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_without_a_writable_unit_is_not_ready() {
    let rig = Rig::new();
    let scree = rig.start().await;
    assert_eq!(scree.agent.reasons().await, [""; 0]);
    let units = scree.agent.parts.storage.units.reports();
    let state = |unit: usize, state: &str| {
        let id = units[unit].id;
        format!("scree_unit_state{{unit=\"{id}\",state=\"{state}\"}}")
    };
    let (first, second) = (rig.unit(1), rig.unit(2));
    for (from, to) in [(&first, "away1"), (&second, "away2")] {
        std::fs::rename(from, rig.folder.path().join(to)).expect("moved");
    }
    scree.agent.parts.storage.units.fresh_reports().await;
    // The next look at the latest sees the change.
    let reasons = eventually("it is not ready", async || {
        finish(scree.agent.parts.storage.units.probe(true)).await;
        let reasons = scree.agent.reasons().await;
        (!reasons.is_empty()).then_some(reasons)
    });
    let reasons = reasons.await;
    assert_eq!(reasons, ["none of the 2 units accepts writes"]);
    let text = scree.agent.measure().await.whole();
    for unit in 0..2 {
        assert_eq!(number(&text, &state(unit, "missing")), Some(1.0), "{text}");
        assert_eq!(number(&text, &state(unit, "healthy")), Some(0.0), "{text}");
    }
    for (to, from) in [(&first, "away1"), (&second, "away2")] {
        std::fs::rename(rig.folder.path().join(from), to).expect("moved");
    }
    let is_ready = async || {
        finish(scree.agent.parts.storage.units.probe(true)).await;
        scree.agent.reasons().await.is_empty().then_some(())
    };
    eventually("it is ready again", is_ready).await;
    end(scree).await;
}
