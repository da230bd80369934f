//! Programs that stand in a chain: what is asked of them, and what they ask.

use chain_policy::FilterPolicy;

use crate::{Door, Remote, Surroundings};

/// A filter's program, on its way from one start to the next: as a disk it is what the program
/// makes of the one below, which it reaches through the [`Door`] that it was made with.
///
/// Its [`Remote::link`] is `Connecting` from a start until the program is there, and
/// `Broken` before the first start, and when the program has ended or makes no sense.
/// Requests that were not answered, and changes that no flush has covered, are made once
/// more by the next one that is `Ready`, in their order.
pub trait Program: Remote {
    /// Ends what runs, if anything does, and starts the program. Does not wait.
    fn launch(&mut self);

    /// Ends what runs; from now on what is asked goes to the door as it is.
    fn bypass(&mut self);

    /// Ends what runs. What was not answered fails; changes that were, and that no flush
    /// has covered, are kept for the next start.
    fn give_up(&mut self, why: &str);
}

/// Makes programs of filters.
pub trait Programs: Send + Sync {
    /// The program of a filter, not started yet. What it asks comes to `door`.
    ///
    /// # Errors
    /// Why there is none, for people.
    fn program(
        &self,
        of: &FilterPolicy,
        surroundings: &Surroundings,
        door: Door,
    ) -> Result<Box<dyn Program>, String>;
}

/// There are none.
pub struct NoPrograms;

impl Programs for NoPrograms {
    fn program(
        &self,
        of: &FilterPolicy,
        _: &Surroundings,
        _: Door,
    ) -> Result<Box<dyn Program>, String> {
        Err(format!("the filter {} can only run inline here", of.name))
    }
}
