//! A host may do on a unit only what controllers have signed for it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use auth::{Capability, Fence, Scope, SigningKey};
use base::{ClusterId, CopysetId, LineageTag, SegmentId, Slot};
use unit::{NOTE_BYTES, Put, Read, Replacement, SlotRun, Unit, UnitError};
use unit_daemon::Keeper;
use unit_remote::RemoteUnit;
use world::simulated::{Fault, Simulation};
use world::{Millis, World};

use crate::inside::{HOST, capability, keeper, keeper_anyhow, key, unit_of};

pub const OTHER_HOST: [u8; 32] = [2; 32];
pub const SLOT_BYTES: u32 = 512;

pub fn segment(serial: u64) -> SegmentId {
    let copyset = CopysetId::new((serial % 5) as u16).expect("under 4096");
    SegmentId::new(copyset, serial).expect("under 2^36")
}

pub fn lease(lineage_tag: u64, fence: u64, epoch: u32, serials: Range<u64>) -> Scope {
    Scope::Lease {
        lineage_tag: LineageTag(lineage_tag),
        fence: Fence(fence),
        epoch,
        serials: std::iter::once(serials).collect(),
    }
}

pub fn put(unit: &dyn Unit, segment: SegmentId, first: u16) -> Result<(), UnitError> {
    unit.put(Put {
        lineage_tag: LineageTag::NONE,
        segment,
        slot_bytes: SLOT_BYTES,
        first: Slot(first),
        tags: &[[5; 16]],
        data: &[9; 512],
    })
}

pub fn read(unit: &dyn Unit, segment: SegmentId) -> Result<(), UnitError> {
    let run = SlotRun {
        segment,
        first: Slot(0),
        count: 1,
    };
    unit.read(Read {
        run,
        slot_bytes: SLOT_BYTES,
        tags: &mut [[0; 16]],
        data: &mut [0; 512],
    })
}

/// The name of an attempt, and the attempt.
type Attempt = (
    &'static str,
    fn(&RemoteUnit, SegmentId) -> Result<(), UnitError>,
);

/// Everything that a host can try on a segment.
const ATTEMPTS: [Attempt; 12] = [
    ("put a new one", |unit, id| {
        let new = segment(id.serial() + 1000);
        put(unit, new, 0)
    }),
    ("append", |unit, id| put(unit, id, 1)),
    ("sync", |unit, id| unit.sync(&[id])),
    ("replace", |unit, id| {
        let by = Replacement {
            expected: Some(0),
            generation: 0,
            lineage_tag: LineageTag::NONE,
            slot_bytes: SLOT_BYTES,
            tags: &[[5; 16]],
            data: &[9; 512],
        };
        unit.replace(id, by)
    }),
    ("read", |unit, id| read(unit, id)),
    ("free", |unit, id| unit.free(id, &[Slot(0)], false)),
    ("free all", |unit, id| unit.free(id, &[Slot(0)], true)),
    ("delete", |unit, id| unit.delete(id)),
    ("list", |unit, _| unit.list().map(drop)),
    ("stat", |unit, id| unit.stat_segment(id).map(drop)),
    ("scrub", |unit, id| unit.scrub(id).map(drop)),
    ("note down", |unit, _| unit.write_note(&[99; NOTE_BYTES])),
];

pub fn is_refused(done: &Result<(), UnitError>) -> bool {
    matches!(done, Err(UnitError::NotAllowed { .. }))
}

/// A unit with a segment of one host: serial 10, lineage tag 7.
pub struct Scene {
    pub world: World,
    pub keeper: Arc<Keeper>,
    pub own: RemoteUnit,
}

impl Scene {
    pub fn new() -> Self {
        let world = Simulation::new(5).world();
        let keeper = keeper(&world);
        let own = unit_of(&keeper, HOST, &[lease(7, 1, 3, 10..20)]);
        put(&own, segment(10), 0).expect("its own");
        own.sync(&[segment(10)]).expect("its own");
        own.write_note(&[3; NOTE_BYTES]).expect("it has a lease");
        Self { world, keeper, own }
    }

    /// The attempts on segment 10 that succeed for a host with these `scopes`.
    pub fn allowed(&self, holder: [u8; 32], scopes: &[Scope]) -> Vec<&'static str> {
        let unit = unit_of(&self.keeper, holder, scopes);
        let tried = ATTEMPTS.iter().map(|(name, attempt)| {
            let done = attempt(&unit, segment(10));
            assert!(done.is_ok() || is_refused(&done), "{name}: {done:?}");
            done.is_ok().then_some(*name)
        });
        tried.flatten().collect()
    }

    /// Checks that the segment has not changed.
    pub fn is_untouched(&self) {
        let found = self.own.stat_segment(segment(10)).expect("it exists");
        assert_eq!((found.slots, found.freed), (1, 0));
        read(&self.own, segment(10)).expect("it exists");
        assert_eq!(
            self.own.list_serials(10..20).expect("listed"),
            [segment(10)]
        );
        assert_eq!(self.own.read_note().expect("read"), Some([3; NOTE_BYTES]));
    }
}

/// The host has a valid certificate, and no capability.
#[test]
fn a_host_without_a_lease_changes_and_reads_nothing() {
    let scene = Scene::new();
    let copyset = CopysetId::new(4).expect("one");
    for nothing in [
        vec![],
        vec![lease(8, 2, 1, 30..40)],
        vec![Scope::Read {
            lineage_tags: vec![LineageTag(8)],
        }],
        vec![Scope::Free {
            segments: vec![segment(10), segment(11)],
        }],
        vec![Scope::Repair {
            copysets: vec![copyset],
            units: vec![scene.keeper.id()],
        }],
    ] {
        let mut allowed = scene.allowed(OTHER_HOST, &nothing);
        // That it has a lease at all is enough for a note.
        if !nothing.is_empty() && matches!(nothing[0], Scope::Lease { .. }) {
            assert_eq!(allowed.pop(), Some("note down"));
            scene.own.write_note(&[3; NOTE_BYTES]).expect("put right");
        }
        // And a list of what it repairs, which is nothing here.
        if let [Scope::Repair { .. }] = nothing.as_slice() {
            assert_eq!(allowed.pop(), Some("list"));
            let unit = unit_of(&scene.keeper, OTHER_HOST, &nothing);
            assert_eq!(unit.list().expect("of its copysets"), []);
        }
        assert_eq!(allowed, [""; 0], "{nothing:?}");
        scene.is_untouched();
    }
    // What a controller should never have signed: serials that another line has.
    let allowed = scene.allowed(OTHER_HOST, &[lease(8, 2, 1, 0..20)]);
    assert_eq!(allowed, ["sync", "note down"]);
    scene.own.write_note(&[3; NOTE_BYTES]).expect("put right");
    let other = unit_of(&scene.keeper, OTHER_HOST, &[lease(8, 2, 1, 0..20)]);
    assert_eq!(other.list_serials(0..20).expect("its own"), []);
    scene.is_untouched();
    let nothing = unit_of(&scene.keeper, OTHER_HOST, &[]);
    nothing.probe().expect("it may ask whether it is there");
    assert_eq!(
        nothing.stat().expect("and how much room there is").segments,
        1
    );
}

#[test]
fn each_capability_allows_only_its_own_operations() {
    let all: Vec<_> = ATTEMPTS.iter().map(|(name, _)| *name).collect();
    let looks = ["read", "stat", "scrub"];
    let read = Scope::Read {
        lineage_tags: vec![LineageTag(7)],
    };
    assert_eq!(Scene::new().allowed(OTHER_HOST, &[read]), looks);
    // It frees the slots that the capability names, and deletes no segment.
    let scene = Scene::new();
    let free = Scope::Free {
        segments: vec![segment(10), segment(11)],
    };
    put(&scene.own, segment(11), 0).expect("its own");
    let lineage_tags = vec![LineageTag(7)];
    let unit = unit_of(
        &scene.keeper,
        OTHER_HOST,
        &[free, Scope::Read { lineage_tags }],
    );
    assert!(is_refused(&unit.delete(segment(10))));
    assert!(is_refused(&unit.list_serials(10..12).map(drop)));
    unit.free(segment(10), &[Slot(0)], true)
        .expect("it is allowed");
    let left = scene.own.list_serials(10..20).expect("listed");
    assert_eq!(left, [segment(11)]);
    // What is put where it was read is of the line that it was read from.
    let repair = Scope::Repair {
        copysets: vec![segment(10).copyset(), segment(1010).copyset()],
        units: vec![scene.keeper.id()],
    };
    // With a repair of another unit it may only read.
    let elsewhere = Scope::Repair {
        copysets: vec![segment(10).copyset()],
        units: vec![base::UnitId::from_u128(77)],
    };
    assert_eq!(
        Scene::new().allowed(OTHER_HOST, &[elsewhere]),
        ["read", "list", "stat", "scrub"]
    );
    let mut done = Vec::new();
    for (name, attempt) in ATTEMPTS {
        let scene = Scene::new();
        let unit = unit_of(&scene.keeper, OTHER_HOST, std::slice::from_ref(&repair));
        assert_eq!(unit.list().expect("listed"), [segment(10)]);
        let slots = unit.segment_slots(segment(10)).expect("reported");
        assert_eq!((slots.lineage_tag, slots.stat.slots), (LineageTag(7), 1));
        if !is_refused(&attempt(&unit, segment(10))) {
            done.push(name);
        }
    }
    let not = ["append", "note down"];
    let repairs = all.iter().copied().filter(|name| !not.contains(name));
    assert_eq!(
        done,
        repairs.collect::<Vec<_>>(),
        "it appends as the line's"
    );
    let scene = Scene::new();
    let unit = unit_of(&scene.keeper, OTHER_HOST, &[repair]);
    let data = [5; SLOT_BYTES as usize];
    unit.put(Put {
        lineage_tag: LineageTag(7),
        segment: segment(10),
        slot_bytes: SLOT_BYTES,
        first: Slot(1),
        tags: &[[1; 16]],
        data: &data,
    })
    .expect("of the line that it was read from");
    // The whole of it, of what it has a lease of, but segments that are gone.
    let scene = Scene::new();
    let lease = lease(7, 1, 3, 0..SegmentId::SERIAL_END);
    let unit = unit_of(&scene.keeper, HOST, &[lease]);
    let mut done = Vec::new();
    for (name, attempt) in ATTEMPTS {
        if !is_refused(&attempt(&unit, segment(10))) {
            done.push(name);
        }
    }
    assert_eq!(done, all);
}

fn present_refused(scene: &Scene, signed: &[u8]) -> String {
    let unit = unit_of(&scene.keeper, OTHER_HOST, &[]);
    let refused = unit.present(signed).expect_err("it is refused");
    assert!(put(&unit, segment(10), 1).is_err());
    scene.is_untouched();
    base::with_causes(&refused)
}

#[test]
fn a_capability_of_another_host_and_an_altered_one_are_refused() {
    let scene = Scene::new();
    let scope = lease(7, 1, 3, 10..20);
    let own = |change: &dyn Fn(&mut Capability)| {
        let mut capability = capability(OTHER_HOST, scope.clone());
        change(&mut capability);
        key().sign(&capability).0
    };
    let says = |signed: &[u8], what: &str| {
        let message = present_refused(&scene, signed);
        assert!(message.contains(what), "{message}");
    };
    says(&own(&|one| one.holder = HOST), "another host");
    says(
        &own(&|one| one.cluster = ClusterId::from_u128(9)),
        "another cluster",
    );
    says(&own(&|one| one.generation = 0), "replaced");
    let forged =
        SigningKey::derive(b"of somebody else").sign(&capability(OTHER_HOST, scope.clone()));
    says(&forged.0, "not signed");
    let mut altered = own(&|_| ());
    altered[96] ^= 1;
    says(&altered, "not signed");
    says(b"", "invalid length: 0 bytes");
}

#[test]
fn an_expired_capability_allows_nothing() {
    let scene = Scene::new();
    let unit = unit_of(&scene.keeper, OTHER_HOST, &[]);
    let mut past = capability(
        OTHER_HOST,
        Scope::Read {
            lineage_tags: vec![LineageTag(7)],
        },
    );
    past.ends = Millis(scene.world.clock.wall().0 + 1);
    unit.present(&key().sign(&past).0).expect("it continues");
    read(&unit, segment(10)).expect("it continues");
    // By the controllers' clock, if they have told theirs.
    scene.keeper.set_time(Millis(past.ends.0 + 10_001));
    let refused = read(&unit, segment(10)).expect_err("it has ended");
    assert!(refused.to_string().contains("has expired"), "{refused}");
    scene.keeper.set_time(Millis(past.ends.0 + 9_999));
    read(&unit, segment(10)).expect("clocks differ by so much");
}

/// A host that lost a volume cannot put or free its segments any more: on existing connections, on
/// new ones, and after a restart of the daemon.
#[test]
fn an_older_lease_is_refused_as_soon_as_a_newer_one_was_presented() {
    let scene = Scene::new();
    put(&scene.own, segment(11), 0).expect("it has the volume");
    let next = unit_of(&scene.keeper, OTHER_HOST, &[lease(7, 1, 4, 10..20)]);
    let tries = |unit: &RemoteUnit| {
        for (name, attempt) in ATTEMPTS {
            let done = attempt(unit, segment(10));
            assert!(is_refused(&done), "{name}: {done:?}");
        }
    };
    tries(&scene.own);
    read(&next, segment(11)).expect("it has the volume now");
    next.free(segment(11), &[Slot(0)], true)
        .expect("and sweeps");
    let keeper = keeper(&scene.world);
    let again = unit_of(&keeper, HOST, &[]);
    let old = key().sign(&capability(HOST, lease(7, 1, 3, 10..20)));
    let refused = again.present(&old.0).expect_err("an older lease");
    assert!(refused.to_string().contains("lease 4"), "{refused}");
}

/// Any host with a lease could make all hosts believe that the database was older than the data.
#[test]
fn a_lease_count_is_noted_only_if_a_controller_has_signed_it_and_never_lowered() {
    let scene = Scene::new();
    let unit = unit_of(&scene.keeper, HOST, &[lease(7, 1, 3, 10..20)]);
    let note = |count: u64| {
        let mut note = [b' '; NOTE_BYTES];
        let text = format!("leases {count} abcdef");
        note[..text.len()].copy_from_slice(text.as_bytes());
        note
    };
    assert!(is_refused(&unit.write_note(&note(1))), "nothing was signed");
    let count = |leases| key().sign(&capability(HOST, Scope::Count { leases })).0;
    unit.present(&count(17)).expect("accepted");
    assert!(is_refused(&unit.write_note(&note(18))));
    unit.write_note(&note(17)).expect("as a controller says");
    // A late one gets no error and changes nothing.
    for late in [note(16), [b'x'; NOTE_BYTES]] {
        unit.write_note(&late).expect("it is known");
        assert_eq!(unit.read_note().expect("read"), Some(note(17)));
    }
    let other = unit_of(&scene.keeper, OTHER_HOST, &[lease(8, 2, 1, 30..40)]);
    assert!(is_refused(&other.write_note(&note(18))));
    other.write_note(&note(17)).expect("that much is known");
}

/// The capabilities stayed valid while the connection lasted.
#[test]
fn capabilities_of_an_earlier_database_end_when_a_newer_one_is_known() {
    let scene = Scene::new();
    let read_lines = || Scope::Read {
        lineage_tags: vec![LineageTag(7)],
    };
    let old = unit_of(&scene.keeper, OTHER_HOST, &[read_lines()]);
    read(&old, segment(10)).expect("it is allowed");
    let newer = |generation| {
        let mut newer = capability(OTHER_HOST, read_lines());
        newer.generation = generation;
        key().sign(&newer).0
    };
    let next = unit_of(&scene.keeper, OTHER_HOST, &[]);
    next.present(&newer(2)).expect("accepted");
    read(&next, segment(10)).expect("it is allowed");
    let refused = read(&old, segment(10)).expect_err("it has ended");
    assert!(refused.to_string().contains("has expired"), "{refused}");
    assert!(is_refused(&put(&scene.own, segment(10), 1)));
    assert!(is_refused(&scene.own.write_note(&[4; NOTE_BYTES])));
    // After a restart without a controller, too.
    let again = keeper(&scene.world);
    let unit = unit_of(&again, OTHER_HOST, &[]);
    let refused = unit.present(&newer(1)).expect_err("it was replaced");
    assert!(refused.to_string().contains("replaced"), "{refused}");
    unit.present(&newer(2)).expect("accepted");
    // From a controller.
    again.set_config(unit_daemon::KeeperConfig {
        cluster: crate::inside::CLUSTER,
        keys: vec![crate::inside::verifying_key()],
        generation: 3,
    });
    assert!(is_refused(&read(&unit, segment(10))));
}

/// The daemon read the unit's note of it only when it started.
#[test]
fn a_newer_database_is_known_also_if_the_unit_is_created_after_the_daemon_starts() {
    let simulation = Simulation::new(5);
    let world = simulation.world();
    let signed = |generation| {
        let lineage_tags = vec![LineageTag(7)];
        let mut capability = capability(HOST, Scope::Read { lineage_tags });
        capability.generation = generation;
        key().sign(&capability).0
    };
    let unit = unit_of(&keeper(&world), HOST, &[]);
    unit.present(&signed(2)).expect("accepted and recorded");
    simulation.disk.inject(Path::new("/unit"), Fault::Missing);
    let late = keeper_anyhow(&world);
    simulation.disk.heal(Path::new("/unit"));
    let unit = unit_of(&late, HOST, &[]);
    let refused = unit.present(&signed(1)).expect_err("it was replaced");
    assert!(refused.to_string().contains("replaced"), "{refused}");
    unit.present(&signed(2)).expect("accepted");
}

/// A capability for any lineage allowed reading it.
#[test]
fn a_segment_with_an_unreadable_header_belongs_only_to_its_lease() {
    let scene = Scene::new();
    let disk = &scene.world.disk;
    let folders = disk.list(Path::new("/unit/segments")).expect("listed");
    let files = folders.iter().flat_map(|folder| {
        let folder = Path::new("/unit/segments").join(&folder.name);
        let files = disk.list(&folder).expect("listed").into_iter();
        files.map(move |file| folder.join(file.name))
    });
    for path in files {
        let file = disk.open(&path, world::OpenMode::Write).expect("it exists");
        file.write_at(&[0x5a; 64], 0).expect("spoilt");
    }
    let keeper = keeper(&scene.world);
    let segments = vec![segment(10)];
    let lineage_tags = vec![LineageTag(8)];
    let others = [Scope::Free { segments }, Scope::Read { lineage_tags }];
    let other = unit_of(&keeper, OTHER_HOST, &others);
    for (name, attempt) in ATTEMPTS {
        let done = attempt(&other, segment(10));
        assert!(done.is_err(), "{name}");
    }
    assert!(is_refused(&other.free(segment(10), &[Slot(0)], true)));
    let own = unit_of(&keeper, HOST, &[lease(7, 1, 3, 10..20)]);
    let listed = own.list_serials(10..20).expect("listed");
    assert_eq!(listed, [segment(10)]);
    own.delete(segment(10)).expect("it is its own");
}

/// A host that had lost a volume could not copy segments of its old lease to a member until that
/// lease had ended.
#[test]
fn a_host_that_has_lost_a_volume_repairs_the_segments_that_it_put() {
    let scene = Scene::new();
    let repair = Scope::Repair {
        copysets: vec![segment(15).copyset()],
        units: vec![scene.keeper.id()],
    };
    let lost = unit_of(&scene.keeper, HOST, &[lease(7, 1, 3, 10..20), repair]);
    let _newer = unit_of(&scene.keeper, OTHER_HOST, &[lease(7, 1, 4, 10..20)]);
    put(&lost, segment(15), 0).expect("it repairs that copyset");
    lost.sync(&[segment(15)]).expect("what it has put");
    for (what, done) in [
        ("put", put(&lost, segment(16), 0)),
        ("list", lost.list_serials(10..20).map(drop)),
        ("delete", lost.delete(segment(11))),
    ] {
        assert!(is_refused(&done), "{what}: {done:?}");
    }
}

/// A compromised host could repair until the daemon reclaimed deleted content to make room.
#[test]
fn a_repair_evicts_nothing_that_is_stored_for_undelete() {
    let simulation = Simulation::new(1);
    let keeper = keeper(&simulation.world());
    let leased = lease(7, 1, 1, 0..SegmentId::SERIAL_END);
    let own = unit_of(&keeper, HOST, &[leased]);
    let repair = Scope::Repair {
        copysets: vec![segment(10).copyset()],
        units: vec![keeper.id()],
    };
    let repairer = unit_of(&keeper, OTHER_HOST, &[repair]);
    simulation.disk.set_capacity(Path::new("/unit"), 4 << 20);
    put(&own, segment(10), 0).expect("there is room");
    put(&repairer, segment(1010), 0).expect("nothing is held");
    own.delete(segment(10)).expect("it is held from now on");
    for _ in 0..2 {
        let full = put(&repairer, segment(2010), 0);
        assert!(matches!(full, Err(UnitError::Full { .. })), "{full:?}");
        let by = Replacement {
            expected: Some(0),
            generation: 0,
            lineage_tag: LineageTag::NONE,
            slot_bytes: SLOT_BYTES,
            tags: &[[5; 16]],
            data: &[9; 512],
        };
        let full = repairer.replace(segment(1010), by);
        assert!(matches!(full, Err(UnitError::Full { .. })), "{full:?}");
    }
    put(&own, segment(3010), 0).expect("a writer gets the room");
}
