//! Tests of the binary as its users run it: the command line against a real `scree up`, with QEMU's
//! NBD client as the disk's user.

#![expect(
    clippy::disallowed_methods,
    reason = "these tests are users of a real machine"
)]

mod audits;
mod audits_asked;
mod bad_input;
mod buckets;
#[cfg(feature = "lab")]
mod caches;
mod certificates;
mod chains;
#[cfg(feature = "lab")]
mod cost;
#[cfg(feature = "lab")]
mod cost_calibration;
#[cfg(feature = "lab")]
mod cost_rig;
#[cfg(feature = "lab")]
mod cost_traces;
mod crash;
mod database;
mod file_reports;
mod guest;
mod host;
mod images;
mod journal_filters;
mod journals;
mod keys;
mod lifecycle;
mod monitoring;
mod monitors;
mod moves;
mod networks;
mod out_of_process_filters;
mod owners;
#[cfg(feature = "lab")]
mod privacy;
mod relay;
mod repair;
mod replicas;
mod restarts;
mod service;
mod sizes;
mod stores;
mod streams;
mod tls_replicas;
mod trace;
mod traces;
mod unit_daemons;
mod units;
mod vms;
mod volume_replicas;
mod waits;
mod watched;
mod watched_partition;
mod workload;
