//! Runs many seeds, or one seed with a trace.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

/// The current seed, for the message of a panic.
static SEED: AtomicU64 = AtomicU64::new(0);

fn usage() -> ExitCode {
    eprintln!("usage: sim [--hosts] --seeds FIRST..END | --seed NUMBER [--trace]");
    ExitCode::from(2)
}

fn parse(arguments: &[String]) -> Option<(Range<u64>, bool)> {
    match arguments {
        [option, range] if option == "--seeds" => {
            let (first, end) = range.split_once("..")?;
            Some((first.parse().ok()?..end.parse().ok()?, false))
        }
        [option, seed, rest @ ..] if option == "--seed" => {
            let seed: u64 = seed.parse().ok()?;
            match rest {
                [] => Some((seed..seed + 1, false)),
                [trace] if trace == "--trace" => Some((seed..seed + 1, true)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Prints the command that replays a seed.
fn print_replay(has_hosts: bool, seed: u64) {
    let mode = if has_hosts { "--hosts " } else { "" };
    println!("to replay it: cargo run --release -p sim -- {mode}--seed {seed} --trace");
}

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let has_hosts = arguments.first().is_some_and(|first| first == "--hosts");
    let run = match has_hosts {
        true => sim::hosts::run,
        false => sim::run,
    };
    arguments.drain(..usize::from(has_hosts));
    let Some((seeds, is_traced)) = parse(&arguments) else {
        return usage();
    };
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let seed = SEED.load(Ordering::Relaxed);
        println!("seed {seed} panicked");
        print_replay(has_hosts, seed);
        report(panic);
    }));
    let count = seeds.end.saturating_sub(seeds.start);
    let mut failed = 0;
    let mut total = sim::Summary::default();
    for seed in seeds {
        SEED.store(seed, Ordering::Relaxed);
        match std::panic::catch_unwind(|| run(seed, is_traced)) {
            Ok(Ok(summary)) => total += summary,
            Ok(Err(error)) => {
                println!("seed {seed}: {error}");
                print_replay(has_hosts, seed);
                failed += 1;
            }
            Err(_) => failed += 1,
        }
    }
    println!("{failed} of {count} seeds failed; {total:?}");
    if failed > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
