//! Members and filters that return: writes that a server delayed, flushes after a failed one, and
//! filters that could not open.

use super::*;
use base::Request;

/// A replica hung, was excluded and rebuilt. Then its server carried out writes from before.
#[test]
fn a_replica_is_rebuilt_only_after_its_delayed_writes() {
    for seed in 0..4 {
        let mut rig = Rig::new(seed, 1);
        rig.open().expect("it opens");
        rig.until_in_sync();
        lock(&rig.servers[1]).hangs = true;
        for value in 1..20 {
            rig.write(0, &[value; BLOCK]);
        }
        assert!(
            !lock(&rig.servers[1]).late.is_empty(),
            "its connection was dropped"
        );
        let until = rig.clock.monotonic() + Duration::from_secs(20);
        while rig.clock.monotonic() < until {
            assert_eq!(rig.poll(), []);
            rig.clock.advance(Duration::from_millis(50));
        }
        rig.write(BLOCK, &[20; BLOCK]);
        lock(&rig.servers[1]).hangs = false;
        rig.until_equal();
        let server = lock(&rig.servers[1]);
        assert!(
            server.late.is_empty() && server.live[0] == 19,
            "seed {seed}"
        );
    }
}

/// In Linux, the flush after a failed one has nothing to do.
#[test]
fn after_a_failed_flush_a_member_gets_everything_since_the_last_flush_again() {
    for seed in 0..4 {
        let mut rig = Rig::new(seed, 1);
        rig.open().expect("it opens");
        rig.until_in_sync();
        rig.write(0, &[1; BLOCK]);
        rig.flush();
        for block in 1..20 {
            rig.write(block * BLOCK, &[2; BLOCK]);
        }
        lock(&rig.servers[1]).failing_flushes = 1;
        rig.flush();
        assert_eq!(lock(&rig.servers[1]).failing_flushes, 0);
        let is_durable = |rig: &Rig| lock(&rig.servers[1]).durable == lock(&rig.servers[0]).live;
        let became = (0..200_000).any(|_| {
            assert_eq!(rig.poll(), []);
            is_durable(&rig)
        });
        assert!(became, "seed {seed}: writes are lost");
        lock(&rig.servers[1]).crash();
        rig.until_equal();
    }
}

/// A replica that is not found when the filter is opened is excluded, which is one event however
/// often it is tried, and is rebuilt when it is found.
#[test]
fn a_replica_that_is_not_found_at_the_start_is_missing_later_writes() {
    let mut rig = Rig::new(26, 1);
    rig.history = history(1, 1, 0);
    rig.open().expect("it opens");
    rig.until_in_sync();
    rig.write(0, &[4; BLOCK]);
    rig.flush();
    rig.until_equal();
    rig.remove().expect("the volume is complete");
    lock(&rig.servers[1]).is_unknown = true;
    rig.history = history(1, 2, 1);
    rig.open().expect("the volume is complete");
    rig.write(0, &[5; BLOCK]);
    rig.flush();
    let until = rig.clock.monotonic() + Duration::from_secs(5);
    while rig.clock.monotonic() < until {
        assert_eq!(rig.poll(), []);
        rig.clock.advance(Duration::from_millis(10));
    }
    let refusals = |rig: &Rig| {
        let messages = rig.notes.messages().into_iter();
        let refusals = messages.filter(|one| one.contains("r1 is excluded: no such server"));
        refusals.count()
    };
    assert_eq!(refusals(&rig), 1, "each attempt was an event");
    lock(&rig.servers[1]).is_unknown = false;
    rig.until_equal();
    assert_eq!(rig.read(0, BLOCK), [5; BLOCK]);
}

/// Once each attempt to connect to it was an event.
#[test]
fn the_only_complete_replica_that_fails_each_request_is_reported_once() {
    let mut rig = Rig::new(27, 1);
    rig.open().expect("it opens");
    rig.until_in_sync();
    lock(&rig.servers[0]).hangs = true;
    rig.write(0, &[5; BLOCK]);
    rig.flush();
    lock(&rig.servers[1]).is_up = false;
    let until = rig.clock.monotonic() + Duration::from_secs(30);
    while rig.clock.monotonic() < until {
        rig.poll();
        rig.clock.advance(Duration::from_millis(10));
    }
    let messages = rig.notes.messages();
    let waits = messages
        .iter()
        .filter(|one| one.contains("requests wait for"));
    assert_eq!(waits.count(), 1, "{messages:?}");
    assert!(!rig.notes.has_message("available again"), "{messages:?}");
    lock(&rig.servers[1]).is_up = true;
    lock(&rig.servers[0]).hangs = false;
    assert_eq!(rig.read(0, BLOCK), [5; BLOCK]);
    assert!(rig.notes.has_message("r1 is available again"));
}

/// Each attempt to open took a lease, and after two leases the file did not count any more.
#[test]
fn a_filter_that_failed_to_open_often_continues_when_its_replica_returns() {
    let mut rig = Rig::new(24, 1);
    let mut epoch = 1;
    let history_of = |epoch| history(epoch, u64::from(epoch), 0);
    rig.history = history_of(epoch);
    rig.open().expect("it opens");
    rig.until_in_sync();
    lock(&rig.servers[0]).hangs = true;
    rig.write(0, &[5; BLOCK]);
    rig.flush();
    lock(&rig.servers[0]).hangs = false;
    lock(&rig.servers[1]).is_up = false;
    for _ in 0..5 {
        epoch += 1;
        rig.history = history_of(epoch);
        let why = rig.crash().expect_err("the volume has an older state");
        assert!(why.contains("only replica r1 has the last writes"), "{why}");
    }
    lock(&rig.servers[1]).is_up = true;
    epoch += 1;
    rig.history = history_of(epoch);
    rig.crash().expect("the replica is available");
    assert_eq!(rig.read(0, BLOCK), [5; BLOCK]);
    rig.until_equal();
}

/// The host crashed, and the chain was deleted and then applied again while the volume was
/// attached. The file counted, since the lease was the next one.
#[test]
fn replicas_are_missing_what_was_written_before_their_chain_was_applied_again() {
    let mut rig = Rig::new(25, 1);
    rig.history = history(1, 1, 0);
    rig.open().expect("it opens");
    rig.write(0, &[4; BLOCK]);
    rig.flush();
    rig.until_equal();
    rig.pool = a_pool(1);
    rig.simulation.crash();
    let device = Connection::new(&rig.servers[0]);
    rig.chain = Chain::new(
        device,
        Arc::clone(&rig.clock) as Arc<dyn Clock>,
        Wake::noop(),
    );
    rig.write(0, &[5; BLOCK]);
    rig.flush();
    rig.history = history(2, 3, 2);
    rig.open().expect("it opens");
    for _ in 0..50 {
        assert_eq!(rig.read(0, BLOCK), [5; BLOCK]);
    }
    rig.until_equal();
}

/// The values that a block may have.
#[derive(Clone)]
struct Block {
    live: BTreeSet<u8>,
    /// The values that it may have if unflushed writes are lost.
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

    /// Unflushed writes are lost, and a flush has returned that.
    fn is_lost(&mut self) {
        self.live.extend(&self.since_flush);
        self.since_flush.clone_from(&self.live);
    }
}

enum Attempt {
    Ended(Result<Outcome, IoError>),
    /// It was started and has not ended.
    Pending,
    Refused,
}

impl Rig {
    /// Stops the replica's server, or starts it again. Returns whether its unflushed writes may be
    /// lost.
    fn toggle_replica(&mut self) -> bool {
        let mut replica = lock(&self.servers[1]);
        replica.is_up = !replica.is_up;
        let loses = !replica.is_up && replica.random.below(2) == 0;
        match loses {
            true => replica.crash(),
            // Its connections end.
            false => replica.life += 1,
        }
        loses
    }

    /// Tries a request for a number of polls.
    fn attempt(
        &mut self,
        polls: u64,
        mut ask: impl FnMut(&mut Chain<Connection>, Token) -> Started,
    ) -> Attempt {
        let token = self.next();
        let mut attempt = Attempt::Refused;
        for _ in 0..polls {
            if matches!(attempt, Attempt::Refused) {
                match ask(&mut self.chain, token) {
                    Started::Done => return Attempt::Ended(Ok(Outcome::Done)),
                    Started::Pending => attempt = Attempt::Pending,
                    Started::Busy => {}
                    Started::Failed(error) => return Attempt::Ended(Err(error)),
                }
            }
            let ended = self.poll().into_iter().find(|one| one.token == token);
            if let Some(ended) = ended {
                return Attempt::Ended(ended.result);
            }
        }
        attempt
    }
}

/// The offset of a block of the test, in bytes.
fn offset_of(block: usize) -> usize {
    block * 61 % (SIZE / BLOCK) * BLOCK
}

/// The volume is excluded or rebuilding, and the only complete replica fails and returns, with or
/// without its unflushed writes.
#[test]
fn nothing_is_acknowledged_while_the_only_complete_replica_is_unavailable() {
    let (mut flushed, mut lost) = (0, 0);
    for seed in 0..20 {
        let mut rig = Rig::new(1000 + seed, 1);
        rig.open().expect("it opens");
        rig.until_in_sync();
        let mut blocks = vec![Block::new(); 32];
        // Unflushed writes may be lost, and the next flush returns that.
        let mut is_suspect = false;
        for step in 0..200 {
            let block = rig.random.below(32) as usize;
            let at = offset_of(block) as u64;
            match rig.random.below(16) {
                0..5 => {
                    let value = (step % 250) as u8 + 1;
                    let data = [value; BLOCK];
                    let attempt = rig.attempt(400, |chain, token| {
                        chain.start(Request::write(token, at, &data, Durability::Volatile))
                    });
                    match attempt {
                        Attempt::Ended(Ok(_)) => {
                            blocks[block].may_be(value);
                            blocks[block].live = BTreeSet::from([value]);
                        }
                        Attempt::Ended(Err(_)) | Attempt::Pending => blocks[block].may_be(value),
                        Attempt::Refused => {}
                    }
                }
                5..9 => {
                    let attempt = rig.attempt(400, |chain, token| {
                        chain.start(Request::read(token, at, &mut [0; BLOCK]))
                    });
                    if let Attempt::Ended(Ok(Outcome::Data(data))) = attempt {
                        let Block { live, since_flush } = &blocks[block];
                        assert!(
                            live.contains(&data[0]) || is_suspect && since_flush.contains(&data[0]),
                            "seed {seed}, step {step}: block {block} has {}, not {live:?}",
                            data[0]
                        );
                    }
                }
                9..11 => match rig.attempt(2000, |chain, token| chain.start(Request::flush(token)))
                {
                    Attempt::Ended(Ok(_)) => {
                        (flushed, is_suspect) = (flushed + 1, false);
                        for block in &mut blocks {
                            block.since_flush = block.live.clone();
                        }
                    }
                    Attempt::Ended(Err(_)) => {
                        (lost, is_suspect) = (lost + 1, false);
                        blocks.iter_mut().for_each(Block::is_lost);
                    }
                    Attempt::Pending | Attempt::Refused => {}
                },
                11..13 => {
                    let hangs = !lock(&rig.servers[0]).hangs;
                    lock(&rig.servers[0]).hangs = hangs;
                    // Mostly long enough that it is excluded, by this write or another one.
                    let value = (step % 250) as u8 + 1;
                    let data = [value; BLOCK];
                    let polls = if hangs { 4000 } else { 20 };
                    let attempt = rig.attempt(polls, |chain, token| {
                        chain.start(Request::write(token, at, &data, Durability::Volatile))
                    });
                    if !matches!(attempt, Attempt::Refused) {
                        blocks[block].may_be(value);
                    }
                }
                13 => is_suspect |= rig.toggle_replica(),
                14 => {
                    let polls = rig.random.below(3000);
                    (0..polls).for_each(|_| drop(rig.poll()));
                }
                _ if rig.random.below(4) > 0 => {}
                _ => {
                    (lock(&rig.servers[0]).hangs, lock(&rig.servers[1]).is_up) = (false, true);
                    rig.crash().expect("all are available");
                    is_suspect = false;
                    blocks.iter_mut().for_each(Block::is_lost);
                }
            }
        }
        (lock(&rig.servers[0]).hangs, lock(&rig.servers[1]).is_up) = (false, true);
        let is_equal = rig.are_equal_after(drop);
        assert!(is_equal, "seed {seed}: the members stay different");
        for (block, may_be) in blocks.iter().enumerate() {
            let read = rig.read(offset_of(block), BLOCK)[0];
            assert!(
                may_be.live.contains(&read) || is_suspect && may_be.since_flush.contains(&read),
                "seed {seed}: block {block} has {read}, not {:?}",
                may_be.live
            );
        }
    }
    assert!(flushed > 30 && lost > 3, "{flushed} {lost}");
}
