//! The marker: the object that distinguishes a unit from any other prefix of a bucket.
//!
//! It is created last, so without one there is no unit. As a folder's marker, it names the
//! cluster, the unit and the owner; besides, it records the store's features.

use base::{ClusterId, UnitId};
use serde::{Deserialize, Serialize};
use unit::Owner;

/// Name of the marker below the unit's prefix.
pub(crate) const NAME: &str = "scree-unit.toml";

/// The version of the layout that this program reads and writes.
const FORMAT: u32 = 1;

/// Maximum length of a marker that is read, in bytes.
pub(crate) const BYTES_MAX: u64 = 64 << 10;

/// The conditional requests that a store supports, found out when the unit was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditional {
    /// Creating an object only if there is none of that name.
    pub create: bool,
    /// Replacing an object only if it is still the one that was read.
    pub update: bool,
}

/// The content of a marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// The cluster that the unit belongs to.
    pub cluster: ClusterId,
    /// The unit.
    pub unit: UnitId,
    /// The owner, once it was claimed.
    pub owner: Option<Owner>,
    /// The conditional requests that the store supports.
    pub conditional: Conditional,
}

/// Why a marker cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MarkerError {
    /// A newer Scree wrote it.
    Newer { found: u32, known: u32 },
    /// It is not a marker.
    Unreadable { reason: String },
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
    conditional: Conditional,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<Owner>,
}

impl Marker {
    pub(crate) fn parse(text: &[u8]) -> Result<Self, MarkerError> {
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
            conditional: text.conditional,
        })
    }

    pub(crate) fn encode(&self) -> String {
        let text = Text {
            format: FORMAT,
            cluster: self.cluster.to_string(),
            unit: self.unit.to_string(),
            conditional: self.conditional,
            owner: self.owner.clone(),
        };
        let text = toml::to_string(&text).expect("strings and numbers can be written as TOML");
        format!(
            "# The objects with this prefix are a storage unit of Scree. Only the cluster\n\
             # named here can use them. Do not copy them: two units with one id are refused.\n\
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
                conditional: Conditional {
                    create: true,
                    update: false,
                },
            };
            let text = marker.encode();
            let parsed = Marker::parse(text.as_bytes());
            // Owners are equal wherever they are served; their texts are not.
            assert_eq!(parsed.as_ref().map(Marker::encode), Ok(text));
            assert_eq!(parsed, Ok(marker));
        }
    }

    #[test]
    fn other_texts_are_refused_and_newer_ones_named_so() {
        let newer = Marker::parse(b"format = 7\nclan = 1\n");
        assert_eq!(newer, Err(MarkerError::Newer { found: 7, known: 1 }));
        for text in [
            &b""[..],
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
