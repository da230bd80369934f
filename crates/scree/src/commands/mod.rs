//! The commands that ask a running Scree.

mod attachment;
mod audit;
#[cfg(feature = "lab")]
mod audit_prediction;
mod chain;
mod grant;
mod image;
mod key;
mod monitor;
mod party;
mod project;
mod restoring;
mod snapshot;
mod status;
mod top;
mod trace;
mod unit;
mod volume;

pub use party::{join_host, join_unit, login};
pub use restoring::restore_unit;

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::io::{self, Write as _};
use std::path::Path;

use api::types::{Party, Tags};
use base::url::encode as percent_encode;
use serde::Serialize;

use crate::args::ApiCommand;
use crate::client::{Client, ClientError, How};
use crate::output::Format;

/// Why a command failed.
#[derive(Serialize)]
pub struct Failure {
    /// What its user reads.
    message: String,
    /// The kind, for programs: what the server said.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    /// Which field of the request is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: None,
            field: None,
        }
    }

    /// What an error says, and what its causes say that it does not.
    pub fn of(error: &dyn Error) -> Self {
        Self::new(base::with_causes(error))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let message = error.to_string();
        match error {
            ClientError::Refused(problem) => Self {
                message,
                code: Some(problem.code),
                field: problem.field,
            },
            _ => Self::new(message),
        }
    }
}

#[cfg(feature = "lab")]
impl From<lab::commands::Failure> for Failure {
    fn from(failure: lab::commands::Failure) -> Self {
        Self::new(failure.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::of(&error)
    }
}

/// Where a command runs, and how it prints.
struct Session {
    client: Client,
    format: Format,
    is_dry_run: bool,
}

/// Runs one command: asks whoever serves `folder`, or else the controller of a
/// profile.
pub fn run(
    folder: Option<&Path>,
    profile: Option<&str>,
    format: Format,
    how: How,
    command: ApiCommand,
) -> Result<(), Failure> {
    let is_dry_run = how.is_dry_run;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let done = runtime.block_on(async {
        let client = match folder {
            Some(folder) => Client::of_folder(folder),
            None => Client::of_profile(profile).await?,
        };
        let session = Session {
            client: client.so(how),
            format,
            is_dry_run,
        };
        match command {
            ApiCommand::Volume(command) => session.volume(command).await,
            ApiCommand::Snapshot(command) => session.snapshot(command).await,
            ApiCommand::Attach(arguments) => session.attach(arguments).await,
            ApiCommand::Detach(arguments) => session.detach(arguments).await,
            ApiCommand::Attachment(command) => session.attachment(command).await,
            ApiCommand::Chain(command) => session.chain(command).await,
            ApiCommand::Image(command) => session.image(command).await,
            ApiCommand::Monitor(arguments) => session.monitor(&arguments).await,
            ApiCommand::Trace(arguments) => session.trace(folder, &arguments).await,
            ApiCommand::Project(command) => session.project(command).await,
            ApiCommand::Grant(command) => session.grant(command).await,
            ApiCommand::Unit(unit) => session.unit(unit.command).await,
            ApiCommand::Key(command) => session.key(command).await,
            ApiCommand::User(command) => session.user(command).await,
            ApiCommand::Host(command) => session.host(command).await,
            ApiCommand::Whoami => session.whoami().await,
            ApiCommand::Audit { limit } => session.audit(limit).await,
            ApiCommand::Status => session.status().await,
            ApiCommand::PrivacyAudit(arguments) => session.privacy_audit(folder, &arguments).await,
            ApiCommand::PrivacyAudits(arguments) => session.privacy_audits(&arguments).await,
            ApiCommand::Top(arguments) => session.top(&arguments).await,
        }?;
        if is_dry_run {
            // Where this cannot be said, nothing was changed all the same.
            let _ = io::stderr().write_all(b"scree: nothing was changed (--dry-run)\n");
        }
        Ok(())
    });
    // Nobody waits any more for what is still reckoned.
    runtime.shutdown_background();
    done
}

impl Session {
    /// Whether all things of these owners are the caller's own, so that their
    /// names say enough. Nobody is asked for that if there are several owners.
    async fn are_own(
        &self,
        owners: impl Iterator<Item = Option<&String>>,
    ) -> Result<bool, Failure> {
        let owners: BTreeSet<&String> = owners.flatten().collect();
        let mut owners = owners.into_iter();
        match (owners.next(), owners.next()) {
            (None, _) => Ok(true),
            (Some(one), None) => {
                let me: Party = self.client.get("/v1/me").await?;
                Ok(me.name == *one)
            }
            (Some(_), Some(_)) => Ok(false),
        }
    }
}

/// A name, with whose it is where that is not clear: so that it can be given to
/// other commands.
fn spelt(owner: Option<&String>, name: &str, is_own: bool) -> String {
    match owner {
        Some(owner) if !is_own => format!("{owner}/{name}"),
        _ => name.to_owned(),
    }
}

/// A name as one part of a path.
fn segment(name: &str) -> Result<String, Failure> {
    if name.is_empty() {
        return Err(Failure::new("the name is empty"));
    }
    Ok(percent_encode(Path::new(name)).replace('/', "%2F"))
}

/// Words of the form KEY=VALUE.
fn tags(words: &[String]) -> Result<Tags, Failure> {
    let parse = |word: &String| match word.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(Failure::new(format!(
            "{word:?} is no tag; write it as KEY=VALUE"
        ))),
    };
    words.iter().map(parse).collect()
}

/// A path with what of these was said as its query.
fn query(path: &str, said: &[(&str, Option<&str>)], tags: &[String]) -> Result<String, Failure> {
    let mut words = Vec::new();
    for (key, value) in said {
        if let Some(value) = value {
            words.push(format!("{key}={}", segment(value)?));
        }
    }
    for tag in tags {
        words.push(format!("tag={}", segment(tag)?));
    }
    Ok(match words.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", words.join("&")),
    })
}

/// A value that may not be there, in a table.
fn or_dash(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
