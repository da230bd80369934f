//! [`plan`]: placements that survive a loss of units, with their leakage and cost.

use super::estimate::estimate;
use super::files::Class;
use super::placement::{Placement, PlacementError, Redundancy, Striping};

/// The numbers of copies to consider.
const COPIES_MAX: u32 = 4;

/// The erasure codes to consider, data and parity: those of the engine.
const DATA_MAX: u32 = 8;
const PARITY_MAX: u32 = 3;

/// The units of a site, and assumptions about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Number of units.
    pub units: u32,
    /// Number of other units that each shares blocks with; `None`: any.
    pub scatter_width: Option<u32>,
    /// How blocks are striped over copysets.
    pub striping: Striping,
    /// Number of units that may be compromised.
    pub compromised: u32,
    /// Number of arbitrary units that may be lost without losing data.
    pub lost: u32,
}

impl Site {
    /// Checks the numbers of units.
    ///
    /// # Errors
    /// [`PlacementError`] if no placement can have them.
    pub fn check(&self) -> Result<(), PlacementError> {
        // The simplest placement has the errors that all have.
        let simplest = Placement::on(self.units, Redundancy::Copies(1), None);
        simplest.shares(self.compromised).map(|_| ())
    }
}

/// A placement with its properties.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Copies or erasure code.
    pub redundancy: Redundancy,
    /// Mean part of all bytes that is in completely readable files, from 0 to 1.
    pub leak_ratio: f64,
    /// Bytes that are stored and written for each byte of data.
    pub space: f64,
    /// Units that are read for a block whose own unit is lost; `None` if the block is lost, too.
    pub reads_when_lost: Option<u32>,
    /// Number of units that may be lost.
    pub survives: u32,
}

/// All placements that survive the loss of units, by ascending space, and for equal space by
/// ascending leakage.
///
/// # Errors
/// [`PlacementError`] if the numbers of units are impossible.
pub fn plan(classes: &[Class], site: &Site) -> Result<Vec<Choice>, PlacementError> {
    site.check()?;
    let copies = (1..=COPIES_MAX).map(Redundancy::Copies);
    let with_parity = (2..=DATA_MAX).flat_map(|data| {
        let parities = 1..=PARITY_MAX;
        parities.map(move |parity| Redundancy::Erasure { data, parity })
    });
    let mut choices = Vec::new();
    for redundancy in copies.chain(with_parity) {
        if redundancy.members() > site.units || redundancy.survives() < site.lost {
            continue;
        }
        let placement =
            Placement::on(site.units, redundancy, site.scatter_width).striped(site.striping);
        let shares = placement.shares(site.compromised)?;
        choices.push(Choice {
            redundancy,
            leak_ratio: estimate(classes, &shares).ratio(),
            space: redundancy.space(),
            reads_when_lost: redundancy.reads_when_lost(),
            survives: redundancy.survives(),
        });
    }
    choices.sort_by(|one, other| {
        let by_space = one.space.total_cmp(&other.space);
        by_space.then(one.leak_ratio.total_cmp(&other.leak_ratio))
    });
    Ok(choices)
}

#[cfg(test)]
mod tests {
    use super::super::FileList;
    use super::*;

    fn site(lost: u32) -> Site {
        Site {
            units: 20,
            scatter_width: None,
            striping: Striping::default(),
            compromised: 3,
            lost,
        }
    }

    fn classes() -> Vec<Class> {
        let files: FileList = (1..500).map(|number| number * 100).collect();
        files.classes(4096)
    }

    #[test]
    fn surviving_placements_are_listed_cheapest_first() {
        for lost in 0..5 {
            let choices = plan(&classes(), &site(lost)).expect("valid numbers of units");
            assert!(choices.iter().all(|choice| choice.survives >= lost));
            assert!(choices.is_sorted_by(|one, other| one.space <= other.space));
            let copies = choices
                .iter()
                .filter(|choice| matches!(choice.redundancy, Redundancy::Copies(_)));
            assert_eq!(copies.count() as u32, 4 - lost.min(4));
        }
        let [first, ..] = &*plan(&classes(), &site(0)).expect("valid numbers of units") else {
            panic!("one copy survives");
        };
        assert_eq!(
            (first.redundancy, first.space),
            (Redundancy::Copies(1), 1.0)
        );
        let [first, ..] = &*plan(&classes(), &site(2)).expect("valid numbers of units") else {
            panic!("8+2 survives");
        };
        let expected = Redundancy::Erasure { data: 8, parity: 2 };
        assert_eq!((first.redundancy, first.space), (expected, 1.25));
        assert_eq!((first.reads_when_lost, first.survives), (Some(8), 2));
    }

    /// Any of three copies reveals a block; 4+2 leaks hardly more than one copy.
    #[test]
    fn parity_leaks_less_than_copies_that_survive_as_much() {
        let choices = plan(&classes(), &site(2)).expect("valid numbers of units");
        let leaks = |redundancy| {
            let choice = choices
                .iter()
                .find(|choice| choice.redundancy == redundancy);
            choice.expect("considered").leak_ratio
        };
        assert!(
            leaks(Redundancy::Erasure { data: 4, parity: 2 }) < leaks(Redundancy::Copies(3)) / 5.0
        );
    }

    #[test]
    fn impossible_units_are_refused() {
        let with = |units, compromised| {
            plan(
                &classes(),
                &Site {
                    units,
                    compromised,
                    ..site(0)
                },
            )
        };
        assert!(with(0, 0).is_err() && with(3, 4).is_err() && with(5000, 1).is_err());
        let choices = with(3, 1).expect("three units");
        assert!(
            choices
                .iter()
                .all(|choice| choice.redundancy.members() <= 3)
        );
        // One, two and three copies, and 2+1.
        assert_eq!(choices.len(), 4);
    }

    /// With a narrow destage, one compromised set has more blocks of a file.
    #[test]
    fn striping_over_few_sets_leaks_more() {
        let any = plan(&classes(), &site(2)).expect("valid numbers of units");
        let striped = Site {
            scatter_width: Some(4),
            striping: Striping {
                width: Some(2),
                granularity: 1,
            },
            ..site(2)
        };
        let few = plan(&classes(), &striped).expect("valid numbers of units");
        let copies = |choices: &[Choice]| {
            let mut all = choices.iter();
            let is_it = |choice: &&Choice| choice.redundancy == Redundancy::Copies(3);
            all.find(is_it).map(|choice| choice.leak_ratio)
        };
        assert!(copies(&few) > copies(&any), "{few:?} {any:?}");
    }
}
