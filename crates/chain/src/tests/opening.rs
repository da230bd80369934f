//! Opening new filters.

use std::time::Duration;

use base::{BlockDevice, Completion, Started};
use testkit::memory_device::Misbehavior;

use super::{Fails, OwnTokens, Rig, Xor};
use crate::{Filter, HotSwapError, Opening, SizeRule};

#[test]
fn the_old_filters_stay_in_use_if_a_new_one_cannot_be_opened() {
    let mut rig = Rig::new(Misbehavior::default());
    assert_eq!(rig.hot_swap(vec![Box::new(Xor(3))]), Ok(()));
    assert_eq!(rig.write(1, 0, 7), Started::Done);
    let failed = rig.hot_swap(vec![Box::new(Fails), Box::new(OwnTokens::default())]);
    let reason = "no key".to_owned().into();
    assert_eq!(failed, Err(HotSwapError::Open { at: 0, reason }));
    assert_eq!(rig.read(2, 0), (Started::Done, vec![7; 512]));
    assert_eq!(rig.chain.bottom().bytes()[0], 7 ^ 3);
}

/// The completion of a request of a filter that was never opened could have reached the next
/// filters under one of their tokens.
#[test]
fn requests_of_filters_that_were_never_opened_complete_no_request() {
    let mut rig = Rig::new(Misbehavior {
        pending_one_in: 1,
        ..Misbehavior::default()
    });
    rig.begin_hot_swap(vec![Box::new(OwnTokens::default())], SizeRule::Keep);
    for _ in 0..2 {
        assert_eq!(rig.poll(), []);
        let is_reading = rig.chain.bottom().unanswered() > 0;
        rig.chain.bottom().misbehavior.holds_completions =
            is_reading && rig.chain.bottom().calls.flushes > 0;
    }
    // Its read is pending.
    assert_eq!(rig.chain.bottom().unanswered(), 1);
    rig.clock.advance(Duration::from_secs(15));
    assert_eq!(rig.poll(), []);
    let ended = rig.ended.take();
    assert!(
        matches!(ended[..], [Err(HotSwapError::TimedOut { .. })]),
        "{ended:?}"
    );
    // The filter's own token was 1, too.
    assert_eq!(rig.read(1, 4096).0, Started::Pending);
    rig.chain.bottom().misbehavior.holds_completions = false;
    let answered = rig.poll();
    assert_eq!(answered.len(), 1, "{answered:?}");
    assert_eq!(answered[0].token, 1);
}

/// Never finishes opening.
struct NeverOpens;

impl Filter for NeverOpens {
    fn open(&mut self, _: &mut dyn BlockDevice) -> Opening {
        Opening::Pending
    }
}

/// A relay waited for an hour, and its error said 15 s.
#[test]
fn a_timeout_error_has_the_time_that_was_waited() {
    for (within, expected) in [
        (None, "a filter was not opened within 15 s"),
        (Some(3600), "a filter was not opened within 3600 s"),
    ] {
        let mut rig = Rig::new(Misbehavior::default());
        if let Some(within) = within {
            rig.chain.set_open_within(Duration::from_secs(within));
        }
        rig.begin_hot_swap(vec![Box::new(NeverOpens)], SizeRule::Keep);
        assert_eq!(rig.poll(), []);
        rig.clock
            .advance(Duration::from_secs(within.unwrap_or(15) - 1));
        assert_eq!(rig.poll(), []);
        assert_eq!(rig.ended.take(), []);
        rig.clock.advance(Duration::from_secs(1));
        assert_eq!(rig.poll(), []);
        let [Err(error)] = &rig.ended.take()[..] else {
            panic!("it timed out");
        };
        assert_eq!(error.to_string(), expected);
    }
}

/// Is open after this number of calls.
struct OpensAfter(u32);

impl Filter for OpensAfter {
    fn open(&mut self, _: &mut dyn BlockDevice) -> Opening {
        self.0 = self.0.saturating_sub(1);
        match self.0 {
            0 => Opening::Ready,
            _ => Opening::Pending,
        }
    }
}

/// Checks that it is neither polled nor asked for its timer before it is opened.
#[derive(Default)]
struct ChecksOrder {
    is_open: bool,
}

impl Filter for ChecksOrder {
    fn open(&mut self, _: &mut dyn BlockDevice) -> Opening {
        self.is_open = true;
        Opening::Ready
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        assert!(self.is_open, "a filter below it is not open");
        below.poll(completions);
    }

    fn next_timer(&self) -> Option<Duration> {
        assert!(self.is_open, "a filter below it is not open");
        None
    }
}

#[test]
fn a_filter_is_not_used_before_those_below_it_are_open() {
    for rule in [SizeRule::First, SizeRule::Keep] {
        let mut rig = Rig::new(Misbehavior::default());
        let filters: Vec<Box<dyn Filter>> = vec![
            Box::<ChecksOrder>::default(),
            Box::new(OpensAfter(5)),
            Box::new(OpensAfter(5)),
        ];
        rig.begin_hot_swap(filters, rule);
        for _ in 0..20 {
            assert_eq!(rig.poll(), []);
            rig.chain.next_timer();
        }
        assert_eq!(rig.ended.take(), [Ok(())]);
    }
}
