//! `scree privacy audit`: what some units really have of a volume, beside what the model says
//! of as many. `scree privacy audits`: those there are.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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
use world::{World, host};

use super::super::{Failure, Session, or_dash, segment};
use super::files::FILES_MAX;
use super::{percent, refused};
use crate::args::{PrivacyAuditArguments, PrivacyAuditsArguments};
use crate::client::ClientError;
use crate::output::{Table, print, print_notice, shell_word, time};
use crate::progress::Progress;
use crate::signals::Ends;
use crate::up::given_passphrase;

/// One answer is held back for so long, in seconds.
const WAIT_SECONDS: u64 = 2;

/// A controller that does not answer is asked so many times more, so long after each other: about
/// as long as an audit goes on of which it hears nothing.
const ATTEMPTS_MAX: u32 = 150;
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// What was found waits so long for what the model says of it: of many units and files of many
/// lengths trials take hours.
const PREDICTED_WITHIN: Duration = Duration::from_secs(60);

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
    /// Which part of all bytes is in files that leak as a whole, of 1: the mean of the trials,
    /// which have sets of units as Scree plans them.
    leak_ratio: f64,
    /// The same by the equations, which have permutations of all units for that.
    equation_ratio: f64,
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
        // Kept to the end: where nobody waits for a signal any more, it does nothing.
        let mut ends = Ends::of_command()?;
        let (audit, is_interrupted) = self.begun(&path, &what, arguments, &mut ends).await?;
        let mut audit = match (self.is_dry_run, is_interrupted) {
            (true, true) => return Err(Failure::new("it was interrupted")),
            (true, false) => audit,
            (false, true) => return Err(self.call_off(&path, &audit, arguments, &mut ends).await),
            (false, false) => self.followed(&path, audit, arguments, &mut ends).await?,
        };
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
        if let Err(failure) = audit.found.as_ref().map_or(Ok(()), check) {
            print_notice(self.format, &format!("nothing is told: {failure}"));
            audit.found = None;
        }
        for notice in notices(&audit) {
            print_notice(self.format, &notice);
        }
        let predicted = match &audit.found {
            None => Ok(None),
            Some(found) => {
                let (real, found) = (audit.placement.clone(), found.clone());
                let predict = move |stop: &AtomicBool| predicted(&real, &found, is_sealed, stop);
                let _progress = Progress::start("comparing what was found with the model");
                let done = in_time(PREDICTED_WITHIN, ends.come(), predict).await;
                done.flatten()
            }
        };
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

    /// Asks for an audit, and says whether a signal came meanwhile: only with the answer it is
    /// known what is to be called off. For a second signal nobody waits for that.
    async fn begun(
        &self,
        path: &str,
        what: &AuditVolume,
        arguments: &PrivacyAuditArguments,
        ends: &mut Ends,
    ) -> Result<(Audit, bool), Failure> {
        let mut begun = pin!(self.client.post(path, what));
        tokio::select! {
            begun = &mut begun => return Ok((begun?, false)),
            _ = ends.come() => {}
        }
        tokio::select! {
            begun = &mut begun => Ok((begun?, true)),
            _ = ends.come() => Err(Failure::new(format!(
                "whether an audit is under way is not known; `scree privacy audits {}` says it",
                shell_word(Path::new(&arguments.volume))
            ))),
        }
    }

    /// An audit, once it has ended. It goes on while the controller does not answer, so that is
    /// asked again.
    async fn followed(
        &self,
        path: &str,
        mut audit: Audit,
        arguments: &PrivacyAuditArguments,
        ends: &mut Ends,
    ) -> Result<Audit, Failure> {
        let (id, name) = (audit.id.clone(), &arguments.volume);
        let waiting = format!("{id}: waiting for host {} to begin", audit.host);
        let progress = Progress::start(waiting);
        let look = format!("{path}/{id}?wait={WAIT_SECONDS}");
        let mut attempts_left = ATTEMPTS_MAX;
        while audit.ended.is_none() {
            let answer = async {
                let answer = self.client.get(&look).await;
                if answer.as_ref().is_err_and(ClientError::may_pass) {
                    host::pause(ASK_AGAIN_AFTER).await;
                }
                answer
            };
            let answer = tokio::select! {
                answer = answer => answer,
                _ = ends.come() => return Err(self.call_off(path, &audit, arguments, ends).await),
            };
            match answer {
                Ok(now) => {
                    audit = now;
                    attempts_left = ATTEMPTS_MAX;
                    let (done, all) = (bytes(audit.done_bytes), bytes(audit.all_bytes));
                    progress.say(format!(
                        "{id}: {} reads {name}: {done} of {all}",
                        audit.host
                    ));
                }
                Err(error) if error.may_pass() && attempts_left > 0 => {
                    attempts_left -= 1;
                    progress.say(format!("{id}: {error}"));
                }
                Err(error) if error.may_pass() => {
                    let name = shell_word(Path::new(name));
                    return Err(Failure::new(format!(
                        "{error}; {id} may go on, which `scree privacy audits {name}` says"
                    )));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(audit)
    }

    /// Calls an audit off, and says what came of it. For another signal nobody waits for that.
    async fn call_off(
        &self,
        path: &str,
        audit: &Audit,
        arguments: &PrivacyAuditArguments,
        ends: &mut Ends,
    ) -> Failure {
        let (id, name) = (&audit.id, shell_word(Path::new(&arguments.volume)));
        let path = format!("{path}/{id}");
        let why = tokio::select! {
            gone = self.client.delete::<Audit>(&path) => match gone {
                Ok(_) => return Failure::new("the audit was called off"),
                Err(error) => error.to_string(),
            },
            _ = ends.come() => "the controller has not answered".to_owned(),
        };
        Failure::new(format!(
            "{id} may go on: {why}; `scree privacy audits {name} --delete {id}` calls it off"
        ))
    }

    pub(in super::super) async fn privacy_audits(
        &self,
        arguments: &PrivacyAuditsArguments,
    ) -> Result<(), Failure> {
        let path = format!("/v1/volumes/{}/audits", segment(&arguments.volume)?);
        let Some(id) = &arguments.delete else {
            let audits: Vec<Audit> = self.client.get(&path).await?;
            return Ok(print(self.format, &audits, |audits| list(audits))?);
        };
        let path = format!("{path}/{}", segment(id)?);
        let audit: Audit = self.client.delete(&path).await?;
        Ok(print(self.format, &audit, |audit| match &audit.ended {
            Some(_) => format!("what {} has found is forgotten\n", audit.id),
            None => format!("{} was called off\n", audit.id),
        })?)
    }
}

fn list(audits: &[Audit]) -> String {
    let mut table = Table::new(&[
        "ID", "STATE", "ASKED BY", "HOST", "DONE", "OF", "SINCE", "ENDED",
    ]);
    for audit in audits {
        table.row(vec![
            audit.id.clone(),
            audit.state.clone(),
            or_dash(audit.asker.as_ref()),
            audit.host.clone(),
            bytes(audit.done_bytes),
            bytes(audit.all_bytes),
            time(&audit.created),
            or_dash(audit.ended.as_deref().map(time)),
        ]);
    }
    table.to_string()
}

/// What `work` comes to on a thread where it may take its time, unless it takes more than `most`,
/// or the command `ends`; then it is told to stop, and nobody waits for that.
async fn in_time<T: Send + 'static>(
    most: Duration,
    ends: impl Future<Output = &'static str>,
    work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
) -> Result<T, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let is_told = Arc::clone(&stop);
    let work = tokio::task::spawn_blocking(move || work(&is_told));
    let why = tokio::select! {
        done = host::within(most, work) => match done {
            Some(done) => return done.map_err(|error| Failure::of(&error)),
            None => format!("it takes longer than {} s", most.as_secs()),
        },
        signal = ends => format!("{signal} came before it was reckoned"),
    };
    stop.store(true, Ordering::Relaxed);
    Err(Failure::new(why))
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
/// It may take long, and fails once it is to `stop`.
fn predicted(
    real: &AuditPlacement,
    found: &AuditFound,
    is_sealed: bool,
    stop: &AtomicBool,
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
    let mut equation_ratio = 0.0;
    if !is_sealed {
        equation_ratio = estimate(&classes, &shares).bytes / all;
        let simulation = Simulation::new(placement, real.captured, &files, real.block_size);
        let simulation = simulation
            .map_err(refused)?
            .as_scree_plans(real.scatter_width);
        let mut random = SmallRng::seed_from_u64(1);
        for ratio in &mut ratios {
            if stop.load(Ordering::Relaxed) {
                return Err(Failure::new("it was stopped"));
            }
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
        leak_ratio: ratios.iter().sum::<f64>() / TRIALS as f64,
        equation_ratio,
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
    if [files.whole, files.part, files.none] != [0; 3] {
        text += &format!(
            "\nFiles: {} readable as a whole ({}), {} in part, {} not at all\n",
            files.whole,
            bytes(files.whole_bytes),
            files.part,
            files.none
        );
    }
    if let Some(predicted) = predicted {
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

    static GO_ON: AtomicBool = AtomicBool::new(false);

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

    /// Of few units a plan of permutations has one that is captured in another part of all sets
    /// than Scree's: what is said of both stands apart from each other.
    #[test]
    fn what_is_predicted_lies_between_what_trials_have() {
        let real = AuditPlacement {
            units: 6,
            captured: 3,
            replicas: 2,
            ..placement()
        };
        let found = found(&[(4096, 100), (16384, 100), (65536, 20)], 0);
        let predicted = predicted(&real, &found, false, &GO_ON);
        let predicted = predicted.ok().expect("a placement").expect("files");
        let between = predicted.leak_ratio_min..=predicted.leak_ratio_max;
        assert!(between.contains(&predicted.leak_ratio));
        assert!((predicted.leak_ratio / predicted.equation_ratio - 1.0).abs() > 0.05);
        let shown = compared(&predicted, &found);
        let mean = percent(predicted.leak_ratio);
        assert!(shown.contains(&mean), "{shown}");
    }

    #[test]
    fn what_was_found_is_compared_with_single_trials() {
        let real = placement();
        // A quarter of a hundred files of one block, 15 to 35 of them as a rule.
        let lengths = [(4096, 100)];
        for (files, agrees) in [(25, true), (17, true), (5, false), (60, false)] {
            let found = found(&lengths, files * 4096);
            let predicted = predicted(&real, &found, false, &GO_ON)
                .ok()
                .expect("a placement");
            let predicted = predicted.expect("there are files");
            assert!((predicted.equation_ratio - 0.25).abs() < 1e-9);
            assert!((predicted.leak_ratio - 0.25).abs() < 0.01);
            assert!((predicted.leak_ratio_min - 0.165).abs() < 0.03);
            assert!((predicted.leak_ratio_max - 0.335).abs() < 0.03);
            assert_eq!(predicted.agrees, agrees, "{files}");
            let sealed = super::predicted(&real, &found, true, &GO_ON)
                .ok()
                .expect("one")
                .expect("files");
            assert_eq!((sealed.leak_ratio, sealed.agrees), (0.0, false));
        }
        let nothing = predicted(&real, &found(&[], 0), false, &GO_ON)
            .ok()
            .expect("one");
        assert!(nothing.is_none());
    }

    /// It was reckoned for an hour, and no signal ended it.
    #[tokio::test]
    async fn what_takes_long_is_told_to_stop_and_not_waited_for() {
        let until_stopped = |said: std::sync::mpsc::Sender<()>| {
            move |stop: &AtomicBool| {
                while !stop.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                said.send(()).expect("heard");
            }
        };
        let never = std::future::pending();
        let done = in_time(Duration::MAX, never, |_: &AtomicBool| 7).await;
        assert_eq!(done.ok(), Some(7));
        let (said, stopped) = std::sync::mpsc::channel();
        let short = Duration::from_millis(1);
        let never = std::future::pending();
        let late = in_time(short, never, until_stopped(said.clone())).await;
        let why = late.expect_err("it takes too long").to_string();
        assert!(why.contains("longer than"), "{why}");
        let signal = std::future::ready("SIGINT");
        let ended = in_time(Duration::MAX, signal, until_stopped(said)).await;
        let why = ended.expect_err("it was ended").to_string();
        assert!(why.contains("SIGINT"), "{why}");
        assert_eq!(stopped.iter().count(), 2);
    }

    #[test]
    fn trials_end_once_they_are_to_stop() {
        let real = placement();
        let stopped = AtomicBool::new(true);
        let found = found(&[(4096, 100)], 0);
        assert!(predicted(&real, &found, false, &stopped).is_err());
    }

    fn placement() -> AuditPlacement {
        AuditPlacement {
            units: 4,
            captured: 1,
            replicas: 1,
            erasure: None,
            scatter_width: 8,
            sets: 4,
            block_size: 4096,
        }
    }

    fn audited(found: Option<AuditFound>) -> Audited {
        let audit = Audit {
            id: "audit-1".to_owned(),
            volume: "vol-1".to_owned(),
            snapshot: None,
            version: 3,
            journal_bytes: None,
            units: Vec::new(),
            placement: placement(),
            asker: None,
            host: "h1".to_owned(),
            state: AuditState::Done.as_str().to_owned(),
            done_bytes: 8192,
            all_bytes: 8192,
            reason: None,
            created: "2026-01-02T03:04:05.678Z".to_owned(),
            ended: Some("2026-01-02T03:04:06Z".to_owned()),
            found,
            key: None,
        };
        Audited {
            audit,
            predicted: None,
        }
    }

    /// Where nothing was predicted it was not said how many files can be read.
    #[test]
    fn what_was_found_of_files_is_said_without_a_prediction() {
        let text = shown(&audited(Some(found(&[(4096, 100)], 0))), "v");
        assert!(text.contains("100 not at all"), "{text}");
        let text = shown(&audited(Some(AuditFound::default())), "v");
        assert!(!text.contains("Files:"), "{text}");
    }

    #[test]
    fn audits_are_listed_with_who_asked_for_them() {
        let mut audit = audited(None).audit;
        audit.asker = Some("bob".to_owned());
        let text = list(&[audit, audited(None).audit]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("audit-1  done   bob "), "{text}");
        assert!(lines[2].starts_with("audit-1  done   -  "), "{text}");
        assert!(lines[1].ends_with("2026-01-02T03:04:06Z"), "{text}");
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
