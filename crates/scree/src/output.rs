//! Printing results: tables for people, JSON and YAML for programs.

use std::io::{self, Write as _};
use std::path::Path;

pub use base::report::Table;
use clap::ValueEnum;
use serde::Serialize;

use crate::commands::Failure;
use crate::yaml;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// Aligned columns.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// Prints `value`, as a table in the words of `table`.
///
/// # Errors
/// As [`write_out`].
pub fn print<T: Serialize>(
    format: Format,
    value: &T,
    table: impl FnOnce(&T) -> String,
) -> io::Result<()> {
    let text = match format {
        Format::Table => plain(&table(value)),
        Format::Json => serde_json::to_string_pretty(value)? + "\n",
        Format::Yaml => yaml::to_string(&serde_json::to_value(value)?),
    };
    write_out(text.as_bytes())
}

/// Prints a result of the laboratory.
///
/// # Errors
/// As [`write_out`].
#[cfg(feature = "lab")]
pub fn print_report(format: Format, report: &lab::commands::Report) -> io::Result<()> {
    let text = match format {
        Format::Table => plain(&report.text),
        Format::Json => format!(
            "{}
",
            report.json
        ),
        Format::Yaml => yaml::to_string(&serde_json::from_str(&report.json)?),
    };
    write_out(text.as_bytes())
}

/// Writes to standard output. Whoever closed it wants no more of it, which is
/// no failure.
///
/// # Errors
/// As the operating system says, with what could not be written to.
pub fn write_out(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => {
            let message = format!("cannot write to standard output: {error}");
            Err(io::Error::new(error.kind(), message))
        }
        Ok(()) => Ok(()),
    }
}

/// Prints lines as they come; whether anybody reads them still.
///
/// # Errors
/// As [`write_out`].
pub fn print_lines(lines: &[String]) -> io::Result<bool> {
    let mut text = String::new();
    for line in lines {
        text += &plain_line(line);
        text.push('\n');
    }
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            let message = format!("cannot write to standard output: {error}");
            Err(io::Error::new(error.kind(), message))
        }
        Ok(()) => Ok(true),
    }
}

/// Says on standard error why a command failed: in words, or as one JSON
/// document if that is how it prints.
pub fn print_failure(format: Format, failure: &Failure) {
    let text = match format {
        Format::Json => format!("{}\n", serde_json::json!({ "error": failure })),
        Format::Table | Format::Yaml => plain(&format!("scree: {failure}\n")),
    };
    // Where this cannot be said, the exit code has to do.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Says on standard error what its user should know besides the results.
pub fn print_notice(format: Format, notice: &str) {
    let text = match format {
        Format::Json => format!("{}\n", serde_json::json!({ "notice": notice })),
        Format::Table | Format::Yaml => plain(&format!("scree: {notice}\n")),
    };
    // What was done is done, whether or not this can be said.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Whether a character changes how others around it are shown, or in which order.
fn is_unseen(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}')
}

/// A text for people. What a host or another user has written in it is not for
/// the terminal to obey: control characters are spelt.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => plain.push(character),
            _ if character.is_control() || is_unseen(character) => {
                plain.extend(character.escape_default());
            }
            _ => plain.push(character),
        }
    }
    plain
}

/// The same of one line, whatever is in it.
fn plain_line(line: &str) -> String {
    plain(&line.replace('\n', "\\n"))
}

/// A path as a word of a shell's command line.
pub fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || "/._-+=:,@%".contains(character);
    if !text.is_empty() && text.chars().all(is_plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// A time without its fraction of a second.
pub fn time(text: &str) -> String {
    match text.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_commands_the_terminal() {
        let told = "it ended\x1b]0;gone\x07\x1b[2J \u{9b}2J\n";
        let plain = plain(told);
        assert!(!plain.trim_end().contains(char::is_control), "{plain}");
        assert!(plain.starts_with("it ended\\u{1b}]0;gone") && plain.ends_with('\n'));
        // Nor does a name make a line of its own, or turn one around.
        let line = plain_line("/tmp/x\n2026-01-01  ALERT \u{202e}evil");
        assert_eq!(line, "/tmp/x\\n2026-01-01  ALERT \\u{202e}evil");
    }

    #[test]
    fn a_shell_reads_a_path_as_one_word() {
        let word = |text: &str| shell_word(Path::new(text));
        assert_eq!(word("/srv/scree-1.d"), "/srv/scree-1.d");
        assert_eq!(word("/srv/my disks"), "'/srv/my disks'");
        assert_eq!(word("/srv/it's $HOME"), r"'/srv/it'\''s $HOME'");
        assert_eq!(word("~"), "'~'");
    }
}
