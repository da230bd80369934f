//! [`OutstandingOperations`]: the file's outstanding operations, to detect a file that does not
//! respond.

use std::collections::BTreeMap;
use std::time::Duration;

/// The time after which a file that does not respond is not used, since units may be faster.
pub const HANG_TIMEOUT: Duration = Duration::from_millis(100);

/// The outstanding operations of a file.
#[derive(Debug, Default)]
pub struct OutstandingOperations {
    /// The start of each operation, by number.
    begun: BTreeMap<u64, Duration>,
    next: u64,
    /// Whether the file was found not to respond.
    hangs: bool,
}

impl OutstandingOperations {
    /// Records the start of an operation. Returns its number.
    pub fn begin(&mut self, now: Duration) -> u64 {
        let number = self.next;
        self.next += 1;
        self.begun.insert(number, now);
        number
    }

    /// Records the end of an operation.
    pub fn end(&mut self, number: u64) {
        self.begun.remove(&number);
    }

    /// Whether no operation is outstanding, and the file was responding.
    pub fn is_idle(&self) -> bool {
        self.begun.is_empty() && !self.hangs
    }

    fn is_overdue(&self, now: Duration) -> bool {
        let oldest = self.begun.first_key_value();
        oldest.is_some_and(|(_, begun)| now.saturating_sub(*begun) >= HANG_TIMEOUT)
    }

    /// Whether the file does not respond, and whether that is new since the last call.
    pub fn check(&mut self, now: Duration) -> (bool, bool) {
        let hangs = self.is_overdue(now);
        let before = std::mem::replace(&mut self.hangs, hangs);
        (hangs, hangs && !before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_hangs_while_an_operation_is_overdue() {
        let mut outstanding = OutstandingOperations::default();
        let first = outstanding.begin(Duration::ZERO);
        let second = outstanding.begin(HANG_TIMEOUT / 2);
        assert_eq!(outstanding.check(HANG_TIMEOUT / 2), (false, false));
        assert_eq!(outstanding.check(HANG_TIMEOUT), (true, true));
        assert_eq!(outstanding.check(HANG_TIMEOUT), (true, false));
        outstanding.end(first);
        assert_eq!(outstanding.check(HANG_TIMEOUT), (false, false));
        assert_eq!(outstanding.check(2 * HANG_TIMEOUT), (true, true));
        outstanding.end(second);
        assert_eq!(outstanding.check(9 * HANG_TIMEOUT), (false, false));
    }
}
