//! How a segment is spread over its copyset without a copy of all of it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// k slots of data and m of parity in each row of a segment: any m units may be
/// lost. Written `k+m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Erasure {
    data: u8,
    parity: u8,
}

impl Erasure {
    /// The most slots of data in a row. More would repair slower, and save less and
    /// less.
    pub const DATA_MAX: u8 = 8;

    /// The most slots of parity in a row.
    pub const PARITY_MAX: u8 = 3;

    /// `data` from 2 to 8, `parity` from 1 to 3; `None` if they are not.
    #[must_use]
    pub fn new(data: u8, parity: u8) -> Option<Self> {
        let is_allowed =
            (2..=Self::DATA_MAX).contains(&data) && (1..=Self::PARITY_MAX).contains(&parity);
        is_allowed.then_some(Self { data, parity })
    }

    /// Slots of data in a row.
    #[must_use]
    pub fn data(self) -> u8 {
        self.data
    }

    /// Slots of parity in a row.
    #[must_use]
    pub fn parity(self) -> u8 {
        self.parity
    }

    /// How many units a copyset has.
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
                "{text:?} is not k+m with 2 to {} units of data and 1 to {} of parity, as 4+2 is",
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
    fn what_is_written_is_read_and_nothing_else() {
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
