//! The environment variables that `scree` reads, in one table: the code takes their names from
//! here, and docs/reference/configuration.md is generated from it.

#![cfg_attr(
    not(test),
    expect(dead_code, reason = "readers and meanings are for the reference")
)]

/// An environment variable.
pub struct Variable {
    pub name: &'static str,
    /// The commands that read it.
    pub readers: &'static str,
    /// Its meaning, with its default.
    pub meaning: &'static str,
}

/// The data directory, as `--dir`; clap reads it.
#[cfg(test)]
pub const DIR: Variable = Variable {
    name: "SCREE_DIR",
    readers: "all commands",
    meaning: "Data directory, as `--dir`.",
};

/// The profile of `scree login`, as `--profile`.
pub const PROFILE: Variable = Variable {
    name: "SCREE_PROFILE",
    readers: "commands that use a controller",
    meaning: "Controller to use, as `--profile`.",
};

/// The folder of the user's profiles.
pub const CONFIG: Variable = Variable {
    name: "SCREE_CONFIG",
    readers: "commands that use a controller",
    meaning: "Folder in which `scree login` stores profiles. \
              [default: `$XDG_CONFIG_HOME/scree` or `~/.config/scree`]",
};

/// The URL of a controller's database.
pub const DATABASE: Variable = Variable {
    name: "SCREE_DATABASE",
    readers: "`scree controller`",
    meaning: "URL of the database, as `--database`, but hidden from other users of the machine.",
};

/// The passphrase of the wrapping key `main`.
pub const PASSPHRASE: Variable = Variable {
    name: "SCREE_PASSPHRASE",
    readers: "`scree up`, `scree agent`, `scree privacy audit`",
    meaning: "Passphrase of the wrapping key `main`, in place of `--passphrase-file`.",
};

/// The filter of log lines.
pub const LOG: Variable = Variable {
    name: "SCREE_LOG",
    readers: "all processes that serve",
    meaning: "Log level (`error`, `warn`, `info` or `debug`), or directives such as \
              `info,agent=debug`. [default: info]",
};

/// All of them, as the reference lists them.
#[cfg(test)]
pub const ALL: [&Variable; 6] = [&DIR, &PROFILE, &CONFIG, &DATABASE, &PASSPHRASE, &LOG];
