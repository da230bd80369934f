//! The journals of volumes, as files: those in D ([`LocalJournals`]), and the folder that several
//! hosts share ([`SharedJournals`]). What is in a journal is the matter of `volume::journal`.

mod local;
mod shared;

pub(crate) use local::{LocalJournals, quarantine, set_problem};
pub use shared::JournalsError;
pub(crate) use shared::SharedJournals;
