//! The whole engine under one seed.
//!
//! A seed chooses a configuration, a few hundred operations and the faults between them.
//! The engine runs on one thread in a simulated world, and every answer is compared with a
//! plain model ([`model`]). At the end everything is read without the engine ([`audit`]):
//! units must hold exactly what kept versions name. A seed that fails once fails every
//! time.
//!
//! ```text
//!   driver ── steps, faults, expected content
//!     ├─ client ─── the NBD server's contract with a volume
//!     ├─ model ──── the content that a volume should have
//!     ├─ machine ── units, journals, the process; crashes
//!     ├─ watched_catalog ── the database, which survives everything
//!     ├─ members ── the states of members, as the database knows them
//!     ├─ net ────── unit daemons, and a network that breaks
//!     ├─ privacy ── what some units alone reveal of a version
//!     └─ audit ──── the content of units, read without the engine
//! ```
//!
//! Units die for good, are rolled back to an earlier state, and are drained; others
//! replace them. The repairer runs concurrently, one pass at a time; between two of its
//! calls to units, jobs run, slots are freed, and it may be killed. In the end all members
//! are in sync, and each has every slot that it should have.
//!
//! In half of the runs each unit is on a machine of its own, behind the unit protocol, and
//! the network breaks ([`net`]).
//!
//! `cargo run -p sim --release -- --seeds 0..10000` runs many seeds;
//! `-- --seed 7 --trace` prints the steps of one. `-- --hosts` before these runs two
//! hosts that share a volume ([`hosts`]).

pub mod audit;
pub mod client;
pub mod driver;
pub mod hosts;
pub mod machine;
pub mod members;
pub mod model;
pub mod net;
pub mod privacy;
pub mod setup;
pub mod watched_catalog;

/// The result of a check; the error says what was found instead.
pub type Check<T = ()> = Result<T, String>;

/// Counts of what a run did: a run that did nothing shows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Operations of the simulated disk.
    pub operations: u64,
    /// Volumes created.
    pub volumes: u64,
    /// Versions committed.
    pub versions: u64,
    /// Snapshots completed.
    pub snapshots: u64,
    /// Versions removed.
    pub removed: u64,
    /// Volumes restored to an earlier version.
    pub restores: u64,
    /// Crashes and kills.
    pub restarts: u64,
    /// Units that died, were drained, or were rolled back.
    pub replaced: u64,
    /// Completed passes of the repairer.
    pub repaired: u64,
    /// Hits in hosts' caches.
    pub cached: u64,
    /// Events on the network.
    pub network: net::record::Counts,
}

impl std::ops::AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.volumes += other.volumes;
        self.versions += other.versions;
        self.snapshots += other.snapshots;
        self.removed += other.removed;
        self.restores += other.restores;
        self.restarts += other.restarts;
        self.replaced += other.replaced;
        self.repaired += other.repaired;
        self.cached += other.cached;
        self.network += other.network;
    }
}

/// Runs one seed.
///
/// # Errors
/// The first broken promise.
pub fn run(seed: u64, is_traced: bool) -> Check<Summary> {
    driver::Run::new(seed, is_traced).all()
}
