//! The engine's catalog: leases, versions, segment serials, frees.
//!
//! * `calls`: dispatches a host's call; `reach`: which objects a host may read and change
//! * `leases`, `ledger`, `versions`, `version_rows`, `frees`, `deleted_volumes`, `counters`
//! * `capabilities`: what a host may do on unit daemons

#[macro_use]
pub(in crate::database) mod reach;
pub(in crate::database) mod calls;
pub(in crate::database) mod capabilities;
pub(in crate::database) mod counters;
pub(in crate::database) mod deleted_volumes;
pub(in crate::database) mod frees;
pub(in crate::database) mod leases;
mod ledger;
pub(in crate::database) mod version_rows;
pub(in crate::database) mod versions;
