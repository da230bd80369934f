//! The same work with and without encryption, round by round.
//!
//! ```text
//!  round 1:   plain     cipher 1   cipher 2     each opens the place, does all work, closes it
//!  round 2:   cipher 2  cipher 1   plain        in reverse order: none is always the first
//!                └──── less ─────────┘
//! ```
//!
//! Other load on the machine varies over time and affects the runs of one round alike.

use crate::measure::place::{Opened, Place, PlaceKind};
use crate::measure::{Cipher, MeasureError, Run, Waiting, Work};

/// The rounds of a measurement.
pub(crate) struct Rounds<'a> {
    pub(crate) kind: PlaceKind,
    /// Encryption to measure: `None` is without.
    pub(crate) ciphers: &'a [Option<Cipher>],
    pub(crate) works: &'a [Work],
    pub(crate) count: u32,
}

/// The runs of one round with one cipher or none, by work.
pub(crate) type Round = Vec<Run>;

impl Rounds<'_> {
    /// Runs all rounds; returns the runs by cipher and round. `last` is called with the place while
    /// it is open without encryption for the last time, and with the runs without encryption.
    pub(crate) fn run(
        &self,
        place: &mut dyn Place,
        waiting: &mut Waiting<'_>,
        mut last: impl FnMut(&mut dyn Opened, &[Round], &mut Waiting<'_>) -> Result<(), MeasureError>,
    ) -> Result<Vec<Vec<Round>>, MeasureError> {
        let mut runs: Vec<Vec<Round>> = vec![Vec::new(); self.ciphers.len()];
        for round in 1..=self.count {
            let mut ways: Vec<_> = self.ciphers.iter().zip(&mut runs).collect();
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

/// The added cost of encryption of one work, by round.
pub(crate) fn differences(index: usize, plain: &[Round], sealed: &[Round]) -> Vec<Run> {
    let both = plain.iter().zip(sealed);
    both.map(|(plain, sealed)| sealed[index].less(&plain[index]))
        .collect()
}

/// The median of the rounds of one work.
pub(crate) fn median_of(index: usize, rounds: &[Round]) -> Run {
    Run::median(&rounds.iter().map(|runs| runs[index]).collect::<Vec<_>>())
}
