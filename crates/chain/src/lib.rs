//! Floor 3: services between a virtual machine and its disk
//! (docs/internals/live-reconfiguration.md; StorM).
//!
//! A [`Filter`] has the verbs of a [`base::BlockDevice`], and passes on what it does not
//! take in hand. A [`Chain`] of them over a device is a device again, so frontends need
//! not know of it; its filters are exchanged while it is used ([`Exchange`]).
//!
//! Must not know what is below a chain, or who asks it; nor any key but those that a filter
//! is given.

mod bottom;
mod chain;
mod derivations;
mod door;
mod exchange;
mod filter;
pub mod filters;
mod follow;
mod program;
mod remote;
mod surroundings;
mod tokens;

pub use chain::Chain;
pub use derivations::{DERIVATIONS_MAX, Derivations};
pub use door::Door;
pub use exchange::{Exchange, ExchangeError, SizeRule, Told};
pub use filter::{Filter, Opening};
pub use program::{NoPrograms, Program, Programs};
pub use remote::{Link, NoTargets, Remote, Targets};
pub use surroundings::{
    Attribution, EventSink, KeyMissing, KeySource, Lease, NoKeys, Room, StateFolder, Surroundings,
    Tenure, Unlimited, build,
};

#[cfg(test)]
mod tests;
