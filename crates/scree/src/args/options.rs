//! `--dry-run` and `--idempotency-key`: which commands have them. They may stand anywhere on the
//! line of such a command; others do not know them, nor does their help.

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Command, CommandFactory as _, FromArgMatches as _, Subcommand as _};

use super::{ApiCommand, Arguments};

/// The names of clap for both.
const DRY_RUN: &str = "dry_run";
const IDEMPOTENCY_KEY: &str = "idempotency_key";

/// What a command has of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Has {
    dry_run: bool,
    key: bool,
}

impl Has {
    const NEITHER: Self = Self {
        dry_run: false,
        key: false,
    };
    const DRY_RUN: Self = Self {
        dry_run: true,
        key: false,
    };
    const BOTH: Self = Self {
        dry_run: true,
        key: true,
    };

    fn or(self, other: Self) -> Self {
        Self {
            dry_run: self.dry_run || other.dry_run,
            key: self.key || other.key,
        }
    }
}

/// The first words of commands by which a controller is asked.
fn nouns() -> Vec<String> {
    let asked = ApiCommand::augment_subcommands(Command::new(""));
    asked.get_subcommands().map(name).collect()
}

/// What a command has that asks something, by its words. What asks no controller has neither.
fn has(path: &[&str], nouns: &[String]) -> Has {
    match path {
        ["privacy", "audit" | "audits"] | ["unit", "restore"] => Has::DRY_RUN,
        // A certificate is fetched, or a daemon run.
        ["host" | "unit", "join"] | ["unit"] => Has::NEITHER,
        [noun, ..] if nouns.iter().any(|one| one == noun) => Has::BOTH,
        _ => Has::NEITHER,
    }
}

/// The command line, as its help tells it.
pub fn command_line() -> Command {
    with_options(&nouns())
}

fn with_options(nouns: &[String]) -> Command {
    let scree = Arguments::command();
    let option = |id: &str| {
        scree
            .get_arguments()
            .find(|one| one.get_id() == id)
            .cloned()
    };
    let options = [option(DRY_RUN), option(IDEMPOTENCY_KEY)];
    below(scree, &[], |one, path| told(one, &options, path, nouns).0)
}

fn name(command: &Command) -> String {
    command.get_name().to_owned()
}

/// A command with each one that is below it changed, which is told its path.
fn below(
    command: Command,
    path: &[&str],
    mut change: impl FnMut(Command, &[&str]) -> Command,
) -> Command {
    let names: Vec<String> = command.get_subcommands().map(name).collect();
    names.iter().fold(command, |command, name| {
        let path = [path, &[name.as_str()]].concat();
        command.mut_subcommand(name, |one| change(one, &path))
    })
}

/// A command, and all that are below it, with what each has; and what that is. Whoever has
/// commands below it has what any of them has.
fn told(
    command: Command,
    options: &[Option<Arg>; 2],
    path: &[&str],
    nouns: &[String],
) -> (Command, Has) {
    let mut all = match command.has_subcommands() {
        true => Has::NEITHER,
        false => has(path, nouns),
    };
    let command = below(command, path, |one, path| {
        let (one, has) = told(one, options, path, nouns);
        all = all.or(has);
        one
    });
    let own = options.iter().zip([all.dry_run, all.key]);
    let own = own.filter_map(|(option, has)| option.clone().filter(|_| has));
    (command.args(own), all)
}

/// What was said to the program. It ends where that makes no sense: nobody must take for a trial
/// what is carried out.
pub fn given() -> Arguments {
    let nouns = nouns();
    let mut scree = with_options(&nouns);
    let said = scree.get_matches_mut();
    given_in(&said, &nouns).unwrap_or_else(|error| error.format(&mut scree).exit())
}

fn given_in(said: &ArgMatches, nouns: &[String]) -> clap::error::Result<Arguments> {
    let (mut path, mut at) = (Vec::new(), said);
    let (mut dry_run, mut key) = (false, None);
    loop {
        // Not each command has each of them.
        let is_tried = at.try_get_one::<bool>(DRY_RUN).ok().flatten();
        dry_run |= is_tried.copied().unwrap_or(false);
        let here = at.try_get_one::<String>(IDEMPOTENCY_KEY).ok().flatten();
        key = here.cloned().or(key);
        let Some((name, below)) = at.subcommand() else {
            break;
        };
        path.push(name);
        at = below;
    }
    let has = has(&path, nouns);
    let unknown = match () {
        () if dry_run && !has.dry_run => "--dry-run",
        () if key.is_some() && !has.key => "--idempotency-key",
        () => {
            let mut given = Arguments::from_arg_matches(said)?;
            (given.dry_run, given.idempotency_key) = (dry_run, key);
            return Ok(given);
        }
    };
    let reason = format!("`scree {}` has no '{unknown}'", path.join(" "));
    Err(clap::Error::raw(ErrorKind::UnknownArgument, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that have not both, by their words.
    const NEITHER: &[&str] = &[
        "agent",
        "filter-server",
        "filter-process",
        "cache",
        "cache simulate",
        "completions",
        "controller",
        "cost",
        "cost calibrate",
        "cost draw",
        "cost predict",
        "cost validate",
        "host join",
        "login",
        "man",
        "privacy estimate",
        "privacy plan",
        "privacy simulate",
        "relay",
        "unit join",
        "up",
    ];
    const NO_KEY: &[&str] = &["privacy", "privacy audit", "privacy audits", "unit restore"];

    #[test]
    fn the_help_and_completions_have_what_a_command_has() {
        let mut scree = command_line();
        scree.build();
        scree.clone().debug_assert();
        let mut below = vec![(String::new(), scree)];
        let (mut neither, mut no_key, mut both) = (Vec::new(), Vec::new(), 0);
        while let Some((path, mut command)) = below.pop() {
            let help = command.render_long_help().to_string();
            let options = ["--dry-run", "--idempotency-key"];
            match options.map(|option| help.contains(option)) {
                [false, false] => neither.push(path.clone()),
                [true, false] => no_key.push(path.clone()),
                [true, true] => both += 1,
                [false, true] => panic!("{path} has a key only"),
            }
            let each = command.get_subcommands();
            let each = each.filter(|one| one.get_name() != "help").cloned();
            let path_of = |one: &Command| format!("{path} {}", one.get_name()).trim().to_owned();
            below.extend(each.map(|one| (path_of(&one), one)));
        }
        neither.sort_unstable();
        no_key.sort_unstable();
        assert_eq!((neither, no_key), (words(NEITHER), words(NO_KEY)));
        assert!(both > 60, "{both} commands");
        let mut script = Vec::new();
        let bash = clap_complete::Shell::Bash;
        clap_complete::generate(bash, &mut command_line(), "scree", &mut script);
        let script = String::from_utf8(script).expect("text");
        let predict = script.split("scree__subcmd__cost__subcmd__predict)").nth(1);
        let options = predict.and_then(|rest| rest.split(';').find(|one| one.contains("opts=")));
        let options = options.expect("it completes the command");
        assert!(options.contains("--latency-max") && !options.contains("--dry-run"));
    }

    fn words(paths: &[&str]) -> Vec<String> {
        paths.iter().map(|path| (*path).to_owned()).collect()
    }

    /// What is said, or that it is not.
    fn said(words: &[&str]) -> Result<(bool, Option<String>), ErrorKind> {
        let words = [&["scree"], words].concat();
        let said = command_line().try_get_matches_from(words);
        let given = said.and_then(|said| given_in(&said, &nouns()));
        given
            .map(|given| (given.dry_run, given.idempotency_key))
            .map_err(|error| error.kind())
    }

    #[test]
    fn an_option_counts_or_is_refused_wherever_it_stands() {
        let unknown = Err(ErrorKind::UnknownArgument);
        for refused in [
            &["--dry-run", "man", "D"][..],
            &["cost", "--dry-run", "draw", "a", "--plot", "b"],
            &["cost", "draw", "a", "--plot", "b", "--dry-run"],
            &["unit", "--listen", "[::]:0", "--dry-run"],
            &[
                "--dry-run",
                "unit",
                "join",
                "u",
                "--token",
                "t",
                "--authority",
                "a",
            ],
            &["--idempotency-key", "k", "privacy", "audits", "v"],
            &["privacy", "audits", "v", "--idempotency-key", "k"],
        ] {
            assert_eq!(said(refused), unknown, "{refused:?}");
        }
        let tried = Ok((true, None));
        assert_eq!(said(&["--dry-run", "privacy", "audits", "v"]), tried);
        assert_eq!(said(&["privacy", "--dry-run", "audits", "v"]), tried);
        assert_eq!(said(&["unit", "--dry-run", "list"]), tried);
        let create = ["volume", "create", "v", "--size", "1G"];
        assert_eq!(said(&create), Ok((false, None)));
        for words in [
            ["--idempotency-key", "k"].iter().chain(&create).collect(),
            create.iter().chain(&["--idempotency-key", "k"]).collect(),
        ] as [Vec<&&str>; 2]
        {
            let words: Vec<&str> = words.into_iter().copied().collect();
            assert_eq!(said(&words), Ok((false, Some("k".to_owned()))));
        }
    }
}
