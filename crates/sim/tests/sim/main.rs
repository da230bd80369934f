//! The engine in a simulated world: seeds, and stories.

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

/// Seeds that every test run repeats; `cargo run -p sim --release` runs more.
const SEEDS: u64 = 300;

#[test]
fn no_host_undoes_what_another_acknowledged() {
    let failed: Vec<String> = (0..SEEDS)
        .filter_map(|seed| {
            let why = sim::hosts::run(seed, false).err()?;
            Some(format!("seed {seed}: {why}"))
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
            Err(why) => failed.push(format!("seed {seed}: {why}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    network::all_has_happened(total.network);
    assert!(
        total.cached > 1000,
        "caches had {} blocks only",
        total.cached
    );
}
