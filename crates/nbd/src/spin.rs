//! [`Spinner`]: decides whether a thread polls for a short time before it sleeps.
//!
//! A wake-up costs both the thread and the one that wakes it more than a small request: on a
//! virtual machine about 5 µs each. So while requests follow each other quickly, the thread polls
//! for up to [`SPIN`] before it sleeps. The spinner learns whether that helps: a spin that finds
//! something earns credit, one that does not loses more, and without credit only one sleep in
//! [`PROBE_ONE_IN`] follows a spin. An export without requests does not spin.

use std::time::Duration;

/// The default maximal length of a spin: about the cost of two wake-ups.
pub const SPIN: Duration = Duration::from_micros(20);

/// The maximal credit.
const CREDIT_MAX: u32 = 64;

/// The credit that an unsuccessful spin loses. A successful one earns 1.
const LOSS: u32 = 8;

/// Without credit, one sleep in this number follows a spin.
const PROBE_ONE_IN: u32 = 64;

/// Decides about spins by their past success.
#[derive(Debug, Default)]
pub struct Spinner {
    credit: u32,
    sleeps: u32,
}

impl Spinner {
    /// Whether to spin before this sleep. `served` is whether the last turn answered a request.
    pub fn should_spin(&mut self, served: bool) -> bool {
        if !served {
            return false;
        }
        self.sleeps = self.sleeps.wrapping_add(1);
        self.credit > 0 || self.sleeps.is_multiple_of(PROBE_ONE_IN)
    }

    /// Records a spin; `found` is whether something became ready.
    pub fn record_spin(&mut self, found: bool) {
        self.credit = if found {
            (self.credit + 1).min(CREDIT_MAX)
        } else {
            self.credit.saturating_sub(LOSS)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsuccessful_spins_become_rare() {
        let mut spinner = Spinner::default();
        let tries = (0..6400).filter(|_| {
            let spins = spinner.should_spin(true);
            if spins {
                spinner.record_spin(false);
            }
            spins
        });
        assert_eq!(tries.count(), 100);
    }

    #[test]
    fn successful_spins_continue_and_an_idle_export_never_spins() {
        let mut spinner = Spinner::default();
        let mut tries = 0;
        for _ in 0..1000 {
            if spinner.should_spin(true) {
                tries += 1;
                spinner.record_spin(true);
            }
        }
        assert!(tries > 900);
        assert!(!spinner.should_spin(false));
    }
}
