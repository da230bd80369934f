//! Printing results: tables for people, JSON and YAML for programs.

use std::io::{self, Write as _};

use clap::ValueEnum;
use serde::Serialize;

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

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
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
/// If standard output is closed.
pub fn print<T: Serialize>(
    format: Format,
    value: &T,
    table: impl FnOnce(&T) -> String,
) -> io::Result<()> {
    let text = match format {
        Format::Table => table(value),
        Format::Json => serde_json::to_string_pretty(value)? + "\n",
        Format::Yaml => yaml::to_string(&serde_json::to_value(value)?),
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A size as people read it: exact where it can be.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "K", "M", "G", "T"];
    let mut unit = 0;
    let mut scaled = count as f64;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if scaled.fract() == 0.0 {
        format!("{scaled}{}", UNITS[unit])
    } else {
        format!("{scaled:.1}{}", UNITS[unit])
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
    fn sizes_are_short() {
        let shown = [0, 512, 4096, 10 << 30, (1 << 30) + (1 << 29), 5000].map(bytes);
        assert_eq!(shown, ["0B", "512B", "4K", "10G", "1.5G", "4.9K"]);
    }
}
