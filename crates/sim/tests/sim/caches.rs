//! Scenarios of a host's cache.

use base::{BlockDevice as _, Durability, Request, Started, VolumeId};
use sim::setup::Setup;
use volume::Volume;

use crate::bench::Bench;

fn bench() -> Bench {
    let mut setup = Setup::quiet(2, 1);
    setup.cache_bytes = Some(16 << 20);
    Bench::with(setup)
}

/// The number of protected map pages after all jobs have ended.
fn protected(bench: &Bench) -> usize {
    bench.machine.simulation.pool.run_all(bench.random());
    let file = bench.machine.cache().file().expect("there is one");
    file.statistics().protected
}

/// Writes a block in each of 300 leaves.
fn write_leaves(bench: &Bench, volume: &mut Volume, byte: u8) {
    for block in 0..300 {
        bench.write(volume, block * 300..block * 300 + 1, byte);
        bench.turn(volume, 10);
    }
}

/// A volume of 300 leaves.
fn of_leaves(bench: &mut Bench) -> VolumeId {
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    write_leaves(bench, &mut volume, 1);
    bench.close(volume);
    id
}

#[test]
fn the_map_of_an_attached_volume_is_loaded_and_protected_while_it_is_attached() {
    let mut bench = bench();
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    write_leaves(&bench, &mut volume, 1);
    let written = protected(&bench);
    assert!(written > 200, "{written}");
    bench.close(volume);
    assert_eq!(protected(&bench), 0);
    let mut volume = bench.attach(id);
    bench.turn(&mut volume, 100);
    assert!(protected(&bench) >= written, "{}", protected(&bench));
    // Replaced pages are no longer protected.
    let before = protected(&bench);
    write_leaves(&bench, &mut volume, 7);
    bench.turn(&mut volume, 200);
    let after = protected(&bench);
    assert!(after <= before + 20, "{before} {after}");
    bench.close(volume);
    assert_eq!(protected(&bench), 0);
    bench.audit();
}

/// The checkpoints and the close of a clone ended the protection of pages that both volumes
/// have.
#[test]
fn closing_a_clone_leaves_the_pages_of_its_origin_protected() {
    let mut bench = bench();
    let origin = of_leaves(&mut bench);
    let clone = bench.create(Some(bench.head(origin)));
    let mut volume = bench.attach(origin);
    bench.turn(&mut volume, 100);
    let of_origin = protected(&bench);
    assert!(of_origin > 200, "{of_origin}");
    let mut other = bench.attach(clone);
    write_leaves(&bench, &mut other, 2);
    assert!(protected(&bench) > of_origin + 200);
    bench.close(other);
    assert_eq!(protected(&bench), of_origin);
    bench.close(volume);
    assert_eq!(protected(&bench), 0);
    bench.audit();
}

/// Only replaced pages were released, not removed ones.
#[test]
fn map_pages_of_discarded_blocks_are_no_longer_protected() {
    let mut bench = bench();
    let id = of_leaves(&mut bench);
    let mut volume = bench.attach(id);
    bench.turn(&mut volume, 100);
    assert!(protected(&bench) > 200);
    let size = bench.setup.size_bytes;
    let trimmed = volume.start(Request::trim(1, 0, size, Durability::Volatile));
    assert_eq!(trimmed, Started::Done);
    for turn in 0..300 {
        bench.write(&mut volume, turn..turn + 1, 3);
        bench.turn(&mut volume, 10);
    }
    bench.turn(&mut volume, 100);
    let left = protected(&bench);
    assert!(left < 20, "{left}");
    bench.close(volume);
    bench.audit();
}
