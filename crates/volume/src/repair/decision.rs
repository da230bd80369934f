//! The decision what a member's copy of a segment needs. It sends no request to units.

/// What a pass found out about one member's copy of a segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observed {
    /// No host appends to the segment.
    pub(super) is_closed: bool,
    /// The copy is unreadable.
    pub(super) is_broken: bool,
    /// Slots that count are damaged, or may not be durable.
    pub(super) is_damaged: bool,
    /// The member's parity is made of slots that were freed since.
    pub(super) is_outdated: bool,
    /// Slots, or rows, that the copy is missing.
    pub(super) missing: usize,
    /// No member keeps any slot.
    pub(super) is_empty: bool,
}

/// What a member's copy of a segment needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing: the copy is complete, or must not be rewritten yet.
    Keep,
    /// Nothing: there is no content to restore.
    Skip,
    /// The missing slots are appended.
    Append,
    /// The copy is replaced.
    Rewrite,
}

/// Decides what a copy needs. Only a closed segment is rewritten: a host may append to
/// an open one at any time.
pub(super) fn decide(observed: &Observed) -> Action {
    let needs_rewrite = observed.is_broken || observed.is_damaged || observed.is_outdated;
    match (observed.is_closed && needs_rewrite, observed.missing) {
        (false, 0) => Action::Keep,
        _ if observed.is_empty => Action::Skip,
        (true, _) => Action::Rewrite,
        (false, _) => Action::Append,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: Observed = Observed {
        is_closed: true,
        is_broken: false,
        is_damaged: false,
        is_outdated: false,
        missing: 0,
        is_empty: false,
    };

    #[test]
    fn only_closed_segments_are_rewritten_and_missing_slots_are_appended() {
        assert_eq!(decide(&SOUND), Action::Keep);
        let (mut broken, mut damaged, mut outdated) = (SOUND, SOUND, SOUND);
        broken.is_broken = true;
        damaged.is_damaged = true;
        outdated.is_outdated = true;
        for observed in [broken, damaged, outdated] {
            assert_eq!(decide(&observed), Action::Rewrite);
            let mut open = observed;
            open.is_closed = false;
            assert_eq!(decide(&open), Action::Keep);
            open.missing = 3;
            assert_eq!(decide(&open), Action::Append);
            let mut empty = observed;
            empty.is_empty = true;
            assert_eq!(decide(&empty), Action::Skip);
        }
    }
}
