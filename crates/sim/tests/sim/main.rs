//! The engine in a simulated world: runs of many seeds, and tests of single scenarios.

mod bench;
mod caches;
mod dead;
mod engine;
mod hedge;
mod journal;
mod journals;
mod lease;
mod network;
mod read_only;
mod readahead;
mod rollback;
mod rot;
mod unavailable;

/// The seeds of every test run; `cargo run -p sim --release` runs more.
const SEEDS: u64 = 300;

#[test]
fn no_host_undoes_what_another_acknowledged() {
    let failed: Vec<String> = (0..SEEDS)
        .filter_map(|seed| {
            let error = sim::hosts::run(seed, false).err()?;
            Some(format!("seed {seed}: {error}"))
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn no_seed_breaks_a_promise() {
    let (mut failed, mut total) = (Vec::new(), sim::Summary::default());
    for seed in 0..SEEDS {
        match sim::run(seed, false) {
            Ok(summary) => total += summary,
            Err(error) => failed.push(format!("seed {seed}: {error}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    network::assert_all_events(total.network);
    assert!(total.cached > 1000, "only {} hits in caches", total.cached);
}
