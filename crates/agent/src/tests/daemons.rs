//! Units of daemons: a host uses them with capabilities that controllers have signed.

use std::path::PathBuf;
use std::sync::Arc;

use api::host::CapabilityRequest;
use api::unit::{BeginUnit, UnitCluster};
use auth::VerifyingKey;
use auth::{Credentials, KeyRequest, Kind, ServerTls, Subject};
use base::{PartyId, SegmentId, UnitId};
use control::http::Caller;
use unit::{Unit as _, UnitError};
use unit_daemon::{Keeper, KeeperConfig, Limits, Server, ServerConfig};
use unit_folder::FolderUnit;
use world::real::RealClock;
use world::{Clock as _, Endpoint, World};

use super::rig::{Rig, Scree, aside, eventually, small};
use super::{end, finish, reads, writes};

/// A unit daemon and its data.
struct Store {
    party: PartyId,
    cluster: UnitCluster,
    server: Server,
    folder: PathBuf,
    world: World,
}

impl Store {
    /// Starts a daemon that is registered with the controller and listens.
    async fn start(rig: &Rig, scree: &Scree, name: &str) -> Self {
        let parties = scree.control.parties();
        let principal = parties.local_principal().await.expect("there");
        let subject = Subject::new(Kind::Unit, name).expect("a name");
        let added = parties.add(&principal, subject.clone(), false, None).await;
        let party = added.expect("made").id;
        let (token, _) = parties.invite(&principal, &subject).await.expect("invited");
        let key = KeyRequest::generate().expect("a key");
        let token = token.reveal();
        let issued = parties.join(&Caller::Local, &token, &key.request_pem, None);
        let certificate = issued.await.expect("signed").certificate_pem;
        let here = BeginUnit::default();
        let cluster = scree.control.begin_unit(party, &here).await;
        let cluster = cluster.expect("known");
        let credentials = Credentials {
            chain_pem: &certificate,
            key_pem: &key.key_pem,
        };
        let tls = ServerTls::new(&cluster.authority, &[], credentials).expect("usable");
        let world = World {
            clock: Arc::clone(&rig.clock) as _,
            ..World::real(4)
        };
        let folder = rig.folder.path().join(name);
        let place = FolderUnit::create(&world, &folder, cluster.id, cluster.unit);
        let config = KeeperConfig {
            cluster: cluster.id,
            keys: cluster.keys.iter().map(|key| VerifyingKey(key.0)).collect(),
            generation: cluster.owner.generation,
        };
        let keeper = Keeper::open(&world, place.expect("made"), &folder, config);
        let config = ServerConfig {
            tls: Arc::new(tls),
            others: Arc::new(|_| None),
            limits: Limits::of(16),
        };
        let at = Endpoint::Tcp("127.0.0.1:0".parse().expect("an address"));
        let keepers = [Arc::new(keeper.expect("kept"))];
        let server = Server::open(&world, &at, keepers, config).expect("a free port");
        let store = Self {
            party,
            cluster,
            server,
            folder,
            world,
        };
        store.register(scree).await;
        store
    }

    fn id(&self) -> UnitId {
        self.cluster.unit
    }

    /// Registers its unit with the cluster.
    async fn register(&self, scree: &Scree) {
        let Endpoint::Tcp(address) = self.server.endpoint() else {
            panic!("it listens on TCP");
        };
        let url = Some(unit_remote::url_of_address(*address));
        let here = BeginUnit { url, folder: None };
        let told = scree.control.begin_unit(self.party, &here).await;
        told.expect("told");
    }

    /// The segments in its folder.
    fn segments(&self) -> Vec<SegmentId> {
        let (cluster, unit) = (self.cluster.id, self.cluster.unit);
        let place = FolderUnit::open(&self.world, &self.folder, cluster, unit);
        place.list().expect("listed")
    }

    /// Waits until the agent uses it and it is healthy.
    async fn is_used(&self, scree: &Scree) {
        let is_mounted = async || {
            let units = scree.agent.parts.storage.units.mounted();
            units.iter().any(|unit| unit.id == self.id()).then_some(())
        };
        eventually("the agent mounts the daemon", is_mounted).await;
        scree.agent.parts.storage.units.get_certificate().await;
        let is_well = async || {
            finish(scree.agent.parts.storage.units.probe(true)).await;
            let units = scree.agent.parts.storage.units.reports();
            let unit = units.iter().find(|unit| unit.id == self.id());
            let unit = unit.filter(|unit| unit.state == "healthy");
            unit?.segments.map(drop)
        };
        eventually("the daemon answers", is_well).await;
    }
}

/// A rig whose clock shows the machine's time, against which certificates are checked.
fn rig() -> Rig {
    let rig = Rig::new();
    let real = RealClock::default().wall();
    rig.clock.jump(real.0 - rig.clock.wall().0);
    rig
}

async fn three_copies(scree: &Scree) {
    let request = api::types::CreateVolume {
        replicas: Some(3),
        strict_zones: false,
        erasure: None,
        ..small("disk")
    };
    scree.control.volumes().create(request).await.expect("made");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_uses_a_daemon_and_leaves_nothing_there_when_it_is_deleted() {
    let rig = rig();
    let scree = rig.start().await;
    let store = Store::start(&rig, &scree, "store-1").await;
    store.is_used(&scree).await;
    three_copies(&scree).await;
    writes(&scree, 0, 7).await;
    assert!(!store.segments().is_empty(), "a copy is there");
    let status = scree.control.status().await.expect("answers");
    assert_eq!((status.degraded_blocks, status.problems.len()), (0, 0));

    // The host restarts, and finds the daemon again.
    end(scree).await;
    let scree = rig.start().await;
    store.is_used(&scree).await;
    writes(&scree, 1, 8).await;

    scree
        .control
        .volumes()
        .delete("disk")
        .await
        .expect("deleted");
    let removed = scree
        .agent
        .parts
        .maintenance
        .cleaning
        .remove_unneeded()
        .await;
    removed.expect("removed");
    scree
        .agent
        .parts
        .maintenance
        .cleaning
        .free_due()
        .await
        .expect("freed");
    assert_eq!(store.segments(), [], "swept and freed");
    end(scree).await;
}

/// All reads come from the daemon when no other unit has the blocks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_that_only_a_daemon_has_are_read_under_the_next_lease_too() {
    let rig = rig();
    let scree = rig.start().await;
    let store = Store::start(&rig, &scree, "store-1").await;
    store.is_used(&scree).await;
    three_copies(&scree).await;
    writes(&scree, 3, 9).await;
    end(scree).await;
    let units = rig.path().join("units");
    std::fs::rename(&units, rig.folder.path().join("away")).expect("renamed");

    let scree = rig.start().await;
    store.is_used(&scree).await;
    reads(&scree, "disk", 3, 9).await;
    end(scree).await;
}

/// A host with a certificate and without capabilities reads and changes nothing, and neither does a
/// fenced host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_refuses_what_no_controller_has_signed() {
    let rig = rig();
    let scree = rig.start().await;
    let store = Store::start(&rig, &scree, "store-1").await;
    store.is_used(&scree).await;
    three_copies(&scree).await;
    writes(&scree, 0, 7).await;
    let found = store.segments()[0];
    let row = scree
        .control
        .volumes()
        .get("disk")
        .await
        .expect("there")
        .row;

    // Another process of the same host, with a certificate and without capabilities.
    end(scree).await;
    let scree = rig.start().await;
    store.is_used(&scree).await;
    let place = {
        let units = scree.agent.parts.storage.units.mounted();
        let unit = units.iter().find(|unit| unit.id == store.id());
        Arc::clone(&unit.expect("mounted").unit)
    };
    let refused = aside({
        let place = Arc::clone(&place);
        move || {
            [
                place.stat_segment(found).map(drop),
                place.delete(found),
                place.free(found, &[base::Slot(0)], true),
                place.list().map(drop),
            ]
        }
    });
    for refused in refused.await {
        let refused = refused.expect_err("nothing was signed");
        assert!(matches!(refused, UnitError::NotAllowed { .. }), "{refused}");
    }
    // The controller does not sign for a volume that this host has lost, either.
    let (volume, epoch) = (row.id, row.epoch);
    let controller = &scree.agent.parts.foundation.controller;
    let requests = [
        CapabilityRequest::Lease { volume, epoch },
        CapabilityRequest::Sweep { volume },
    ];
    controller.obtain(&requests).await.expect("answered");
    let deleted = aside(move || place.delete(found)).await;
    let deleted = deleted.expect_err("nothing was signed");
    assert!(matches!(deleted, UnitError::NotAllowed { .. }), "{deleted}");
    assert!(store.segments().contains(&found));
    end(scree).await;
}
