//! Links, pipes and other things that the administrator of a unit has put into it.
//!
//! Scree once followed a link called `probe` and overwrote its target, even a host's key file.

#![expect(clippy::disallowed_methods, reason = "plants what `world` never makes")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use base::Slot;
use tempfile::TempDir;
use testkit::units::conformance::{SLOT_BYTES, put, read, segment};
use unit::{Unit, UnitError};
use world::{Millis, OpenMode, World};

use super::{cluster, unit_id};
use crate::FolderUnit;
use crate::root::folder_of;
use crate::{RestoreFilter, UndeletePolicy};

/// A unit with one segment, and beside it a file and a folder that are none of
/// its business.
struct Scene {
    folder: TempDir,
    world: World,
    unit: FolderUnit,
}

const SECRET: &[u8] = b"the master key";

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let world = World::real(1);
        let path = folder.path().join("unit");
        let unit = FolderUnit::create(&world, &path, cluster(), unit_id()).expect("made");
        put(&unit, segment(1), SLOT_BYTES, 0, 4).expect("put");
        unit.sync(&[segment(1)]).expect("synced");
        let scene = Self {
            folder,
            world,
            unit,
        };
        for beside in ["beside", "beside/segments"] {
            let beside = scene.folder.path().join(beside);
            scene.world.disk.create_directory(&beside).expect("made");
        }
        let secret = scene
            .world
            .disk
            .open(&scene.secret(), OpenMode::CreateNew)
            .expect("new");
        secret.write_at(SECRET, 0).expect("written");
        scene
    }

    fn secret(&self) -> PathBuf {
        self.folder.path().join("beside/secret")
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join("unit").join(name)
    }

    fn segment_path(&self) -> PathBuf {
        let id = segment(1);
        self.at(&format!("segments/{:03x}/{id}", folder_of(id)))
    }

    /// The unit as a process that has nothing of it open sees it.
    fn reopened(&self) -> FolderUnit {
        FolderUnit::open(&self.world, &self.at(""), cluster(), unit_id())
    }

    /// Puts a link to `target` in place of what is called `name`.
    fn link(&self, name: &Path, target: &Path) {
        self.move_away(name);
        symlink(target, name).expect("linked");
    }

    fn pipe(&self, name: &Path) {
        self.move_away(name);
        let made = Command::new("mkfifo").arg(name).status();
        assert!(made.expect("mkfifo runs").success());
    }

    fn move_away(&self, name: &Path) {
        if name.symlink_metadata().is_ok() {
            let away = self.folder.path().join("away");
            self.world.disk.rename(name, &away).expect("moved");
        }
    }

    fn assert_untouched(&self) {
        let secret = self.world.disk.open(&self.secret(), OpenMode::Read);
        let secret = secret.expect("there");
        let mut text = vec![0; secret.length().expect("open") as usize];
        secret.read_at(&mut text, 0).expect("read");
        assert_eq!(text, SECRET);
        let list = |path: &str| self.world.disk.list(&self.folder.path().join(path));
        assert_eq!(list("beside").expect("there").len(), 2);
        assert_eq!(list("beside/segments").expect("there"), []);
    }
}

/// Asks `unit` for everything; each answer is a value or an error.
fn everything(unit: &FolderUnit) -> Vec<Result<(), UnitError>> {
    let id = segment(1);
    vec![
        unit.probe(),
        put(unit, id, SLOT_BYTES, 4, 1),
        put(unit, id, SLOT_BYTES, 0, 1),
        unit.sync(&[id]),
        read(unit, id, SLOT_BYTES, 0, 1),
        unit.stat().map(|_| ()),
        unit.stat_segment(id).map(|_| ()),
        unit.list().map(|_| ()),
        unit.scrub(id).map(|_| ()),
        unit.reclaim().map(|_| ()),
        unit.free(id, &[Slot(0)], true),
        unit.delete(id),
    ]
}

/// Somewhere in a scene.
type Place = fn(&Scene) -> PathBuf;

const PROBE: Place = |scene| scene.at("probe");
const MARKER: Place = |scene| scene.at("scree-unit.toml");
const SEGMENTS: Place = |scene| scene.at("segments");
const SUB_FOLDER: Place = |scene| scene.segment_path().parent().expect("a folder").to_owned();
const SECRET_FILE: Place = Scene::secret;
const NEW_FILE: Place = |scene| scene.folder.path().join("beside/new");
const FOLDER: Place = |scene| scene.folder.path().join("beside/segments");

/// Asks for everything and expects that `name` is named as what it is.
fn assert_told(scene: &Scene, name: &Path, is_what: &str) {
    let results = everything(&scene.reopened());
    let errors: Vec<String> = results
        .iter()
        .filter_map(|result| Some(result.as_ref().err()?.to_string()))
        .collect();
    let expected = format!("{} is {is_what}, not a f", name.display());
    assert!(
        errors.iter().any(|error| error.contains(&expected)),
        "{expected}: {errors:?}"
    );
    scene.assert_untouched();
}

#[test]
fn no_link_in_a_unit_is_followed() {
    for (name, target) in [
        (PROBE, SECRET_FILE),
        (PROBE, NEW_FILE),
        (MARKER, SECRET_FILE),
        (Scene::segment_path, SECRET_FILE),
        (SEGMENTS, FOLDER),
        (SUB_FOLDER, FOLDER),
    ] {
        let scene = Scene::new();
        let name = name(&scene);
        scene.link(&name, &target(&scene));
        assert_told(&scene, &name, "a symbolic link");
    }
}

#[test]
fn a_pipe_in_a_unit_blocks_no_call() {
    for name in [PROBE, MARKER, Scene::segment_path, SUB_FOLDER] {
        let scene = Scene::new();
        let name = name(&scene);
        scene.pipe(&name);
        assert_told(&scene, &name, "a pipe");
    }
}

#[test]
fn a_link_in_place_of_one_segment_harms_no_other() {
    let scene = Scene::new();
    put(&scene.unit, segment(2), SLOT_BYTES, 0, 4).expect("put");
    scene.link(&scene.segment_path(), &scene.secret());
    let unit = scene.reopened();
    let refused = read(&unit, segment(1), SLOT_BYTES, 0, 1).expect_err("a link");
    assert!(matches!(refused, UnitError::Damaged { .. }), "{refused}");
    unit.probe().expect("the unit is well");
    read(&unit, segment(2), SLOT_BYTES, 0, 4).expect("kept");
    unit.delete(segment(1)).expect("the link itself");
    scene.assert_untouched();
}

#[test]
fn a_unit_with_a_link_for_a_sub_folder_is_failing() {
    let scene = Scene::new();
    let name = SUB_FOLDER(&scene);
    scene.link(&name, &FOLDER(&scene));
    let failing = scene.unit.probe().expect_err("a link");
    assert!(matches!(failing, UnitError::Tampered { .. }), "{failing}");
    assert!(scene.unit.list().is_err(), "not a unit without segments");
}

/// A probe with a second name is another file's.
#[test]
fn a_probe_that_is_none_is_not_written_to() {
    let scene = Scene::new();
    std::fs::hard_link(scene.secret(), scene.at("probe")).expect("linked");
    let refused = scene.unit.probe().expect_err("no probe");
    assert!(refused.to_string().contains("is another file"), "{refused}");
    scene.assert_untouched();
}

#[test]
fn a_new_unit_is_not_made_over_a_link() {
    let scene = Scene::new();
    let path = scene.folder.path().join("new");
    scene.world.disk.create_directory(&path).expect("made");
    symlink(scene.secret(), path.join("scree-unit.toml.draft")).expect("linked");
    symlink(FOLDER(&scene), path.join("segments")).expect("linked");
    let refused = FolderUnit::create(&scene.world, &path, cluster(), unit_id());
    let refused = refused.map(|_| ()).expect_err("a link");
    assert!(
        refused.to_string().contains("is a symbolic link"),
        "{refused}"
    );
    scene.assert_untouched();
}

#[test]
fn the_unit_itself_may_lie_behind_a_link() {
    let scene = Scene::new();
    let link = scene.folder.path().join("link");
    symlink(scene.at(""), &link).expect("linked");
    let unit = FolderUnit::open(&scene.world, &link, cluster(), unit_id());
    unit.probe().expect("well");
    read(&unit, segment(1), SLOT_BYTES, 0, 4).expect("kept");
}

/// Nothing is destroyed because it cannot be kept, and nothing is kept elsewhere.
#[test]
fn a_link_in_place_of_what_is_kept_is_not_followed() {
    let scene = Scene::new();
    let freed = scene.at("freed");
    scene.link(&freed, &scene.folder.path().join("beside"));
    let unit = scene.reopened().with_undelete(UndeletePolicy::default());
    let deleted = unit.delete(segment(1)).expect_err("it cannot be kept");
    assert!(matches!(deleted, UnitError::Tampered { .. }), "{deleted}");
    read(&unit, segment(1), SLOT_BYTES, 0, 4).expect("it is there");
    unit.free(segment(1), &[Slot(1)], false).expect("marked");
    unit.reclaim().expect_err("it cannot be logged");
    scene.assert_untouched();

    scene.world.disk.remove(&freed).expect("put right");
    while unit.reclaim().expect("settled") {}
    let all = RestoreFilter {
        since: Millis(0),
        until: Millis(i64::MAX),
        segment: None,
        replaced: false,
    };
    let restored = unit.restore(&all, false).expect("restored");
    assert_eq!(restored.segments[0].slots, 1);
    read(&unit, segment(1), SLOT_BYTES, 0, 4).expect("as it was put");
}
