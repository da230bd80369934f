//! `--dry-run` and `--idempotency-key`: which commands have them. They are options of all, so
//! that they may stand anywhere; of the others they are not in the help, and refused.

use clap::error::ErrorKind;
use clap::{ArgMatches, Command, CommandFactory as _, FromArgMatches as _};

use super::Arguments;

/// The names of clap for both.
const DRY_RUN: &str = "dry_run";
const IDEMPOTENCY_KEY: &str = "idempotency_key";

/// What a command has of both.
struct Has {
    dry_run: bool,
    key: bool,
}

/// By the names of a command and of those that it is below.
fn has(path: &[&str]) -> Has {
    let (dry_run, key) = match path {
        ["privacy", "audit" | "audits"] | ["unit", "restore"] => (true, false),
        ["host" | "unit", "enrol"] | ["unit"] => (false, false),
        [
            "up" | "controller" | "agent" | "relay" | "box" | "box-process" | "login" | "cache"
            | "privacy" | "cost" | "completions" | "man",
            ..,
        ] => (false, false),
        _ => (true, true),
    };
    Has { dry_run, key }
}

/// The command line, as its help tells it.
pub fn command_line() -> Command {
    let scree = Arguments::command();
    let option = |id: &str| {
        scree
            .get_arguments()
            .find(|one| one.get_id() == id)
            .cloned()
    };
    let options = [option(DRY_RUN), option(IDEMPOTENCY_KEY)];
    let names: Vec<String> = scree.get_subcommands().map(name).collect();
    let below = |scree: Command, name: &String| {
        scree.mut_subcommand(name, |one| told(one, &options, &[name]))
    };
    names.iter().fold(scree, below)
}

fn name(command: &Command) -> String {
    command.get_name().to_owned()
}

/// A command with both options of its own, told or not, and all that are below it.
fn told(command: Command, options: &[Option<clap::Arg>; 2], path: &[&str]) -> Command {
    let Has { dry_run, key } = has(path);
    let own = options.iter().zip([dry_run, key]);
    let own = own.filter_map(|(option, has)| Some(option.clone()?.hide(!has)));
    let names: Vec<String> = command.get_subcommands().map(name).collect();
    names.iter().fold(command.args(own), |command, name| {
        let path = [path, &[name.as_str()]].concat();
        command.mut_subcommand(name, |one| told(one, options, &path))
    })
}

/// What was said to the program. It ends where that makes no sense: nobody must take for a trial
/// what is carried out.
pub fn given() -> Arguments {
    let mut scree = command_line();
    let said = scree.get_matches_mut();
    if let Some(option) = refused(&said) {
        let reason = format!("this command has no '{option}'");
        scree.error(ErrorKind::UnknownArgument, reason).exit();
    }
    Arguments::from_arg_matches(&said).unwrap_or_else(|error| error.format(&mut scree).exit())
}

/// The option that was given to a command that does not have it.
fn refused(said: &ArgMatches) -> Option<&'static str> {
    let (mut path, mut at) = (Vec::new(), said);
    while let Some((name, below)) = at.subcommand() {
        path.push(name);
        at = below;
    }
    let has = has(&path);
    let is_given = |id| said.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
    match () {
        () if is_given(DRY_RUN) && !has.dry_run => Some("--dry-run"),
        () if is_given(IDEMPOTENCY_KEY) && !has.key => Some("--idempotency-key"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_has_what_is_not_refused() {
        let mut scree = command_line();
        scree.build();
        scree.clone().debug_assert();
        let mut below = vec![(Vec::new(), scree)];
        let mut found = 0;
        while let Some((path, mut command)) = below.pop() {
            let names: Vec<&str> = path.iter().map(String::as_str).collect();
            let help = command.render_long_help().to_string();
            let has = has(&names);
            assert_eq!(help.contains("--dry-run"), has.dry_run, "{names:?}");
            assert_eq!(help.contains("--idempotency-key"), has.key, "{names:?}");
            found += 1;
            let each = command.get_subcommands();
            let each = each.filter(|one| one.get_name() != "help").cloned();
            below.extend(each.map(|one| ([&path[..], &[name(&one)]].concat(), one)));
        }
        assert!(found > 80, "{found} commands");
    }

    #[test]
    fn an_option_is_refused_wherever_it_stands() {
        let of = |words: &[&str]| {
            let words = [&["scree"], words].concat();
            let said = command_line().try_get_matches_from(words);
            refused(&said.expect("a command line"))
        };
        let dry = Some("--dry-run");
        assert_eq!(of(&["--dry-run", "man", "D"]), dry);
        assert_eq!(of(&["cost", "--dry-run", "draw", "a", "--plot", "b"]), dry);
        assert_eq!(of(&["cost", "draw", "a", "--plot", "b", "--dry-run"]), dry);
        assert_eq!(of(&["unit", "--listen", "[::]:0", "--dry-run"]), dry);
        let key = ["--idempotency-key", "k"];
        let audits = ["privacy", "audits", "v"];
        assert_eq!(of(&[&key[..], &audits].concat()), Some("--idempotency-key"));
        assert_eq!(of(&[&audits[..], &["--dry-run"]].concat()), None);
        let create = ["volume", "create", "v", "--size", "1G"];
        assert_eq!(of(&[&key[..], &create, &["--dry-run"]].concat()), None);
        assert_eq!(of(&create), None);
    }
}
