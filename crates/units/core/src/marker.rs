//! The marker: the file or object that distinguishes a unit from any other folder or namespace.
//!
//! A folder without one is never written to, so that an unmounted mount point does not fill the
//! disk beneath it.

use base::{ClusterId, UnitId};
use serde::{Deserialize, Serialize};

use super::error::UnitError;
use super::owner::Owner;

/// Name of the marker's file in a folder, or of its object in a bucket or a pool.
pub const MARKER_FILE: &str = "scree-unit.toml";

/// Maximum length of a marker that is read, in bytes.
pub const MARKER_BYTES_MAX: usize = 64 << 10;

/// The version of the layout that this program reads and writes, for all kinds of units.
const FORMAT: u32 = 1;

/// The content of a marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// The cluster that the unit belongs to.
    pub cluster: ClusterId,
    /// The unit.
    pub unit: UnitId,
    /// The owner, once it was claimed.
    pub owner: Option<Owner>,
}

/// Why a marker cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkerError {
    /// A newer Scree wrote it.
    Newer {
        /// Its format.
        found: u32,
        /// The newest format that this program reads.
        known: u32,
    },
    /// It is not a marker.
    Unreadable {
        /// The reason.
        reason: String,
    },
}

impl MarkerError {
    /// The error of the unit at `url`, whose marker this is.
    #[must_use]
    pub fn of_unit(self, url: String) -> UnitError {
        match self {
            Self::Newer { found, known } => UnitError::Newer { url, found, known },
            Self::Unreadable { reason } => UnitError::Missing {
                url,
                reason: format!("its {MARKER_FILE} cannot be read: {reason}"),
            },
        }
    }
}

/// The field that identifies the format.
#[derive(Deserialize)]
struct AnyFormat {
    format: u32,
}

#[derive(Serialize, Deserialize)]
struct Text {
    format: u32,
    cluster: String,
    unit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<Owner>,
}

impl Marker {
    /// Reads a marker.
    ///
    /// # Errors
    /// [`MarkerError`].
    pub fn parse(text: &[u8]) -> Result<Self, MarkerError> {
        let unreadable = |reason: &dyn std::fmt::Display| MarkerError::Unreadable {
            reason: reason.to_string(),
        };
        let text = std::str::from_utf8(text).map_err(|error| unreadable(&error))?;
        let any: AnyFormat = toml::from_str(text).map_err(|error| unreadable(&error.message()))?;
        if any.format > FORMAT {
            return Err(MarkerError::Newer {
                found: any.format,
                known: FORMAT,
            });
        }
        let text: Text = toml::from_str(text).map_err(|error| unreadable(&error.message()))?;
        Ok(Self {
            cluster: text.cluster.parse().map_err(|error| unreadable(&error))?,
            unit: text.unit.parse().map_err(|error| unreadable(&error))?,
            owner: text.owner,
        })
    }

    /// The marker as text.
    #[must_use]
    pub fn encode(&self) -> String {
        let text = Text {
            format: FORMAT,
            cluster: self.cluster.to_string(),
            unit: self.unit.to_string(),
            owner: self.owner.clone(),
        };
        let text = toml::to_string(&text).expect("strings and numbers can be written as TOML");
        format!(
            "# This marks a storage unit of Scree. Only the cluster named here can use it.\n\
             # Do not copy it: two units with one id are refused.\n\
             {text}"
        )
    }
}

#[cfg(test)]
mod tests {
    use base::DatabaseId;

    use super::*;

    #[test]
    fn a_marker_round_trips() {
        let owner = Owner {
            database: DatabaseId::from_u128(3),
            generation: u32::MAX,
            place: "/srv/\"a\\ b\"\n on vm1".to_owned(),
        };
        for owner in [None, Some(owner)] {
            let marker = Marker {
                cluster: ClusterId::from_u128(1),
                unit: UnitId::from_u128(2),
                owner,
            };
            let text = marker.encode();
            let parsed = Marker::parse(text.as_bytes());
            // Owners are equal wherever they are served; their texts are not.
            assert_eq!(parsed.as_ref().map(Marker::encode), Ok(text));
            assert_eq!(parsed, Ok(marker));
        }
    }

    #[test]
    fn a_newer_marker_is_recognized_even_if_its_fields_are_new() {
        let newer = Marker::parse(b"format = 7\nclan = 1\n");
        assert_eq!(newer, Err(MarkerError::Newer { found: 7, known: 1 }));
    }

    #[test]
    fn any_other_text_is_refused() {
        for text in [
            &b""[..],
            b"format",
            b"format = 1",
            b"\xff\xfe",
            b"format = 1\ncluster = \"x\"\nunit = \"unit-00000000000000002\"",
        ] {
            let parsed = Marker::parse(text);
            assert!(
                matches!(parsed, Err(MarkerError::Unreadable { .. })),
                "{parsed:?}"
            );
        }
    }
}
