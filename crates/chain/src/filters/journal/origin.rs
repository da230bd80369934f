//! Of which disk a journal is, and whether what it has may be carried out on another one
//! (docs/internals/journal-filter.md).

/// What the disk below is, as far as somebody says: whether what was acknowledged may be
/// carried out there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// The lease under which records are written.
    pub lease: Option<u32>,
    /// How often the volume had gone back to a version.
    pub restores: Option<u64>,
    /// Of the filters below that make something else of what is written.
    pub below: Option<u32>,
    /// Which disk it is.
    pub disk: Option<u32>,
}

fn is_other<T: PartialEq>(was: Option<T>, is: Option<T>) -> bool {
    was.zip(is).is_some_and(|(was, is)| was != is)
}

impl Origin {
    /// Why what was written for `self` is not for `now`, if it is not.
    pub fn differs_from(&self, now: &Self) -> Option<&'static str> {
        if is_other(self.restores, now.restores) {
            return Some("the volume went back to an earlier version since");
        }
        is_other(self.below, now.below).then_some("other filters lie below it now")
    }

    /// Whether it is another disk's, whose files were mixed up.
    pub fn is_anothers(&self, now: &Self) -> bool {
        is_other(self.disk, now.disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_both_decides_whether_it_is_the_same_disk() {
        let of = |restores, below| Origin {
            lease: Some(3),
            restores,
            below,
            disk: Some(1),
        };
        let was = of(Some(1), Some(9));
        for now in [was, of(None, Some(9)), of(Some(1), None), of(None, None)] {
            assert_eq!(was.differs_from(&now), None, "{now:?}");
            assert_eq!(now.differs_from(&was), None, "{now:?}");
        }
        let why = was.differs_from(&of(Some(2), Some(9))).expect("restored");
        assert!(why.contains("went back"), "{why}");
        let why = was.differs_from(&of(Some(1), Some(8))).expect("others");
        assert!(why.contains("other filters"), "{why}");
        let with = |disk| Origin { disk, ..was };
        assert!(!was.is_anothers(&was) && !was.is_anothers(&with(None)));
        assert!(was.is_anothers(&with(Some(2))) && !with(None).is_anothers(&was));
    }
}
