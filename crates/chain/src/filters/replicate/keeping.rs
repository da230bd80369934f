//! What is kept in the file of what members lack, and what waits for that.

use std::time::Duration;

use base::Completion;

use super::member::PAUSE_MIN;
use super::store::{Store, Stored};
use super::{FORGET_AFTER, Replicate};

impl Replicate {
    /// The map is another one; nothing is acknowledged before that is in the file, if
    /// `is_needed`.
    pub(super) fn changed(&mut self, is_needed: bool) {
        self.map.sequence += 1;
        if is_needed {
            self.needed = self.map.sequence;
        }
        self.write_map();
    }

    pub(super) fn write_map(&mut self) {
        // Until it is in use, another filter may have the file.
        // What is under way before it rests may wait for the file.
        let is_held = self
            .looking
            .as_ref()
            .is_some_and(|one| !one.held.is_empty());
        let may_write = !self.is_resting || is_held || self.map.left != 0 || !self.late.is_empty();
        if !may_write || self.writing.is_some() || self.stored >= self.map.sequence {
            return;
        }
        if let Some(store) = &mut self.store {
            self.writing = Some(self.map.in_flight.clone());
            store.write(&self.map);
        }
    }

    /// What was written to the file, and what waits for that.
    pub(super) fn look_at_store(&mut self, completions: &mut Vec<Completion>) {
        while let Some(stored) = self.store.as_mut().and_then(Store::next) {
            match stored {
                Stored::Loaded(loaded) => self.loaded(loaded),
                Stored::Written(Ok(sequence)) => {
                    self.stored = sequence;
                    self.store_error = None;
                    self.in_file = self.writing.take().unwrap_or_else(|| self.in_file.clone());
                }
                Stored::Written(Err(error)) => {
                    self.writing = None;
                    if self.store_error.is_none() {
                        self.note(format!("what replicas lack cannot be kept: {error}"));
                    }
                    let why = format!("what replicas lack cannot be kept: {error}");
                    self.store_error = Some((why, self.now() + PAUSE_MIN));
                }
            }
        }
        let may_try = |error: &(String, Duration)| error.1 <= self.now();
        if self.store_error.as_ref().is_none_or(may_try) {
            self.write_map();
        }
        if self.needed <= self.stored {
            let late = std::mem::take(&mut self.late);
            completions.extend(
                late.into_iter()
                    .map(|(token, result)| Completion { token, result }),
            );
        }
    }

    /// Whether a region is in flight in the file, and will be in what is written there now.
    pub(super) fn is_marked(&self, region: usize) -> bool {
        let writing = self.writing.as_ref();
        self.in_file.has(region) && writing.is_none_or(|writing| writing.has(region))
    }

    /// A flush has reached all members that are not out.
    pub(super) fn flushed(&mut self) {
        let now = self.now();
        for region in 0..self.map.regions {
            if self.map.in_flight.has(region) && !self.touched.has(region) {
                self.covered.set(region);
            }
        }
        if self.forget_at.is_zero() {
            self.forget_at = now + FORGET_AFTER;
        }
    }

    /// Regions that were not written for some time are in flight no more.
    pub(super) fn forget(&mut self, now: Duration) {
        if self.forget_at.is_zero() || now < self.forget_at || self.is_resting {
            return;
        }
        self.forget_at = Duration::ZERO;
        if self.covered.count() > 0 {
            for region in 0..self.map.regions {
                if self.covered.has(region) {
                    self.map.in_flight.clear(region);
                    self.covered.clear(region);
                }
            }
            self.changed(false);
        }
    }
}
