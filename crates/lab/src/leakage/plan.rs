//! [`plan`]: which placements keep what is to be kept, how much each tells, and what it costs.

use super::estimate::estimate;
use super::files::Class;
use super::placement::{Deal, Placement, PlacementError, Spread};

/// Copies that are tried.
const COPIES_MAX: u32 = 4;

/// Members with data and with parity that are tried: those that the engine has.
const DATA_MAX: u32 = 8;
const PARITY_MAX: u32 = 3;

/// What is known of the units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// How many there are.
    pub units: u32,
    /// With how many others each shares blocks; none: with any.
    pub scatter_width: Option<u32>,
    /// How blocks are dealt to sets of them.
    pub deal: Deal,
    /// So many may be compromised.
    pub compromised: u32,
    /// So many may be lost, whichever these are, and everything is there still.
    pub lost: u32,
}

impl Site {
    /// Whether there can be so many units, of which so many are compromised.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub fn check(&self) -> Result<(), PlacementError> {
        // What is wrong with every placement is wrong with the simplest one.
        let simplest = Placement::on(self.units, Spread::Copies(1), None);
        simplest.shares(self.compromised).map(|_| ())
    }
}

/// A way to place blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// How they lie on a set.
    pub spread: Spread,
    /// Which part of all bytes is in files that leak, of 1, on the mean.
    pub leak_ratio: f64,
    /// What a byte takes on all units, in bytes; as much is written.
    pub space: f64,
    /// How many units are read for a block whose own is lost; none, if it is lost then, too.
    pub reads_when_lost: Option<u32>,
    /// How many units may be lost.
    pub survives: u32,
}

/// All ways that survive the loss of units, those that take least room first, and of those that
/// take as much the one that leaks least.
///
/// # Errors
/// [`PlacementError`], of the units alone.
pub fn plan(classes: &[Class], site: &Site) -> Result<Vec<Choice>, PlacementError> {
    site.check()?;
    let copies = (1..=COPIES_MAX).map(Spread::Copies);
    let with_parity = (2..=DATA_MAX).flat_map(|data| {
        let parities = 1..=PARITY_MAX;
        parities.map(move |parity| Spread::Erasure { data, parity })
    });
    let mut choices = Vec::new();
    for spread in copies.chain(with_parity) {
        if spread.members() > site.units || spread.survives() < site.lost {
            continue;
        }
        let placement = Placement::on(site.units, spread, site.scatter_width).dealt(site.deal);
        let shares = placement.shares(site.compromised)?;
        choices.push(Choice {
            spread,
            leak_ratio: estimate(classes, &shares).ratio(),
            space: spread.space(),
            reads_when_lost: spread.reads_when_lost(),
            survives: spread.survives(),
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
            deal: Deal::default(),
            compromised: 3,
            lost,
        }
    }

    fn classes() -> Vec<Class> {
        let files: FileList = (1..500).map(|number| number * 100).collect();
        files.classes(4096)
    }

    #[test]
    fn what_survives_is_there_and_the_cheapest_is_first() {
        for lost in 0..5 {
            let choices = plan(&classes(), &site(lost)).expect("units are as they should be");
            assert!(choices.iter().all(|choice| choice.survives >= lost));
            assert!(choices.is_sorted_by(|one, other| one.space <= other.space));
            let copies = choices
                .iter()
                .filter(|choice| matches!(choice.spread, Spread::Copies(_)));
            assert_eq!(copies.count() as u32, 4 - lost.min(4));
        }
        let [first, ..] = &*plan(&classes(), &site(0)).expect("it is one") else {
            panic!("one copy is one");
        };
        assert_eq!((first.spread, first.space), (Spread::Copies(1), 1.0));
        let [first, ..] = &*plan(&classes(), &site(2)).expect("it is one") else {
            panic!("8+2 is one");
        };
        let expected = Spread::Erasure { data: 8, parity: 2 };
        assert_eq!((first.spread, first.space), (expected, 1.25));
        assert_eq!((first.reads_when_lost, first.survives), (Some(8), 2));
    }

    /// Three copies leak what three units have of each block, 4+2 hardly more than one copy.
    #[test]
    fn parity_tells_less_than_copies_that_survive_as_much() {
        let choices = plan(&classes(), &site(2)).expect("units are as they should be");
        let leaks = |spread| {
            let choice = choices.iter().find(|choice| choice.spread == spread);
            choice.expect("it was tried").leak_ratio
        };
        assert!(leaks(Spread::Erasure { data: 4, parity: 2 }) < leaks(Spread::Copies(3)) / 5.0);
    }

    #[test]
    fn units_that_cannot_be_are_refused_and_few_have_few_choices() {
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
        assert!(choices.iter().all(|choice| choice.spread.members() <= 3));
        // One, two and three copies, and 2+1.
        assert_eq!(choices.len(), 4);
    }

    /// What is written at once lies on few sets: whoever has one of them has more of a file.
    #[test]
    fn few_sets_tell_more() {
        let any = plan(&classes(), &site(2)).expect("it is one");
        let dealt = Site {
            scatter_width: Some(4),
            deal: Deal {
                width: Some(2),
                granularity: 1,
            },
            ..site(2)
        };
        let few = plan(&classes(), &dealt).expect("it is one");
        let copies = |choices: &[Choice]| {
            let mut all = choices.iter();
            let is_it = |choice: &&Choice| choice.spread == Spread::Copies(3);
            all.find(is_it).map(|choice| choice.leak_ratio)
        };
        assert!(copies(&few) > copies(&any), "{few:?} {any:?}");
    }
}
