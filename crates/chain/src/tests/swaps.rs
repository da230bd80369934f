//! When filters are swapped, and what a swap keeps.

use std::time::Duration;

use base::{BlockDevice, Request, Started, Token};
use testkit::memory_device::Misbehavior;

use super::{Fails, KeepsSize, Larger, Rig, SIZE, Xor};
use crate::{Filter, HotSwapError, SizeRule};

#[test]
fn filters_are_not_swapped_while_a_request_is_pending() {
    let mut rig = Rig::new(Misbehavior {
        pending_one_in: 1,
        holds_completions: true,
        ..Misbehavior::default()
    });
    assert_eq!(rig.write(7, 0, 1), Started::Pending);
    rig.begin_hot_swap(vec![Box::new(Xor(1))], SizeRule::MayChange);
    assert_eq!(rig.chain.next_timer(), Some(Duration::ZERO), "it has begun");
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.write(8, 512, 2), Started::Busy);
    assert_eq!(rig.chain.next_timer(), Some(Duration::from_secs(10)));
    rig.begin_hot_swap(Vec::new(), SizeRule::Keep);
    assert_eq!(rig.ended.take(), [Err(HotSwapError::InProgress)]);
    // It takes too long: the old filters stay, and the refused request is offered again.
    rig.clock.advance(Duration::from_secs(10));
    assert_eq!(rig.poll(), []);
    let ended = rig.ended.take();
    assert!(
        matches!(ended[..], [Err(HotSwapError::TimedOut { .. })]),
        "{ended:?}"
    );
    assert_eq!(rig.chain.next_timer(), Some(Duration::ZERO));
    rig.chain.bottom().misbehavior.holds_completions = false;
    let answered: Vec<Token> = rig.poll().iter().map(|one| one.token).collect();
    assert_eq!(answered, [7]);
    assert_eq!(rig.hot_swap(vec![Box::new(Xor(1))]), Ok(()));
}

/// A flush that the chain had started itself completed after the hot swap had failed, and was
/// counted as the completion of a guest's request.
#[test]
fn the_late_flush_of_a_failed_hot_swap_completes_no_request() {
    let mut rig = Rig::new(Misbehavior {
        pending_one_in: 1,
        holds_completions: true,
        ..Misbehavior::default()
    });
    rig.begin_hot_swap(vec![Box::new(Xor(1))], SizeRule::MayChange);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.chain.bottom().calls.flushes, 1);
    rig.clock.advance(Duration::from_secs(10));
    assert_eq!(rig.poll(), []);
    assert!(matches!(
        rig.ended.take()[..],
        [Err(HotSwapError::TimedOut { .. })]
    ));
    // The next hot swap does not take it for its own flush.
    rig.begin_hot_swap(vec![Box::new(Xor(1))], SizeRule::MayChange);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.chain.bottom().calls.flushes, 1);
    rig.chain.bottom().misbehavior.holds_completions = false;
    for _ in 0..10 {
        assert_eq!(rig.poll(), []);
    }
    assert_eq!(rig.ended.take(), [Ok(())]);
    assert_eq!(rig.chain.bottom().calls.flushes, 2);
}

/// The caller that waited for its result waited forever.
#[test]
fn a_chain_that_is_closed_ends_its_hot_swap() {
    let away = Misbehavior {
        pending_one_in: 1,
        holds_completions: true,
        ..Misbehavior::default()
    };
    let mut rig = Rig::new(away.clone());
    rig.begin_hot_swap(vec![Box::new(Xor(1))], SizeRule::MayChange);
    assert_eq!(rig.poll(), []);
    rig.chain.stop_waiting();
    assert_eq!(rig.ended.take(), [Err(HotSwapError::Stopped)]);
    assert_eq!(
        rig.chain.start(Request::flush(1)),
        Started::Pending,
        "the last flush is accepted"
    );
    rig.begin_hot_swap(vec![Box::new(Xor(1))], SizeRule::MayChange);
    assert_eq!(rig.ended.take(), [Err(HotSwapError::Stopped)]);
    let mut rig = Rig::new(away);
    rig.begin_hot_swap(vec![Box::new(Xor(1))], SizeRule::MayChange);
    drop(rig.chain.into_bottom());
    assert_eq!(rig.ended.take(), [Err(HotSwapError::Stopped)]);
}

/// The 256th hot swap that failed had the generation of the filters in use, which then got the
/// completions of its requests.
#[test]
fn a_failed_hot_swap_never_has_the_generation_of_the_filters_in_use() {
    let mut rig = Rig::new(Misbehavior::default());
    for _ in 0..600 {
        let failed = rig.hot_swap(vec![Box::new(Fails)]);
        assert!(
            matches!(failed, Err(HotSwapError::Open { .. })),
            "{failed:?}"
        );
        assert_ne!(rig.chain.last_generation(), 1, "it is in use");
    }
}

#[test]
fn a_hot_swap_keeps_the_size_and_the_operations_that_the_guest_knows() {
    let mut rig = Rig::new(Misbehavior::default());
    rig.begin_hot_swap(vec![Box::new(Larger)], SizeRule::Keep);
    rig.poll();
    let size = SIZE as u64;
    let would_be = size + 4096;
    let refused = Err(HotSwapError::Size { is: size, would_be });
    assert_eq!(rig.ended.take(), [refused]);
    rig.begin_hot_swap(vec![Box::new(Xor(1))], SizeRule::Keep);
    rig.poll();
    assert_eq!(rig.ended.take(), [Err(HotSwapError::Capability("trim"))]);
    assert!(rig.chain.capabilities().can_trim);
    // Before the disk has a user, both may change.
    assert_eq!(rig.hot_swap(vec![Box::new(Larger)]), Ok(()));
    assert_eq!(rig.chain.geometry().size_bytes, would_be);
}

#[test]
fn a_hot_swap_shows_the_growth_that_a_filter_hid_and_no_other() {
    let size = SIZE as u64;
    let mut rig = Rig::new(Misbehavior::default());
    assert_eq!(rig.hot_swap(vec![Box::<KeepsSize>::default()]), Ok(()));
    rig.chain.bottom().grow(SIZE + 8192);
    assert_eq!(rig.chain.geometry().size_bytes, size);
    let swap = |rig: &mut Rig, filters| {
        rig.begin_hot_swap(filters, SizeRule::Keep);
        rig.poll();
        rig.ended.take()
    };
    // Neither less nor more than the hidden growth.
    let larger: Vec<Box<dyn Filter>> = vec![Box::new(Larger)];
    let would_be = size + 8192 + 4096;
    let refused = Err(HotSwapError::Size { is: size, would_be });
    assert_eq!(swap(&mut rig, larger), [refused]);
    let keeps_size = || -> Vec<Box<dyn Filter>> { vec![Box::<KeepsSize>::default()] };
    assert_eq!(swap(&mut rig, keeps_size()), [Ok(())]);
    assert_eq!(rig.chain.geometry().size_bytes, size + 8192);
    rig.chain.bottom().grow(SIZE + 8192 + 4096);
    assert_eq!(swap(&mut rig, Vec::new()), [Ok(())]);
    // No filter hides growth.
    rig.chain.bottom().grow(SIZE + 8192 + 8192);
    let is = rig.chain.geometry().size_bytes;
    assert_eq!(is, size + 8192 + 8192);
    let would_be = is + 4096;
    let larger: Vec<Box<dyn Filter>> = vec![Box::new(Larger)];
    let refused = Err(HotSwapError::Size { is, would_be });
    assert_eq!(swap(&mut rig, larger), [refused]);
}
