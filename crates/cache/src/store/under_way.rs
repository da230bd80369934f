//! [`UnderWay`]: the file's outstanding operations, to detect one that does not respond.

use std::collections::BTreeMap;
use std::time::Duration;

/// A file that has not responded for this long is not used: units may be faster.
pub const HANGS_AFTER: Duration = Duration::from_millis(100);

/// The outstanding operations of a file.
#[derive(Debug, Default)]
pub struct UnderWay {
    /// The start of each operation, by number.
    asked: BTreeMap<u64, Duration>,
    next: u64,
    /// Whether the file was found not to respond.
    hangs: bool,
}

impl UnderWay {
    /// Records the start of an operation. Returns its number.
    pub fn begin(&mut self, now: Duration) -> u64 {
        let number = self.next;
        self.next += 1;
        self.asked.insert(number, now);
        number
    }

    /// Records the end of an operation.
    pub fn end(&mut self, number: u64) {
        self.asked.remove(&number);
    }

    /// Whether no operation is outstanding, and the file was responding.
    pub fn is_idle(&self) -> bool {
        self.asked.is_empty() && !self.hangs
    }

    fn is_one_late(&self, now: Duration) -> bool {
        let oldest = self.asked.first_key_value();
        oldest.is_some_and(|(_, begun)| now.saturating_sub(*begun) >= HANGS_AFTER)
    }

    /// Whether the file does not respond, and whether that is new.
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
    fn an_unanswered_operation_is_a_hang_until_it_ends() {
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
