//! What is found out of the file system, and of one that lacks it.

use std::path::Path;

use unit::{Unit as _, UnitError};
use world::simulated::{Fault, Simulation};

use super::{PATH, cluster, unit_id};
use crate::FolderUnit;

/// A file system that lacks what units need was found out when data was lost.
#[test]
fn no_unit_is_made_where_the_file_system_lacks_what_it_must_have() {
    for (fault, words) in [
        (Fault::NotExclusive, "O_EXCL"),
        (Fault::NoReplacing, "does not replace that one"),
    ] {
        let simulation = Simulation::new(1);
        simulation.disk.inject(Path::new(PATH), fault);
        let world = simulation.world();
        let made = FolderUnit::create(&world, Path::new(PATH), cluster(), unit_id()).map(drop);
        let refused = made.expect_err("it is unfit");
        assert!(matches!(refused, UnitError::Foreign { .. }), "{refused:?}");
        assert!(refused.to_string().contains(words), "{refused}");
        assert!(FolderUnit::identify(&world, Path::new(PATH)).is_err());
        // Nothing is left in the way.
        simulation.disk.heal(Path::new(PATH));
        FolderUnit::create(&world, Path::new(PATH), cluster(), unit_id()).expect("made");
    }
}

#[test]
fn what_was_found_out_is_kept_and_told_and_holes_are_not_needed() {
    for has_holes in [true, false] {
        let simulation = Simulation::new(1);
        if !has_holes {
            simulation.disk.inject(Path::new(PATH), Fault::NoHoles);
        }
        let world = simulation.world();
        let unit = FolderUnit::create(&world, Path::new(PATH), cluster(), unit_id()).expect("made");
        let later = FolderUnit::open(&world, Path::new(PATH), cluster(), unit_id());
        for unit in [unit, later] {
            let facts = unit.facts().expect("reported");
            let holes = facts.iter().find(|fact| fact.what == "holes");
            assert_eq!(holes.map(|fact| fact.holds), Some(has_holes));
            assert_eq!(
                facts.iter().filter(|fact| fact.holds).count(),
                3 + usize::from(has_holes)
            );
        }
        // A unit of an earlier version has no such file.
        let kept = Path::new(PATH).join("file-system.toml");
        world.disk.remove(&kept).expect("removed");
        let later = FolderUnit::open(&world, Path::new(PATH), cluster(), unit_id());
        assert_eq!(later.facts().expect("reported"), []);
    }
}
