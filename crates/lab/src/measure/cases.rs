//! Comparison of predictions with measurements.

use crate::cost::{Prediction, accuracy, predict};

use crate::measure::calibration::MeasuredPlace;
use crate::measure::chance::within;
use crate::measure::place::Place;
use crate::measure::rounds::{Rounds, differences, median_of};
use crate::measure::{Cipher, Machine, MeasureError, Run, Waiting, Work};

/// A measurement is clear if its confidence interval is at most this part of it: the tolerated
/// error of a prediction.
const UNCLEAR_RATIO: f64 = 0.15;

/// The prediction and the measurement of one work with a cipher.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The work.
    pub work: Work,
    /// The cipher.
    pub cipher: Cipher,
    /// The prediction, made before the measurement.
    pub predicted: Prediction,
    /// Without encryption: the median of all rounds.
    pub plain: Run,
    /// With encryption: the median of all rounds.
    pub sealed: Run,
    /// The added cost: the median of the differences of all rounds.
    pub added: Run,
    /// Half the width of the 95 % confidence interval of the added CPU seconds, from the spread of
    /// the rounds. `None` for fewer than three rounds.
    pub within_s: Option<f64>,
}

impl Comparison {
    /// Added CPU seconds.
    #[must_use]
    pub fn cpu_s(&self) -> f64 {
        self.added.cpu_s
    }

    /// Whether the added CPU time is too imprecise to judge the prediction.
    #[must_use]
    pub fn is_unclear(&self) -> bool {
        self.within_s
            .is_some_and(|within_s| within_s > UNCLEAR_RATIO * self.cpu_s().abs())
    }

    /// Whether the prediction is within the confidence interval; `None` if that is unknown.
    #[must_use]
    pub fn is_within(&self) -> Option<bool> {
        let off_s = (self.predicted.cpu_s - self.cpu_s()).abs();
        self.within_s.map(|within_s| off_s <= within_s)
    }

    /// Accuracy of the prediction, from 0 to 1.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        accuracy(self.predicted.cpu_s, self.cpu_s())
    }
}

/// Runs each work without and with encryption in several rounds, and returns predictions and
/// measurements. A prediction uses the requests that the run without encryption counted; for a
/// program that also computes, it uses its run time and CPU time without encryption, too.
///
/// # Errors
/// If a work cannot be run here, or was not calibrated.
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
        ciphers: &[None, Some(cipher)],
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
            // The run time of a program is known, as from a trace.
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

#[cfg(test)]
mod tests {
    use crate::cost::Both;

    use super::*;

    fn comparison(predicted_s: f64, measured_s: f64, within_s: Option<f64>) -> Comparison {
        let run = |cpu_s| Run {
            flow: Both::default(),
            returned_s: 1.0,
            run_s: 1.0,
            cpu_s,
            fetched_bytes: 0.0,
        };
        Comparison {
            work: Work::Words { bytes: 1 },
            cipher: Cipher::Aes256Xts,
            predicted: Prediction {
                passed: Both::default(),
                cpu_s: predicted_s,
                plain_cpu_s: 0.0,
                plain_run_s: 1.0,
                run_s: 1.0,
                latency_s: 0.0,
            },
            plain: run(0.0),
            sealed: run(measured_s),
            added: run(measured_s),
            within_s,
        }
    }

    #[test]
    fn an_unclear_measurement_does_not_count() {
        for (predicted_s, measured_s, within_s, is_unclear, is_within) in [
            (0.9, 1.0, Some(0.05), false, Some(false)),
            (0.9, 1.0, Some(0.15), false, Some(true)),
            (9.0, 1.0, Some(0.2), true, Some(false)),
            (-0.9, -1.0, Some(0.14), false, Some(true)),
            (0.1, 0.0, Some(0.2), true, Some(true)),
            (0.0, 0.0, Some(0.0), false, Some(true)),
            // One round has no confidence interval.
            (5.0, 1.0, None, false, None),
        ] {
            let one = comparison(predicted_s, measured_s, within_s);
            assert_eq!(
                (one.is_unclear(), one.is_within()),
                (is_unclear, is_within),
                "{one:?}"
            );
        }
    }
}
