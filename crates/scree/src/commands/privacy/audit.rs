//! `scree privacy audit`: what some units really have of a volume, beside what the model says
//! of as many.

use std::path::Path;

use agent::audits::open_listing;
use agent::folder::key_places;
use agent::host_keys::KeyPlaces;
use agent::keys::KeyEntry;
use api::types::{Audit, AuditFound, AuditHeld, AuditPlacement, AuditVolume, Volume};
use api::words::{AuditState, Seal};
use base::size::about_bytes as bytes;
use model::leakage::{Deal, FileList, Placement, Simulation, Spread, estimate};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use serde::Serialize;
use volume::VolumeConfig;
use world::World;

use super::super::{Failure, Session, or_dash, segment};
use super::files::FILES_MAX;
use super::{percent, refused};
use crate::args::PrivacyAuditArguments;
use crate::output::{Table, print, print_notice};
use crate::progress::Progress;
use crate::signals::Ends;
use crate::up::given_passphrase;

/// One answer is held back for so long, in seconds.
const WAIT_SECONDS: u64 = 2;

/// So many trials say between what a single one lies.
const TRIALS: usize = 10_000;

/// Of so many of a thousand trials less leaks, and of as many more, than is likely.
const UNLIKELY_OF_1000: usize = 25;

/// What the model says of as many captured units.
#[derive(Serialize)]
struct Predicted {
    units: u32,
    captured: u32,
    /// Blocks are sealed: nothing leaks.
    sealed: bool,
    /// How likely it is that a block lies on captured units, or is worked out of what does.
    block_ratio: f64,
    /// Which part of all bytes is in files that leak as a whole, of 1, by the equations.
    leak_ratio: f64,
    /// Of 95 in 100 trials it is not less than this,
    leak_ratio_min: f64,
    /// nor more than this.
    leak_ratio_max: f64,
    /// How many trials were made.
    trials: u32,
    /// What was found lies between them.
    agrees: bool,
    /// In which part of the trials less leaks than was found, of 1,
    less_ratio: f64,
    /// and in which part more does.
    more_ratio: f64,
}

#[derive(Serialize)]
struct Audited {
    #[serde(flatten)]
    audit: Audit,
    /// None, if the volume has no files that are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted: Option<Predicted>,
}

impl Session {
    pub(in super::super) async fn privacy_audit(
        &self,
        folder: Option<&Path>,
        arguments: &PrivacyAuditArguments,
    ) -> Result<(), Failure> {
        let path = format!("/v1/volumes/{}", segment(&arguments.volume)?);
        let volume: Volume = self.client.get(&path).await?;
        let path = format!("{path}/audits");
        let what = AuditVolume {
            units: arguments.units.clone(),
            snapshot: arguments.snapshot.clone(),
            files: arguments.files,
        };
        let mut audit: Audit = self.client.post(&path, &what).await?;
        if !self.is_dry_run {
            let name = &arguments.volume;
            let progress = Progress::start(format!("waiting for host {} to begin", audit.host));
            let path = format!("{path}/{}", audit.id);
            let mut ends = Ends::of_command()?;
            while audit.ended.is_none() {
                let look = format!("{path}?wait={WAIT_SECONDS}");
                audit = tokio::select! {
                    audit = self.client.get(&look) => audit?,
                    _ = ends.come() => {
                        let _: Audit = self.client.delete(&path).await?;
                        return Err(Failure::new("the audit was called off"));
                    }
                };
                let (done, all) = (bytes(audit.done_bytes), bytes(audit.all_bytes));
                progress.say(format!("{} reads {name}: {done} of {all}", audit.host));
            }
        }
        if audit.state == AuditState::Error.as_str() {
            let why = audit.reason.as_deref().unwrap_or("it does not say why");
            return Err(Failure::new(format!(
                "host {} has found nothing out: {why}",
                audit.host
            )));
        }
        let is_sealed = volume.seal != Seal::None.as_str();
        if let Err(why) = open(&mut audit, folder, arguments) {
            print_notice(
                self.format,
                &format!("what was found of files is sealed with the volume's key: {why}"),
            );
        }
        for notice in notices(&audit) {
            print_notice(self.format, &notice);
        }
        let predicted = audit.found.as_ref().map_or(Ok(None), |found| {
            check(found)?;
            predicted(&audit.placement, found, is_sealed)
        });
        // What was found stands, whatever the model makes of it.
        let predicted = predicted.unwrap_or_else(|failure| {
            print_notice(self.format, &format!("nothing is predicted: {failure}"));
            None
        });
        let audited = Audited { audit, predicted };
        Ok(print(self.format, &audited, |audited| {
            shown(audited, &arguments.volume)
        })?)
    }
}

/// Opens what is sealed of what was found, if the volume's wrapping key is here.
fn open(
    audit: &mut Audit,
    folder: Option<&Path>,
    arguments: &PrivacyAuditArguments,
) -> Result<(), String> {
    let places = match (&arguments.keys_file, folder) {
        (Some(path), _) => Some(KeyPlaces {
            keys_file: Some(path.clone()),
            ..key_places(path.parent().unwrap_or(Path::new("")))
        }),
        (None, Some(folder)) => Some(key_places(folder)),
        (None, None) => None,
    };
    let opened = match places {
        None if audit
            .found
            .as_ref()
            .is_none_or(|found| found.sealed.is_none()) =>
        {
            Ok(None)
        }
        None => Err("say where that is (--keys-file), on a machine that has it".to_owned()),
        Some(places) => {
            let first = given_passphrase().map(KeyEntry::Given);
            let places = KeyPlaces { first, ..places };
            let opened = open_listing(&World::real(1), places, audit);
            opened.map_err(|error| error.to_string())
        }
    };
    audit.key = None;
    if let (Some(found), Some(listing)) = (&mut audit.found, opened?) {
        found.listing = listing;
        found.sealed = None;
    }
    Ok(())
}

/// What is not judged, or not known.
fn notices(audit: &Audit) -> Vec<String> {
    let mut notices = Vec::new();
    if let Some(journal) = audit.journal_bytes.filter(|bytes| *bytes > 0) {
        notices.push(format!(
            "{} of the volume are in its host's journal, on no unit, and not judged: take a \
             snapshot, and audit that",
            bytes(journal)
        ));
    }
    let Some(found) = &audit.found else {
        return notices;
    };
    for system in &found.listing.file_systems {
        let place = match (system.offset, found.listing.file_systems.len()) {
            (0, 1) => "the volume".to_owned(),
            (offset, _) => format!("what begins at byte {offset}"),
        };
        match (&system.problem, system.damaged) {
            (Some(why), _) => notices.push(format!(
                "{place} has no files that are known, and its blocks alone are judged: {why}"
            )),
            (None, 0) => {}
            (None, damaged) => notices.push(format!(
                "the file system of {place} is damaged: {damaged} things in it make no sense, \
                 and were left out"
            )),
        }
    }
    notices
}

/// What is told fits together: it comes from a host, by a controller.
fn check(found: &AuditFound) -> Result<(), Failure> {
    let sum = |held: &AuditHeld| {
        let parts = held.readable.checked_add(held.sealed)?;
        let parts = parts.checked_add(held.other)?;
        (parts <= held.all).then_some(())
    };
    let lengths = || {
        let mut all = (0_u64, 0_u64);
        for alike in &found.listing.lengths {
            let bytes = alike.bytes.checked_mul(alike.files)?;
            all = (all.0.checked_add(bytes)?, all.1.checked_add(alike.files)?);
        }
        let files = &found.files;
        let is_whole = files.whole_bytes <= files.content.readable;
        (all.1 <= FILES_MAX as u64 && is_whole).then_some(())
    };
    let held = [&found.blocks, &found.map, &found.files.content];
    let fits = held.into_iter().try_for_each(sum).and_then(|()| lengths());
    fits.ok_or_else(|| Failure::new("what the host has told does not fit together"))
}

/// What the model says of the volume's files; nothing, if none are known or nothing is captured.
fn predicted(
    real: &AuditPlacement,
    found: &AuditFound,
    is_sealed: bool,
) -> Result<Option<Predicted>, Failure> {
    let files: FileList = found
        .listing
        .lengths
        .iter()
        .flat_map(|alike| {
            let count = usize::try_from(alike.files).unwrap_or(usize::MAX);
            std::iter::repeat_n(alike.bytes, count)
        })
        .collect();
    let counts = &found.files;
    let count = counts
        .whole
        .saturating_add(counts.part)
        .saturating_add(counts.none);
    // Of sealed volumes lengths are known where their keys are, and nothing depends on them.
    if count == 0 || (files.lengths().is_empty() && !is_sealed) {
        return Ok(None);
    }
    let placement = Placement::on(real.units, spread(real), Some(real.scatter_width));
    let placement = placement.dealt(Deal {
        width: u32::try_from(VolumeConfig::default().scatter_width).ok(),
        granularity: 1,
    });
    let shares = placement.shares(real.captured).map_err(refused)?;
    let classes = files.classes(real.block_size);
    let all = files.bytes() as f64;
    let mut ratios = vec![0.0; TRIALS];
    let mut leak_ratio = 0.0;
    if !is_sealed {
        leak_ratio = estimate(&classes, &shares).bytes / all;
        let simulation = Simulation::new(placement, real.captured, &files, real.block_size);
        let simulation = simulation
            .map_err(refused)?
            .as_scree_plans(real.scatter_width);
        let mut random = SmallRng::seed_from_u64(1);
        for ratio in &mut ratios {
            let leaked = simulation.trial(&mut random);
            *ratio = leaked.last().copied().unwrap_or(0.0) / all;
        }
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let unlikely = TRIALS * UNLIKELY_OF_1000 / 1000;
    let (leak_ratio_min, leak_ratio_max) = (ratios[unlikely], ratios[TRIALS - 1 - unlikely]);
    let of_files = found.files.content.all.max(1) as f64;
    let is = found.files.whole_bytes as f64 / of_files;
    // As near as lengths are told.
    let slack = 1e-9;
    let part = |is_it: &dyn Fn(f64) -> bool| {
        let such = ratios.iter().filter(|ratio| is_it(**ratio));
        such.count() as f64 / TRIALS as f64
    };
    Ok(Some(Predicted {
        units: real.units,
        captured: real.captured,
        sealed: is_sealed,
        block_ratio: shares.leaks(1),
        leak_ratio,
        leak_ratio_min,
        leak_ratio_max,
        trials: TRIALS as u32,
        less_ratio: part(&|ratio| ratio < is - slack),
        more_ratio: part(&|ratio| ratio > is + slack),
        agrees: (leak_ratio_min - slack..=leak_ratio_max + slack).contains(&is),
    }))
}

fn spread(real: &AuditPlacement) -> Spread {
    let parts = real
        .erasure
        .as_deref()
        .and_then(|text| text.split_once('+'));
    let parsed = parts.and_then(|(data, parity)| Some((data.parse().ok()?, parity.parse().ok()?)));
    match parsed {
        Some((data, parity)) => Spread::Erasure { data, parity },
        None => Spread::Copies(real.replicas.into()),
    }
}

fn share(part: u64, all: u64) -> String {
    match all {
        0 => "-".to_owned(),
        all => percent(part as f64 / all as f64),
    }
}

fn shown(audited: &Audited, volume: &str) -> String {
    let Audited { audit, predicted } = audited;
    let of = match &audit.snapshot {
        Some(snapshot) => format!("{volume}, {snapshot}, version {}", audit.version),
        None => format!("{volume}, version {}", audit.version),
    };
    let (captured, all) = (audit.placement.captured, audit.placement.units);
    let mut text = format!("{of}; {captured} of {all} units are taken for captured\n");
    let Some(found) = &audit.found else {
        return text;
    };
    let mut table = Table::new(&["WHAT", "ALL", "READABLE", "", "SEALED", "", "OTHER"]);
    let mut row = |what: &str, held: &AuditHeld| {
        table.row(vec![
            what.to_owned(),
            bytes(held.all),
            bytes(held.readable),
            share(held.readable, held.all),
            bytes(held.sealed),
            share(held.sealed, held.all),
            bytes(held.other),
        ]);
    };
    row("blocks", &found.blocks);
    row("the map", &found.map);
    row("files", &found.files.content);
    text += &format!("\n{table}");
    let files = &found.files;
    if let Some(predicted) = predicted {
        text += &format!(
            "\nFiles: {} readable as a whole ({}), {} in part, {} not at all\n",
            files.whole,
            bytes(files.whole_bytes),
            files.part,
            files.none
        );
        text += &compared(predicted, found);
    }
    if !found.listing.listed.is_empty() {
        text += &format!("\n{}", listed(found));
    }
    if found.listing.unlisted > 0 {
        text += &format!("{} more files are not listed\n", found.listing.unlisted);
    }
    text
}

fn compared(predicted: &Predicted, found: &AuditFound) -> String {
    let mut table = Table::new(&["", "BLOCKS", "LEAKS", "95 OF 100 TRIALS"]);
    let blocks = found.blocks;
    let there = match predicted.sealed {
        true => blocks.sealed,
        false => blocks.readable,
    };
    let files = &found.files;
    table.row(vec![
        "found".to_owned(),
        share(there, blocks.all),
        share(files.whole_bytes, files.content.all),
        match predicted.agrees {
            true => "agrees".to_owned(),
            false => "does not agree".to_owned(),
        },
    ]);
    table.row(vec![
        "predicted".to_owned(),
        percent(predicted.block_ratio),
        percent(predicted.leak_ratio),
        format!(
            "{} to {}",
            percent(predicted.leak_ratio_min),
            percent(predicted.leak_ratio_max)
        ),
    ]);
    format!("\n{table}")
}

fn listed(found: &AuditFound) -> Table {
    let mut table = Table::new(&["READABLE", "SEALED", "OF", "FILE"]);
    for file in &found.listing.listed {
        table.row(vec![
            file.content.readable.to_string(),
            file.content.sealed.to_string(),
            file.content.all.to_string(),
            match &file.path {
                Some(path) => path.clone(),
                None => format!("inode {}", or_dash(Some(file.inode))),
            },
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use api::types::{AuditLength, AuditListing};

    use super::*;

    fn found(lengths: &[(u64, u64)], whole_bytes: u64) -> AuditFound {
        let all = lengths.iter().map(|(length, count)| length * count).sum();
        let mut found = AuditFound {
            listing: AuditListing {
                lengths: lengths
                    .iter()
                    .map(|(bytes, files)| AuditLength {
                        bytes: *bytes,
                        files: *files,
                    })
                    .collect(),
                ..AuditListing::default()
            },
            ..AuditFound::default()
        };
        found.files.none = lengths.iter().map(|(_, count)| count).sum();
        found.files.whole_bytes = whole_bytes;
        found.files.content.all = all;
        found
    }

    #[test]
    fn what_was_found_is_compared_with_single_trials() {
        let real = AuditPlacement {
            units: 4,
            captured: 1,
            replicas: 1,
            erasure: None,
            scatter_width: 8,
            sets: 4,
            block_size: 4096,
        };
        // A quarter of a hundred files of one block, 15 to 35 of them as a rule.
        let lengths = [(4096, 100)];
        for (files, agrees) in [(25, true), (17, true), (5, false), (60, false)] {
            let found = found(&lengths, files * 4096);
            let predicted = predicted(&real, &found, false).ok().expect("a placement");
            let predicted = predicted.expect("there are files");
            assert!((predicted.leak_ratio - 0.25).abs() < 1e-9);
            assert!((predicted.leak_ratio_min - 0.165).abs() < 0.03);
            assert!((predicted.leak_ratio_max - 0.335).abs() < 0.03);
            assert_eq!(predicted.agrees, agrees, "{files}");
            let sealed = super::predicted(&real, &found, true)
                .ok()
                .expect("one")
                .expect("files");
            assert_eq!((sealed.leak_ratio, sealed.agrees), (0.0, false));
        }
        let nothing = predicted(&real, &found(&[], 0), false).ok().expect("one");
        assert!(nothing.is_none());
    }

    #[test]
    fn what_does_not_fit_together_is_not_reckoned_with() {
        let fits = |found: &AuditFound| check(found).is_ok();
        assert!(fits(&found(&[(4096, 100)], 0)));
        // More can be read than there is.
        let mut odd = found(&[(4096, 100)], 0);
        odd.blocks.readable = 1;
        assert!(!fits(&odd));
        let mut odd = found(&[(4096, 100)], 0);
        odd.files.content.readable = u64::MAX;
        odd.files.content.sealed = 1;
        assert!(!fits(&odd));
        // Nor is there memory for so many files.
        let mut odd = AuditFound::default();
        odd.listing.lengths.push(AuditLength {
            bytes: 0,
            files: u64::MAX,
        });
        assert!(!fits(&odd));
    }

    #[test]
    fn a_placement_is_read_as_the_api_tells_it() {
        let mut real = AuditPlacement {
            units: 6,
            captured: 1,
            replicas: 3,
            erasure: None,
            scatter_width: 8,
            sets: 4,
            block_size: 4096,
        };
        assert_eq!(spread(&real), Spread::Copies(3));
        real.erasure = Some("4+2".to_owned());
        assert_eq!(spread(&real), Spread::Erasure { data: 4, parity: 2 });
    }
}
