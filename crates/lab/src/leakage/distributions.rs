//! Discrete distributions: vectors of the probabilities of 0, 1, 2 …

/// Probabilities that 0, 1 … of `members` random ones of `units` are compromised, if `compromised`
/// are.
pub(super) fn hypergeometric(units: u32, compromised: u32, members: u32) -> Vec<f64> {
    let members = members.min(units);
    let first = (members + compromised).saturating_sub(units);
    let [n, k, w] = [units, compromised, members].map(f64::from);
    let ratio =
        |count: f64| (k - count) * (w - count) / ((count + 1.0) * (n - k - w + count + 1.0));
    by_ratios(members, (first, members.min(compromised)), ratio)
}

/// Probabilities that 0, 1 … of `things` events happen, each with probability `p`.
pub(super) fn binomial(things: u32, p: f64) -> Vec<f64> {
    let range = match p {
        0.0 => (0, 0),
        1.0.. => (things, things),
        _ => (0, things),
    };
    let all = f64::from(things);
    by_ratios(things, range, |count| {
        (all - count) / (count + 1.0) * p / (1.0 - p)
    })
}

/// A distribution over 0 to `last` with a single peak. It is 0 outside a range, and `ratio` tells
/// how much more likely each number is than the one before. It is computed from the peak outwards,
/// so that nothing relevant underflows.
fn by_ratios(last: u32, (from, to): (u32, u32), ratio: impl Fn(f64) -> f64) -> Vec<f64> {
    let mut all = vec![0.0; last as usize + 1];
    let peak = (from..to).find(|count| ratio(f64::from(*count)) < 1.0);
    let peak = peak.unwrap_or(to);
    all[peak as usize] = 1.0;
    for count in peak..to {
        all[count as usize + 1] = all[count as usize] * ratio(f64::from(count));
    }
    for count in (from..peak).rev() {
        all[count as usize] = all[count as usize + 1] / ratio(f64::from(count));
    }
    let sum: f64 = all.iter().sum();
    all.iter_mut().for_each(|p| *p /= sum);
    all
}

/// Probabilities of the sum of `count` independent draws.
pub(super) fn convolved(one: &[f64], count: u32) -> Vec<f64> {
    (0..count).fold(vec![1.0], |all, _| folded(&all, one))
}

/// Probabilities of the sum of two independent draws.
pub(super) fn folded(all: &[f64], one: &[f64]) -> Vec<f64> {
    let mut next = vec![0.0; all.len() + one.len() - 1];
    let one = one.iter().copied().enumerate();
    let one: Vec<(usize, f64)> = one.filter(|(_, q)| *q > 0.0).collect();
    for (sum, p) in all.iter().enumerate().filter(|(_, p)| **p > 0.0) {
        for (more, q) in &one {
            next[sum + more] += p * q;
        }
    }
    next
}
