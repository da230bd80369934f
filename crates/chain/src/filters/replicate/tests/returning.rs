//! What comes back: requests that were held back, flushes after one that failed, filters that
//! could not begin.

use super::*;
use base::Request;

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
fn a_filter_that_cannot_begin_for_long_goes_on_when_its_replica_is_back() {
    let mut rig = Rig::new(24, 1);
    let mut epoch = 1;
    let history = |epoch| ChainHistory {
        epoch: Some(epoch),
        chain: u64::from(epoch),
        predecessor: 0,
        restores: None,
        epoch_first: None,
    };
    rig.history = history(epoch);
    rig.begin().expect("it begins");
    rig.until_in_sync();
    lock(&rig.places[0]).hangs = true;
    rig.write(0, &[5; BLOCK]);
    rig.flush();
    lock(&rig.places[0]).hangs = false;
    lock(&rig.places[1]).is_up = false;
    for _ in 0..5 {
        epoch += 1;
        rig.history = history(epoch);
        let why = rig.crash().expect_err("the volume has an older state");
        assert!(why.contains("only replica r1 has"), "{why}");
    }
    lock(&rig.places[1]).is_up = true;
    epoch += 1;
    rig.history = history(epoch);
    rig.crash().expect("it is there");
    assert_eq!(rig.read(0, BLOCK), [5; BLOCK]);
    rig.until_alike();
}

/// The host crashed, the chain was deleted, and applied again while the volume was attached:
/// its file counted, since the lease was the next one.
#[test]
fn what_was_written_before_a_chain_was_applied_anew_its_replicas_lack() {
    let mut rig = Rig::new(25, 1);
    rig.history = ChainHistory {
        epoch: Some(1),
        chain: 1,
        predecessor: 0,
        restores: None,
        epoch_first: None,
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
        Wake::noop(),
    );
    rig.write(0, &[5; BLOCK]);
    rig.flush();
    rig.history = ChainHistory {
        epoch: Some(2),
        chain: 3,
        predecessor: 2,
        restores: None,
        epoch_first: None,
    };
    rig.begin().expect("it begins");
    for _ in 0..50 {
        assert_eq!(rig.read(0, BLOCK), [5; BLOCK]);
    }
    rig.until_alike();
}

/// What a block may be read as; and if what was not flushed is lost.
#[derive(Clone)]
struct Block {
    live: BTreeSet<u8>,
    since_flush: BTreeSet<u8>,
}

impl Block {
    fn new() -> Self {
        let zero = BTreeSet::from([0]);
        Self {
            live: zero.clone(),
            since_flush: zero,
        }
    }

    fn may_be(&mut self, value: u8) {
        self.live.insert(value);
        self.since_flush.insert(value);
    }

    /// What was not flushed is lost, and that was said.
    fn is_lost(&mut self) {
        self.live.extend(&self.since_flush);
        self.since_flush.clone_from(&self.live);
    }
}

enum Asked {
    Ended(Result<Outcome, IoError>),
    /// It has begun.
    UnderWay,
    Refused,
}

impl Rig {
    /// Asks for something, for so many polls.
    fn ask_for(
        &mut self,
        polls: u64,
        mut ask: impl FnMut(&mut Chain<Connection>, Token) -> Started,
    ) -> Asked {
        let token = self.next();
        let mut asked = Asked::Refused;
        for _ in 0..polls {
            if matches!(asked, Asked::Refused) {
                match ask(&mut self.chain, token) {
                    Started::Done => return Asked::Ended(Ok(Outcome::Done)),
                    Started::Pending => asked = Asked::UnderWay,
                    Started::Busy => {}
                    Started::Failed(error) => return Asked::Ended(Err(error)),
                }
            }
            let ended = self.poll().into_iter().find(|one| one.token == token);
            if let Some(ended) = ended {
                return Asked::Ended(ended.result);
            }
        }
        asked
    }
}

/// The volume is out, or is being filled, and the only one that has all goes, and comes back,
/// with or without what it had not flushed.
#[test]
fn while_whoever_alone_has_all_is_away_nothing_is_acknowledged() {
    let (mut flushed, mut lost) = (0, 0);
    for seed in 0..20 {
        let mut rig = Rig::new(1000 + seed, 1);
        rig.begin().expect("it begins");
        rig.until_in_sync();
        let mut blocks = vec![Block::new(); 32];
        // Something may be lost, and the next flush says so.
        let mut is_suspect = false;
        let place_of = |block: usize| (block * 61 % (SIZE / BLOCK)) * BLOCK;
        for step in 0..200 {
            let block = rig.random.below(32) as usize;
            let at = place_of(block) as u64;
            match rig.random.below(16) {
                0..5 => {
                    let value = (step % 250) as u8 + 1;
                    let data = [value; BLOCK];
                    let asked = rig.ask_for(400, |chain, token| {
                        chain.start(Request::write(token, at, &data, Durability::Volatile))
                    });
                    match asked {
                        Asked::Ended(Ok(_)) => {
                            blocks[block].may_be(value);
                            blocks[block].live = BTreeSet::from([value]);
                        }
                        Asked::Ended(Err(_)) | Asked::UnderWay => blocks[block].may_be(value),
                        Asked::Refused => {}
                    }
                }
                5..9 => {
                    let asked = rig.ask_for(400, |chain, token| {
                        chain.start(Request::read(token, at, &mut [0; BLOCK]))
                    });
                    if let Asked::Ended(Ok(Outcome::Data(data))) = asked {
                        let Block { live, since_flush } = &blocks[block];
                        assert!(
                            live.contains(&data[0]) || is_suspect && since_flush.contains(&data[0]),
                            "seed {seed}, step {step}: block {block} has {}, not {live:?}",
                            data[0]
                        );
                    }
                }
                9..11 => match rig.ask_for(2000, |chain, token| chain.start(Request::flush(token)))
                {
                    Asked::Ended(Ok(_)) => {
                        (flushed, is_suspect) = (flushed + 1, false);
                        for block in &mut blocks {
                            block.since_flush = block.live.clone();
                        }
                    }
                    Asked::Ended(Err(_)) => {
                        (lost, is_suspect) = (lost + 1, false);
                        blocks.iter_mut().for_each(Block::is_lost);
                    }
                    Asked::UnderWay | Asked::Refused => {}
                },
                11..13 => {
                    let hangs = !lock(&rig.places[0]).hangs;
                    lock(&rig.places[0]).hangs = hangs;
                    // Mostly for so long that it is put out, with this write or another one.
                    let value = (step % 250) as u8 + 1;
                    let data = [value; BLOCK];
                    let polls = if hangs { 4000 } else { 20 };
                    let asked = rig.ask_for(polls, |chain, token| {
                        chain.start(Request::write(token, at, &data, Durability::Volatile))
                    });
                    if !matches!(asked, Asked::Refused) {
                        blocks[block].may_be(value);
                    }
                }
                13 => {
                    let mut replica = lock(&rig.places[1]);
                    replica.is_up = !replica.is_up;
                    if !replica.is_up && replica.random.below(2) == 0 {
                        replica.crash();
                        is_suspect = true;
                    } else {
                        // Its connections are over.
                        replica.life += 1;
                    }
                }
                14 => {
                    let polls = rig.random.below(3000);
                    (0..polls).for_each(|_| drop(rig.poll()));
                }
                _ if rig.random.below(4) > 0 => {}
                _ => {
                    (lock(&rig.places[0]).hangs, lock(&rig.places[1]).is_up) = (false, true);
                    rig.crash().expect("all are there");
                    is_suspect = false;
                    blocks.iter_mut().for_each(Block::is_lost);
                }
            }
        }
        (lock(&rig.places[0]).hangs, lock(&rig.places[1]).is_up) = (false, true);
        let is_alike = (0..200_000).any(|_| {
            rig.poll();
            rig.are_alike()
        });
        assert!(is_alike, "seed {seed}: they stay different");
        for (block, may_be) in blocks.iter().enumerate() {
            let read = rig.read(place_of(block), BLOCK)[0];
            assert!(
                may_be.live.contains(&read) || is_suspect && may_be.since_flush.contains(&read),
                "seed {seed}: block {block} has {read}, not {:?}",
                may_be.live
            );
        }
    }
    assert!(flushed > 30 && lost > 3, "{flushed} {lost}");
}
