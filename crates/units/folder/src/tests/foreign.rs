//! Folders that are not this unit's.

use std::path::Path;

use base::{ClusterId, UnitId};
use testkit::units::conformance::{SLOT_BYTES, put, segment};
use unit::{Unit as _, UnitError};
use world::simulated::Simulation;
use world::{OpenMode, World};

use super::faults::{assert_all, change_everything, is_away, path};
use super::{cluster, create, unit_id};
use crate::FolderUnit;

#[test]
fn nothing_is_ever_written_into_a_folder_without_a_marker() {
    let root = tempfile::tempdir().expect("a folder");
    let (path, away) = (root.path().join("mount"), root.path().join("away"));
    let world = World::real(1);
    let unit = FolderUnit::create(&world, &path, cluster(), unit_id()).expect("made");
    put(&unit, segment(1), SLOT_BYTES, 0, 4).expect("put");
    unit.sync(&[segment(1)]).expect("synced");
    world.disk.rename(&path, &away).expect("unmounted");
    world
        .disk
        .create_directory(&path)
        .expect("a bare mount point");
    for unit in [
        &unit,
        &FolderUnit::open(&world, &path, cluster(), unit_id()),
    ] {
        assert_all(change_everything(unit), is_away);
        let listed = unit.list().expect_err("not an empty unit");
        assert!(listed.to_string().contains("is it mounted?"), "{listed}");
    }
    assert_eq!(world.disk.list(&path).expect("there"), []);
}

#[test]
fn a_unit_of_another_cluster_is_not_touched() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    put(&create(&world), segment(1), SLOT_BYTES, 0, 4).expect("put");
    let operations = simulation.disk.operations();
    let other_cluster = ClusterId::from_u128(0xbad);
    let other_unit = UnitId::from_u128(0xbad);
    for (cluster, unit) in [(other_cluster, unit_id()), (cluster(), other_unit)] {
        let unit = FolderUnit::open(&world, path(), cluster, unit);
        let foreign = |error: &UnitError| matches!(error, UnitError::Foreign { .. });
        assert_all(change_everything(&unit), foreign);
        assert!(unit.list().is_err() && unit.stat().is_err());
    }
    assert_eq!(simulation.disk.operations(), operations);
    let taken = FolderUnit::create(&world, path(), other_cluster, other_unit).map(|_| ());
    assert!(matches!(taken, Err(UnitError::Foreign { .. })), "{taken:?}");
}

#[test]
fn a_folder_with_other_files_is_not_made_into_a_unit() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    world.disk.create_directory(path()).expect("made");
    let thesis = path().join("thesis.tex");
    world.disk.open(&thesis, OpenMode::CreateNew).expect("made");
    let refused = FolderUnit::create(&world, path(), cluster(), unit_id()).map(|_| ());
    let refused = refused.expect_err("not empty").to_string();
    assert!(refused.contains("thesis.tex"), "{refused}");
    world.disk.remove(&thesis).expect("removed");
    world
        .disk
        .create_directory(&path().join("lost+found"))
        .expect("made");
    create(&world);
    create(&world)
        .probe()
        .expect("making it again changes nothing");
}

#[test]
fn a_copied_folder_is_recognised_by_its_id() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    create(&world);
    let copy = Path::new("/copy");
    world.disk.create_directory(copy).expect("made");
    copy_file(&world, "scree-unit.toml", copy, |text| text);
    let marker = FolderUnit::identify(&world, copy).expect("a marker");
    assert_eq!((marker.cluster, marker.unit), (cluster(), unit_id()));
}

#[test]
fn a_unit_of_a_newer_format_is_not_touched() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    create(&world);
    world
        .disk
        .create_directory(Path::new("/new"))
        .expect("made");
    let newer = |text: String| text.replace("format = 1", "format = 2");
    copy_file(&world, "scree-unit.toml", Path::new("/new"), newer);
    let unit = FolderUnit::open(&world, Path::new("/new"), cluster(), unit_id());
    assert_all(change_everything(&unit), |error| {
        matches!(
            error,
            UnitError::Newer {
                found: 2,
                known: 1,
                ..
            }
        )
    });
}

fn copy_file(world: &World, name: &str, to: &Path, edit: impl Fn(String) -> String) {
    let from = world.disk.open(&path().join(name), OpenMode::Read);
    let from = from.expect("there");
    let mut text = vec![0; from.length().expect("open") as usize];
    from.read_at(&mut text, 0).expect("read");
    let text = edit(String::from_utf8(text).expect("text"));
    let copy = world.disk.open(&to.join(name), OpenMode::CreateNew);
    copy.expect("new")
        .write_at(text.as_bytes(), 0)
        .expect("written");
}
