//! [`Streams`]: detects sequential reads and says what to read ahead of them
//! (docs/internals/cache.md, "Readahead").
//!
//! It knows block numbers and nothing else. Streams are distinguished by where they
//! continue, so streams of one connection may be interleaved, and those of several
//! connections do not disturb each other.

use std::ops::Range;

/// Streams that are followed at once.
const STREAMS_MAX: usize = 32;

/// Single reads that are remembered because a stream may have begun with them.
const ENDS_MAX: usize = 64;

/// The first window, as a multiple of the read.
const FIRST_TIMES: u64 = 4;

/// How far behind a stream a read may be, in blocks: clients with several reads in
/// flight do not keep their order.
const LATE_MAX: u64 = 128;

/// A sequence of consecutive reads.
#[derive(Debug, Clone, Copy)]
struct Stream {
    /// The first block of the next read.
    next: u64,
    /// The end of what has been read ahead.
    ahead: u64,
    /// The window, in blocks; 0 until a read had to wait.
    window: u64,
    /// When it last continued.
    turn: u64,
}

/// The sequential streams of one volume.
#[derive(Debug, Default)]
pub struct Streams {
    streams: Vec<Stream>,
    /// Where single reads ended; the oldest is forgotten next.
    ends: Vec<u64>,
    oldest_end: usize,
    turn: u64,
}

impl Stream {
    fn takes(&self, blocks: &Range<u64>) -> bool {
        let from = self.next.saturating_sub(LATE_MAX);
        (from..=self.next.max(self.ahead)).contains(&blocks.start)
    }

    /// What to read ahead of a read of `blocks`: once less than half of the window is
    /// left, the rest of it.
    fn advance(
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
    /// Records a read of `blocks`, at least one, and returns what to read ahead, at
    /// most `window_max` blocks; `has_waited`: the read could not be completed at once.
    pub fn read(
        &mut self,
        blocks: Range<u64>,
        has_waited: bool,
        window_max: u64,
    ) -> Option<Range<u64>> {
        self.turn += 1;
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.takes(&blocks)) {
            stream.turn = self.turn;
            return stream.advance(&blocks, has_waited, window_max);
        }
        if let Some(end) = self.ends.iter_mut().find(|end| **end == blocks.start) {
            *end = u64::MAX;
            let mut stream = Stream {
                next: blocks.start,
                ahead: 0,
                window: 0,
                turn: self.turn,
            };
            let ahead = stream.advance(&blocks, has_waited, window_max);
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
        if let Some(replaced) = longest_idle {
            *replaced = stream;
        }
    }

    /// Halves all windows: blocks that were read ahead were evicted unread.
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
    fn a_read_that_does_not_wait_starts_no_readahead() {
        let mut streams = Streams::default();
        for block in 0..100 {
            assert_eq!(streams.read(block..block + 1, false, MAX), None);
        }
        assert_eq!(streams.read(100..101, true, MAX), Some(101..105));
        assert!(
            streams.read(103..104, false, MAX).is_some(),
            "the stream continues"
        );
    }

    #[test]
    fn shrinking_starts_no_readahead_of_reads_that_do_not_wait() {
        let mut streams = Streams::default();
        for block in 0..3 {
            assert_eq!(streams.read(block..block + 1, false, MAX), None);
            streams.shrink();
        }
    }

    #[test]
    fn random_reads_start_no_readahead_and_disturb_no_stream() {
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
    fn interleaved_and_slightly_reordered_streams_are_told_apart() {
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
    fn unread_readahead_shrinks_windows() {
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
