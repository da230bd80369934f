//! The marker file: what tells a unit from any other folder.
//!
//! A folder without one is never written to, so that an unmounted mount point
//! does not fill the disk beneath it.

use base::{ClusterId, UnitId};
use serde::{Deserialize, Serialize};

/// The marker's name in the unit's folder.
pub(super) const NAME: &str = "scree-unit.toml";

/// The version of the folder's layout that this program reads and writes.
const FORMAT: u32 = 1;

/// Whose unit a folder is, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker {
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// The unit.
    pub unit: UnitId,
}

/// Why a marker cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MarkerError {
    /// It is of a newer Scree.
    Newer { found: u32, known: u32 },
    /// It is not a marker.
    Unreadable { reason: String },
}

/// Only the field by which formats are told apart.
#[derive(Deserialize)]
struct AnyFormat {
    format: u32,
}

#[derive(Serialize, Deserialize)]
struct Text {
    format: u32,
    cluster: String,
    unit: String,
}

impl Marker {
    pub(super) fn parse(text: &[u8]) -> Result<Self, MarkerError> {
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
        })
    }

    pub(super) fn encode(&self) -> String {
        format!(
            "# This folder is a storage unit of Scree. What lies in it is of use to\n\
             # the cluster named here only. Do not copy it: two folders with one\n\
             # unit id are refused.\n\
             format = {FORMAT}\n\
             cluster = \"{}\"\n\
             unit = \"{}\"\n",
            self.cluster, self.unit
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_round_trips() {
        let marker = Marker {
            cluster: ClusterId::from_random(1),
            unit: UnitId::from_random(2),
        };
        assert_eq!(Marker::parse(marker.encode().as_bytes()), Ok(marker));
    }

    #[test]
    fn a_newer_marker_is_named_so_even_if_its_fields_are_new() {
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
