//! The result of `scree privacy audit` as text, and the list of `scree privacy audits`.

use api::types::{Audit, AuditBytes, AuditResult};
use base::report::percent;
use base::size::about_bytes as bytes;
use serde::Serialize;

#[cfg(feature = "lab")]
use super::audit_prediction::{AuditPrediction, compared};
use super::{Failure, or_dash};
use crate::output::{Table, time};

/// The largest number of files in a listing: the lengths of more would take gigabytes of memory.
const FILES_MAX: u64 = 1 << 28;

/// The result of an audit with the prediction of the model.
#[derive(Serialize)]
pub(super) struct AuditReport {
    #[serde(flatten)]
    pub audit: Audit,
    /// `None` if no files of the volume are known.
    #[cfg(feature = "lab")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<AuditPrediction>,
}

/// The audits of a volume as a table.
pub(super) fn list(audits: &[Audit]) -> String {
    let mut table = Table::new(&[
        "ID",
        "STATE",
        "REQUESTED BY",
        "HOST",
        "DONE",
        "OF",
        "SINCE",
        "ENDED",
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

/// Notices about what the audit did not cover.
pub(super) fn notices(audit: &Audit) -> Vec<String> {
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
pub(super) fn check(found: &AuditResult) -> Result<(), Failure> {
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

/// The result of an audit as text.
pub(super) fn shown(audited: &AuditReport, volume: &str) -> String {
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
    use api::words::AuditState;

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
        // The lengths of that many files do not fit in memory.
        let mut odd = AuditResult::default();
        odd.listing.lengths.push(AuditLength {
            bytes: 0,
            files: u64::MAX,
        });
        assert!(!fits(&odd));
    }
}
