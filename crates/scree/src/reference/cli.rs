//! docs/reference/cli.md: every command with its arguments, from clap.

use clap::{Arg, Command, CommandFactory as _};

use super::{check, head, row};
use crate::args::Arguments;

/// `--size <SIZE>`, `-o, --output <OUTPUT>` or `<NAME>`.
fn name(argument: &Arg) -> String {
    let value = argument.get_value_names().unwrap_or_default().iter();
    let value: Vec<String> = value.map(|name| format!("<{name}>")).collect();
    let value = match argument.get_action().takes_values() {
        true => value.join(" "),
        false => String::new(),
    };
    let long = argument.get_long().map(|long| format!("--{long}"));
    let short = argument.get_short().map(|short| format!("-{short}"));
    let flags: Vec<String> = short.into_iter().chain(long).collect();
    format!("`{} {value}`", flags.join(", "))
        .replace("` ", "`")
        .replace(" `", "`")
}

/// The meaning of an argument and its default, which a help text may state in brackets.
fn meaning(argument: &Arg) -> (String, String) {
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let (text, stated) = match help.split_once("[default: ") {
        Some((text, default)) => (text.trim(), default.trim_end_matches(']')),
        None => (help.trim(), ""),
    };
    let values = argument.get_default_values().iter();
    let values: Vec<String> = values
        .map(|value| format!("`{}`", value.to_string_lossy()))
        .collect();
    let default = match (argument.get_action().takes_values(), stated) {
        (true, "") => values.join(", "),
        (_, stated) => stated.to_owned(),
    };
    let mut text = text.trim_end_matches('.').to_owned() + ".";
    let possible = argument.get_possible_values();
    if argument.get_action().takes_values() && !possible.is_empty() {
        let names: Vec<String> = possible
            .iter()
            .map(|one| format!("`{}`", one.get_name()))
            .collect();
        text += &format!(" One of {}.", names.join(", "));
    }
    if let Some(variable) = argument.get_env() {
        text += &format!(" Environment: `{}`.", variable.to_string_lossy());
    }
    (text, default)
}

fn arguments<'a>(all: impl Iterator<Item = &'a Arg>) -> String {
    let shown = all
        .filter(|one| !one.is_hide_set() && !["help", "version"].contains(&one.get_id().as_str()));
    let rows: String = shown
        .map(|argument| {
            let (text, default) = meaning(argument);
            let is_needed = argument.is_required_set();
            let default = if is_needed {
                "required".to_owned()
            } else {
                default
            };
            row(&[name(argument), default, text])
        })
        .collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!("{}{rows}\n", head(&["Argument", "Default", "Meaning"])),
    }
}

fn command(command: &mut Command, path: &str, into: &mut String) {
    let about = command.get_long_about().or_else(|| command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let level = if path.matches(' ').count() > 1 {
        "###"
    } else {
        "##"
    };
    *into += &format!("{level} {path}\n\n{about}\n\n");
    if !command.has_subcommands() || command.get_positionals().count() > 0 {
        let usage = command.render_usage().to_string().replace("Usage: ", "");
        *into += &format!("```text\n{}\n```\n\n", usage.trim());
    }
    *into += &arguments(command.get_arguments().filter(|one| !one.is_global_set()));
    if let Some(examples) = command.get_after_help() {
        let examples = examples.to_string();
        let lines = examples.lines().skip(1).map(str::trim_start);
        *into += &format!("```sh\n{}\n```\n\n", lines.collect::<Vec<_>>().join("\n"));
    }
    for verb in command.get_subcommands_mut() {
        if verb.get_name() != "help" && !verb.is_hide_set() {
            let path = format!("{path} {}", verb.get_name());
            self::command(verb, &path, into);
        }
    }
}

#[test]
fn the_cli_reference_is_up_to_date() {
    let mut scree = Arguments::command().term_width(100);
    scree.build();
    let mut text = "# Command line\n\nExit codes: 0 done, 1 failed, 2 usage. \
                    Results are described in [output.md](output.md).\n\n## Options of every command\n\n"
        .to_owned();
    text += &arguments(scree.get_arguments().filter(|one| one.is_global_set()));
    text += "`-h` prints the common options of a command, `--help` all of them, and `--version` the \
             version.\n\n";
    text += "A SIZE is a number of bytes, or has a unit that is a power of 1024: 64K, 512M, 10G, 1T. A \
             TIME has a unit: 100ms, 90s, 10m, 12h, 1d, 2w.\n\n";
    for noun in scree.get_subcommands_mut() {
        if noun.get_name() != "help" && !noun.is_hide_set() {
            let path = format!("scree {}", noun.get_name());
            command(noun, &path, &mut text);
        }
    }
    check("cli.md", &text);
}
