//! [`PriceTable`]: prices of CPU time and run time, from CSV.

use std::path::Path;

use serde::Deserialize;

use crate::commands::Failure;
use crate::commands::files::{failed, read_file};
use crate::cost::Prices;
use crate::measure::PlaceKind;

/// The largest table, in bytes.
const BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
struct Row {
    r#where: String,
    cpu_hour: f64,
    run_hour: f64,
    #[serde(default)]
    currency: String,
}

/// The highest price of an hour.
const PRICE_MAX: f64 = 1e9;

/// Prices in guests and on hosts.
#[derive(Debug)]
pub struct PriceTable {
    rows: Vec<Row>,
    /// The currency; empty if the table names none.
    pub currency: String,
}

impl PriceTable {
    /// Reads a table.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let bytes = read_file(path, BYTES_MAX)?;
        Self::parse(&bytes).map_err(|why| failed(path, why))
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .comment(Some(b'#'))
            .from_reader(bytes);
        let rows: Result<Vec<Row>, csv::Error> = reader.deserialize().collect();
        let rows = rows.map_err(|error| error.to_string())?;
        for row in &rows {
            if !["guest", "host"].contains(&row.r#where.as_str()) {
                return Err(format!(
                    "{:?} is not a place: use guest or host",
                    row.r#where
                ));
            }
            let is_price = |price: f64| (0.0..=PRICE_MAX).contains(&price);
            if !is_price(row.cpu_hour) || !is_price(row.run_hour) {
                return Err(format!(
                    "a price of {} is not between 0 and 1e9",
                    row.r#where
                ));
            }
        }
        let twice = rows.iter().enumerate().find(|(index, row)| {
            let before = &rows[..*index];
            before.iter().any(|other| other.r#where == row.r#where)
        });
        if let Some((_, row)) = twice {
            return Err(format!("{} has two rows", row.r#where));
        }
        let mut currencies: Vec<&str> = rows.iter().map(|row| row.currency.as_str()).collect();
        currencies.dedup();
        match currencies[..] {
            [] => Err("the table has no prices".to_owned()),
            [currency] => Ok(Self {
                currency: currency.to_owned(),
                rows,
            }),
            _ => Err("the rows have several currencies: use one table for each".to_owned()),
        }
    }

    /// The prices where a place runs.
    pub fn of(&self, place: PlaceKind) -> Result<Prices, Failure> {
        let wanted = if place.is_in_guest() { "guest" } else { "host" };
        let row = self.rows.iter().find(|row| row.r#where == wanted);
        let row = row.ok_or_else(|| {
            Failure::new(format!(
                "the prices have no row `{wanted}`, where {place} runs: add one"
            ))
        })?;
        Ok(Prices {
            cpu_hour: row.cpu_hour,
            run_hour: row.run_hour,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_prices_are_read_and_others_are_refused() {
        let parse = |text: &str| PriceTable::parse(text.as_bytes());
        let table = parse("# mine\nwhere,cpu_hour,run_hour,currency\nguest, 0.04, 0.1, EUR\n");
        let table = table.expect("prices");
        assert_eq!(table.currency, "EUR");
        let of_guest = table.of(PlaceKind::GuestBlock).ok();
        assert_eq!(of_guest.map(|prices| prices.cpu_hour), Some(0.04));
        assert!(table.of(PlaceKind::Agent).is_err());
        for bad in [
            "",
            "where,cpu_hour,run_hour\n",
            "where,cpu_hour\nguest,1\n",
            "where,cpu_hour,run_hour\nmoon,1,1\n",
            "where,cpu_hour,run_hour\nguest,-1,1\n",
            "where,cpu_hour,run_hour\nguest,nan,1\n",
            "where,cpu_hour,run_hour\nguest,1,1e300\n",
            "where,cpu_hour,run_hour\nguest,1,1\nguest,2,2\n",
            "where,cpu_hour,run_hour,currency\nguest,1,1,EUR\nhost,1,1,USD\n",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
