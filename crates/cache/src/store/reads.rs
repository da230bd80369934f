//! [`Reads`]: which reads of the file are under way, to know one that hangs.

use std::collections::BTreeMap;
use std::time::Duration;

/// A file is left alone while a read of it is older: units may answer before it does.
pub const HANGS_AFTER: Duration = Duration::from_millis(100);

/// See the module's head.
#[derive(Debug, Default)]
pub struct Reads {
    /// By when they began: numbers rise.
    under_way: BTreeMap<u64, Duration>,
    next: u64,
    /// One was found to hang, and has not ended.
    hangs: bool,
}

impl Reads {
    /// One begins. Its number.
    pub fn begin(&mut self, now: Duration) -> u64 {
        let number = self.next;
        self.next += 1;
        self.under_way.insert(number, now);
        number
    }

    /// One has ended, whatever came of it.
    pub fn end(&mut self, number: u64) {
        self.under_way.remove(&number);
    }

    /// Whether none is under way, nor was found to hang.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty() && !self.hangs
    }

    fn is_one_late(&self, now: Duration) -> bool {
        let oldest = self.under_way.first_key_value();
        oldest.is_some_and(|(_, begun)| now.saturating_sub(*begun) >= HANGS_AFTER)
    }

    /// Whether the file hangs, and whether that is news.
    pub fn look(&mut self, now: Duration) -> (bool, bool) {
        let hangs = self.is_one_late(now);
        let did = std::mem::replace(&mut self.hangs, hangs);
        (hangs, hangs && !did)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_does_not_end_is_a_hang_until_it_does() {
        let mut reads = Reads::default();
        let first = reads.begin(Duration::ZERO);
        let second = reads.begin(HANGS_AFTER / 2);
        assert_eq!(reads.look(HANGS_AFTER / 2), (false, false));
        assert_eq!(reads.look(HANGS_AFTER), (true, true));
        assert_eq!(reads.look(HANGS_AFTER), (true, false));
        reads.end(first);
        assert_eq!(reads.look(HANGS_AFTER), (false, false));
        assert_eq!(reads.look(2 * HANGS_AFTER), (true, true));
        reads.end(second);
        assert_eq!(reads.look(9 * HANGS_AFTER), (false, false));
    }
}
