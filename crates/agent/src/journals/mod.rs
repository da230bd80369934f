//! The files of journals: those in the data directory ([`LocalJournals`]), and those in the folder
//! that several hosts share ([`SharedJournals`]). `volume::journal` reads and writes their content.

mod local;
mod shared;

pub(crate) use local::{LocalJournals, quarantine, set_problem};
pub use shared::JournalsError;
pub(crate) use shared::SharedJournals;
