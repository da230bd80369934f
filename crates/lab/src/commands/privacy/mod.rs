//! `scree privacy estimate`, `simulate` and `plan`: what compromised units reveal
//! (docs/explanation/leakage.md).

mod file_lengths;
mod plan;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::leakage::{
    Estimate, FileList, Mean, Placement, PlacementError, Redundancy, Shares, Simulation, estimate,
};
use base::size::exact_bytes;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use serde::Serialize;
use world::{World, host, parallel};

use super::Failure;
use super::files::{check_place, cores, failed, write_picture};
use crate::args::{CaseArguments, Mark, ModelCommand, PrivacySimulateArguments};
use crate::chart::{Chart, Series};
use crate::commands::{Console, Progress, print};
use base::report::{Table, percent};

/// The fewest trials of one task.
const TRIALS_AT_ONCE: u32 = 16;

/// The most tasks; each has its own means.
const TASKS_MAX: u32 = 1024;

/// The leakage with one number of compromised units and one block size. Bytes and files are means.
#[derive(Serialize)]
struct Leak {
    block_bytes: u64,
    compromised: u32,
    /// Part of all bytes that is in completely readable files, from 0 to 1.
    leak_ratio: f64,
    /// For trials: half the width of the 95 % confidence interval of the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    leak_ratio_within: Option<f64>,
    leaked_bytes: f64,
    leaked_files: f64,
    /// Files of which at least one block is readable.
    files_in_part: f64,
    bytes_in_part: f64,
    /// Part of the map's leaves that is readable, from 0 to 1.
    map_ratio: f64,
}

#[derive(Serialize)]
struct Leaks {
    units: u32,
    sealed: bool,
    files: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    trials: Option<u32>,
    results: Vec<Leak>,
}

/// Runs `scree privacy estimate`, `simulate` or `plan`.
pub fn run_privacy(console: &dyn Console, command: ModelCommand) -> Result<(), Failure> {
    let (case, trials) = match &command {
        ModelCommand::Estimate(arguments) => (&arguments.case, None),
        ModelCommand::Simulate(arguments) => (&arguments.case, Some(arguments)),
        ModelCommand::Plan(arguments) => return plan::run(console, arguments),
    };
    let placement = case.placement();
    // Arguments are checked before files are read, which may take long.
    let shares = shares(console, &case.compromised.0, placement)?;
    if let Some(path) = &case.plot {
        check_picture(path, case)?;
    }
    let files = file_lengths::read(console, &case.site.files)?;
    let mut results = Vec::new();
    for block_bytes in block_sizes(case) {
        let simulated = match trials {
            Some(arguments) => simulate(console, arguments, placement, &files, block_bytes)?,
            None => Vec::new(),
        };
        let classes = files.classes(block_bytes);
        for (compromised, shares) in case.compromised.0.iter().zip(&shares) {
            let found = match case.sealed {
                true => Estimate {
                    files_all: files.lengths().len() as u64,
                    bytes_all: files.bytes(),
                    ..Estimate::default()
                },
                false => estimate(&classes, shares),
            };
            let map_ratio = if case.sealed { 0.0 } else { shares.leaks(1) };
            let simulated = simulated.get(*compromised as usize);
            let case = (block_bytes, *compromised);
            results.push(Leak::of(case, &found, map_ratio, simulated));
        }
    }
    let leaks = Leaks {
        units: case.site.units,
        sealed: case.sealed,
        files: files.lengths().len() as u64,
        bytes: u64::try_from(files.bytes()).unwrap_or(u64::MAX),
        trials: trials.map(|arguments| arguments.trials),
        results,
    };
    // The result is printed even if the picture fails.
    print(console, &leaks, shown)?;
    match &case.plot {
        Some(path) => draw(path, case, &leaks),
        None => Ok(()),
    }
}

/// The readable shares for each number of compromised units.
fn shares(
    console: &dyn Console,
    counts: &[u32],
    placement: Placement,
) -> Result<Vec<Shares>, Failure> {
    let progress = console.progress_of("equations", counts.len() as u64);
    let of_count = |compromised: &u32| {
        let shares = placement.shares(*compromised).map_err(refused);
        progress.add(1);
        shares
    };
    counts.iter().map(of_count).collect()
}

/// The distinct block sizes, in the order of the arguments.
fn block_sizes(case: &CaseArguments) -> Vec<u64> {
    let mut sizes = Vec::new();
    for size in &case.block_sizes {
        if !sizes.contains(size) {
            sizes.push(*size);
        }
    }
    sizes
}

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

impl Leak {
    /// A result of the equations, with the mean of the trials if there are some.
    fn of(
        (block_bytes, compromised): (u64, u32),
        found: &Estimate,
        map_ratio: f64,
        trials: Option<&Mean>,
    ) -> Self {
        let all = found.bytes_all.max(1) as f64;
        let bytes = trials.map_or(found.bytes, Mean::mean);
        Self {
            block_bytes,
            compromised,
            leak_ratio: bytes / all,
            leak_ratio_within: trials.map(|mean| mean.within() / all),
            leaked_bytes: bytes,
            leaked_files: found.files,
            files_in_part: found.files_in_part,
            bytes_in_part: found.bytes_in_part,
            map_ratio,
        }
    }
}

/// The mean of the leaked bytes with 0, 1 … compromised units.
fn simulate(
    console: &dyn Console,
    arguments: &PrivacySimulateArguments,
    placement: Placement,
    files: &FileList,
    block_bytes: u64,
) -> Result<Vec<Mean>, Failure> {
    let case = &arguments.case;
    let most = case.compromised.0.last().copied().unwrap_or(0);
    if case.sealed {
        let mut none = Mean::default();
        (0..arguments.trials).for_each(|_| none.add(0.0));
        return Ok(vec![none; most as usize + 1]);
    }
    let simulation = Simulation::new(placement, most, files, block_bytes);
    let simulation = Arc::new(simulation.map_err(refused)?);
    let progress = console.progress_of("trials", u64::from(arguments.trials));
    let progress: Arc<dyn Progress> = Arc::from(progress);
    let at_once = TRIALS_AT_ONCE.max(arguments.trials.div_ceil(TASKS_MAX));
    let firsts = (0..arguments.trials).step_by(at_once as usize);
    let tasks = firsts.map(|first| {
        let (simulation, progress) = (Arc::clone(&simulation), Arc::clone(&progress));
        let count = at_once.min(arguments.trials - first);
        // Random numbers belong to the task, not to the thread it runs on.
        let mut random = SmallRng::seed_from_u64(arguments.seed ^ (u64::from(first) << 32));
        let task = move || {
            let mut means = vec![Mean::default(); most as usize + 1];
            for _ in 0..count {
                let leaked = simulation.trial(&mut random);
                means
                    .iter_mut()
                    .zip(leaked)
                    .for_each(|(mean, bytes)| mean.add(bytes));
                progress.add(1);
            }
            means
        };
        Box::new(task) as Box<dyn FnOnce() -> Vec<Mean> + Send>
    });
    let pool = World::real(cores()).pool;
    let parts = parallel(&*pool, cores(), tasks.collect());
    let mut means = vec![Mean::default(); most as usize + 1];
    for part in parts {
        means
            .iter_mut()
            .zip(part)
            .for_each(|(mean, part)| mean.join(part));
    }
    Ok(means)
}

fn bytes(bytes: f64) -> String {
    base::size::about_bytes(bytes.round() as u64)
}

fn count(files: f64) -> String {
    match files {
        0.0 => "0".to_owned(),
        files if files < 0.1 => format!("{files:.1e}"),
        files if files < 100.0 => format!("{files:.1}"),
        files => format!("{files:.0}"),
    }
}

fn shown(leaks: &Leaks) -> String {
    let mut sizes: Vec<u64> = leaks.results.iter().map(|leak| leak.block_bytes).collect();
    sizes.dedup();
    let sizes: Vec<String> = sizes.into_iter().map(exact_bytes).collect();
    let mut heads = Vec::new();
    if sizes.len() > 1 {
        heads.push("BLOCKS");
    }
    heads.extend(["COMPROMISED", "LEAKS"]);
    if leaks.trials.is_some() {
        heads.push("WITHIN");
    }
    heads.extend(["BYTES", "FILES", "IN PART", "BYTES IN PART", "OF THE MAP"]);
    let mut table = Table::new(&heads);
    for leak in &leaks.results {
        let mut row = Vec::new();
        if sizes.len() > 1 {
            row.push(exact_bytes(leak.block_bytes));
        }
        row.extend([leak.compromised.to_string(), percent(leak.leak_ratio)]);
        row.extend(
            leak.leak_ratio_within
                .map(|within| format!("± {}", percent(within))),
        );
        row.extend([
            bytes(leak.leaked_bytes),
            count(leak.leaked_files),
            count(leak.files_in_part),
            bytes(leak.bytes_in_part),
            percent(leak.map_ratio),
        ]);
        table.row(row);
    }
    let how = match leaks.trials {
        Some(trials) => format!("the mean of {trials} trials"),
        None => "on average".to_owned(),
    };
    let sealed = match leaks.sealed {
        true => "\nBlocks are encrypted: units without keys reveal no content.\n",
        false => "",
    };
    format!(
        "{} files, {}, in blocks of {} on {} units; {how}\n\n{table}{sealed}",
        leaks.files,
        base::size::about_bytes(leaks.bytes),
        sizes.join(" or "),
        leaks.units,
    )
}

/// Checks what can be checked of a picture before it is drawn.
fn check_picture(path: &Path, case: &CaseArguments) -> Result<(), Failure> {
    if case
        .compromised
        .0
        .iter()
        .all(|compromised| *compromised == 0)
    {
        return Err(failed(
            path,
            "without compromised units there are no points to draw: use --compromised 1 or more",
        ));
    }
    let units = case.site.units;
    let points = case.marks.iter().flat_map(|mark| &mark.points);
    if let Some((compromised, _)) = points.max_by_key(|(compromised, _)| *compromised)
        && *compromised > units
    {
        let compromised = *compromised;
        return Err(refused(PlacementError::ManyCompromised {
            compromised,
            units,
        }));
    }
    let files = &case.site.files;
    check_place(path, &files.list)?;
    let is_below = |tree: &PathBuf| {
        let (folder, tree) = (host::resolve(host::parent_of(path)), host::resolve(tree));
        folder.is_ok_and(|folder| tree.is_ok_and(|tree| folder.starts_with(tree)))
    };
    match !host::is_special(path) && files.tree.as_ref().is_some_and(is_below) {
        true => Err(failed(
            path,
            "it would be one of the files below --tree; draw into another folder",
        )),
        false => Ok(()),
    }
}

fn draw(path: &Path, case: &CaseArguments, leaks: &Leaks) -> Result<(), Failure> {
    let redundancy = match case.placement().redundancy {
        Redundancy::Copies(1) => "one copy".to_owned(),
        Redundancy::Copies(copies) => format!("{copies} copies"),
        Redundancy::Erasure { data, parity } => format!("{data}+{parity}"),
    };
    let line = |block_bytes: u64| {
        let is_here = |leak: &&Leak| leak.block_bytes == block_bytes && leak.compromised > 0;
        let points = leaks.results.iter().filter(is_here);
        let points = points.map(|leak| (f64::from(leak.compromised), 100.0 * leak.leak_ratio));
        Series {
            name: format!("{redundancy}, blocks of {}", exact_bytes(block_bytes)),
            points: points.collect(),
        }
    };
    let marked = |mark: &Mark| {
        let points = mark.points.iter();
        Series {
            name: mark.name.clone(),
            points: points
                .map(|(units, percent)| (f64::from(*units), *percent))
                .collect(),
        }
    };
    let chart = Chart {
        title: "Leakage of files from compromised units".to_owned(),
        x: format!("compromised units of {}", leaks.units),
        y: "bytes in files that leak, %".to_owned(),
        series: block_sizes(case).into_iter().map(line).collect(),
        marks: case.marks.iter().map(marked).collect(),
    };
    write_picture(path, &chart)
}
