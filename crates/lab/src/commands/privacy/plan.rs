//! `scree privacy plan`: placements that meet requirements.

use base::report::{Table, percent};
use serde::Serialize;

use super::{file_lengths, refused};
use crate::args::{PrivacyPlanArguments, Width};
use crate::commands::Failure;
use crate::commands::{Console, print};
use crate::leakage::{Choice, Redundancy, Site, Striping, plan};

#[derive(Serialize)]
struct Plan {
    units: u32,
    compromised: u32,
    survive: u32,
    max_leak: f64,
    block_bytes: u64,
    /// Number of other units that each unit shares blocks with; none: any.
    scatter_width: Option<u32>,
    /// Number of copysets that one destage writes to; none: any.
    destage_width: Option<u32>,
    placements: Vec<PlacementChoice>,
}

/// A placement that meets the requirements.
#[derive(Serialize)]
struct PlacementChoice {
    /// The option of `scree volume create`.
    option: String,
    leak_ratio: f64,
    /// Bytes that are stored and written for each byte of data.
    space: f64,
    survives: u32,
    /// Units that are read for a block whose own unit is lost.
    reads_when_lost: Option<u32>,
}

/// Runs `scree privacy plan`.
pub fn run(console: &dyn Console, arguments: &PrivacyPlanArguments) -> Result<(), Failure> {
    let site = Site {
        units: arguments.site.units,
        scatter_width: arguments.scatter_width.0,
        striping: Striping {
            width: arguments.destage_width.0,
            granularity: 1,
        },
        compromised: arguments.compromised,
        lost: arguments.survive,
    };
    // Arguments are checked before files are read, which may take long.
    site.check().map_err(refused)?;
    let files = file_lengths::read(console, &arguments.site.files)?;
    let progress = console.progress("placements");
    let choices = plan(&files.classes(arguments.block_size), &site).map_err(refused)?;
    let least = choices
        .iter()
        .min_by(|one, other| one.leak_ratio.total_cmp(&other.leak_ratio));
    drop(progress);
    let Some(least) = least else {
        return Err(Failure::new(format!(
            "no placement survives the loss of {} of {} units: the strongest are 4 copies and 8+3",
            site.lost, site.units
        )));
    };
    let is_enough = |choice: &&Choice| choice.leak_ratio <= arguments.max_leak;
    let placements: Vec<PlacementChoice> = choices.iter().filter(is_enough).map(placed).collect();
    if placements.is_empty() {
        return Err(Failure::new(format!(
            "no placement leaks as little: {} leaks least, {}. Raise --max-leak, or encrypt the volume: \
             encrypted volumes leak no content",
            option(least.redundancy),
            percent(least.leak_ratio),
        )));
    }
    let plan = Plan {
        units: site.units,
        compromised: site.compromised,
        survive: site.lost,
        max_leak: arguments.max_leak,
        block_bytes: arguments.block_size,
        scatter_width: site.scatter_width,
        destage_width: site.striping.width,
        placements,
    };
    Ok(print(console, &plan, shown)?)
}

fn option(redundancy: Redundancy) -> String {
    match redundancy {
        Redundancy::Copies(copies) => format!("--replicas {copies}"),
        Redundancy::Erasure { data, parity } => format!("--erasure {data}+{parity}"),
    }
}

fn placed(choice: &Choice) -> PlacementChoice {
    PlacementChoice {
        option: option(choice.redundancy),
        leak_ratio: choice.leak_ratio,
        space: choice.space,
        survives: choice.survives,
        reads_when_lost: choice.reads_when_lost,
    }
}

fn shown(plan: &Plan) -> String {
    let mut table = Table::new(&["PLACEMENT", "SPACE", "LEAKS", "SURVIVES", "READS WHEN LOST"]);
    for placed in &plan.placements {
        table.row(vec![
            placed.option.clone(),
            format!("{:.2} x", placed.space),
            percent(placed.leak_ratio),
            placed.survives.to_string(),
            placed
                .reads_when_lost
                .map_or_else(|| "-".to_owned(), |reads| reads.to_string()),
        ]);
    }
    format!(
        "Of {} units {} are compromised; blocks of {}, not encrypted; scatter width {}, destage width \
         {}\n\n{table}",
        plan.units,
        plan.compromised,
        base::size::exact_bytes(plan.block_bytes),
        Width(plan.scatter_width),
        Width(plan.destage_width),
    )
}
