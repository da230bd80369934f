//! [`Streams`]: which reads follow one another, and what to read ahead of them
//! (docs/cache.md, "Readahead").
//!
//! It knows blocks and nothing else: what is read ahead, from where and for how long it is
//! kept, others decide. Streams are told apart by where they go on, so those of one
//! connection may be interleaved, and those of several do not disturb each other.

use std::ops::Range;

/// So many streams are followed.
const STREAMS_MAX: usize = 32;

/// So many reads are remembered that may have begun one.
const ENDS_MAX: usize = 64;

/// A first window is so many times the read.
const FIRST_TIMES: u64 = 4;

/// A read may come so many blocks late: clients with several under way do not keep their order.
const LATE_MAX: u64 = 128;

/// Reads that follow one another.
#[derive(Debug, Clone, Copy)]
struct Stream {
    /// Where the next one begins.
    next: u64,
    /// Up to where there is nothing to be read ahead any more.
    ahead: u64,
    /// So many blocks are read ahead; 0 before there was anything to wait for.
    window: u64,
    /// When it last went on.
    turn: u64,
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Streams {
    streams: Vec<Stream>,
    /// Where single reads ended, the oldest of which is forgotten next.
    ends: Vec<u64>,
    oldest_end: usize,
    turn: u64,
}

impl Stream {
    fn takes(&self, blocks: &Range<u64>) -> bool {
        let from = self.next.saturating_sub(LATE_MAX);
        (from..=self.next.max(self.ahead)).contains(&blocks.start)
    }

    /// What to read ahead now that these are read: as soon as less than half of the window is
    /// left, what makes it whole.
    fn goes_on(
        &mut self,
        blocks: &Range<u64>,
        has_waited: bool,
        window_max: u64,
    ) -> Option<Range<u64>> {
        self.next = self.next.max(blocks.end);
        let from = self.next.max(self.ahead);
        if from - self.next > self.window / 2 {
            return None;
        }
        self.window = match self.window {
            0 if !has_waited => return None,
            0 => FIRST_TIMES * (blocks.end - blocks.start).next_power_of_two(),
            window => 2 * window,
        };
        self.window = self.window.min(window_max);
        self.ahead = self.next + self.window;
        (from < self.ahead).then_some(from..self.ahead)
    }
}

impl Streams {
    /// These blocks are read, at least one; `has_waited`: they were not at hand. What to read
    /// ahead, at most `window_max` blocks from there.
    pub fn read(
        &mut self,
        blocks: Range<u64>,
        has_waited: bool,
        window_max: u64,
    ) -> Option<Range<u64>> {
        self.turn += 1;
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.takes(&blocks)) {
            stream.turn = self.turn;
            return stream.goes_on(&blocks, has_waited, window_max);
        }
        if let Some(end) = self.ends.iter_mut().find(|end| **end == blocks.start) {
            *end = u64::MAX;
            let mut stream = Stream {
                next: blocks.start,
                ahead: 0,
                window: 0,
                turn: self.turn,
            };
            let ahead = stream.goes_on(&blocks, has_waited, window_max);
            self.follow(stream);
            return ahead;
        }
        if self.ends.len() < ENDS_MAX {
            self.ends.push(blocks.end);
        } else {
            self.ends[self.oldest_end] = blocks.end;
            self.oldest_end = (self.oldest_end + 1) % ENDS_MAX;
        }
        None
    }

    fn follow(&mut self, stream: Stream) {
        if self.streams.len() < STREAMS_MAX {
            return self.streams.push(stream);
        }
        let longest_idle = self.streams.iter_mut().min_by_key(|stream| stream.turn);
        if let Some(place) = longest_idle {
            *place = stream;
        }
    }

    /// What was read ahead went unread: less from now on.
    pub fn shrink(&mut self) {
        for stream in &mut self.streams {
            if stream.window > 0 {
                stream.window = (stream.window / 2).max(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 1024;

    /// Reads `count` blocks one after another; what was read ahead, in order.
    fn run(streams: &mut Streams, from: u64, count: u64, step: u64) -> Vec<Range<u64>> {
        (from..from + count)
            .step_by(step as usize)
            .filter_map(|block| streams.read(block..block + step, true, MAX))
            .collect()
    }

    #[test]
    fn a_window_begins_small_and_grows_to_its_largest() {
        let mut streams = Streams::default();
        let ahead = run(&mut streams, 0, 10_000, 1);
        assert_eq!(ahead[0], 2..6, "with the second read, four times that");
        for pair in ahead.windows(2) {
            assert_eq!(pair[0].end, pair[1].start, "without gaps or overlaps");
        }
        let longest = ahead.iter().map(|range| range.end - range.start).max();
        assert!(
            (MAX / 2..=MAX).contains(&longest.expect("some")),
            "{longest:?}"
        );
        assert!(ahead.last().expect("some").end >= 10_000 + MAX / 2);
        // Larger reads begin with larger windows.
        let mut streams = Streams::default();
        assert_eq!(run(&mut streams, 0, 64, 32).first(), Some(&(64..64 + 128)));
    }

    #[test]
    fn what_is_at_hand_begins_nothing() {
        let mut streams = Streams::default();
        for block in 0..100 {
            assert_eq!(streams.read(block..block + 1, false, MAX), None);
        }
        assert_eq!(streams.read(100..101, true, MAX), Some(101..105));
        assert!(streams.read(103..104, false, MAX).is_some(), "it goes on");
    }

    #[test]
    fn what_is_at_hand_begins_nothing_either_after_something_went_unread() {
        let mut streams = Streams::default();
        for block in 0..3 {
            assert_eq!(streams.read(block..block + 1, false, MAX), None);
            streams.shrink();
        }
    }

    #[test]
    fn random_reads_begin_nothing_and_disturb_nobody() {
        let mut streams = Streams::default();
        let mut ahead = 0;
        for turn in 0..1000_u64 {
            let random = turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
            assert_eq!(streams.read(random..random + 1, true, MAX), None);
            let one = 1 << 50;
            ahead += usize::from(
                streams
                    .read(one + turn..one + turn + 1, true, MAX)
                    .is_some(),
            );
        }
        assert!(ahead > 5, "{ahead}");
    }

    #[test]
    fn interleaved_streams_are_told_apart_and_an_order_may_be_lost() {
        let mut streams = Streams::default();
        let mut ahead = vec![Vec::new(); 16];
        for turn in 0..200_u64 {
            for (stream, ahead) in ahead.iter_mut().enumerate() {
                // Pairs are swapped.
                let block = (stream as u64) << 32 | (turn ^ 1);
                ahead.extend(streams.read(block..block + 1, true, MAX));
            }
        }
        for ahead in ahead {
            let end = ahead.last().map_or(0, |range| range.end) & 0xFFFF_FFFF;
            assert!(end > 250, "{end}");
        }
    }

    #[test]
    fn what_goes_unread_makes_windows_smaller() {
        let mut streams = Streams::default();
        run(&mut streams, 0, 10_000, 1);
        for _ in 0..20 {
            streams.shrink();
        }
        let ahead = streams.read(20_000..20_001, true, MAX);
        assert_eq!(ahead, None, "that is another one");
        let next = run(&mut streams, 10_000, 2000, 1);
        assert!(next[0].end - next[0].start <= 4, "{next:?}");
    }
}
