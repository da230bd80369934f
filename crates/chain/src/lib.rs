//! Services between a virtual machine and its disk
//! (docs/internals/live-reconfiguration.md; StorM).
//!
//! A [`Filter`] starts requests as a [`base::BlockDevice`] does, and forwards those that it does
//! not handle. A [`Chain`] of filters over a device is a device itself, so servers need not know
//! about it. Its filters can be replaced while it is in use ([`HotSwap`]).
//!
//! This crate must not know what lies below a chain or who uses it, nor any key except those that
//! a filter is given.

mod backend;
mod below;
mod bottom;
mod chain;
mod context;
mod filter;
pub mod filters;
mod follow;
mod hot_swap;
mod key_derivations;
mod pending_queue;
mod remote;
#[cfg(test)]
mod testing;
mod tokens;

pub use backend::{BackendFactory, FilterBackend, NoBackends};
pub use chain::Chain;
pub use context::{
    AttachmentContext, Attribution, ChainHistory, DiskLimits, EventSink, FilterContext,
    HostContext, KeyError, KeySource, Lease, NoKeys, StateFolder, UnlimitedLease,
};
pub use filter::{Filter, FilterError, Opening};
pub use filters::build_filters;
pub use hot_swap::{HotSwap, HotSwapError, OnSwapped, SizeRule};
pub use key_derivations::{KEY_DERIVATIONS_MAX, KeyDerivations};
pub use pending_queue::PendingQueue;
pub use remote::{LinkState, NoTargets, RemoteDisk, Targets};

#[cfg(test)]
mod tests;
