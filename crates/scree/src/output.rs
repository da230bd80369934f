//! Printing results: tables for people, JSON and YAML for programs.

use std::io::{self, Write as _};
use std::path::Path;

pub use base::report::Table;
use clap::ValueEnum;
use serde::Serialize;

use crate::commands::Failure;
use crate::yaml;

/// The format of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    // Aligned columns.
    #[default]
    Table,
    // One JSON document.
    Json,
    // One YAML document.
    Yaml,
}

/// Prints a value in the user's format; `table` writes the text for people.
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

/// Prints a result of the lab.
///
/// # Errors
/// As [`write_out`].
#[cfg(feature = "lab")]
pub fn print_lab_output(format: Format, output: &lab::commands::CommandOutput) -> io::Result<()> {
    let text = match format {
        Format::Table => plain(&output.text),
        Format::Json => format!(
            "{}
",
            output.json
        ),
        Format::Yaml => yaml::to_string(&serde_json::from_str(&output.json)?),
    };
    write_out(text.as_bytes())
}

/// Writes to standard output. A closed pipe is no failure.
///
/// # Errors
/// If standard output cannot be written.
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

/// Prints lines as they come. Returns whether standard output is still open.
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

/// Prints on standard error why a command failed: a sentence, or a JSON document with `-o json`.
pub fn print_failure(format: Format, failure: &Failure) {
    let text = match format {
        Format::Json => format!("{}\n", serde_json::json!({ "error": failure })),
        Format::Table | Format::Yaml => plain(&format!("scree: {failure}\n")),
    };
    // If this cannot be printed, only the exit code reports the failure.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Prints a notice on standard error, beside the result.
pub fn print_notice(format: Format, notice: &str) {
    let text = match format {
        Format::Json => format!("{}\n", serde_json::json!({ "notice": notice })),
        Format::Table | Format::Yaml => plain(&format!("scree: {notice}\n")),
    };
    // A notice that cannot be printed is lost.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Whether a character is invisible or changes how its neighbors are shown.
fn is_invisible(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}')
}

/// A text for a terminal. Control characters are escaped, since hosts and other users may have
/// written parts of it.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => plain.push(character),
            _ if character.is_control() || is_invisible(character) => {
                plain.extend(character.escape_default());
            }
            _ => plain.push(character),
        }
    }
    plain
}

/// A single line for a terminal; line ends in it are escaped, too.
fn plain_line(line: &str) -> String {
    plain(&line.replace('\n', "\\n"))
}

/// A path, quoted as a shell needs it.
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
    fn control_characters_are_escaped() {
        let text = "it ended\x1b]0;gone\x07\x1b[2J \u{9b}2J\n";
        let plain = plain(text);
        assert!(!plain.trim_end().contains(char::is_control), "{plain}");
        assert!(plain.starts_with("it ended\\u{1b}]0;gone") && plain.ends_with('\n'));
        // A name cannot start a line of its own, or reverse one.
        let line = plain_line("/tmp/x\n2026-01-01  ALERT \u{202e}evil");
        assert_eq!(line, "/tmp/x\\n2026-01-01  ALERT \\u{202e}evil");
    }

    #[test]
    fn a_quoted_path_is_one_word_of_a_shell() {
        let word = |text: &str| shell_word(Path::new(text));
        assert_eq!(word("/srv/scree-1.d"), "/srv/scree-1.d");
        assert_eq!(word("/srv/my disks"), "'/srv/my disks'");
        assert_eq!(word("/srv/it's $HOME"), r"'/srv/it'\''s $HOME'");
        assert_eq!(word("~"), "'~'");
    }
}
