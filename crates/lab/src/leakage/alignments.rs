//! [`alignments`]: where in a piece a file may begin, and how it is cut into pieces then.

/// Positions in a piece at which a file that begins there is cut in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alignment {
    /// Number of positions.
    pub count: u64,
    /// Number of blocks in the first piece, at most the length of a row.
    pub first: u64,
    /// Number of pieces between the first and the last one.
    pub whole: u64,
    /// Number of blocks in the last piece, at most the length of a row; 0 if there is only one
    /// piece.
    pub last: u64,
}

impl Alignment {
    /// Whether the whole file is in one piece.
    pub fn is_in_one(&self) -> bool {
        self.whole == 0 && self.last == 0
    }
}

/// All alignments of a file of `blocks` blocks (at least 1) in pieces of `piece` blocks, which
/// consist of rows of `row` blocks. There are at most about three rows of them, however long a
/// piece is:
///
/// ```text
///   piece = 12, row = 4, a file of 14 blocks
///   │f f f f f f f f f f f f│l l · ·      begins at 0: 4 or more, and 2
///   │· f f f f f f f f f f f│l l l ·      begins at 1: 4 or more, and 3
///   │· · f f f f f f f f f f│l l l l      2 to 8: 4 or more, and 4 or more
/// ```
pub fn alignments(blocks: u64, piece: u64, row: u64) -> impl Iterator<Item = Alignment> {
    let mut begin = 0;
    std::iter::from_fn(move || {
        let room = piece.checked_sub(begin).filter(|room| *room > 0)?;
        let rest = blocks.saturating_sub(room);
        let (whole, last) = (rest / piece, rest % piece);
        let alike = match room >= blocks {
            true => room - blocks + 1,
            false => {
                let of_first = (room + 1).saturating_sub(row).max(1);
                let of_last = if last < row { 1 } else { piece - last };
                of_first.min(of_last)
            }
        };
        begin += alike;
        Some(Alignment {
            count: alike,
            first: room.min(blocks).min(row),
            whole,
            last: last.min(row),
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn alignments_equal_those_counted_one_by_one() {
        for (row, granularity) in [(1, 1), (1, 5), (4, 1), (4, 3), (3, 7), (8, 64)] {
            let piece = row * granularity;
            for blocks in 1..3 * piece + 2 {
                let mut expected = BTreeMap::<_, u64>::new();
                for begin in 0..piece {
                    let first = blocks.min(piece - begin);
                    let (whole, last) = ((blocks - first) / piece, (blocks - first) % piece);
                    *expected
                        .entry((first.min(row), whole, last.min(row)))
                        .or_default() += 1;
                }
                let mut found = BTreeMap::<_, u64>::new();
                let mut steps = 0;
                for one in alignments(blocks, piece, row) {
                    *found.entry((one.first, one.whole, one.last)).or_default() += one.count;
                    assert_eq!(one.is_in_one(), one.whole + one.last == 0);
                    steps += 1;
                }
                assert_eq!(found, expected, "{row} {granularity} {blocks}");
                assert!(steps <= 3 * row + 3, "{steps} {row} {granularity} {blocks}");
            }
        }
        // The longest possible file.
        let all: Vec<Alignment> = alignments(u64::MAX, 64 * 4096, 64).collect();
        let count: u64 = all.iter().map(|one| one.count).sum();
        assert_eq!(count, 64 * 4096);
    }
}
