//! Looking again for a moment before going to sleep.
//!
//! To be woken costs a busy thread, and whoever wakes it, more than a small
//! request does: on a virtual machine some 5 µs on either side. So while
//! requests come in quick succession the owner looks again for up to
//! [`SPIN`] before it sleeps. Whether that pays is learned: a spin that finds
//! something earns credit, one that does not loses more, and without credit
//! only one sleep in [`PROBE_ONE_IN`] is preceded by a try. An export without
//! requests sleeps.

use std::time::Duration;

/// The longest spin, unless an export's options say otherwise: about what two
/// wake-ups cost.
pub const SPIN: Duration = Duration::from_micros(20);

/// How much success is remembered.
const CREDIT_MAX: u32 = 64;

/// What a spin in vain costs, in successful ones.
const LOSS: u32 = 8;

/// Without credit: a try before one sleep in so many.
const PROBE_ONE_IN: u32 = 64;

/// See the module's head.
#[derive(Debug, Default)]
pub struct Spinner {
    credit: u32,
    sleeps: u32,
}

impl Spinner {
    /// Whether to spin before this sleep. `served` says whether the turn
    /// before it answered a request.
    pub fn should_spin(&mut self, served: bool) -> bool {
        if !served {
            return false;
        }
        self.sleeps = self.sleeps.wrapping_add(1);
        self.credit > 0 || self.sleeps.is_multiple_of(PROBE_ONE_IN)
    }

    /// A spin ended; `found` says whether with something to do.
    pub fn spun(&mut self, found: bool) {
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
    fn spins_in_vain_are_given_up_and_tried_again_rarely() {
        let mut spinner = Spinner::default();
        let tries = (0..6400).filter(|_| {
            let spins = spinner.should_spin(true);
            if spins {
                spinner.spun(false);
            }
            spins
        });
        assert_eq!(tries.count(), 100);
    }

    #[test]
    fn spins_that_pay_go_on_and_an_idle_export_never_spins() {
        let mut spinner = Spinner::default();
        let mut tries = 0;
        for _ in 0..1000 {
            if spinner.should_spin(true) {
                tries += 1;
                spinner.spun(true);
            }
        }
        assert!(tries > 900);
        assert!(!spinner.should_spin(false));
    }
}
