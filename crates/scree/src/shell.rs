//! Completion scripts and manual pages, from the command line's own words.

use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Arguments;
use crate::commands::Failure;

/// Prints the completion script for `shell`.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    clap_complete::generate(shell, &mut Arguments::command(), "scree", &mut io::stdout());
    Ok(())
}

/// Writes a page for every command into `folder`.
pub fn man(folder: &Path) -> Result<(), Failure> {
    clap_mangen::generate_to(Arguments::command(), folder).map_err(|error| {
        Failure(format!(
            "cannot write manual pages into {}: {error}",
            folder.display()
        ))
    })
}
