//! [`Erasure`]: the erasure code that spreads a segment over its copyset.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An erasure code: k data slots and m parity slots in each row of a segment. Any m units
/// may be lost. Written `k+m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Erasure {
    data: u8,
    parity: u8,
}

impl Erasure {
    /// The largest number of data slots in a row. More would slow down repair, and save ever less.
    pub const DATA_MAX: u8 = 8;

    /// The largest number of parity slots in a row.
    pub const PARITY_MAX: u8 = 3;

    /// A code with `data` from 2 to 8 and `parity` from 1 to 3; otherwise `None`.
    #[must_use]
    pub fn new(data: u8, parity: u8) -> Option<Self> {
        let is_allowed =
            (2..=Self::DATA_MAX).contains(&data) && (1..=Self::PARITY_MAX).contains(&parity);
        is_allowed.then_some(Self { data, parity })
    }

    /// The number of data slots in a row.
    #[must_use]
    pub fn data(self) -> u8 {
        self.data
    }

    /// The number of parity slots in a row.
    #[must_use]
    pub fn parity(self) -> u8 {
        self.parity
    }

    /// The number of units in a copyset.
    #[must_use]
    pub fn members(self) -> u8 {
        self.data + self.parity
    }
}

impl fmt::Display for Erasure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.data, self.parity)
    }
}

impl FromStr for Erasure {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('+');
        let parsed = parts.and_then(|(data, parity)| {
            let number = |part: &str| part.parse().ok().filter(|_| !part.starts_with('+'));
            Self::new(number(data)?, number(parity)?)
        });
        parsed.ok_or_else(|| {
            format!(
                "{text:?} is not an erasure code: write k+m, such as 4+2, with 2 to {} data units and 1 to {} parity units",
                Self::DATA_MAX,
                Self::PARITY_MAX
            )
        })
    }
}

impl TryFrom<String> for Erasure {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Erasure> for String {
    fn from(erasure: Erasure) -> Self {
        erasure.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_erasure_code_round_trips_and_nothing_else_parses() {
        for text in ["2+1", "4+2", "8+3"] {
            let erasure: Erasure = text.parse().expect("allowed");
            assert_eq!(erasure.to_string(), text);
            assert_eq!(erasure.members(), erasure.data() + erasure.parity());
        }
        for text in [
            "", "4", "4+", "+2", "1+1", "9+1", "4+0", "4+4", "4++2", "4 + 2",
        ] {
            text.parse::<Erasure>().expect_err(text);
        }
    }
}
