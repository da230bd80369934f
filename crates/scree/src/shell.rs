//! Completion scripts and manual pages, generated from the command line.

use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Arguments;
use crate::commands::Failure;
use crate::output::write_out;

/// Prints the completion script for `shell`.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    // Generated in memory, since the generator panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "scree", &mut script);
    Ok(write_out(&script)?)
}

/// Writes a page for every command into `folder`.
pub fn man(folder: &Path) -> Result<(), Failure> {
    clap_mangen::generate_to(Arguments::command(), folder).map_err(|error| {
        Failure::new(format!(
            "cannot write manual pages into {}: {error}",
            folder.display()
        ))
    })
}
