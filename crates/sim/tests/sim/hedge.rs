//! Stories of units that take long.

use std::time::Duration;

use base::{BlockDevice, Completion, Outcome, Request, Started};
use sim::setup::Setup;
use testkit::units::InjectedFaults;
use volume::Volume;
use volume::catalog::Erasure;

use crate::bench::Bench;

/// Reads a block, and says how long that took by the machine's clock, which stands
/// still but where the volume waits for a time.
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
        // What it asks for may be answered at once, which wakes it.
        volume.poll(&mut completions);
        volume.poll(&mut completions);
        if let Some(answer) = completions.pop() {
            match answer.result {
                Ok(Outcome::Data(data)) => return (data[0], took),
                other => panic!("{other:?}"),
            }
        }
        if !bench.machine.simulation.pool.run_one(bench.random()) {
            let timer = volume.next_timer().expect("it waits for the unit for ever");
            clock.advance(timer);
            took += timer;
        }
    }
}

/// Blocks that are written, each with its number.
const BLOCKS: u64 = 64;

/// A volume that was written and opened again: what it reads it has to fetch.
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

/// Whoever asked a unit that hung waited until the link to it gave up, for each
/// block that it was the first to be asked for.
#[test]
fn a_unit_that_hangs_costs_nobody_its_timeout() {
    let mut bench = Bench::new(2, 2);
    let mut volume = written(&mut bench);
    let told_later = InjectedFaults {
        async_reads_one_in: 1,
        ..InjectedFaults::default()
    };
    for hanging in 0..2 {
        bench.machine.lie(1 - hanging, told_later);
        bench.machine.lie(
            hanging,
            InjectedFaults {
                holds_reads: true,
                ..told_later
            },
        );
        let mut waited = Duration::ZERO;
        for block in 0..BLOCKS {
            let (byte, took) = read(&bench, &mut volume, block);
            assert_eq!(byte, block as u8);
            waited += took;
        }
        let kept = bench.machine.kept_reads(hanging);
        assert!(kept > 0, "it was never asked: this test shows nothing");
        assert!(kept <= 8, "it was asked again and again: {kept}");
        assert!(waited <= Duration::from_millis(400), "{waited:?}");
        // What it kept fails now: nobody waits for that any more.
        bench.machine.lie(hanging, told_later);
        bench.machine.lie(1 - hanging, told_later);
        for unit in &bench.machine.tracked {
            for _ in 0..16 {
                unit::Unit::probe(&**unit).expect("it is well");
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

/// With parity nobody else has the block: it is worked out of the others of its row.
#[test]
fn a_block_on_a_unit_that_hangs_is_worked_out_of_others() {
    let mut setup = Setup::quiet(3, 1);
    setup.erasure = Erasure::new(2, 1);
    let mut bench = Bench::with(setup);
    let mut volume = written(&mut bench);
    let told_later = InjectedFaults {
        async_reads_one_in: 1,
        ..InjectedFaults::default()
    };
    for unit in 0..3 {
        bench.machine.lie(unit, told_later);
    }
    bench.machine.lie(
        1,
        InjectedFaults {
            holds_reads: true,
            ..told_later
        },
    );
    let mut late = 0;
    for block in 0..BLOCKS {
        let (byte, took) = read(&bench, &mut volume, block);
        assert_eq!(byte, block as u8);
        assert!(took <= Duration::from_millis(500), "{block}: {took:?}");
        late += u64::from(took > Duration::ZERO);
    }
    assert!(late > 0, "it was never waited for: this test shows nothing");
    assert!(late < BLOCKS * 2 / 3, "{late}");
    bench.machine.lie(1, told_later);
    bench.close(volume);
    bench.audit();
}
