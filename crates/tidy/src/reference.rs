//! What documents name: terms of the glossary, commands, flags and metrics.

use crate::Finding;
use crate::source::{File, Kind, Tree};

const GLOSSARY: &str = "docs/glossary.md";
const COMMANDS: &str = "docs/reference/cli.md";
const METRICS: &str = "docs/reference/metrics.md";

/// Names of packages and files that look like those of metrics.
const NO_METRICS: [&str; 3] = ["scree_", "scree_client", "scree_tools"];

/// Finds glossary terms that no other file uses, and commands, flags and metrics that documents
/// name but the reference pages do not list.
pub fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    check_glossary(tree, findings);
    if let Some(reference) = tree.file(COMMANDS) {
        for file in tree.files() {
            check_commands(file, reference.text(), findings);
        }
    }
    if let Some(reference) = tree.file(METRICS) {
        for file in tree.files() {
            check_metrics(file, reference.text(), findings);
        }
    }
}

/// Letters and digits of a text in lower case: `lineage_tag`, `LineageTag` and "lineage tag"
/// are the same.
fn folded(text: &str) -> String {
    let letters = text.chars().filter(|letter| letter.is_ascii_alphanumeric());
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}

fn check_glossary(tree: &Tree, findings: &mut Vec<Finding>) {
    let Some(glossary) = tree.file(GLOSSARY) else {
        return;
    };
    let others = tree
        .files()
        .iter()
        .filter(|file| file.path() != glossary.path());
    let all = folded(&others.map(File::text).collect::<Vec<_>>().join("\n"));
    for line in glossary.lines() {
        let Some(term) = term_of(line.text) else {
            continue;
        };
        if !term.split(" / ").any(|name| all.contains(&folded(name))) {
            findings.push(Finding {
                path: glossary.path().to_owned(),
                line: line.number,
                message: format!("the term {term:?} occurs nowhere else: take it out"),
            });
        }
    }
}

/// The term that a line of the glossary explains: its first bold words.
fn term_of(line: &str) -> Option<&str> {
    let line = line.strip_prefix("- ").unwrap_or(line);
    line.strip_prefix("**")?
        .split_once("**")
        .map(|(term, _)| term)
}

/// Commands and flags in the documents' code, as in `scree volume create --size 1G`.
fn check_commands(file: &File, reference: &str, findings: &mut Vec<Finding>) {
    if file.kind() != Kind::Markdown || file.path().ends_with(COMMANDS) {
        return;
    }
    let mut is_block = false;
    let mut is_console = false;
    let mut continues = false;
    for line in file.lines() {
        if let Some(language) = line.text.trim_start().strip_prefix("```") {
            is_block = !is_block;
            is_console = language == "console";
            continue;
        }
        let is_output = is_block && is_console && !has_prompt(line.text) && !continues;
        let spans: Vec<&str> = if is_output || is_internal(file) && !is_block {
            Vec::new()
        } else if is_block {
            vec![line.text]
        } else {
            line.text.split('`').skip(1).step_by(2).collect()
        };
        let mut add = |message| {
            findings.push(Finding {
                path: file.path().to_owned(),
                line: line.number,
                message,
            });
        };
        let was_continued = continues;
        continues = false;
        for span in spans {
            let command = match command_in(span) {
                Some(command) => command,
                None if was_continued => span,
                None => continue,
            };
            continues = is_block && command.trim_end().ends_with('\\');
            if let Some(noun) = noun_of(command)
                && !was_continued
                && !names(reference, &format!("scree {noun}"))
            {
                add(format!("{COMMANDS} has no command \"scree {noun}\""));
            }
            for flag in flags_of(command) {
                if !names(reference, flag) {
                    add(format!("{COMMANDS} has no flag {flag}"));
                }
            }
        }
    }
}

/// Whether a line of a console is typed: output has no prompt.
fn has_prompt(line: &str) -> bool {
    let line = line.trim_start();
    line.split_whitespace()
        .next()
        .is_some_and(|word| word.ends_with('$') || word.ends_with('#'))
}

/// Whether a page describes bytes, some of which look like commands.
fn is_internal(file: &File) -> bool {
    file.path().starts_with("docs/internals")
}

/// What follows `scree ` where it is a command, up to the next command of a pipe.
fn command_in(code: &str) -> Option<&str> {
    let code = code.trim_start();
    // `c1# scree status` of a host's console.
    let code = match code.split_once(' ') {
        Some((_, rest)) if has_prompt(code) => rest.trim_start(),
        _ => code,
    };
    let code = code.strip_prefix("sudo ").unwrap_or(code);
    // `runuser -u USER -- scree …`
    let code = match code.find(" -- scree ") {
        Some(at) => &code[at + " -- ".len()..],
        None => code,
    };
    let rest = code.strip_prefix("scree ")?;
    Some(rest.split([';', '|', '#']).next().unwrap_or(rest))
}

/// The first word of a command, if it is one and no flag, value or text.
fn noun_of(command: &str) -> Option<&str> {
    let word = command.split_whitespace().next()?;
    let is_word = word
        .chars()
        .all(|letter| letter.is_ascii_lowercase() || letter == '-');
    (is_word && !word.starts_with('-')).then_some(word)
}

fn flags_of(command: &str) -> impl Iterator<Item = &str> {
    let words = command.split(|letter: char| letter.is_whitespace() || "[]()|=,".contains(letter));
    words.filter(|word| {
        word.strip_prefix("--").is_some_and(|name| {
            !name.is_empty()
                && name
                    .chars()
                    .all(|letter| letter.is_ascii_lowercase() || letter == '-')
        })
    })
}

/// Whether `text` has `name` as a whole word.
fn names(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let next = text[at + name.len()..].chars().next();
        next.is_none_or(|letter| !letter.is_ascii_alphanumeric() && letter != '-' && letter != '_')
    })
}

/// Metrics that documents, rules and dashboards name.
fn check_metrics(file: &File, reference: &str, findings: &mut Vec<Finding>) {
    let is_reader = file.path().starts_with("docs") && !file.path().ends_with(METRICS);
    if !is_reader {
        return;
    }
    for line in file.lines() {
        let words = line
            .text
            .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let names_of_metrics =
            words.filter(|word| word.starts_with("scree_") && !NO_METRICS.contains(word));
        for name in names_of_metrics {
            let base = ["_bucket", "_sum", "_count", "_total"];
            let base = base.iter().find_map(|end| name.strip_suffix(end));
            if !names(reference, name) && !base.is_some_and(|base| names(reference, base)) {
                findings.push(Finding {
                    path: file.path().to_owned(),
                    line: line.number,
                    message: format!("{METRICS} has no metric {name}"),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: Vec<File>) -> Vec<String> {
        let mut findings = Vec::new();
        check(&Tree::new(files), &mut findings);
        findings
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn a_term_that_occurs_nowhere_is_found() {
        let glossary = File::new(
            GLOSSARY,
            "**lineage tag**: a hash.\n\n**moon phase**: none.\n",
        );
        let code = File::new("crates/a/src/a.rs", "pub struct LineageTag;\n");
        let messages = found(vec![glossary, code]);
        assert_eq!(messages.len(), 1);
        assert!(messages[0].contains("moon phase"));
    }

    #[test]
    fn a_command_or_flag_that_the_reference_lacks_is_found() {
        let reference = File::new(COMMANDS, "## scree volume create\n\n`--size BYTES`\n");
        let good = File::new("docs/a.md", "Type `scree volume create x --size 1G`.\n");
        assert!(found(vec![reference, good]).is_empty());
        let reference = File::new(COMMANDS, "## scree volume create\n\n`--size BYTES`\n");
        let text = "```\n$ scree disk create x \\\n    --sizes 1G\n```\nAnd `ls --all`.\n";
        let messages = found(vec![reference, File::new("docs/a.md", text)]);
        assert_eq!(messages.len(), 2, "{messages:?}");
    }

    #[test]
    fn a_metric_that_the_reference_lacks_is_found() {
        let reference = || File::new(METRICS, "`scree_repairs_total`, `scree_wait_seconds`\n");
        let rule = "expr: scree_repairs_total + scree_wait_seconds_bucket + scree_moons\n";
        let messages = found(vec![reference(), File::new("docs/prometheus/a.yml", rule)]);
        assert_eq!(messages.len(), 1, "{messages:?}");
    }
}
