//! [`Origin`]: the disk that a journal belongs to, which decides whether its records may be
//! written to another disk (docs/internals/journal-filter.md).

/// The identity of the disk below, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// The lease under which records are written.
    pub lease: Option<u32>,
    /// How often the volume had been restored to an earlier version.
    pub restores: Option<u64>,
    /// A checksum of the filters below that transform writes.
    pub below: Option<u32>,
    /// The number of the disk.
    pub disk: Option<u32>,
}

fn differ<T: PartialEq>(recorded: Option<T>, current: Option<T>) -> bool {
    recorded
        .zip(current)
        .is_some_and(|(recorded, current)| recorded != current)
}

impl Origin {
    /// Why records of `self` may not be written to the disk `current`; `None` if they may.
    pub fn conflict_with(&self, current: &Self) -> Option<&'static str> {
        if differ(self.restores, current.restores) {
            return Some("the volume was restored to an earlier version since");
        }
        differ(self.below, current.below).then_some("other filters are below the journal now")
    }

    /// Whether `current` is another disk, because journal files were mixed up.
    pub fn is_other_disk(&self, current: &Self) -> bool {
        differ(self.disk, current.disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_conflicts_only_in_fields_that_are_known_on_both_sides() {
        let of = |restores, below| Origin {
            lease: Some(3),
            restores,
            below,
            disk: Some(1),
        };
        let recorded = of(Some(1), Some(9));
        for current in [
            recorded,
            of(None, Some(9)),
            of(Some(1), None),
            of(None, None),
        ] {
            assert_eq!(recorded.conflict_with(&current), None, "{current:?}");
            assert_eq!(current.conflict_with(&recorded), None, "{current:?}");
        }
        let why = recorded
            .conflict_with(&of(Some(2), Some(9)))
            .expect("restored");
        assert!(why.contains("restored"), "{why}");
        let why = recorded
            .conflict_with(&of(Some(1), Some(8)))
            .expect("other filters");
        assert!(why.contains("other filters"), "{why}");
        let with = |disk| Origin { disk, ..recorded };
        assert!(!recorded.is_other_disk(&recorded) && !recorded.is_other_disk(&with(None)));
        assert!(recorded.is_other_disk(&with(Some(2))) && !with(None).is_other_disk(&recorded));
    }
}
