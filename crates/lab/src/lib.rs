//! The laboratory. It predicts what a break-in leaks and what encryption costs, measures
//! the latter on this machine, and replays traces against cache policies
//! (docs/explanation/leakage.md, docs/explanation/cost-model.md, docs/explanation/caching.md).
//!
//! ```text
//!  leakage    what the owner of compromised units can read: equations and trials
//!  cost       what encryption costs a workload: the equations
//!  measure    what encryption costs on this machine: calibration and comparison
//!  traces     requests recorded by Scree, fio or blktrace
//!  policies   cache policies, including those that only the laboratory uses, and their replay
//!  chart      curves as SVG
//!  args       arguments of `scree cost`, `scree privacy` and `scree cache`
//!  commands   these commands, printing through a `Console`
//! ```
//!
//! Must not know: the API, hosts, controllers, the terminal. No crate of the engine depends on
//! this one; the binary does through its Cargo feature `lab`.
//!
//! Invariant: `leakage`, `cost` and `policies` are pure; they use no files and no clock.

pub mod args;
pub mod chart;
pub mod commands;
pub mod cost;
pub mod leakage;
pub mod measure;
pub mod policies;
pub mod traces;
