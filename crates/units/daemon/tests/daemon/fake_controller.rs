//! A controller that gives a daemon the answers that a test has set, and a daemon that uses it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::host::Owner;
use api::types::Problem;
use api::unit::{BeginUnit, PublicKey, UnitCluster};
use api::{Client, Profile};
use auth::Kind;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use base::DatabaseId;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use unit_daemon::{Service, Settings, StartError, UndeletePolicy};
use unit_remote::RemoteUnit;
use unit_remote::endpoint_of_url;
use world::host;

use crate::inside::{CLUSTER, UNIT, verifying_key, whole_lease};
use crate::site::{Party, Site};

/// The answer of the controller: the cluster, or a status.
type Answer = Arc<Mutex<Result<UnitCluster, StatusCode>>>;

fn problem(status: StatusCode) -> Problem {
    Problem {
        kind: String::new(),
        title: String::new(),
        status: status.as_u16(),
        detail: "not so".to_owned(),
        code: String::new(),
        field: None,
        request_id: None,
    }
}

pub struct Controller {
    pub answer: Answer,
    /// The requests of daemons so far.
    pub requests: Arc<Mutex<Vec<BeginUnit>>>,
    /// Whether it refuses every daemon that reports a URL.
    pub refuses_urls: Arc<AtomicBool>,
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
        let requests = Arc::new(Mutex::new(Vec::new()));
        let refuses_urls = Arc::new(AtomicBool::new(false));
        let handler = {
            let (answer, requests) = (Arc::clone(&answer), Arc::clone(&requests));
            let refuses_urls = Arc::clone(&refuses_urls);
            move |Json(begin): Json<BeginUnit>| async move {
                let is_refused = begin.url.is_some() && refuses_urls.load(Ordering::SeqCst);
                requests.lock().expect("no panic").push(begin);
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
            requests,
            refuses_urls,
            socket,
            task,
        }
    }

    /// Changes the cluster that it answers from now on.
    pub fn change_answer(&self, change: impl FnOnce(&mut UnitCluster)) {
        let mut answer = self.answer.lock().expect("no panic");
        change(answer.as_mut().expect("it answers with a cluster"));
    }

    /// The URLs in the requests so far.
    pub fn requested_urls(&self) -> Vec<Option<String>> {
        let requests = self.requests.lock().expect("no panic");
        requests.iter().map(|begin| begin.url.clone()).collect()
    }

    /// Stops answering.
    pub fn stop(self, site: &Site) {
        self.task.abort();
        site.world.disk.remove(&self.socket).expect("removed");
    }
}

/// The identity of `party` in its data directory.
pub fn profile(site: &Site, party: &Party) -> Arc<Profile> {
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

pub fn own_profile(site: &Site) -> Arc<Profile> {
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

pub async fn refused(site: &Site) -> StartError {
    match start(site).await {
        Ok(_) => panic!("it has started"),
        Err(error) => error,
    }
}

/// The unit, as it is used by a host with all rights.
pub fn remote(site: &Site, service: &Service) -> RemoteUnit {
    let at = endpoint_of_url(service.url()).expect("a daemon's URL");
    site.unit(&site.host("h1"), UNIT, &[at], &[whole_lease(1)])
}
