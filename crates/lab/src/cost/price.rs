//! Prices, and the cheapest offer.

use super::Prediction;

/// Prices in one currency.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prices {
    /// Price of an hour of CPU time where the layer runs.
    pub cpu_hour: f64,
    /// Price of an hour of run time, as of a virtual machine that runs the workload.
    pub run_hour: f64,
}

impl Prices {
    /// Cost of a layer: its CPU time and the longer run time. Negative if it saves money.
    #[must_use]
    pub fn of(&self, prediction: &Prediction) -> f64 {
        (prediction.cpu_s * self.cpu_hour + prediction.longer_s() * self.run_hour) / 3600.0
    }
}

/// The cost of a place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offer {
    /// Money or CPU seconds.
    pub cost: f64,
    /// Added latency of a request, in seconds.
    pub latency_s: f64,
}

/// The index of the cheapest offer within a latency limit in seconds; of equally cheap ones, the
/// faster one. `None` if all are slower.
#[must_use]
pub fn cheapest(offers: &[Offer], latency_s_max: Option<f64>) -> Option<usize> {
    let most = latency_s_max.unwrap_or(f64::INFINITY);
    let within = offers.iter().enumerate();
    let within = within.filter(|(_, offer)| offer.latency_s <= most);
    let best = within.min_by(|(_, one), (_, other)| {
        let by_cost = one.cost.total_cmp(&other.cost);
        by_cost.then(one.latency_s.total_cmp(&other.latency_s))
    });
    best.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Both;

    #[test]
    fn cpu_and_time_are_paid() {
        let prices = Prices {
            cpu_hour: 0.04,
            run_hour: 0.1,
        };
        let prediction = Prediction {
            passed: Both::default(),
            cpu_s: 1800.0,
            plain_cpu_s: 5.0,
            plain_run_s: 100.0,
            run_s: 460.0,
            latency_s: 0.0,
        };
        assert!((prices.of(&prediction) - (0.02 + 0.01)).abs() < 1e-12);
        // A saving in both reduces the price.
        let saving = Prediction {
            cpu_s: -1800.0,
            run_s: 64.0,
            ..prediction
        };
        assert!((prices.of(&saving) + 0.02 + 0.001).abs() < 1e-12);
    }

    #[test]
    fn the_cheapest_offer_is_within_the_latency_limit() {
        let offer = |cost, latency_s| Offer { cost, latency_s };
        let offers = [offer(1.0, 1e-3), offer(2.0, 1e-5), offer(2.0, 1e-6)];
        assert_eq!(cheapest(&offers, None), Some(0));
        assert_eq!(cheapest(&offers, Some(1e-4)), Some(2));
        assert_eq!(cheapest(&offers, Some(1e-9)), None);
        assert_eq!(cheapest(&[], None), None);
    }
}
