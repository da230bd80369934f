//! Arguments of the model of `scree privacy`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};

use super::size;
use crate::leakage::{Placement, Redundancy, Striping};

/// The verbs that use the model only, and no running Scree.
#[derive(Subcommand)]
pub enum ModelCommand {
    /// Compute which part of files can be read from compromised units, by equations.
    Estimate(PrivacyEstimateArguments),
    /// Estimate the same by random trials of placement and compromised units.
    Simulate(PrivacySimulateArguments),
    /// List placements that survive a loss of units and leak little enough, smallest first.
    Plan(PrivacyPlanArguments),
}

/// Arguments of `scree privacy estimate`.
#[derive(Args)]
pub struct PrivacyEstimateArguments {
    /// Units, placement and files.
    #[command(flatten)]
    pub case: CaseArguments,
}

/// Arguments of `scree privacy simulate`.
#[derive(Args)]
pub struct PrivacySimulateArguments {
    /// Units, placement and files.
    #[command(flatten)]
    pub case: CaseArguments,

    /// Number of trials.
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub trials: u32,

    /// Seed of the random numbers; the same seed gives the same result.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Arguments of `scree privacy plan`.
#[derive(Args)]
pub struct PrivacyPlanArguments {
    /// Units and files.
    #[command(flatten)]
    pub site: SiteArguments,

    /// Number of other units that each unit shares blocks with, or `any` for random units per
    /// block.
    #[arg(long, value_name = "N", default_value = SCATTER_WIDTH, value_parser = scatter_width)]
    pub scatter_width: Width,

    /// Number of copysets that one destage writes to, or `any`.
    #[arg(long, value_name = "N", default_value = DESTAGE_WIDTH, value_parser = destage_width)]
    pub destage_width: Width,

    /// Block size.
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = block)]
    pub block_size: u64,

    /// Number of units that may be compromised.
    #[arg(long, value_name = "N")]
    pub compromised: u32,

    /// Number of units that may be lost, whichever they are, without losing data.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub survive: u32,

    /// Part of all bytes that may be in completely readable files, as a ratio: 1e-6, 0.001.
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub max_leak: f64,
}

/// The scatter width of Scree's copysets.
pub const SCATTER_WIDTH: &str = "8";

/// The number of copysets that one destage of Scree's engine writes to.
pub const DESTAGE_WIDTH: &str = "16";

/// A number of units or copysets; `None` stands for any number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Width(pub Option<u32>);

impl std::fmt::Display for Width {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(number) => number.fmt(formatter),
            None => "any".fmt(formatter),
        }
    }
}

impl Width {
    fn parse(text: &str, most: u32) -> Result<Self, String> {
        if text == "any" {
            return Ok(Self(None));
        }
        let number = text.parse().ok().filter(|one| (1..=most).contains(one));
        let number = number.ok_or_else(|| format!("write a number from 1 to {most}, or `any`"))?;
        Ok(Self(Some(number)))
    }
}

fn scatter_width(text: &str) -> Result<Width, String> {
    Width::parse(text, 64)
}

fn destage_width(text: &str) -> Result<Width, String> {
    Width::parse(text, 1024)
}

/// Units and the files on them.
#[derive(Args)]
pub struct SiteArguments {
    /// Number of storage units.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub units: u32,

    /// The files.
    #[command(flatten)]
    pub files: FilesArguments,
}

/// Units, the placement of blocks on them, and files.
#[derive(Args)]
pub struct CaseArguments {
    /// Units and files.
    #[command(flatten)]
    pub site: SiteArguments,

    /// Numbers of compromised units: one, several (1,5,25), or a range (1..25).
    #[arg(long, value_name = "N")]
    pub compromised: Counts,

    /// Block size, or several to compare (4K,8K), each with a curve of its own.
    #[arg(long = "block-size", value_name = "SIZE", default_value = "4K",
          value_delimiter = ',', value_parser = block)]
    pub block_sizes: Vec<u64>,

    /// Copies of each block; one compromised copy makes it readable.
    #[arg(long, value_name = "R", default_value_t = 1, conflicts_with = "erasure",
          value_parser = clap::value_parser!(u32).range(1..=16))]
    pub replicas: u32,

    /// Erasure code in place of copies: K data and M parity units. K consecutive blocks form a row,
    /// each on one unit of a copyset, and any K of its units reveal all of them.
    #[arg(long, value_name = "K+M", value_parser = erasure)]
    pub erasure: Option<Redundancy>,

    /// Number of other units that each unit shares blocks with (8 in Scree), or `any` for random
    /// units per block.
    #[arg(long, value_name = "N", default_value = "any", value_parser = scatter_width)]
    pub scatter_width: Width,

    /// Number of copysets that one destage writes to (16 in Scree), or `any`.
    #[arg(long, value_name = "N", default_value = "any", value_parser = destage_width)]
    pub destage_width: Width,

    /// Consecutive blocks on one copyset; with --erasure, consecutive rows (1 in Scree).
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub granularity: u32,

    /// Blocks are encrypted and the attacker has no keys: no content leaks.
    #[arg(long)]
    pub sealed: bool,

    /// Draw the leaked part by compromised units into this SVG file.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,

    /// Mark points in the picture, such as published or audited values: compromised units and
    /// percent of the bytes (HVSTO=1:0.0033,25:0.11).
    #[arg(long = "mark", value_name = "NAME=N:PERCENT,…", requires = "plot")]
    pub marks: Vec<Mark>,
}

/// Named points: compromised units and percent of the bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// The name in the legend.
    pub name: String,
    /// The points; at least one.
    pub points: Vec<(u32, f64)>,
}

impl FromStr for Mark {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let point = |text: &str| {
            let (units, percent) = text.split_once(':')?;
            let units = units
                .trim()
                .parse::<u32>()
                .ok()
                .filter(|units| *units > 0)?;
            let percent = percent.trim().parse::<f64>().ok();
            Some((units, percent.filter(|of| (0.0..=100.0).contains(of))?))
        };
        let parsed = text.rsplit_once('=').and_then(|(name, points)| {
            let points = points.split(',').map(point).collect::<Option<Vec<_>>>()?;
            Some(Self {
                name: name.to_owned(),
                points,
            })
        });
        parsed.ok_or_else(|| {
            "write a name and points, each a number of units and percent from 0 to 100, such as \
             HVSTO=1:0.0033,25:0.11"
                .to_owned()
        })
    }
}

/// The files; by default those of `--distribution documents`.
#[derive(Args)]
#[group(multiple = false)]
pub struct FilesArguments {
    /// Files below this folder, on one file system, each once and without holes; symbolic links are
    /// not followed.
    #[arg(long, value_name = "FOLDER")]
    pub tree: Option<PathBuf>,

    /// List of lengths: one number of bytes a line, or CSV with a column `bytes`, `size` or
    /// `length`.
    #[arg(long, value_name = "FILE")]
    pub list: Option<PathBuf>,

    /// A synthetic set of files.
    #[arg(long, value_enum, value_name = "NAME")]
    pub distribution: Option<FileDistribution>,
}

/// A synthetic set of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FileDistribution {
    /// 20.86 GB of students' documents, as published by the authors of HVSTO.
    Documents,
}

/// Distinct numbers of units in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts(pub Vec<u32>);

/// The most numbers that one range may have.
const COUNTS_MAX: u32 = 1000;

impl FromStr for Counts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let parsed = text.trim().parse::<u32>();
            parsed
                .map_err(|_| format!("{text:?} is not a number of units: write 5, 1,5,25 or 1..25"))
        };
        let mut counts = Vec::new();
        for part in text.split(',') {
            match part.split_once("..") {
                None => counts.push(number(part)?),
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last.trim_start_matches('='))?);
                    if first > last || last - first >= COUNTS_MAX {
                        return Err(format!(
                            "the range {first}..{last} has not 1 to {COUNTS_MAX} numbers"
                        ));
                    }
                    counts.extend(first..=last);
                }
            }
        }
        counts.sort_unstable();
        counts.dedup();
        Ok(Self(counts))
    }
}

fn block(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("use a block size of at least one byte, such as 4K".to_owned()),
        bytes => Ok(bytes),
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    let parsed = text.parse::<f64>().ok();
    let of_one = parsed.filter(|ratio| (0.0..=1.0).contains(ratio));
    of_one.ok_or_else(|| "write a number from 0 to 1, such as 1e-6".to_owned())
}

fn erasure(text: &str) -> Result<Redundancy, String> {
    let parts = text.split_once('+');
    let parsed = parts.and_then(|(data, parity)| {
        let (data, parity) = (data.parse::<u32>().ok()?, parity.parse::<u32>().ok()?);
        let is_one = (2..=64).contains(&data) && (1..=64).contains(&parity);
        is_one.then_some(Redundancy::Erasure { data, parity })
    });
    parsed.ok_or_else(|| {
        "write K+M with 2 to 64 data units and 1 to 64 parity units, such as 4+2".to_owned()
    })
}

impl CaseArguments {
    /// The placement of blocks on units.
    pub fn placement(&self) -> Placement {
        let redundancy = self.erasure.unwrap_or(Redundancy::Copies(self.replicas));
        let placement = Placement::on(self.site.units, redundancy, self.scatter_width.0);
        placement.striped(Striping {
            width: self.destage_width.0,
            granularity: self.granularity,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_numbers_and_ranges_of_them() {
        let counts = |text: &str| text.parse::<Counts>().map(|counts| counts.0);
        assert_eq!(counts("5"), Ok(vec![5]));
        assert_eq!(counts("3..5,1,4"), Ok(vec![1, 3, 4, 5]));
        assert_eq!(counts("1..=2"), Ok(vec![1, 2]));
        for bad in ["", "x", "5..3", "1..5000", "-1", "1,,2"] {
            assert!(counts(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_width_is_a_number_or_any() {
        assert_eq!(scatter_width(SCATTER_WIDTH), Ok(Width(Some(8))));
        assert_eq!(scatter_width("any"), Ok(Width(None)));
        for bad in ["", "0", "65", "x", "Any"] {
            assert!(scatter_width(bad).is_err(), "{bad:?}");
        }
        assert!(destage_width("65").is_ok() && destage_width("1025").is_err());
    }

    #[test]
    fn a_mark_has_a_name_and_points() {
        let mark = "found = x=1:0.5, 25:100".parse::<Mark>();
        let expected = Mark {
            name: "found = x".to_owned(),
            points: vec![(1, 0.5), (25, 100.0)],
        };
        assert_eq!(mark, Ok(expected));
        for bad in [
            "", "a", "a=", "a=1", "a=0:1", "a=1:nan", "a=1:101", "a=1:-1", "a=1:2,",
        ] {
            assert!(bad.parse::<Mark>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_ratio_is_of_one() {
        assert_eq!((ratio("1e-6"), ratio("0")), (Ok(1e-6), Ok(0.0)));
        for bad in ["", "-0.1", "1.1", "5 %", "nan", "inf"] {
            assert!(ratio(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn erasure_is_two_numbers() {
        assert_eq!(
            erasure("4+2"),
            Ok(Redundancy::Erasure { data: 4, parity: 2 })
        );
        for bad in ["4", "1+1", "4+0", "a+b", "4+2+1", "100+1"] {
            assert!(erasure(bad).is_err(), "{bad:?}");
        }
    }
}
