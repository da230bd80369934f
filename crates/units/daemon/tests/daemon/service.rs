//! A daemon as a process has it, and a controller that says what it is told to.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::host::{HostUnit, Owner};
use api::types::Problem;
use api::unit::{BeginUnit, PublicKey, UnitCluster};
use api::{Client, Profile};
use auth::Kind;
use auth::SigningKey;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use base::{ClusterId, DatabaseId};
use metrics::Part as _;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use unit::{Unit as _, UnitError};
use unit_daemon::{ConfigRejected, FolderError, Service, Settings, StartError, UndeletePolicy};
use unit_folder::FolderUnit;
use unit_remote::RemoteUnit;
use unit_remote::{endpoint_of_url, url_of_address};
use world::{Endpoint, Millis, host};

use crate::inside::{CLUSTER, UNIT, verifying_key, whole_lease};
use crate::site::{Party, Site, put, read, segment, why_not};

/// What the controller says: the cluster, or a status.
type Answer = Arc<Mutex<Result<UnitCluster, StatusCode>>>;

fn problem(status: StatusCode) -> Problem {
    Problem {
        kind: String::new(),
        title: String::new(),
        status: status.as_u16(),
        detail: "not so".to_owned(),
        code: String::new(),
        field: None,
    }
}

pub struct Controller {
    answer: Answer,
    asked: Arc<Mutex<Vec<BeginUnit>>>,
    /// It takes no daemon in, wherever that is.
    refuses_urls: Arc<AtomicBool>,
    socket: PathBuf,
    task: JoinHandle<()>,
}

impl Controller {
    pub fn start(site: &Site) -> Self {
        let cluster = UnitCluster {
            id: CLUSTER,
            unit: UNIT,
            owner: Owner {
                database: DatabaseId::from_u128(1),
                generation: 1,
                location: "c1".to_owned(),
            },
            takes_over: false,
            authority: site.authority.certificate_pem().to_owned(),
            keys: vec![PublicKey(verifying_key().0)],
            units: Vec::new(),
            now: site.world.clock.wall(),
        };
        let answer: Answer = Arc::new(Mutex::new(Ok(cluster)));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let refuses_urls = Arc::new(AtomicBool::new(false));
        let handler = {
            let (answer, asked) = (Arc::clone(&answer), Arc::clone(&asked));
            let refuses_urls = Arc::clone(&refuses_urls);
            move |Json(begin): Json<BeginUnit>| async move {
                let is_refused = begin.url.is_some() && refuses_urls.load(Ordering::SeqCst);
                asked.lock().expect("no panic").push(begin);
                let mut answer = answer.lock().expect("no panic").clone();
                if is_refused {
                    answer = Err(StatusCode::CONFLICT);
                }
                answer
                    .map(Json)
                    .map_err(|status| (status, Json(problem(status))))
            }
        };
        let router = Router::new().route("/v1/unit/begin", post(handler));
        let socket = site.folder.path().join("api.sock");
        #[expect(
            clippy::disallowed_methods,
            reason = "a controller is none of the daemon's world"
        )]
        let listener = UnixListener::bind(&socket).expect("a free name");
        let task = tokio::spawn(async { axum::serve(listener, router).await.expect("served") });
        Self {
            answer,
            asked,
            refuses_urls,
            socket,
            task,
        }
    }

    /// Says something else from now on.
    fn says(&self, change: impl FnOnce(&mut UnitCluster)) {
        let mut answer = self.answer.lock().expect("no panic");
        change(answer.as_mut().expect("it said something"));
    }

    fn asked(&self) -> Vec<Option<String>> {
        let asked = self.asked.lock().expect("no panic");
        asked.iter().map(|begin| begin.url.clone()).collect()
    }

    /// Stops answering.
    fn stop(self, site: &Site) {
        self.task.abort();
        site.world.disk.remove(&self.socket).expect("removed");
    }
}

/// What `party` has in its D.
fn profile(site: &Site, party: &Party) -> Arc<Profile> {
    let text = format!(
        "urls = [\"https://c1\"]\nsubject = \"scree://unit/u1\"\nexpires = \"\"\n\
         authority = '''{}'''\ncertificate = '''{}'''\nkey = '''{}'''\n",
        site.authority.certificate_pem(),
        party.chain_pem,
        party.key_pem
    );
    let path = site.folder.path().join("identity.toml");
    host::write_whole(&*site.world.disk, &path, text.as_bytes()).expect("written");
    Arc::new(Profile::read(&site.world, &path).expect("a profile"))
}

fn own_profile(site: &Site) -> Arc<Profile> {
    profile(site, &site.party(Kind::Unit, "u1", &[UNIT.to_string()]))
}

pub fn settings(site: &Site) -> (Settings, watch::Sender<Arc<Profile>>) {
    let (renew, profile) = watch::channel(own_profile(site));
    let settings = Settings {
        folder: site.folder.path().join("d"),
        listen: "127.0.0.1:0".parse().expect("an address"),
        address: None,
        client: Client::unix(&site.folder.path().join("api.sock")),
        profile,
        connections_max: 16,
        undelete: UndeletePolicy::default(),
        report_every: Duration::from_millis(20),
    };
    (settings, renew)
}

pub async fn start(site: &Site) -> Result<Service, StartError> {
    start_with(site, settings(site).0).await
}

pub async fn start_with(site: &Site, settings: Settings) -> Result<Service, StartError> {
    Service::start(site.world.clone(), settings).await
}

async fn refused(site: &Site) -> StartError {
    match start(site).await {
        Ok(_) => panic!("it has started"),
        Err(error) => error,
    }
}

/// The unit as a host has it that may do everything.
pub fn remote(site: &Site, service: &Service) -> RemoteUnit {
    let at = endpoint_of_url(service.url()).expect("a daemon's URL");
    site.unit(&site.host("h1"), UNIT, &[at], &[whole_lease(1)])
}

/// What hosts do, off the runtime's thread.
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

/// What a running daemon has begun beside it may outlive it for a moment, and has its
/// folder as long.
async fn stopped(site: &Site, service: Service, run: JoinHandle<()>) {
    run.abort();
    run.await.expect_err("it runs until it is stopped");
    service.shut_down().await;
    drop(service);
    let lock = site.folder.path().join("d/unit.lock");
    let lock = host::open_private(&lock).expect("a daemon was there");
    until("the folder is let go", async || lock.try_lock().is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_start_creates_the_unit_and_later_ones_need_no_controller() {
    let site = Site::new();
    let controller = Controller::start(&site);
    let service = start(&site).await.expect("started");
    let url = service.url().to_owned();
    assert_eq!(controller.asked(), [None, Some(url)]);
    let marker = FolderUnit::identify(&site.world, &site.folder.path().join("d/unit"));
    let marker = marker.expect("a unit");
    assert_eq!((marker.cluster, marker.unit), (CLUSTER, UNIT));
    assert_eq!(marker.owner.expect("claimed").generation, 1);
    let kept = site.folder.path().join("d/cluster.json");
    assert_eq!(host::mode_for_others(&kept).expect("kept"), None);

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
    assert_eq!(service.reasons().await, ["it is shutting down"]);
    drop(service);

    controller.stop(&site);
    let service = start(&site).await.expect("it knows its cluster");
    let unit = remote(&site, &service);
    let found = as_host(move || read(&unit, 10)).await;
    assert_eq!(found.expect("read"), [10; 512]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_needs_a_controller_that_lets_it_begin() {
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

/// It said that it was ready, and hosts looked for it elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_no_controller_takes_in_does_not_start() {
    let site = Site::new();
    let controller = Controller::start(&site);
    controller.refuses_urls.store(true, Ordering::SeqCst);
    let error = refused(&site).await;
    assert!(matches!(error, StartError::ReportRefused { .. }), "{error}");
    controller.refuses_urls.store(false, Ordering::SeqCst);
    start(&site).await.expect("started").shut_down().await;
    let asked = controller.asked.lock().expect("no panic").clone();
    let places: Vec<_> = asked.iter().filter_map(|one| one.folder.clone()).collect();
    assert_eq!(places.len(), 2);
    assert_eq!(places[0], places[1], "drawn for the folder");
}

/// A copy of a data directory is not the original.
#[tokio::test(flavor = "multi_thread")]
async fn a_copied_folder_is_another_place() {
    let site = Site::new();
    let controller = Controller::start(&site);
    let place = async || {
        start(&site).await.expect("started").shut_down().await;
        let asked = controller.asked.lock().expect("no panic");
        let last = asked.iter().rev().find_map(|one| one.folder.clone());
        last.expect("it said so")
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

/// It was kept again only when something else had changed.
#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_kept_is_kept_as_soon_as_that_can_be() {
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
    controller.says(|cluster| {
        cluster.units.push(HostUnit {
            id: UNIT,
            url: service.url().to_owned(),
            is_disabled: false,
        });
    });
    let count = controller.asked().len();
    until("it was told", async || controller.asked().len() > count + 2).await;
    disk.rename(&kept, &site.folder.path().join("aside"))
        .expect("moved away");
    until("it is kept", async || {
        let text = host::read_small(&**disk, &kept, 1 << 20).unwrap_or_default();
        String::from_utf8_lossy(&text).contains(service.url())
    })
    .await;
}

/// An empty folder in its place would look as if everything on it were lost.
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
    controller.says(|cluster| {
        cluster.id = ClusterId::from_u128(9);
        cluster.keys.clear();
    });
    until("its configuration is ignored", async || !is_ready().await).await;
    let unit = remote(&site, &service);
    as_host(move || put(&unit, 10, 0))
        .await
        .expect("the keys are as they were");
    controller.says(|cluster| cluster.id = CLUSTER);
    until("it is heard", is_ready).await;
    stopped(&site, service, run).await;
    // Nor at a start.
    controller.says(|cluster| cluster.unit = base::UnitId::from_u128(9));
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
async fn new_keys_the_time_and_new_certificates_are_taken_into_use() {
    let site = Site::new();
    let controller = Controller::start(&site);
    let other = SigningKey::derive(b"another cluster's").verifying_key();
    controller.says(|cluster| cluster.keys = vec![PublicKey(other.0)]);
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
    controller.says(|cluster| {
        cluster.keys = vec![PublicKey(verifying_key().0)];
        cluster.now = ahead;
    });
    until("the clocks are an hour apart", async || {
        let text = service.measure().await.whole();
        text.contains("\nscree_daemon_clock_offset_seconds 3")
    })
    .await;
    let host = Arc::new(site.host("h1"));
    until("the new certificate is shown", async || {
        let unit = site.unit(&host, UNIT, std::slice::from_ref(&at), &[]);
        as_host(move || unit.probe()).await.is_ok()
    })
    .await;
    let unit = remote(&site, &service);
    as_host(move || put(&unit, 10, 0)).await.expect("put");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_for_other_daemons_are_passed_on_where_controllers_say() {
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
    controller.says(|cluster| {
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
async fn for_a_unit_that_it_does_not_know_a_daemon_asks_at_once() {
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
    let asked = controller.asked().len();
    let host = Arc::new(site.host("h1"));
    let at = endpoint_of_url(service.url()).expect("a daemon's URL");
    let unknown = site.unit(&host, base::UnitId::from_u128(9), &[at], &[]);
    let probed = as_host(move || unknown.probe()).await;
    assert!(probed.is_err(), "its address is unknown");
    until("it asks", async || controller.asked().len() > asked).await;
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

/// Its daemon was joined once more, in a new folder: hosts took the empty unit for
/// the full one.
#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_the_cluster_has_is_not_created_again() {
    let site = Site::new();
    let controller = Controller::start(&site);
    controller.says(|cluster| {
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
    // In the folder that it was made in it starts, whatever else is lost there.
    let unit = site.folder.path().join("d/unit");
    FolderUnit::create(&site.world, &unit, CLUSTER, UNIT).expect("made");
    start(&site).await.expect("started");
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_are_told_an_address_that_they_can_reach() {
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
    assert_eq!(controller.asked(), []);
    let url = begin("0.0.0.0:0", Some("10.0.0.1:7070")).await;
    assert_eq!(url.expect("started"), "scree://10.0.0.1:7070");
}

/// Hosts go on with it until its certificate ends, whatever it dies of meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_disabled_starts_with_what_it_knew() {
    let site = Site::new();
    let controller = Controller::start(&site);
    start(&site).await.expect("started").shut_down().await;
    *controller.answer.lock().expect("no panic") = Err(StatusCode::UNAUTHORIZED);
    let service = start(&site).await.expect("it knows its cluster");
    let unit = remote(&site, &service);
    as_host(move || put(&unit, 10, 0)).await.expect("put");
}
