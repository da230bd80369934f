//! `scree cache simulate`: hit ratios of cache policies on a trace.

use std::path::Path;
use std::sync::Arc;

use base::report::Table;
use serde::Serialize;
use world::{World, parallel};

use super::Failure;
use super::files::{check_place, cores, write_picture};
use crate::args::{CacheCommand, SimulateArguments};
use crate::chart::{Chart, Series};
use crate::commands::{Console, print};
use crate::policies::PolicyKind;
use crate::policies::{BLOCK_BYTES, Contestant, Counts, Steps};
use crate::traces::{Part, Traces, read_traces};

/// The default cache sizes, in percent of the blocks that are read.
const PERCENTS: [usize; 7] = [1, 2, 5, 10, 20, 50, 100];

/// Number of simulations that run at once.
const PARALLEL: usize = 16;

/// The result of the command.
#[derive(Serialize)]
struct CacheSimulation {
    /// Requests in the trace.
    requests: usize,
    /// Requests for blocks of 4 KiB, including repeated ones.
    asked: u64,
    /// Size of all distinct blocks that were requested.
    footprint_bytes: u64,
    results: Vec<Outcome>,
}

#[derive(Serialize)]
struct Outcome {
    policy: &'static str,
    cache_bytes: u64,
    hits: u64,
    hit_ratio: f64,
}

/// Runs `scree cache`.
pub fn run_cache(console: &dyn Console, command: CacheCommand) -> Result<(), Failure> {
    let CacheCommand::Simulate(arguments) = command;
    if let Some(picture) = &arguments.plot {
        check_place(picture, &arguments.traces)?;
    }
    let progress = console.progress("reading the trace");
    let Traces { parts, notices, .. } = read_traces(&arguments.traces)?;
    drop(progress);
    for notice in notices {
        console.notice(&notice);
    }
    let records = parts.iter().flat_map(Part::by_disk);
    let requests = records.clone().count();
    let steps = Steps::of(records, arguments.writes.rule())
        .map_err(|error| Failure::new(error.to_string()))?;
    drop(parts);
    if steps.footprint == 0 {
        return Err(Failure::new(
            "the trace reads nothing, so a cache has no hits: use a trace with reads",
        ));
    }
    let simulated = simulate(console, &arguments, requests, steps);
    // The result is printed even if the picture fails.
    print(console, &simulated, shown)?;
    match &arguments.plot {
        Some(path) => draw(path, &simulated),
        None => Ok(()),
    }
}

fn simulate(
    console: &dyn Console,
    arguments: &SimulateArguments,
    requests: usize,
    steps: Steps,
) -> CacheSimulation {
    let footprint = steps.footprint;
    let mut blocks: Vec<usize> = match arguments.sizes.is_empty() {
        true => {
            let share = |percent: usize| (footprint * percent).div_ceil(100);
            PERCENTS.into_iter().map(share).collect()
        }
        false => {
            let sizes = arguments.sizes.iter().map(|size| size / BLOCK_BYTES);
            sizes.map(|blocks| (blocks as usize).max(1)).collect()
        }
    };
    blocks.sort_unstable();
    blocks.dedup();
    let mut contestants = arguments.policies.clone();
    if contestants.is_empty() {
        contestants.extend(PolicyKind::ALL.map(Contestant::Policy));
        contestants.push(Contestant::Belady);
    }
    let progress = console.progress(&format!("{requests} requests"));
    let steps = Arc::new(steps.steps);
    let pairs = contestants
        .iter()
        .flat_map(|contestant| blocks.iter().map(|blocks| (*contestant, *blocks)));
    let pairs: Vec<(Contestant, usize)> = pairs.collect();
    let tasks = pairs.iter().map(|(contestant, blocks)| {
        let (steps, contestant, blocks) = (Arc::clone(&steps), *contestant, *blocks);
        Box::new(move || contestant.counts(blocks, &steps)) as Box<dyn FnOnce() -> Counts + Send>
    });
    let pool = World::real(cores()).pool;
    let counts = parallel(&*pool, PARALLEL, tasks.collect());
    drop(progress);
    let results = pairs
        .iter()
        .zip(&counts)
        .map(|((contestant, blocks), counts)| Outcome {
            policy: contestant.name(),
            cache_bytes: *blocks as u64 * BLOCK_BYTES,
            hits: counts.hits,
            hit_ratio: counts.hit_ratio(),
        });
    CacheSimulation {
        requests,
        asked: counts.first().map_or(0, |counts| counts.requested),
        footprint_bytes: footprint as u64 * BLOCK_BYTES,
        results: results.collect(),
    }
}

/// The policies and the cache sizes, each in the order of the results.
fn axes(simulated: &CacheSimulation) -> (Vec<&'static str>, Vec<u64>) {
    let (mut policies, mut sizes) = (Vec::new(), Vec::new());
    for result in &simulated.results {
        if !policies.contains(&result.policy) {
            policies.push(result.policy);
        }
        if !sizes.contains(&result.cache_bytes) {
            sizes.push(result.cache_bytes);
        }
    }
    (policies, sizes)
}

fn shown(simulated: &CacheSimulation) -> String {
    let (policies, sizes) = axes(simulated);
    let footprint = simulated.footprint_bytes;
    let mut heads = vec!["CACHE".to_owned(), "OF READ".to_owned()];
    heads.extend(policies.iter().map(|name| name.to_uppercase()));
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut table = Table::new(&heads);
    for size in sizes {
        let mut row = vec![
            base::size::about_bytes(size),
            format!("{:.1} %", 100.0 * size as f64 / footprint as f64),
        ];
        let of_size = simulated
            .results
            .iter()
            .filter(|result| result.cache_bytes == size);
        row.extend(of_size.map(|one| format!("{:.1} %", 100.0 * one.hit_ratio)));
        table.row(row);
    }
    format!(
        "{} requests read {} blocks of 4 KiB, {} of them distinct\n\n{table}",
        simulated.requests,
        simulated.asked,
        base::size::about_bytes(footprint)
    )
}

fn draw(path: &Path, simulated: &CacheSimulation) -> Result<(), Failure> {
    let (policies, _) = axes(simulated);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let series = policies.into_iter().map(|name| Series {
        name: name.to_owned(),
        points: simulated
            .results
            .iter()
            .filter(|result| result.policy == name)
            .map(|result| (mib(result.cache_bytes), 100.0 * result.hit_ratio))
            .collect(),
    });
    let chart = Chart {
        title: "Hit ratio of reads by cache size".to_owned(),
        x: "cache size, MiB".to_owned(),
        y: "hit ratio, %".to_owned(),
        series: series.collect(),
        marks: Vec::new(),
    };
    write_picture(path, &chart)
}
