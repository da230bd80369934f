//! Users and other parties, their rights, and their quotas.
//!
//! * `parties`, `party_rows`: users, hosts and unit daemons; `principal`: the party of one request
//! * `rights`, `grants`: what a party may do; `projects`, `quotas`: how much
//! * `audit_log`: who did what

pub(in crate::database) mod audit_log;
pub(in crate::database) mod grants;
pub(in crate::database) mod parties;
pub(in crate::database) mod party_rows;
pub(in crate::database) mod principal;
pub(in crate::database) mod projects;
pub(in crate::database) mod quotas;
pub(in crate::database) mod rights;
