//! A daemon as its process runs it, with a controller whose answers the test sets.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::host::HostUnit;
use api::unit::PublicKey;
use auth::Kind;
use auth::SigningKey;
use axum::http::StatusCode;
use base::ClusterId;
use metrics::Part as _;
use tokio::task::JoinHandle;
use unit::{Unit as _, UnitError};
use unit_daemon::{ConfigRejected, FolderError, Service, StartError};
use unit_folder::FolderUnit;
use unit_remote::{endpoint_of_url, url_of_address};
use world::{Endpoint, Millis, host};

use crate::fake_controller::{Controller, own_profile, profile, refused, remote, settings, start};
use crate::inside::{CLUSTER, UNIT, verifying_key};
use crate::site::{Site, put, read, segment, why_not};

/// Runs the calls of a host outside of the runtime's thread.
pub async fn as_host<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(what).await.expect("no panic")
}

pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waited = host::timeout(Duration::from_secs(20), async {
        while !holds().await {
            tokio::task::yield_now().await;
        }
    });
    waited.await.expect(what);
}

/// Waits for the daemon's threads, which may outlive it for a moment and keep its folder open.
async fn stopped(site: &Site, service: Service, run: JoinHandle<()>) {
    run.abort();
    run.await.expect_err("it runs until it is stopped");
    service.shut_down().await;
    drop(service);
    let lock = site.folder.path().join("d/unit.lock");
    let lock = host::open_private(&lock).expect("a daemon was there");
    until("the folder is released", async || lock.try_lock().is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_start_creates_the_unit() {
    let site = Site::new();
    let controller = Controller::start(&site);
    let service = start(&site).await.expect("started");
    let url = service.url().to_owned();
    assert_eq!(controller.requested_urls(), [None, Some(url)]);
    let marker = FolderUnit::identify(&site.world, &site.folder.path().join("d/unit"));
    let marker = marker.expect("a unit");
    assert_eq!((marker.cluster, marker.unit), (CLUSTER, UNIT));
    assert_eq!(marker.owner.expect("claimed").generation, 1);
    let kept = site.folder.path().join("d/cluster.json");
    assert_eq!(host::mode_for_others(&kept).expect("kept"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn later_starts_need_no_controller() {
    let site = Site::new();
    let controller = Controller::start(&site);
    let service = start(&site).await.expect("started");
    let unit = remote(&site, &service);
    as_host(move || {
        put(&unit, 10, 0).expect("put");
        unit.sync(&[segment(10)]).expect("synced");
    })
    .await;
    service.shut_down().await;
    assert_eq!(service.reasons().await, ["it is shutting down"]);
    drop(service);

    controller.stop(&site);
    let service = start(&site).await.expect("it knows its cluster");
    let unit = remote(&site, &service);
    let found = as_host(move || read(&unit, 10)).await;
    assert_eq!(found.expect("read"), [10; 512]);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_and_refusals_are_measured() {
    let site = Site::new();
    let _controller = Controller::start(&site);
    let service = start(&site).await.expect("started");
    let unit = remote(&site, &service);
    let unit = as_host(move || {
        put(&unit, 10, 0).expect("put");
        unit.sync(&[segment(10)]).expect("synced");
        put(&unit, 10, 5).expect_err("it does not continue it");
        read(&unit, 10).expect("read");
        unit
    });
    drop(unit.await);
    let text = service.measure().await.whole();
    let took = "scree_daemon_request_duration_seconds_count";
    for line in [
        format!("{took}{{verb=\"put\"}} 2"),
        format!("{took}{{verb=\"sync\"}} 1"),
        format!("{took}{{verb=\"read\"}} 1"),
        format!("{took}{{verb=\"hello\"}} 1"),
        "scree_daemon_transferred_bytes_total{direction=\"written\"} 512".to_owned(),
        "scree_daemon_transferred_bytes_total{direction=\"read\"} 512".to_owned(),
        "scree_daemon_refusals_total{status=\"misplaced\"} 1".to_owned(),
        "scree_daemon_connections_max 16.0".to_owned(),
        "scree_daemon_unit_state{state=\"healthy\"} 1.0".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    service.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_needs_a_controller_that_accepts_the_unit() {
    let site = Site::new();
    let error = refused(&site).await;
    assert!(matches!(error, StartError::NoController { .. }), "{error}");
    let controller = Controller::start(&site);
    let says_no = |status| *controller.answer.lock().expect("no panic") = Err(status);
    says_no(StatusCode::BAD_GATEWAY);
    let error = refused(&site).await;
    assert!(matches!(error, StartError::NoController { .. }), "{error}");
    says_no(StatusCode::FORBIDDEN);
    let error = refused(&site).await;
    assert!(matches!(error, StartError::Refused(_)), "{error}");
    assert!(error.to_string().contains("not so"), "{error}");
    assert!(!host::is_folder(&site.folder.path().join("d/unit")));
}

/// Such a daemon reported that it was ready, although hosts had another address for its unit.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_no_controller_accepts_does_not_start() {
    let site = Site::new();
    let controller = Controller::start(&site);
    controller.refuses_urls.store(true, Ordering::SeqCst);
    let error = refused(&site).await;
    assert!(matches!(error, StartError::ReportRefused { .. }), "{error}");
    controller.refuses_urls.store(false, Ordering::SeqCst);
    start(&site).await.expect("started").shut_down().await;
    let requests = controller.requests.lock().expect("no panic").clone();
    let places: Vec<_> = requests
        .iter()
        .filter_map(|request| request.folder.clone())
        .collect();
    assert_eq!(places.len(), 2);
    assert_eq!(places[0], places[1], "drawn for the folder");
}

/// A copy of a data directory is not the original.
#[tokio::test(flavor = "multi_thread")]
async fn a_copied_folder_counts_as_another_location() {
    let site = Site::new();
    let controller = Controller::start(&site);
    let place = async || {
        start(&site).await.expect("started").shut_down().await;
        let requests = controller.requests.lock().expect("no panic");
        let last = requests
            .iter()
            .rev()
            .find_map(|request| request.folder.clone());
        last.expect("it reported one")
    };
    let first = place().await;
    assert_eq!(place().await, first);
    let mut shell = Command::new("sh");
    shell.args(["-ec", "cp -a d copy; rm -r d; mv copy d"]);
    let copied = shell.current_dir(site.folder.path()).status();
    assert!(copied.expect("sh runs").success());
    let second = place().await;
    assert_ne!(second, first);
    assert_eq!(place().await, second);
}

/// The daemon wrote its configuration again only after another change.
#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_could_not_be_written_is_written_as_soon_as_possible() {
    let site = Site::new();
    let controller = Controller::start(&site);
    let service = start(&site).await.expect("started");
    let _run = tokio::spawn({
        let service = service.clone();
        async move { service.run().await }
    });
    let kept = site.folder.path().join("d/cluster.json");
    let disk = &site.world.disk;
    disk.remove(&kept).expect("removed");
    disk.create_directory(&kept).expect("in its place");
    controller.change_answer(|cluster| {
        cluster.units.push(HostUnit {
            id: UNIT,
            url: service.url().to_owned(),
            is_disabled: false,
        });
    });
    let count = controller.requested_urls().len();
    until("a controller got further requests", async || {
        controller.requested_urls().len() > count + 2
    })
    .await;
    disk.rename(&kept, &site.folder.path().join("aside"))
        .expect("moved away");
    until("it is kept", async || {
        let text = host::read_small(&**disk, &kept, 1 << 20).unwrap_or_default();
        String::from_utf8_lossy(&text).contains(service.url())
    })
    .await;
}

/// With an empty folder in its place, all its data would seem lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_is_not_mounted_is_not_created_again() {
    let site = Site::new();
    let _controller = Controller::start(&site);
    start(&site).await.expect("started").shut_down().await;
    let unit = site.folder.path().join("d/unit");
    let disk = &site.world.disk;
    disk.rename(&unit, &site.folder.path().join("elsewhere"))
        .expect("renamed");
    disk.create_directory(&unit).expect("a mount point");
    let error = refused(&site).await;
    assert!(
        matches!(
            error,
            StartError::Unit {
                source: UnitError::Missing { .. },
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("mount it"), "{error}");
    assert!(disk.list(&unit).expect("listed").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_of_another_cluster_is_ignored() {
    let site = Site::new();
    let controller = Controller::start(&site);
    let service = start(&site).await.expect("started");
    let run = tokio::spawn({
        let service = service.clone();
        async move { service.run().await }
    });
    let is_ready = async || service.reasons().await.is_empty();
    until("it is heard", is_ready).await;
    controller.change_answer(|cluster| {
        cluster.id = ClusterId::from_u128(9);
        cluster.keys.clear();
    });
    until("its configuration is ignored", async || !is_ready().await).await;
    let unit = remote(&site, &service);
    as_host(move || put(&unit, 10, 0))
        .await
        .expect("the keys are as they were");
    controller.change_answer(|cluster| cluster.id = CLUSTER);
    until("it is heard", is_ready).await;
    stopped(&site, service, run).await;
    // Nor at a start.
    controller.change_answer(|cluster| cluster.unit = base::UnitId::from_u128(9));
    let error = refused(&site).await;
    assert!(
        matches!(
            error,
            StartError::Rejected {
                source: ConfigRejected::Unit { .. },
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn new_keys_the_time_and_new_certificates_are_applied() {
    let site = Site::new();
    let controller = Controller::start(&site);
    let other = SigningKey::derive(b"another cluster's").verifying_key();
    controller.change_answer(|cluster| cluster.keys = vec![PublicKey(other.0)]);
    let (settings, renew) = settings(&site);
    let wrong = site.party(Kind::Unit, "u1", &["unit-00000000000000009".to_owned()]);
    renew.send_replace(profile(&site, &wrong));
    let service = Service::start(site.world.clone(), settings).await;
    let service = service.expect("started");
    let _run = tokio::spawn({
        let service = service.clone();
        async move { service.run().await }
    });
    let at = endpoint_of_url(service.url()).expect("a daemon's URL");
    let unit = site.unit(&site.host("h1"), UNIT, std::slice::from_ref(&at), &[]);
    let why = as_host(move || why_not(&unit)).await;
    assert!(why.contains("not valid for name"), "{why}");

    renew.send_replace(own_profile(&site));
    let ahead = Millis(site.world.clock.wall().0 + 3_600_000);
    controller.change_answer(|cluster| {
        cluster.keys = vec![PublicKey(verifying_key().0)];
        cluster.now = ahead;
    });
    until("the clocks are an hour apart", async || {
        let text = service.measure().await.whole();
        text.contains("\nscree_daemon_clock_offset_seconds 3")
    })
    .await;
    let host = Arc::new(site.host("h1"));
    until("the new certificate is presented", async || {
        let unit = site.unit(&host, UNIT, std::slice::from_ref(&at), &[]);
        as_host(move || unit.probe()).await.is_ok()
    })
    .await;
    let unit = remote(&site, &service);
    as_host(move || put(&unit, 10, 0)).await.expect("put");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_for_other_daemons_are_forwarded_to_the_addresses_from_controllers() {
    let site = Site::new();
    let controller = Controller::start(&site);
    let service = start(&site).await.expect("started");
    let _run = tokio::spawn({
        let service = service.clone();
        async move { service.run().await }
    });
    let (far_id, host) = (base::UnitId::from_u128(9), Arc::new(site.host("h1")));
    let far = site.server(far_id);
    let at = endpoint_of_url(service.url()).expect("a daemon's URL");
    let probe = async || {
        let unit = site.unit(&host, far_id, std::slice::from_ref(&at), &[]);
        as_host(move || unit.probe()).await
    };
    probe().await.expect_err("its address is unknown");
    let Endpoint::Tcp(address) = *far.endpoint() else {
        panic!("it listens at a TCP address");
    };
    controller.change_answer(|cluster| {
        cluster.units.push(HostUnit {
            id: far_id,
            url: url_of_address(address),
            is_disabled: false,
        });
    });
    until("it is passed on", async || probe().await.is_ok()).await;
}

/// For half a minute, a host that requested a new unit was told that its address was unknown.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_asks_controllers_at_once_for_an_unknown_unit() {
    let site = Site::new();
    let controller = Controller::start(&site);
    let (mut settings, _renew) = settings(&site);
    settings.report_every = Duration::from_secs(24 * 60 * 60);
    let service = Service::start(site.world.clone(), settings).await;
    let service = service.expect("started");
    let _run = tokio::spawn({
        let service = service.clone();
        async move { service.run().await }
    });
    let asked = controller.requested_urls().len();
    let host = Arc::new(site.host("h1"));
    let at = endpoint_of_url(service.url()).expect("a daemon's URL");
    let unknown = site.unit(&host, base::UnitId::from_u128(9), &[at], &[]);
    let probed = as_host(move || unknown.probe()).await;
    assert!(probed.is_err(), "its address is unknown");
    until("it asks", async || {
        controller.requested_urls().len() > asked
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_has_one_daemon_and_its_unit_one_owner() {
    let site = Site::new();
    let _controller = Controller::start(&site);
    let service = start(&site).await.expect("started");
    let error = refused(&site).await;
    assert!(
        matches!(error, StartError::Folder(FolderError::Locked { .. })),
        "{error}"
    );
    service.shut_down().await;

    let site = Site::new();
    let _controller = Controller::start(&site);
    let unit = site.folder.path().join("d/unit");
    host::make_folders(&*site.world.disk, unit.parent().expect("d")).expect("made");
    let other = base::UnitId::from_u128(9);
    FolderUnit::create(&site.world, &unit, CLUSTER, other).expect("made");
    let error = refused(&site).await;
    assert!(
        matches!(
            error,
            StartError::Unit {
                source: UnitError::Foreign { .. },
                ..
            }
        ),
        "{error}"
    );
    let kept = site.folder.path().join("d/cluster.json");
    assert!(host::mode(&kept).is_err(), "nothing is kept");
}

/// A daemon was joined again in a new folder, and hosts took the empty unit for the full one.
#[tokio::test(flavor = "multi_thread")]
async fn an_existing_unit_of_the_cluster_is_not_created_again() {
    let site = Site::new();
    let controller = Controller::start(&site);
    controller.change_answer(|cluster| {
        cluster.units.push(HostUnit {
            id: UNIT,
            url: "scree://10.0.0.9:7070".to_owned(),
            is_disabled: false,
        });
    });
    let error = refused(&site).await;
    assert!(
        matches!(error, StartError::MadeElsewhere { unit: UNIT, .. }),
        "{error}"
    );
    // In the folder where the unit was created it starts, even if other files there are lost.
    let unit = site.folder.path().join("d/unit");
    FolderUnit::create(&site.world, &unit, CLUSTER, UNIT).expect("made");
    start(&site).await.expect("started");
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_get_an_address_that_they_can_reach() {
    let site = Site::new();
    let controller = Controller::start(&site);
    let begin = async |listen: &str, address: Option<&str>| {
        let (mut settings, _renew) = settings(&site);
        settings.listen = listen.parse().expect("an address");
        settings.address = address.map(|address| address.parse().expect("an address"));
        let service = Service::start(site.world.clone(), settings).await?;
        let url = service.url().to_owned();
        service.shut_down().await;
        Ok::<_, StartError>(url)
    };
    let nowhere = begin("0.0.0.0:0", None).await.expect_err("nowhere");
    assert!(nowhere.to_string().contains("--address"), "{nowhere}");
    for bad in ["0.0.0.0:7070", "10.0.0.1:0"] {
        let error = begin("127.0.0.1:0", Some(bad)).await.expect_err("nowhere");
        assert!(matches!(error, StartError::BadAddress { .. }), "{error}");
    }
    assert_eq!(controller.requested_urls(), []);
    let url = begin("0.0.0.0:0", Some("10.0.0.1:7070")).await;
    assert_eq!(url.expect("started"), "scree://10.0.0.1:7070");
}

/// Hosts use the daemon until its certificate expires, also after restarts.
#[tokio::test(flavor = "multi_thread")]
async fn a_disabled_daemon_starts_with_its_last_configuration() {
    let site = Site::new();
    let controller = Controller::start(&site);
    start(&site).await.expect("started").shut_down().await;
    *controller.answer.lock().expect("no panic") = Err(StatusCode::UNAUTHORIZED);
    let service = start(&site).await.expect("it knows its cluster");
    let unit = remote(&site, &service);
    as_host(move || put(&unit, 10, 0)).await.expect("put");
}
