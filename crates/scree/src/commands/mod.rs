//! The commands that a controller or a running `scree up` carries out: a module for each noun,
//! whose `run` carries out one command in a [`Session`].

mod attachment;
mod audit;
#[cfg(feature = "lab")]
mod audit_prediction;
mod audit_report;
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
use crate::client::{Client, ClientError};
use crate::output::Format;

/// Why a command failed.
#[derive(Serialize)]
pub struct Failure {
    /// The message for the user.
    message: String,
    /// The stable code of the server's problem, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    /// The field of the request that is wrong.
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

    /// A failure with the message of an error and its causes.
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

/// The server, and the options, of one command.
struct Session {
    client: Client,
    format: Format,
    is_dry_run: bool,
}

/// Runs one command through the process that serves `folder`, or otherwise through the controller
/// of a profile.
pub fn run(
    folder: Option<&Path>,
    profile: Option<&str>,
    format: Format,
    command: ApiCommand,
) -> Result<(), Failure> {
    let change = command.change();
    let is_dry_run = change.dry_run;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let done = runtime.block_on(async {
        let client = match folder {
            Some(folder) => Client::of_folder(folder),
            None => Client::of_profile(profile).await?,
        };
        let session = Session {
            client: client.with_options(change),
            format,
            is_dry_run,
        };
        match command {
            ApiCommand::Volume(command) => volume::run(&session, command).await,
            ApiCommand::Snapshot(command) => snapshot::run(&session, command).await,
            ApiCommand::Attach(arguments) => attachment::attach(&session, arguments).await,
            ApiCommand::Detach(arguments) => attachment::detach(&session, arguments).await,
            ApiCommand::Attachment(command) => attachment::run(&session, command).await,
            ApiCommand::Chain(command) => chain::run(&session, command).await,
            ApiCommand::Image(command) => image::run(&session, command).await,
            ApiCommand::Monitor(arguments) => monitor::run(&session, &arguments).await,
            ApiCommand::Trace(arguments) => trace::run(&session, folder, &arguments).await,
            ApiCommand::Project(command) => project::run(&session, command).await,
            ApiCommand::Grant(command) => grant::run(&session, command).await,
            ApiCommand::Unit(unit) => unit::run(&session, unit.command).await,
            ApiCommand::Key(command) => key::run(&session, command).await,
            ApiCommand::User(command) => party::run_user(&session, command).await,
            ApiCommand::Host(command) => party::run_host(&session, command).await,
            ApiCommand::Whoami => party::whoami(&session).await,
            ApiCommand::Audit { limit } => party::print_log(&session, limit).await,
            ApiCommand::Status => status::run(&session).await,
            ApiCommand::PrivacyAudit(arguments) => audit::run(&session, folder, &arguments).await,
            ApiCommand::PrivacyAudits(arguments) => audit::list_all(&session, &arguments).await,
            ApiCommand::Top(arguments) => top::run(&session, &arguments).await,
        }?;
        if is_dry_run {
            // The notice is lost if it cannot be printed.
            let _ = io::stderr().write_all(b"scree: nothing was changed (--dry-run)\n");
        }
        Ok(())
    });
    // Computations that still run are abandoned.
    runtime.shutdown_background();
    done
}

impl Session {
    /// Whether these owners are all the caller, so that names need no owner in front of them. It
    /// asks the server only if there is exactly one owner.
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

/// A name with its owner where other commands need that.
fn qualified(owner: Option<&String>, name: &str, is_own: bool) -> String {
    match owner {
        Some(owner) if !is_own => format!("{owner}/{name}"),
        _ => name.to_owned(),
    }
}

/// A name, encoded as one segment of a path.
fn segment(name: &str) -> Result<String, Failure> {
    if name.is_empty() {
        return Err(Failure::new("the name is empty: give the name or the id"));
    }
    Ok(percent_encode(Path::new(name)).replace('/', "%2F"))
}

/// Parses tags of the form KEY=VALUE.
fn tags(words: &[String]) -> Result<Tags, Failure> {
    let parse = |word: &String| match word.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(Failure::new(format!(
            "{word:?} is not a tag: write it as KEY=VALUE"
        ))),
    };
    words.iter().map(parse).collect()
}

/// A path with a query of the parameters that have values.
fn query(
    path: &str,
    parameters: &[(&str, Option<&str>)],
    tags: &[String],
) -> Result<String, Failure> {
    let mut words = Vec::new();
    for (key, value) in parameters {
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

/// The text of an optional value in a table.
fn or_dash(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
