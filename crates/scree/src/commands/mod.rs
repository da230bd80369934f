//! The commands that ask a running `scree up`.

mod snapshot;
mod status;
mod unit;
mod volume;

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

use control::parse::percent_encode;

use crate::args::ApiCommand;
use crate::client::{Client, ClientError};
use crate::output::Format;

/// Why a command failed, as its user reads it.
pub struct Failure(pub String);

impl Failure {
    /// What an error says, and what its causes say that it does not.
    pub fn of(error: &dyn Error) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let more = error.to_string();
            if !text.contains(&more) {
                text = format!("{text}: {more}");
            }
            cause = error.source();
        }
        Self(text)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Where a command runs, and how it prints.
struct Session {
    client: Client,
    format: Format,
}

/// Runs one command.
pub fn run(folder: &Path, format: Format, command: ApiCommand) -> Result<(), Failure> {
    let session = Session {
        client: Client::new(folder),
        format,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match command {
            ApiCommand::Volume(command) => session.volume(command).await,
            ApiCommand::Snapshot(command) => session.snapshot(command).await,
            ApiCommand::Unit(command) => session.unit(command).await,
            ApiCommand::Status => session.status().await,
        }
    })
}

/// A name as one part of a path.
fn segment(name: &str) -> Result<String, Failure> {
    if name.is_empty() {
        return Err(Failure("the name is empty".to_owned()));
    }
    Ok(percent_encode(Path::new(name)).replace('/', "%2F"))
}

/// A value that may not be there, in a table.
fn or_dash(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
