//! The same work in several ways, round by round.
//!
//! ```text
//!  round 1:   plain     cipher 1   cipher 2     each opens the place, does all work, closes it
//!  round 2:   cipher 2  cipher 1   plain        and back: no way is always the first
//!                └──── less ─────────┘
//! ```
//!
//! What else a machine does comes and goes, and meets both of a round alike.

use crate::measure::place::{Opened, Place, PlaceKind};
use crate::measure::{Cipher, MeasureError, Run, Waiting, Work};

/// What is done, and how.
pub(crate) struct Rounds<'a> {
    pub(crate) kind: PlaceKind,
    /// Without encryption, and with these ciphers.
    pub(crate) ways: &'a [Option<Cipher>],
    pub(crate) works: &'a [Work],
    pub(crate) count: u32,
}

/// The runs of one round in one way, by work.
pub(crate) type Round = Vec<Run>;

impl Rounds<'_> {
    /// Does it all, and says by way, by round what became of it. `last` has the place while it is open
    /// without encryption for the last time, and what its runs were.
    pub(crate) fn run(
        &self,
        place: &mut dyn Place,
        waiting: &mut Waiting<'_>,
        mut last: impl FnMut(&mut dyn Opened, &[Round], &mut Waiting<'_>) -> Result<(), MeasureError>,
    ) -> Result<Vec<Vec<Round>>, MeasureError> {
        let mut runs: Vec<Vec<Round>> = vec![Vec::new(); self.ways.len()];
        for round in 1..=self.count {
            let mut ways: Vec<_> = self.ways.iter().zip(&mut runs).collect();
            if round % 2 == 0 {
                ways.reverse();
            }
            for (way, runs) in ways {
                let name = way.map_or("nothing", Cipher::name);
                let mut opened = place.open(*way)?;
                let mut these = Vec::new();
                for work in self.works {
                    (waiting.say)(format!("{} with {name}, round {round}: {work}", self.kind));
                    these.push(work.run(&mut *opened, waiting.stop)?);
                }
                runs.push(these);
                if way.is_none() && round == self.count {
                    last(&mut *opened, runs, waiting)?;
                }
                opened.close()?;
            }
        }
        Ok(runs)
    }
}

/// Of one work, how much more each round was with encryption.
pub(crate) fn differences(index: usize, plain: &[Round], sealed: &[Round]) -> Vec<Run> {
    let both = plain.iter().zip(sealed);
    both.map(|(plain, sealed)| sealed[index].less(&plain[index]))
        .collect()
}

/// Of one work, the median of its rounds.
pub(crate) fn median_of(index: usize, rounds: &[Round]) -> Run {
    Run::median(&rounds.iter().map(|runs| runs[index]).collect::<Vec<_>>())
}
