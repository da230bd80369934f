//! What was freed is kept for a while, and can be brought back. Crashes in between
//! are in `crash`.

mod cut_short;
mod failing;
mod hold;
mod logs;
mod pace;
mod replace;
mod restore;
mod room;

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::{SegmentId, Slot};
use testkit::units::conformance::{SLOT_BYTES, is_absent, put, read, segment};
use unit::Unit as _;
use world::simulated::Simulation;
use world::{Millis, World};

use super::{PATH, create, open};
use crate::FolderUnit;
use crate::{RestoreFilter, RestoreReport, SegmentFate, UndeletePolicy};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn with_undelete(world: &World) -> FolderUnit {
    open(world).with_undelete(UndeletePolicy::default())
}

fn made(world: &World) -> FolderUnit {
    create(world).with_undelete(UndeletePolicy::default())
}

fn all() -> RestoreFilter {
    RestoreFilter {
        since: Millis(0),
        until: Millis(i64::MAX),
        segment: None,
        replaced: false,
    }
}

fn put_synced(unit: &FolderUnit, number: u64, count: u16) -> SegmentId {
    let id = segment(number);
    put(unit, id, SLOT_BYTES, 0, count).expect("put");
    unit.sync(&[id]).expect("synced");
    id
}

fn free(unit: &FolderUnit, id: SegmentId, slots: impl IntoIterator<Item = u16>) {
    let slots: Vec<Slot> = slots.into_iter().map(Slot).collect();
    unit.free(id, &slots, false).expect("freed");
}

/// Meant is also what another one is in the place of.
fn replaced() -> RestoreFilter {
    RestoreFilter {
        replaced: true,
        ..all()
    }
}

/// Where a segment's file is, on the disk.
fn path_of(unit: &FolderUnit, id: SegmentId) -> PathBuf {
    Path::new(PATH).join(unit.segments.root.file(id))
}

/// The files in `freed/` whose names begin so.
fn freed_files(simulation: &Simulation, prefix: &str) -> Vec<PathBuf> {
    let freed = Path::new(PATH).join("freed");
    let files = simulation.disk.files_under(&freed).into_iter();
    let paths = files.map(|(path, _)| path);
    let is_meant = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(prefix))
    };
    paths.filter(is_meant).collect()
}

fn settle(unit: &FolderUnit) {
    while unit.reclaim().expect("settled") {}
}

/// Lets the daemon run for a while, which looks after its unit all the time.
fn run_for(simulation: &Simulation, unit: &FolderUnit, time: Duration) {
    for _ in 0..10 {
        simulation.clock.advance(time / 10);
        settle(unit);
    }
}

fn room_taken(world: &World, simulation: &Simulation) -> u64 {
    let files = simulation.disk.files_under(Path::new(PATH));
    let room = |(path, _): (PathBuf, u64)| {
        let file = world.disk.open(&path, world::OpenMode::Read);
        file.expect("there").allocated().expect("known")
    };
    files.into_iter().map(room).sum()
}

fn of(restored: &RestoreReport, id: SegmentId) -> (SegmentFate, u32, u32) {
    let mut segments = restored.segments.iter();
    let found = segments.find(|one| one.segment == id).expect("reported");
    (found.whole, found.slots, found.lost)
}

/// Whether slots can be read, each by itself.
fn is_there(unit: &FolderUnit, id: SegmentId, slots: std::ops::Range<u16>) -> Vec<bool> {
    slots
        .map(|slot| match read(unit, id, SLOT_BYTES, slot, 1) {
            Ok(()) => true,
            absent if is_absent(&absent) => false,
            other => panic!("{id}/{slot}: {other:?}"),
        })
        .collect()
}
