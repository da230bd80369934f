//! [`UnderWay`]: what the file was asked and has not answered, to know one that hangs.

use std::collections::BTreeMap;
use std::time::Duration;

/// A file is left alone while it has not answered for longer: units may do so before.
pub const HANGS_AFTER: Duration = Duration::from_millis(100);

/// See the module's head.
#[derive(Debug, Default)]
pub struct UnderWay {
    /// By when it began: numbers rise.
    asked: BTreeMap<u64, Duration>,
    next: u64,
    /// It was found to hang.
    hangs: bool,
}

impl UnderWay {
    /// The file is asked something. Its number.
    pub fn begin(&mut self, now: Duration) -> u64 {
        let number = self.next;
        self.next += 1;
        self.asked.insert(number, now);
        number
    }

    /// It has answered, whatever that was.
    pub fn end(&mut self, number: u64) {
        self.asked.remove(&number);
    }

    /// Whether nothing is under way, nor was.
    pub fn is_idle(&self) -> bool {
        self.asked.is_empty() && !self.hangs
    }

    fn is_one_late(&self, now: Duration) -> bool {
        let oldest = self.asked.first_key_value();
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
    fn what_is_not_answered_is_a_hang_until_it_is() {
        let mut under_way = UnderWay::default();
        let first = under_way.begin(Duration::ZERO);
        let second = under_way.begin(HANGS_AFTER / 2);
        assert_eq!(under_way.look(HANGS_AFTER / 2), (false, false));
        assert_eq!(under_way.look(HANGS_AFTER), (true, true));
        assert_eq!(under_way.look(HANGS_AFTER), (true, false));
        under_way.end(first);
        assert_eq!(under_way.look(HANGS_AFTER), (false, false));
        assert_eq!(under_way.look(2 * HANGS_AFTER), (true, true));
        under_way.end(second);
        assert_eq!(under_way.look(9 * HANGS_AFTER), (false, false));
    }
}
