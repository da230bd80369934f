//! `scree privacy audit`: which files some units reveal, beside the prediction of the model.
//! `scree privacy audits`: the audits of a volume.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use agent::audits::open_listing;
use agent::folder::key_locations;
use agent::keys::{KeyEntry, KeyLocations};
use api::types::{Audit, AuditBytes, AuditResult, AuditVolume, Volume};
use api::words::AuditState;
use base::report::percent;
use base::size::about_bytes as bytes;
use serde::Serialize;
use world::{World, host};

#[cfg(feature = "lab")]
use super::audit_prediction::{AuditPrediction, compared};
use super::{Failure, Session, or_dash, segment};
use crate::args::{PrivacyAuditArguments, PrivacyAuditsArguments};
use crate::client::ClientError;
use crate::output::{Table, print, print_notice, shell_word, time};
use crate::progress::Progress;
use crate::signals::Ends;
use crate::up::given_passphrase;

/// How long the server may hold back an answer, in seconds.
const WAIT_SECONDS: u64 = 2;

/// Retries while the controller does not answer: together about as long as an audit continues
/// without news from its host.
const ATTEMPTS_MAX: u32 = 150;
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// The most files of a listing; their lengths would take gigabytes of memory.
const FILES_MAX: u64 = 1 << 28;

#[derive(Serialize)]
struct AuditReport {
    #[serde(flatten)]
    audit: Audit,
    /// None if no files of the volume are known.
    #[cfg(feature = "lab")]
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted: Option<AuditPrediction>,
}

impl Session {
    pub(super) async fn privacy_audit(
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
        // Signals are received until the end; after the last wait they are ignored.
        let mut ends = Ends::of_command()?;
        let (audit, is_interrupted) = self.begun(&path, &what, arguments, &mut ends).await?;
        let mut audit = match (self.is_dry_run, is_interrupted) {
            (true, true) => return Err(Failure::new("interrupted")),
            (true, false) => audit,
            (false, true) => return Err(self.cancel(&path, &audit, arguments, &mut ends).await),
            (false, false) => self.followed(&path, audit, arguments, &mut ends).await?,
        };
        if audit.state == AuditState::Error.as_str() {
            let why = audit.message.as_ref();
            let why = why.map_or("the host gave no reason", |message| &message.text);
            return Err(Failure::new(format!(
                "the audit failed on host {}: {why}",
                audit.host
            )));
        }
        if let Err(why) = open(&mut audit, folder, arguments) {
            print_notice(
                self.format,
                &format!("the list of files is encrypted with the volume's key: {why}"),
            );
        }
        if let Err(failure) = audit.result.as_ref().map_or(Ok(()), check) {
            print_notice(self.format, &format!("the result is not shown: {failure}"));
            audit.result = None;
        }
        for notice in notices(&audit) {
            print_notice(self.format, &notice);
        }
        #[cfg(feature = "lab")]
        let predicted = self.prediction(&audit, &volume, &mut ends).await;
        let audited = AuditReport {
            audit,
            #[cfg(feature = "lab")]
            predicted,
        };
        Ok(print(self.format, &audited, |audited| {
            shown(audited, &arguments.volume)
        })?)
    }

    /// Starts an audit. Returns whether a signal came meanwhile: the id to cancel is known only with
    /// the answer. A second signal ends the wait.
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
                "it is unknown whether an audit was started; `scree privacy audits {}` shows it",
                shell_word(Path::new(&arguments.volume))
            ))),
        }
    }

    /// Waits for the end of an audit. It continues while the controller does not answer, so requests
    /// are repeated.
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
                if answer.as_ref().is_err_and(ClientError::is_transient) {
                    host::sleep(ASK_AGAIN_AFTER).await;
                }
                answer
            };
            let answer = tokio::select! {
                answer = answer => answer,
                _ = ends.come() => return Err(self.cancel(path, &audit, arguments, ends).await),
            };
            match answer {
                Ok(now) => {
                    audit = now;
                    attempts_left = ATTEMPTS_MAX;
                    let (done, all) = (bytes(audit.done_bytes), bytes(audit.total_bytes));
                    progress.say(format!(
                        "{id}: {} reads {name}: {done} of {all}",
                        audit.host
                    ));
                }
                Err(error) if error.is_transient() && attempts_left > 0 => {
                    attempts_left -= 1;
                    progress.say(format!("{id}: {error}"));
                }
                Err(error) if error.is_transient() => {
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

    /// Cancels an audit, and returns the failure to report. Another signal ends the wait.
    async fn cancel(
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
                Ok(_) => return Failure::new("the audit was canceled"),
                Err(error) => error.to_string(),
            },
            _ = ends.come() => "the controller did not answer".to_owned(),
        };
        Failure::new(format!(
            "{id} may go on: {why}; `scree privacy audits {name} --delete {id}` cancels it"
        ))
    }

    pub(super) async fn privacy_audits(
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
            Some(_) => format!("the result of {} is deleted\n", audit.id),
            None => format!("{} was canceled\n", audit.id),
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
            or_dash(audit.principal.as_ref()),
            audit.host.clone(),
            bytes(audit.done_bytes),
            bytes(audit.total_bytes),
            time(&audit.created),
            or_dash(audit.ended.as_deref().map(time)),
        ]);
    }
    table.to_string()
}

/// Decrypts the sealed part of the result, if the volume's wrapping key is available.
fn open(
    audit: &mut Audit,
    folder: Option<&Path>,
    arguments: &PrivacyAuditArguments,
) -> Result<(), String> {
    let places = match (&arguments.keys_file, folder) {
        (Some(path), _) => Some(KeyLocations {
            keys_file: Some(path.clone()),
            ..key_locations(path.parent().unwrap_or(Path::new("")))
        }),
        (None, Some(folder)) => Some(key_locations(folder)),
        (None, None) => None,
    };
    let opened = match places {
        None if audit
            .result
            .as_ref()
            .is_none_or(|found| found.sealed.is_none()) =>
        {
            Ok(None)
        }
        None => Err("run the command where that key is, with --keys-file FILE".to_owned()),
        Some(places) => {
            let first = given_passphrase().map(KeyEntry::Given);
            let places = KeyLocations { first, ..places };
            let opened = open_listing(&World::real(1), places, audit);
            opened.map_err(|error| error.to_string())
        }
    };
    audit.key = None;
    if let (Some(found), Some(listing)) = (&mut audit.result, opened?) {
        found.listing = listing;
        found.sealed = None;
    }
    Ok(())
}

/// Notices about what the audit did not cover.
fn notices(audit: &Audit) -> Vec<String> {
    let mut notices = Vec::new();
    if let Some(journal) = audit.journal_bytes.filter(|bytes| *bytes > 0) {
        notices.push(format!(
            "{} of the volume are only in its host's journal and not audited: take a snapshot and \
             audit that",
            bytes(journal)
        ));
    }
    let Some(found) = &audit.result else {
        return notices;
    };
    for system in &found.listing.file_systems {
        let place = match (system.offset, found.listing.file_systems.len()) {
            (0, 1) => "the volume".to_owned(),
            (offset, _) => format!("the file system at byte {offset}"),
        };
        match (&system.problem, system.damaged) {
            (Some(why), _) => notices.push(format!(
                "{place} has no readable file system, so only its blocks are audited: {why}"
            )),
            (None, 0) => {}
            (None, damaged) => notices.push(format!(
                "the file system of {place} is damaged: {damaged} invalid entries were skipped"
            )),
        }
    }
    notices
}

/// Checks that the numbers of a result are consistent, since a host wrote them.
fn check(found: &AuditResult) -> Result<(), Failure> {
    let sum = |held: &AuditBytes| {
        let parts = held.readable.checked_add(held.sealed)?;
        let parts = parts.checked_add(held.altered)?;
        (parts <= held.total).then_some(())
    };
    let lengths = || {
        let mut all = (0_u64, 0_u64);
        for alike in &found.listing.lengths {
            let bytes = alike.bytes.checked_mul(alike.files)?;
            all = (all.0.checked_add(bytes)?, all.1.checked_add(alike.files)?);
        }
        let files = &found.files;
        let is_whole = files.readable_bytes <= files.content.readable;
        (all.1 <= FILES_MAX && is_whole).then_some(())
    };
    let held = [&found.blocks, &found.map, &found.files.content];
    let fits = held.into_iter().try_for_each(sum).and_then(|()| lengths());
    fits.ok_or_else(|| Failure::new("the result of the host is inconsistent"))
}

fn shown(audited: &AuditReport, volume: &str) -> String {
    let audit = &audited.audit;
    let of = match &audit.snapshot {
        Some(snapshot) => format!("{volume}, {snapshot}, version {}", audit.version),
        None => format!("{volume}, version {}", audit.version),
    };
    let (compromised, all) = (audit.placement.compromised, audit.placement.units);
    let mut text = format!("{of}; {compromised} of {all} units are assumed to be compromised\n");
    let Some(found) = &audit.result else {
        return text;
    };
    let mut table = Table::new(&["WHAT", "ALL", "READABLE", "", "SEALED", "", "OTHER"]);
    let mut row = |what: &str, held: &AuditBytes| {
        table.row(vec![
            what.to_owned(),
            bytes(held.total),
            bytes(held.readable),
            share(held.readable, held.total),
            bytes(held.sealed),
            share(held.sealed, held.total),
            bytes(held.altered),
        ]);
    };
    row("blocks", &found.blocks);
    row("the map", &found.map);
    row("files", &found.files.content);
    text += &format!("\n{table}");
    let files = &found.files;
    if [files.readable, files.partly_readable, files.unreadable] != [0; 3] {
        text += &format!(
            "\nFiles: {} readable as a whole ({}), {} in part, {} not at all\n",
            files.readable,
            bytes(files.readable_bytes),
            files.partly_readable,
            files.unreadable
        );
    }
    #[cfg(feature = "lab")]
    if let Some(predicted) = &audited.predicted {
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

/// A part of all, in percent.
pub fn share(part: u64, all: u64) -> String {
    match all {
        0 => "-".to_owned(),
        all => percent(part as f64 / all as f64),
    }
}

fn listed(found: &AuditResult) -> Table {
    let mut table = Table::new(&["READABLE", "SEALED", "OF", "FILE"]);
    for file in &found.listing.listed {
        table.row(vec![
            file.content.readable.to_string(),
            file.content.sealed.to_string(),
            file.content.total.to_string(),
            match &file.path {
                Some(path) => path.clone(),
                None => format!("inode {}", or_dash(Some(file.inode))),
            },
        ]);
    }
    table
}

#[cfg(test)]
pub(super) mod tests {
    use api::types::{AuditLength, AuditListing, AuditPlacement};

    use super::*;

    pub(in super::super) fn found(lengths: &[(u64, u64)], whole_bytes: u64) -> AuditResult {
        let all = lengths.iter().map(|(length, count)| length * count).sum();
        let mut found = AuditResult {
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
            ..AuditResult::default()
        };
        found.files.unreadable = lengths.iter().map(|(_, count)| count).sum();
        found.files.readable_bytes = whole_bytes;
        found.files.content.total = all;
        found
    }

    pub(in super::super) fn placement() -> AuditPlacement {
        AuditPlacement {
            units: 4,
            compromised: 1,
            replicas: 1,
            erasure: None,
            scatter_width: 8,
            sets: 4,
            block_size: 4096,
        }
    }

    fn audited(found: Option<AuditResult>) -> AuditReport {
        let audit = Audit {
            id: "audit-1".to_owned(),
            volume: "vol-1".to_owned(),
            snapshot: None,
            version: 3,
            journal_bytes: None,
            units: Vec::new(),
            placement: placement(),
            principal: None,
            host: "h1".to_owned(),
            state: AuditState::Done.as_str().to_owned(),
            done_bytes: 8192,
            total_bytes: 8192,
            message: None,
            created: "2026-01-02T03:04:05.678Z".to_owned(),
            ended: Some("2026-01-02T03:04:06Z".to_owned()),
            result: found,
            key: None,
        };
        AuditReport {
            audit,
            #[cfg(feature = "lab")]
            predicted: None,
        }
    }

    /// Without a prediction, the numbers of files were once missing.
    #[test]
    fn files_are_shown_without_a_prediction() {
        let text = shown(&audited(Some(found(&[(4096, 100)], 0))), "v");
        assert!(text.contains("100 not at all"), "{text}");
        let text = shown(&audited(Some(AuditResult::default())), "v");
        assert!(!text.contains("Files:"), "{text}");
    }

    #[test]
    fn audits_are_listed_with_their_principals() {
        let mut audit = audited(None).audit;
        audit.principal = Some("bob".to_owned());
        let text = list(&[audit, audited(None).audit]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("audit-1  done   bob "), "{text}");
        assert!(lines[2].starts_with("audit-1  done   -  "), "{text}");
        assert!(lines[1].ends_with("2026-01-02T03:04:06Z"), "{text}");
    }

    #[test]
    fn an_inconsistent_result_is_refused() {
        let fits = |found: &AuditResult| check(found).is_ok();
        assert!(fits(&found(&[(4096, 100)], 0)));
        // More is readable than exists.
        let mut odd = found(&[(4096, 100)], 0);
        odd.blocks.readable = 1;
        assert!(!fits(&odd));
        let mut odd = found(&[(4096, 100)], 0);
        odd.files.content.readable = u64::MAX;
        odd.files.content.sealed = 1;
        assert!(!fits(&odd));
        // There is not enough memory for so many files.
        let mut odd = AuditResult::default();
        odd.listing.lengths.push(AuditLength {
            bytes: 0,
            files: u64::MAX,
        });
        assert!(!fits(&odd));
    }
}
