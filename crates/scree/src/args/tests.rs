//! The command line as a whole: options of changes, and help texts.

use clap::error::ErrorKind;
use clap::{Command, CommandFactory as _, Parser as _};

use super::{ApiCommand, Arguments, ChangeOptions, Command as Noun};

/// The largest number of lines of the help of a noun with verbs.
const NOUN_LINES_MAX: usize = 30;

/// The largest number of lines that `-h` prints for a command: a terminal of this height shows it.
const SHORT_HELP_LINES_MAX: usize = 45;

/// The largest number of lines of `scree -h`, which lists all commands.
const OVERVIEW_LINES_MAX: usize = 50;

/// Commands without options of changes, because they change nothing or use no controller.
const UNCHANGING: &[&str] = &[
    "agent",
    "attachment list",
    "attachment show",
    "audit",
    "cache simulate",
    "chain list",
    "chain show",
    "completions",
    "controller",
    "cost calibrate",
    "cost draw",
    "cost predict",
    "cost validate",
    "filter-process",
    "filter-server",
    "grant list",
    "host join",
    "host list",
    "image list",
    "key list",
    "key show",
    "login",
    "man",
    "monitor",
    "privacy estimate",
    "privacy plan",
    "privacy simulate",
    "project list",
    "project show",
    "relay",
    "snapshot list",
    "snapshot tree",
    "status",
    "top",
    "trace",
    "unit jobs",
    "unit join",
    "unit list",
    "unit show",
    "up",
    "user list",
    "volume list",
    "volume show",
    "volume versions",
    "whoami",
];

/// Commands with a dry run and without an idempotency key.
const DRY_RUN_ONLY: &[&str] = &["privacy audit", "privacy audits", "unit restore"];

/// The command line as help and references show it.
fn command_line() -> Command {
    let mut scree = Arguments::command().term_width(100);
    scree.build();
    scree
}

/// Every command with its path, such as `volume create`; the one without verbs first.
fn all(command: &Command, path: &str) -> Vec<(String, Command)> {
    let verbs = command.get_subcommands();
    let verbs = verbs.filter(|verb| verb.get_name() != "help");
    let mut found = vec![(path.to_owned(), command.clone())];
    for verb in verbs {
        let path = format!("{path} {}", verb.get_name());
        found.extend(all(verb, path.trim()));
    }
    found
}

#[test]
fn every_change_has_a_dry_run_and_an_idempotency_key() {
    let (mut unchanging, mut dry_run_only, mut both) = (Vec::new(), Vec::new(), 0);
    for (path, mut command) in all(&command_line(), "") {
        if command.has_subcommands() {
            continue;
        }
        let help = command.render_long_help().to_string();
        let options = ["--dry-run", "--idempotency-key"];
        match options.map(|option| help.contains(option)) {
            [false, false] => unchanging.push(path),
            [true, false] => dry_run_only.push(path),
            [true, true] => both += 1,
            [false, true] => panic!("{path} has a key only"),
        }
    }
    unchanging.sort_unstable();
    dry_run_only.sort_unstable();
    assert_eq!(unchanging, UNCHANGING);
    assert_eq!(dry_run_only, DRY_RUN_ONLY);
    assert!(both > 40, "{both} commands");
}

#[test]
fn completions_offer_only_options_that_a_command_has() {
    let mut script = Vec::new();
    let bash = clap_complete::Shell::Bash;
    clap_complete::generate(bash, &mut Arguments::command(), "scree", &mut script);
    let script = String::from_utf8(script).expect("text");
    let predict = script.split("scree__subcmd__cost__subcmd__predict)").nth(1);
    let options = predict.and_then(|rest| rest.split(';').find(|one| one.contains("opts=")));
    let options = options.expect("it completes the command");
    assert!(options.contains("--latency-max") && !options.contains("--dry-run"));
}

/// The options of a change in these words, or the kind of the error.
fn change(words: &[&str]) -> Result<ChangeOptions, ErrorKind> {
    let words = [&["scree"], words].concat();
    let parsed = Arguments::try_parse_from(words).map_err(|error| error.kind())?;
    Ok(match parsed.command {
        Noun::Api(command) => command.change(),
        Noun::Privacy(super::PrivacyCommand::Audits(audits)) => {
            ApiCommand::PrivacyAudits(audits).change()
        }
        _ => ChangeOptions::default(),
    })
}

#[test]
fn options_of_changes_are_applied_or_refused() {
    for refused in [
        &["man", "D", "--dry-run"][..],
        &["--dry-run", "volume", "list"],
        &["cost", "--dry-run", "draw", "a", "--plot", "b"],
        &["cost", "draw", "a", "--plot", "b", "--dry-run"],
        &["unit", "--listen", "[::]:0", "--dry-run"],
        &["unit", "list", "--dry-run"],
        &[
            "unit",
            "join",
            "u",
            "--token",
            "t",
            "--authority",
            "a",
            "--dry-run",
        ],
        &["privacy", "audits", "v", "--idempotency-key", "k"],
    ] {
        assert_eq!(
            change(refused),
            Err(ErrorKind::UnknownArgument),
            "{refused:?}"
        );
    }
    let tried = Ok(ChangeOptions::only_dry(true));
    assert_eq!(change(&["privacy", "audits", "v", "--dry-run"]), tried);
    assert_eq!(change(&["unit", "repair", "--dry-run"]), tried);
    assert_eq!(change(&["host", "add", "h", "--dry-run"]), tried);
    let create = ["volume", "create", "v", "--size", "1G"];
    assert_eq!(change(&create), Ok(ChangeOptions::default()));
    let keyed = [&create[..], &["--idempotency-key", "k"]].concat();
    let expected = ChangeOptions {
        dry_run: false,
        idempotency_key: Some("k".to_owned()),
    };
    assert_eq!(change(&keyed), Ok(expected));
}

/// What `scree PATH FLAG` prints, for a flag of help.
fn help_by(path: &str, flag: &'static str) -> String {
    let words = ["scree"].into_iter().chain(path.split_whitespace());
    let shown = command_line().try_get_matches_from(words.chain([flag]));
    shown.expect_err("help is no command").to_string()
}

/// What `scree PATH --help` prints.
fn help(path: &str) -> String {
    help_by(path, "--help")
}

/// Rare options are in `--help` only.
#[test]
fn the_short_help_of_every_command_fits_a_screen() {
    for (path, _) in all(&command_line(), "") {
        let help = help_by(&path, "-h");
        let lines = help.lines().count();
        let lines_max = match path.is_empty() {
            true => OVERVIEW_LINES_MAX,
            false => SHORT_HELP_LINES_MAX,
        };
        assert!(lines <= lines_max, "{lines} lines: {help}");
    }
}

/// `scree unit` is also a daemon, so its help is longer.
#[test]
fn the_help_of_a_noun_fits_a_screen_and_shows_two_examples() {
    for (path, command) in all(&command_line(), "") {
        if path.contains(' ') || !command.has_subcommands() {
            continue;
        }
        let help = help(&path);
        let lines = help.lines().count();
        let is_limited = !["", "unit"].contains(&path.as_str());
        assert!(
            !is_limited || lines <= NOUN_LINES_MAX,
            "{lines} lines: {help}"
        );
        let examples = help.lines().filter(|line| line.starts_with("  scree "));
        assert!(examples.count() >= 2, "{path}: {help}");
    }
}

#[test]
fn every_example_parses() {
    for (path, mut command) in all(&command_line(), "") {
        let help = command.render_long_help().to_string();
        for line in help.lines().filter(|line| line.starts_with("  scree ")) {
            let line = line.split(" # ").next().unwrap_or(line).replace('\'', "");
            let parsed = Arguments::try_parse_from(line.split_whitespace());
            assert!(
                parsed.is_ok(),
                "{path}: {line}: {}",
                parsed.err().expect("one")
            );
        }
    }
}
