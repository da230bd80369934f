//! What comes back: requests that were held back, flushes after one that failed, boxes that
//! could not begin.

use super::*;

/// It was put out while it hung, and filled anew; then it carried out what it had been asked
/// before that.
#[test]
fn what_a_replica_has_held_back_is_carried_out_before_it_is_filled() {
    for seed in 0..4 {
        let mut rig = Rig::new(seed, 1);
        rig.begin().expect("it begins");
        rig.until_in_sync();
        lock(&rig.places[1]).hangs = true;
        for value in 1..20 {
            rig.write(0, &[value; BLOCK]);
        }
        assert!(!lock(&rig.places[1]).late.is_empty(), "it was left");
        let until = rig.clock.monotonic() + Duration::from_secs(20);
        while rig.clock.monotonic() < until {
            assert_eq!(rig.poll(), []);
            rig.clock.advance(Duration::from_millis(50));
        }
        rig.write(BLOCK, &[20; BLOCK]);
        lock(&rig.places[1]).hangs = false;
        rig.until_alike();
        let place = lock(&rig.places[1]);
        assert!(place.late.is_empty() && place.live[0] == 19, "seed {seed}");
    }
}

/// As Linux does it: the flush after one that failed has nothing to do.
#[test]
fn a_member_that_failed_to_flush_is_given_all_since_the_last_flush_anew() {
    for seed in 0..4 {
        let mut rig = Rig::new(seed, 1);
        rig.begin().expect("it begins");
        rig.until_in_sync();
        rig.write(0, &[1; BLOCK]);
        rig.flush();
        for block in 1..20 {
            rig.write(block * BLOCK, &[2; BLOCK]);
        }
        lock(&rig.places[1]).failing_flushes = 1;
        rig.flush();
        assert_eq!(lock(&rig.places[1]).failing_flushes, 0);
        let is_durable = |rig: &Rig| lock(&rig.places[1]).durable == lock(&rig.places[0]).live;
        let became = (0..200_000).any(|_| {
            assert_eq!(rig.poll(), []);
            is_durable(&rig)
        });
        assert!(became, "seed {seed}: it has lost what was written");
        lock(&rig.places[1]).crash();
        rig.until_alike();
    }
}

/// Each time it was tried took a lease, and after two of them the file counted no more.
#[test]
fn a_box_that_cannot_begin_for_long_goes_on_when_its_replica_is_back() {
    let mut rig = Rig::new(24, 1);
    let mut epoch = 1;
    let tenure = |epoch| Tenure {
        epoch: Some(epoch),
        turn: u64::from(epoch),
        follows: 0,
        restores: None,
    };
    rig.tenure = tenure(epoch);
    rig.begin().expect("it begins");
    rig.until_in_sync();
    lock(&rig.places[0]).hangs = true;
    rig.write(0, &[5; BLOCK]);
    rig.flush();
    lock(&rig.places[0]).hangs = false;
    lock(&rig.places[1]).is_up = false;
    for _ in 0..5 {
        epoch += 1;
        rig.tenure = tenure(epoch);
        let why = rig.crash().expect_err("the volume has an older state");
        assert!(why.contains("only replica r1 has"), "{why}");
    }
    lock(&rig.places[1]).is_up = true;
    epoch += 1;
    rig.tenure = tenure(epoch);
    rig.crash().expect("it is there");
    assert_eq!(rig.read(0, BLOCK), [5; BLOCK]);
    rig.until_alike();
}

/// The host crashed, the chain was deleted, and applied again while the volume was attached:
/// its file counted, since the lease was the next one.
#[test]
fn what_was_written_before_a_chain_was_applied_anew_its_replicas_lack() {
    let mut rig = Rig::new(25, 1);
    rig.tenure = Tenure {
        epoch: Some(1),
        turn: 1,
        follows: 0,
        restores: None,
    };
    rig.begin().expect("it begins");
    rig.write(0, &[4; BLOCK]);
    rig.flush();
    rig.until_alike();
    rig.pool = a_pool(1);
    rig.simulation.crash();
    let device = Connection::new(&rig.places[0]);
    rig.chain = Chain::new(
        device,
        Arc::clone(&rig.clock) as Arc<dyn Clock>,
        Wake::silent(),
    );
    rig.write(0, &[5; BLOCK]);
    rig.flush();
    rig.tenure = Tenure {
        epoch: Some(2),
        turn: 3,
        follows: 2,
        restores: None,
    };
    rig.begin().expect("it begins");
    for _ in 0..50 {
        assert_eq!(rig.read(0, BLOCK), [5; BLOCK]);
    }
    rig.until_alike();
}
