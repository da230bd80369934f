//! Scenarios of hedged reads of slow units.

use std::time::Duration;

use base::{BlockDevice, Completion, Outcome, Request, Started};
use catalog::Erasure;
use sim::setup::Setup;
use testkit::units::InjectedFaults;
use volume::Volume;

use crate::bench::Bench;

/// Reads a block, and returns its first byte and the duration. The clock only advances while
/// the volume waits for its timer.
fn read(bench: &Bench, volume: &mut Volume, block: u64) -> (u8, Duration) {
    let clock = &bench.machine.simulation.clock;
    let mut bytes = vec![0; 4096];
    let mut took = Duration::ZERO;
    match volume.start(Request::read(3, block * 4096, &mut bytes)) {
        Started::Done => return (bytes[0], took),
        Started::Pending => {}
        other => panic!("{other:?}"),
    }
    let mut completions: Vec<Completion> = Vec::new();
    loop {
        // A read that the first poll starts may be completed at once.
        volume.poll(&mut completions);
        volume.poll(&mut completions);
        if let Some(answer) = completions.pop() {
            match answer.result {
                Ok(Outcome::Data(data)) => return (data[0], took),
                other => panic!("{other:?}"),
            }
        }
        if !bench.machine.simulation.pool.run_one(bench.random()) {
            let timer = volume.next_timer().expect("the volume has a timer");
            clock.advance(timer);
            took += timer;
        }
    }
}

/// The number of blocks that are written. Each is filled with its number.
const BLOCKS: u64 = 64;

/// A volume that was written and opened again: all reads are fetched from units.
fn written(bench: &mut Bench) -> Volume {
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    for block in 0..BLOCKS {
        bench.write(&mut volume, block..block + 1, block as u8);
        bench.turn(&mut volume, 10);
    }
    bench.close(volume);
    let mut volume = bench.attach(id);
    bench.turn(&mut volume, 40);
    volume
}

/// Every read that was first sent to an unresponsive unit took until the link to the unit
/// timed out.
#[test]
fn an_unresponsive_unit_does_not_delay_reads_until_its_timeout() {
    let mut bench = Bench::new(2, 2);
    let mut volume = written(&mut bench);
    let completes_later = InjectedFaults {
        async_reads_one_in: 1,
        ..InjectedFaults::default()
    };
    for hanging in 0..2 {
        bench.machine.inject(1 - hanging, completes_later);
        bench.machine.inject(
            hanging,
            InjectedFaults {
                holds_reads: true,
                ..completes_later
            },
        );
        let mut waited = Duration::ZERO;
        for block in 0..BLOCKS {
            let (byte, took) = read(&bench, &mut volume, block);
            assert_eq!(byte, block as u8);
            waited += took;
        }
        let held = bench.machine.held_reads(hanging);
        assert!(held > 0, "no read was sent to it: this test shows nothing");
        assert!(held <= 8, "too many reads were sent to it: {held}");
        assert!(waited <= Duration::from_millis(400), "{waited:?}");
        // The held reads fail now, after they were hedged.
        bench.machine.inject(hanging, completes_later);
        bench.machine.inject(1 - hanging, completes_later);
        for unit in &bench.machine.tracked {
            for _ in 0..16 {
                unit::Unit::probe(&**unit).expect("it works");
            }
        }
        for block in 0..BLOCKS {
            let (byte, took) = read(&bench, &mut volume, block);
            assert_eq!((byte, took), (block as u8, Duration::ZERO));
        }
    }
    bench.close(volume);
    bench.audit();
}

/// With parity no other unit has the block: it is recovered from the others of its row.
#[test]
fn a_block_on_an_unresponsive_unit_is_recovered_from_its_row() {
    let mut setup = Setup::quiet(3, 1);
    setup.erasure = Erasure::new(2, 1);
    let mut bench = Bench::with(setup);
    let mut volume = written(&mut bench);
    let completes_later = InjectedFaults {
        async_reads_one_in: 1,
        ..InjectedFaults::default()
    };
    for unit in 0..3 {
        bench.machine.inject(unit, completes_later);
    }
    bench.machine.inject(
        1,
        InjectedFaults {
            holds_reads: true,
            ..completes_later
        },
    );
    let mut hedged = 0;
    for block in 0..BLOCKS {
        let (byte, took) = read(&bench, &mut volume, block);
        assert_eq!(byte, block as u8);
        assert!(took <= Duration::from_millis(500), "{block}: {took:?}");
        hedged += u64::from(took > Duration::ZERO);
    }
    assert!(hedged > 0, "no read was hedged: this test shows nothing");
    assert!(hedged < BLOCKS * 2 / 3, "{hedged}");
    bench.machine.inject(1, completes_later);
    bench.close(volume);
    bench.audit();
}
