//! Stories of a host's cache.

use sim::setup::Setup;

use crate::bench::Bench;

#[test]
fn the_map_of_an_attached_volume_is_brought_and_protected_as_long_as_it_is_attached() {
    let mut setup = Setup::quiet(2, 1);
    setup.cache_bytes = Some(8 << 20);
    let mut bench = Bench::with(setup);
    let id = bench.create(None);
    let protected = |bench: &Bench| {
        let file = bench.machine.cache().file().expect("there is one");
        file.statistics().protected
    };
    // Each in a leaf of its own.
    let mut volume = bench.attach(id);
    for block in 0..300 {
        bench.write(&mut volume, block * 300..block * 300 + 1, block as u8);
        bench.turn(&mut volume, 10);
    }
    let written = protected(&bench);
    assert!(written > 200, "{written}");
    bench.close(volume);
    assert_eq!(protected(&bench), 0);
    let mut volume = bench.attach(id);
    bench.turn(&mut volume, 100);
    assert!(protected(&bench) >= written, "{}", protected(&bench));
    // What others have taken the place of is protected no more.
    let before = protected(&bench);
    for block in 0..300 {
        bench.write(&mut volume, block * 300..block * 300 + 1, 7);
        bench.turn(&mut volume, 10);
    }
    bench.turn(&mut volume, 200);
    let after = protected(&bench);
    assert!(after <= before + 20, "{before} {after}");
    bench.close(volume);
    assert_eq!(protected(&bench), 0);
    bench.audit();
}
