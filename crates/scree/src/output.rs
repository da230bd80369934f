//! Printing results: tables for people, JSON and YAML for programs.

use std::io::{self, Write as _};
use std::path::Path;

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

/// No column is made wider than this: what is longer sticks out.
const CELL_WIDTH_MAX: usize = 256;

/// Rows of columns, the first one a head.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this head.
    pub fn new(head: &[&str]) -> Self {
        Self {
            rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()],
        }
    }

    /// Adds a row. It has one line, whatever is in its cells.
    pub fn row(&mut self, cells: Vec<String>) {
        let cells = cells.into_iter().map(|cell| cell.replace('\n', "\\n"));
        self.rows.push(cells.collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            widest.min(CELL_WIDTH_MAX)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line += &format!("{cell:<width$}  ");
            }
            writeln!(formatter, "{}", line.trim_end())?;
        }
        Ok(())
    }
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
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["NAME", "SIZE"]);
        table.row(vec!["a-long-name".into(), "1G".into()]);
        assert_eq!(table.to_string(), "NAME         SIZE\na-long-name  1G\n");
    }

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

    /// A file's name made what looked like another one.
    #[test]
    fn a_row_is_one_line() {
        let mut table = Table::new(&["BYTES", "FILE"]);
        table.row(vec!["1".into(), "/a\n9      /b".into()]);
        table.row(vec!["2".into(), "/c".into()]);
        assert_eq!(
            table.to_string(),
            "BYTES  FILE\n1      /a\\n9      /b\n2      /c\n"
        );
    }

    /// One long cell made the program stop: a width has 16 bits.
    #[test]
    fn a_cell_of_any_length_is_printed() {
        let mut table = Table::new(&["NAME", "VM"]);
        table.row(vec!["x".repeat(100_000), "vm".into()]);
        let text = table.to_string();
        assert!(text.lines().count() == 2 && text.len() < 101_000);
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
