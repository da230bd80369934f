//! [`ObjectMarker`]: the marker of a unit in a bucket, which also records the store's features.
//!
//! It is created last, so without one there is no unit.

use serde::{Deserialize, Serialize};
use unit::{Marker, MarkerError};

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
pub struct ObjectMarker {
    /// The fields that the markers of all kinds of units have.
    pub common: Marker,
    /// The conditional requests that the store supports.
    pub conditional: Conditional,
}

/// The fields that only the marker of an object unit has.
#[derive(Serialize, Deserialize)]
struct StoreFields {
    conditional: Conditional,
}

impl ObjectMarker {
    pub(crate) fn parse(text: &[u8]) -> Result<Self, MarkerError> {
        let common = Marker::parse(text)?;
        let unreadable = |reason: &dyn std::fmt::Display| MarkerError::Unreadable {
            reason: reason.to_string(),
        };
        let text = std::str::from_utf8(text).map_err(|error| unreadable(&error))?;
        let fields: StoreFields =
            toml::from_str(text).map_err(|error| unreadable(&error.message()))?;
        Ok(Self {
            common,
            conditional: fields.conditional,
        })
    }

    pub(crate) fn encode(&self) -> String {
        let fields = StoreFields {
            conditional: self.conditional,
        };
        let fields = toml::to_string(&fields).expect("booleans can be written as TOML");
        format!("{}\n{fields}", self.common.encode())
    }
}

#[cfg(test)]
mod tests {
    use base::{ClusterId, DatabaseId, UnitId};
    use unit::Owner;

    use super::*;

    fn marker(owner: Option<Owner>) -> ObjectMarker {
        ObjectMarker {
            common: Marker {
                cluster: ClusterId::from_u128(1),
                unit: UnitId::from_u128(2),
                owner,
            },
            conditional: Conditional {
                create: true,
                update: false,
            },
        }
    }

    #[test]
    fn a_marker_round_trips() {
        let owner = Owner {
            database: DatabaseId::from_u128(3),
            generation: u32::MAX,
            place: "/srv/\"a\\ b\"\n on vm1".to_owned(),
        };
        for owner in [None, Some(owner)] {
            let marker = marker(owner);
            let text = marker.encode();
            let parsed = ObjectMarker::parse(text.as_bytes());
            // Owners are equal wherever they are served; their texts are not.
            assert_eq!(parsed.as_ref().map(ObjectMarker::encode), Ok(text));
            assert_eq!(parsed, Ok(marker));
        }
    }

    #[test]
    fn other_texts_are_refused_and_newer_ones_named_so() {
        let newer = ObjectMarker::parse(b"format = 7\nclan = 1\n");
        assert_eq!(newer, Err(MarkerError::Newer { found: 7, known: 1 }));
        let without_features = marker(None).common.encode();
        for text in [&b""[..], b"format = 1", without_features.as_bytes()] {
            let parsed = ObjectMarker::parse(text);
            assert!(
                matches!(parsed, Err(MarkerError::Unreadable { .. })),
                "{parsed:?}"
            );
        }
    }
}
