//! `scree privacy audit`: which files some units reveal, beside the prediction of the model.
//! `scree privacy audits`: the audits of a volume.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use agent::audits::open_listing;
use agent::folder::key_locations;
use agent::keys::{KeyEntry, KeyLocations};
use api::types::{Audit, AuditVolume, Volume};
use api::words::AuditState;
use base::size::about_bytes as bytes;
use world::{World, host};

#[cfg(feature = "lab")]
use super::audit_prediction::predict;
use super::audit_report::{AuditReport, check, list, notices, shown};
use super::{Failure, Session, segment};
use crate::args::{PrivacyAuditArguments, PrivacyAuditsArguments};
use crate::client::ClientError;
use crate::output::{print, print_notice, shell_word};
use crate::progress::Progress;
use crate::signals::EndSignals;
use crate::up::environment_passphrase;

/// How long the server may hold back an answer, in seconds.
const WAIT_SECONDS: u64 = 2;

/// Retries while the controller does not answer: together about as long as an audit continues
/// without news from its host.
const ATTEMPTS_MAX: u32 = 150;

/// The pause before a retry.
const RETRY_AFTER: Duration = Duration::from_secs(2);

pub(super) async fn run(
    session: &Session,
    folder: Option<&Path>,
    arguments: &PrivacyAuditArguments,
) -> Result<(), Failure> {
    let path = format!("/v1/volumes/{}", segment(&arguments.volume)?);
    let volume: Volume = session.client.get(&path).await?;
    let path = format!("{path}/audits");
    let what = AuditVolume {
        units: arguments.units.clone(),
        snapshot: arguments.snapshot.clone(),
        files: arguments.files,
    };
    // Signals are received until the command ends; after the last wait they are ignored.
    let mut ends = EndSignals::of_command()?;
    let (audit, is_interrupted) = begun(session, &path, &what, arguments, &mut ends).await?;
    let mut audit = match (session.is_dry_run, is_interrupted) {
        (true, true) => return Err(Failure::new("interrupted")),
        (true, false) => audit,
        (false, true) => return Err(cancel(session, &path, &audit, arguments, &mut ends).await),
        (false, false) => followed(session, &path, audit, arguments, &mut ends).await?,
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
            session.format,
            &format!("the list of files is encrypted with the volume's key: {why}"),
        );
    }
    if let Err(failure) = audit.result.as_ref().map_or(Ok(()), check) {
        print_notice(
            session.format,
            &format!("the result is not shown: {failure}"),
        );
        audit.result = None;
    }
    for notice in notices(&audit) {
        print_notice(session.format, &notice);
    }
    #[cfg(feature = "lab")]
    let predicted = predict(session, &audit, &volume, &mut ends).await;
    let audited = AuditReport {
        audit,
        #[cfg(feature = "lab")]
        predicted,
    };
    Ok(print(session.format, &audited, |audited| {
        shown(audited, &arguments.volume)
    })?)
}

/// Starts an audit. Returns whether a signal came meanwhile: the id to cancel is known only with
/// the answer. A second signal ends the wait.
async fn begun(
    session: &Session,
    path: &str,
    what: &AuditVolume,
    arguments: &PrivacyAuditArguments,
    ends: &mut EndSignals,
) -> Result<(Audit, bool), Failure> {
    let mut begun = pin!(session.client.post(path, what));
    tokio::select! {
        begun = &mut begun => return Ok((begun?, false)),
        _ = ends.received() => {}
    }
    tokio::select! {
        begun = &mut begun => Ok((begun?, true)),
        _ = ends.received() => Err(Failure::new(format!(
            "it is unknown whether an audit was started; `scree privacy audits {}` shows it",
            shell_word(Path::new(&arguments.volume))
        ))),
    }
}

/// Waits for the end of an audit. It continues while the controller does not answer, so requests
/// are repeated.
async fn followed(
    session: &Session,
    path: &str,
    mut audit: Audit,
    arguments: &PrivacyAuditArguments,
    ends: &mut EndSignals,
) -> Result<Audit, Failure> {
    let (id, name) = (audit.id.clone(), &arguments.volume);
    let waiting = format!("{id}: waiting for host {} to begin", audit.host);
    let progress = Progress::start(waiting);
    let look = format!("{path}/{id}?wait={WAIT_SECONDS}");
    let mut attempts_left = ATTEMPTS_MAX;
    while audit.ended.is_none() {
        let answer = async {
            let answer = session.client.get(&look).await;
            if answer.as_ref().is_err_and(ClientError::is_transient) {
                host::sleep(RETRY_AFTER).await;
            }
            answer
        };
        let answer = tokio::select! {
            answer = answer => answer,
            _ = ends.received() => return Err(cancel(session, path, &audit, arguments, ends).await),
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
                    "{error}; {id} may still run: `scree privacy audits {name}` shows it"
                )));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(audit)
}

/// Cancels an audit, and returns the failure to report. Another signal ends the wait.
async fn cancel(
    session: &Session,
    path: &str,
    audit: &Audit,
    arguments: &PrivacyAuditArguments,
    ends: &mut EndSignals,
) -> Failure {
    let (id, name) = (&audit.id, shell_word(Path::new(&arguments.volume)));
    let path = format!("{path}/{id}");
    let why = tokio::select! {
        deleted = session.client.delete::<Audit>(&path) => match deleted {
            Ok(_) => return Failure::new("the audit was canceled"),
            Err(error) => error.to_string(),
        },
        _ = ends.received() => "the controller did not answer".to_owned(),
    };
    Failure::new(format!(
        "{id} may still run: {why}; `scree privacy audits {name} --delete {id}` cancels it"
    ))
}

pub(super) async fn list_all(
    session: &Session,
    arguments: &PrivacyAuditsArguments,
) -> Result<(), Failure> {
    let path = format!("/v1/volumes/{}/audits", segment(&arguments.volume)?);
    let Some(id) = &arguments.delete else {
        let audits: Vec<Audit> = session.client.get(&path).await?;
        return Ok(print(session.format, &audits, |audits| list(audits))?);
    };
    let path = format!("{path}/{}", segment(id)?);
    let audit: Audit = session.client.delete(&path).await?;
    Ok(print(session.format, &audit, |audit| match &audit.ended {
        Some(_) => format!("the result of {} is deleted\n", audit.id),
        None => format!("{} was canceled\n", audit.id),
    })?)
}

/// Decrypts the sealed part of the result, if the volume's wrapping key is available.
fn open(
    audit: &mut Audit,
    folder: Option<&Path>,
    arguments: &PrivacyAuditArguments,
) -> Result<(), String> {
    let locations = match (&arguments.keys_file, folder) {
        (Some(path), _) => Some(KeyLocations {
            keys_file: Some(path.clone()),
            ..key_locations(path.parent().unwrap_or(Path::new("")))
        }),
        (None, Some(folder)) => Some(key_locations(folder)),
        (None, None) => None,
    };
    let opened = match locations {
        None if audit
            .result
            .as_ref()
            .is_none_or(|found| found.sealed.is_none()) =>
        {
            Ok(None)
        }
        None => Err("run the command on a host that has the key, with --keys-file FILE".to_owned()),
        Some(locations) => {
            let first = environment_passphrase().map(KeyEntry::Given);
            let locations = KeyLocations { first, ..locations };
            let opened = open_listing(&World::real(1), locations, audit);
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
