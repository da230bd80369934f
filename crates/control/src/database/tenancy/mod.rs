//! Who may do what, and how much of it.
//!
//! * `parties`: users, hosts and unit daemons; `principal`: the party of one request
//! * `rights`, `grants`: what a party may do; `projects`, `quotas`: how much
//! * `audit_log`: who did what

pub(in crate::database) mod audit_log;
pub(in crate::database) mod grants;
pub(in crate::database) mod parties;
pub(in crate::database) mod principal;
pub(in crate::database) mod projects;
pub(in crate::database) mod quotas;
pub(in crate::database) mod rights;
