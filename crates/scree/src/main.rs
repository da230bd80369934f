//! The `scree` binary: `up`, `controller`, `agent`, unit daemons, relays, filter servers, and
//! the command line.
//!
//! The only code that knows the terminal. Commands are clients of the HTTP API and share nothing
//! with the servers but its JSON types. The lab's commands come from the crate `lab` and are
//! left out without the Cargo feature `lab`.
//!
//! Exit codes: 0 done, 1 failed, 2 usage.
//!
//! Invariant: nothing panics if standard output or standard error cannot be written, as `println!`
//! and `eprintln!` would.

mod args;
mod client;
mod commands;
#[cfg(feature = "lab")]
mod console;
mod environment;
mod monitoring;
mod output;
mod profiles;
mod progress;
#[cfg(all(test, feature = "lab"))]
mod reference;
mod shell;
mod signals;
mod times;
mod tls_files;
mod up;
mod volume_settings;
mod yaml;

use std::path::PathBuf;
use std::process::ExitCode;

use args::{
    ApiCommand, Arguments, Command, HostCommand, PrivacyCommand, UnitArguments, UnitCommand,
};
use commands::Failure;
use output::Format;

/// Whether there is a profile to use if no data directory is given.
fn is_logged_in() -> bool {
    profiles::Profiles::of_user().is_ok_and(|profiles| profiles.is_any())
}

/// Runs a command through the process that serves a data directory, or the controller of a profile.
fn run_remotely(
    (mut folder, profile): (Option<PathBuf>, Option<String>),
    format: Format,
    command: ApiCommand,
) -> Result<(), Failure> {
    if profile.is_some() {
        // A named profile takes precedence over a folder in the environment.
        folder = None;
    } else if folder.is_none() && !is_logged_in() {
        folder = Some(args::folder(None));
    }
    commands::run(folder.as_deref(), profile.as_deref(), format, command)
}

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    let format = arguments.output;
    let (folder, profile) = (arguments.folder, arguments.profile);
    let done = match arguments.command {
        Command::Up(up) => up::run(&args::folder(folder), *up),
        Command::Controller(controller) => up::run_controller(&args::folder(folder), *controller),
        Command::Agent(agent) => up::run_agent(&args::folder(folder), *agent),
        Command::Relay(relay) => up::run_relay(*relay),
        Command::FilterServer(arguments) => up::run_filter_server(&arguments),
        Command::FilterProcess(arguments) => up::run_filter_process(&arguments),
        Command::Login(login) => {
            commands::login(profile.as_deref(), folder.as_deref(), format, &login)
        }
        Command::Api(ApiCommand::Host(HostCommand::Join { join })) => {
            commands::join_host(&args::folder(folder), format, &join)
        }
        Command::Api(ApiCommand::Unit(UnitArguments {
            command: Some(UnitCommand::Join { join }),
            ..
        })) => commands::join_unit(&args::folder(folder), format, &join),
        Command::Api(ApiCommand::Unit(UnitArguments {
            command: Some(UnitCommand::Restore(restore)),
            ..
        })) => {
            let folder = args::folder(folder);
            commands::restore_unit(&folder, format, &restore)
        }
        Command::Api(ApiCommand::Unit(UnitArguments {
            command: None,
            daemon,
        })) => up::run_unit(&args::folder(folder), &daemon),
        #[cfg(feature = "lab")]
        Command::Cache(command) => console::run(format, |on| lab::commands::run_cache(on, command)),
        #[cfg(feature = "lab")]
        Command::Privacy(PrivacyCommand::Model(command)) => {
            console::run(format, |on| lab::commands::run_privacy(on, command))
        }
        #[cfg(feature = "lab")]
        Command::Cost(command) => console::run(format, |on| lab::commands::run_cost(on, command)),
        Command::Completions { shell } => shell::completions(shell),
        Command::Man { folder } => shell::man(&folder),
        Command::Privacy(PrivacyCommand::Audit(audit)) => {
            run_remotely((folder, profile), format, ApiCommand::PrivacyAudit(audit))
        }
        Command::Privacy(PrivacyCommand::Audits(audits)) => {
            run_remotely((folder, profile), format, ApiCommand::PrivacyAudits(audits))
        }
        Command::Api(command) => run_remotely((folder, profile), format, command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::print_failure(format, &failure);
            ExitCode::FAILURE
        }
    }
}
