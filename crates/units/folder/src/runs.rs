//! Runs of consecutive slots, which are read, written and punched in one call.

use std::ops::Range;

/// Runs of consecutive numbers in `slots`, which is sorted.
pub(super) fn runs(slots: &[u32]) -> impl Iterator<Item = Range<u32>> {
    slots
        .chunk_by(|one, next| one + 1 == *next)
        .map(|run| run[0]..run[run.len() - 1] + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_slots_form_runs() {
        let gathered: Vec<Range<u32>> = runs(&[1, 2, 3, 7, 9, 10]).collect();
        assert_eq!(gathered, [1..4, 7..8, 9..11]);
        assert_eq!(runs(&[]).count(), 0);
    }
}
