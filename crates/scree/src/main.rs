//! Floor 6: the `scree` binary: `up`, and the command line.
//!
//! The only code that knows the terminal. Commands are clients of the HTTP
//! API and share nothing with the server but its JSON types; `up` is the
//! server.
//!
//! Exit codes: 0 done, 1 failed, 2 usage. Nothing here panics because standard
//! output or standard error takes nothing: `println!` and `eprintln!` would.

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
    let format = arguments.output;
    let done = match arguments.command {
        Command::Up(up) => up::run(&args::folder(arguments.folder), *up),
        Command::Completions { shell } => shell::completions(shell),
        Command::Man { folder } => shell::man(&folder),
        Command::Api(command) => commands::run(&args::folder(arguments.folder), format, command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::print_failure(format, &failure);
            ExitCode::FAILURE
        }
    }
}
