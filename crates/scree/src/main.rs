//! Floor 6: the `scree` binary: `up`, and the command line.
//!
//! The only code that knows the terminal. Commands are clients of the HTTP
//! API and share nothing with the server but its JSON types; `up` is the
//! server.
//!
//! Exit codes: 0 done, 1 failed, 2 usage.

mod args;
mod client;
mod commands;
mod moment;
mod output;
mod progress;
mod shell;
mod up;
mod yaml;

use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Command::Up(up) => up::run(&args::folder(arguments.folder), *up),
        Command::Completions { shell } => shell::completions(shell),
        Command::Man { folder } => shell::man(&folder),
        Command::Api(command) => {
            commands::run(&args::folder(arguments.folder), arguments.output, command)
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("scree: {failure}");
            ExitCode::FAILURE
        }
    }
}
