//! Text for users: tables and percentages.

use std::fmt;

/// The maximal width of a column. Longer cells exceed it.
const CELL_WIDTH_MAX: usize = 256;

/// A table, whose first row is a head.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this head.
    #[must_use]
    pub fn new(head: &[&str]) -> Self {
        Self {
            rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()],
        }
    }

    /// Adds a row. Line breaks in its cells are escaped.
    pub fn row(&mut self, cells: Vec<String>) {
        let cells = cells.into_iter().map(|cell| cell.replace('\n', "\\n"));
        self.rows.push(cells.collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
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

/// A ratio in percent, with as many digits as carry information: `12.34 %`, `0.0012 %`.
#[must_use]
pub fn percent(ratio: f64) -> String {
    match 100.0 * ratio {
        0.0 => "0 %".to_owned(),
        percent if percent < 0.000_1 => format!("{percent:.1e} %"),
        percent if percent < 0.1 => format!("{percent:.4} %"),
        percent => format!("{percent:.2} %"),
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

    /// The name of a file once looked like another row.
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

    /// A long cell once made the program panic, since a width has 16 bits.
    #[test]
    fn a_cell_of_any_length_is_printed() {
        let mut table = Table::new(&["NAME", "VM"]);
        table.row(vec!["x".repeat(100_000), "vm".into()]);
        let text = table.to_string();
        assert!(text.lines().count() == 2 && text.len() < 101_000);
    }
}
