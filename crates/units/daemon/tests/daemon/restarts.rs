//! Restarts of a daemon and of its connections: a sync covers no put of an earlier run, and no late
//! request changes anything.

use std::sync::Arc;

use auth::Scope;
use base::Slot;
use unit::{Unit as _, UnitError};
use unit_daemon::Keeper;
use unit_remote::RemoteUnit;

use crate::inside::{HOST, capability, keeper, key, unit_of};
use crate::rights::{OTHER_HOST, Scene, is_refused, lease, put, read, segment};

/// Puts that were not synced before a restart of the daemon may be lost, so no later sync reports
/// them as durable.
#[test]
fn what_was_put_before_a_restart_is_not_synced_after_it() {
    let scene = Scene::new();
    let scopes = [lease(7, 1, 3, 10..20)];
    let link = Restarting::new(&scene, &scopes);
    let unit = RemoteUnit::new("scree://there".to_owned(), Arc::clone(&link) as _);
    put(&unit, segment(12), 0).expect("put");
    put(&unit, segment(13), 0).expect("put");
    unit.sync(&[segment(13)]).expect("in the same life");
    link.restart(&scene, &scopes);
    let lost = unit.sync(&[segment(12)]).expect_err("in another");
    assert!(matches!(lost, UnitError::Restarted { .. }), "{lost}");
    unit.sync(&[segment(13)]).expect("it was synced before");
    put(&unit, segment(12), 1).expect("put");
    let lost = unit.sync(&[segment(12)]).expect_err("in two");
    assert!(matches!(lost, UnitError::Restarted { .. }), "{lost}");
    put(&unit, segment(14), 0).expect("put");
    unit.sync(&[segment(14)]).expect("in this one alone");
}

/// The repairer synced a segment to which the engine put something in that moment, and then
/// the daemon's machine lost that: the engine's own sync said that all was well.
#[test]
fn what_was_put_during_a_sync_is_not_synced_after_a_restart() {
    let scene = Scene::new();
    let scopes = [lease(7, 1, 3, 10..20)];
    let link = Arc::new(BeforeSync {
        link: Restarting::new(&scene, &scopes),
        meanwhile: std::sync::Mutex::default(),
    });
    let unit = RemoteUnit::new("scree://there".to_owned(), Arc::clone(&link) as _);
    let unit = Arc::new(unit);
    put(&*unit, segment(12), 0).expect("put");
    let other = Arc::clone(&unit);
    let meanwhile = move || put(&*other, segment(12), 1).expect("put");
    *link.meanwhile.lock().expect("no panic") = Some(Box::new(meanwhile));
    unit.sync(&[segment(12)]).expect("what was put before");
    link.link.restart(&scene, &scopes);
    let lost = unit.sync(&[segment(12)]).expect_err("in another life");
    assert!(matches!(lost, UnitError::Restarted { .. }), "{lost}");
}

/// A link on which something is done just before a SYNC is sent.
struct BeforeSync {
    link: Arc<Restarting>,
    meanwhile: std::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl unit_remote::Link for BeforeSync {
    fn send(&self, request: &unit_wire::Request<'_>, done: unit_remote::Done) {
        if matches!(request, unit_wire::Request::Sync { .. }) {
            let meanwhile = self.meanwhile.lock().expect("no panic").take();
            meanwhile.into_iter().for_each(|meanwhile| meanwhile());
        }
        self.link.send(request, done);
    }
}

/// A repairer's connection broke while it deleted an unreadable segment. On the next connection
/// it deleted and put it again, and then the daemon carried out the first delete: a member that
/// was in sync had lost the segment.
#[test]
fn what_comes_late_on_an_older_connection_changes_nothing() {
    let repair = |scene: &Scene| Scope::Repair {
        copysets: vec![segment(10).copyset()],
        units: vec![scene.keeper.id()],
    };
    for is_leased in [true, false] {
        let scene = Scene::new();
        let scopes = match is_leased {
            true => vec![lease(7, 1, 3, 10..20), repair(&scene)],
            false => vec![repair(&scene)],
        };
        let holder = if is_leased { HOST } else { OTHER_HOST };
        let before = unit_of(&scene.keeper, holder, &scopes);
        let after = unit_of(&scene.keeper, holder, &scopes);
        for (what, done) in [
            ("delete", before.delete(segment(10))),
            ("free", before.free(segment(10), &[Slot(0)], true)),
            ("put", put(&before, segment(15), 0)),
            ("sync", before.sync(&[segment(10)])),
        ] {
            assert!(is_refused(&done), "{what}: {done:?}");
        }
        read(&before, segment(10)).expect("a read is harmless");
        put(&after, segment(15), 0).expect("it is the newest");
        after.delete(segment(10)).expect("it is the newest");
    }
}

/// A link to a daemon that is restarted.
struct Restarting(std::sync::Mutex<Arc<crate::inside::Inside>>);

impl Restarting {
    fn new(scene: &Scene, scopes: &[Scope]) -> Arc<Self> {
        let link = Self::connect(&scene.keeper, scopes);
        Arc::new(Self(std::sync::Mutex::new(link)))
    }

    fn connect(keeper: &Arc<Keeper>, scopes: &[Scope]) -> Arc<crate::inside::Inside> {
        let link = crate::inside::Inside::connect(Arc::clone(keeper), HOST);
        let unit = RemoteUnit::new(String::new(), Arc::clone(&link) as _);
        for scope in scopes {
            let signed = key().sign(&capability(HOST, scope.clone()));
            unit.present(&signed.0).expect("accepted");
        }
        link
    }

    fn restart(&self, scene: &Scene, scopes: &[Scope]) {
        *self.0.lock().expect("no panic") = Self::connect(&keeper(&scene.world), scopes);
    }
}

impl unit_remote::Link for Restarting {
    fn send(&self, request: &unit_wire::Request<'_>, done: unit_remote::Done) {
        let link = Arc::clone(&self.0.lock().expect("no panic"));
        link.send(request, done);
    }
}
