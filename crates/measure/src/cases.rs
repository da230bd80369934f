//! Prediction beside measurement.

use model::cost::{Prediction, accuracy, predict};

use crate::calibration::MeasuredPlace;
use crate::chance::within;
use crate::place::Place;
use crate::rounds::{Rounds, differences, median_of};
use crate::{Cipher, Machine, MeasureError, Run, Waiting, Work};

/// One work, with a cipher: as it was predicted, and as it was.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// What was done.
    pub work: Work,
    /// With what it was encrypted.
    pub cipher: Cipher,
    /// Beforehand.
    pub predicted: Prediction,
    /// Without encryption, the median of all rounds.
    pub plain: Run,
    /// With it.
    pub sealed: Run,
    /// What came in addition: the median over all rounds of how much more each was.
    pub added: Run,
    /// How far the mean of what came in addition, in CPU seconds, may be off by chance, in 95 of
    /// 100 times: from how much rounds differ. None of less than three rounds.
    pub within_s: Option<f64>,
}

impl Comparison {
    /// CPU seconds that came in addition.
    #[must_use]
    pub fn cpu_s(&self) -> f64 {
        self.added.cpu_s
    }

    /// What came in addition may be nothing at all, and the prediction is right within chance:
    /// how near it is says nothing then.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.within_s.is_some_and(|within_s| {
            let off_s = (self.predicted.cpu_s - self.cpu_s()).abs();
            self.cpu_s().abs() <= within_s && off_s <= within_s
        })
    }

    /// How near the prediction of these is, of 1.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        accuracy(self.predicted.cpu_s, self.cpu_s())
    }
}

/// Does each work without encryption and with it, so many times, and says what was predicted
/// and what was measured. What was predicted is made of what the work asks for, as the run
/// without encryption counted it; of a program that does more than that it is known, too, how
/// long it takes without encryption, and how much of a CPU.
///
/// # Errors
/// If something cannot be done here, or was not calibrated.
pub fn compare(
    measured: &MeasuredPlace,
    place: &mut dyn Place,
    cipher: Cipher,
    works: &[Work],
    rounds: u32,
    waiting: &mut Waiting<'_>,
) -> Result<Vec<Comparison>, MeasureError> {
    let kind = measured.place;
    let Some(layer) = measured.layer(cipher) else {
        let why = format!("{kind} with {cipher} was not calibrated");
        return Err(MeasureError::Unfit(why));
    };
    if let Some(why) = works.iter().find_map(|work| work.unfit(kind)) {
        return Err(MeasureError::Unfit(why));
    }
    let machine = Machine::here();
    let rounds = Rounds {
        kind,
        ways: &[None, Some(cipher)],
        works,
        count: rounds,
    };
    let runs = rounds.run(place, waiting, |_, _, _| Ok(()))?;
    let (all_plain, all_sealed) = (&runs[0], &runs[1]);
    let each = works.iter().enumerate().map(|(index, work)| {
        let added = differences(index, all_plain, all_sealed);
        let within_s = within(&added);
        let (plain, sealed) = (median_of(index, all_plain), median_of(index, all_sealed));
        let memory_bytes = machine.memory_bytes as f64;
        let mut workload = work.workload(plain.flow, memory_bytes, machine.cpus as f64);
        if let Work::Words { .. } = work {
            // Of a program it is known how long it takes: it was traced.
            workload.run_s = Some(plain.run_s);
            let ours = predict(&workload, &measured.target, layer).plain_cpu_s;
            workload.own_cpu_s = (plain.cpu_s - ours).max(0.0);
        }
        Comparison {
            work: *work,
            cipher,
            predicted: predict(&workload, &measured.target, layer),
            plain,
            sealed,
            added: Run::median(&added),
            within_s,
        }
    });
    Ok(each.collect())
}
