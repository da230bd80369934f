//! The owner of a unit: the copy of the database that may change it.
//!
//! If a database is copied and both copies are served, both assign the same segments, and each
//! frees what the other needs. So a unit's marker names the one copy that may change it, and
//! every change that verifies the marker verifies the owner. All hosts of one database have the
//! same owner: this separates databases, not processes.
//!
//! ```text
//!  no owner yet            ─► claimed
//!  an earlier generation   ─► claimed: that owner has been replaced
//!  this owner              ─► used
//!  the same generation     ─► held: read only, unless the operator has just declared
//!                             the other one lost
//!  a later generation      ─► held: this owner has been replaced
//! ```

use std::fmt;

use base::DatabaseId;
use serde::{Deserialize, Serialize};

/// A copy of the database that owns a unit.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "Text", into = "Text")]
pub struct Owner {
    /// The id of the copy.
    pub database: DatabaseId,
    /// Grows each time the operator declares all other copies lost, to this copy or one that it
    /// was copied from: to the current second since 1970, or by one if it is that far already. So
    /// of two copies with such a declaration, the one with the last has the later generation.
    pub generation: u32,
    /// Where the copy is served, for display.
    pub place: String,
}

/// Ignores `place`.
impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        (self.database, self.generation) == (other.database, other.generation)
    }
}

impl Eq for Owner {}

impl fmt::Display for Owner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} ({})", self.place, self.database)
    }
}

/// An owner in a marker.
#[derive(Serialize, Deserialize)]
struct Text {
    database: String,
    generation: u32,
    place: String,
}

impl From<Owner> for Text {
    fn from(owner: Owner) -> Self {
        Self {
            database: owner.database.to_string(),
            generation: owner.generation,
            place: owner.place,
        }
    }
}

impl TryFrom<Text> for Owner {
    type Error = base::ParseIdError;

    fn try_from(text: Text) -> Result<Self, Self::Error> {
        Ok(Self {
            database: text.database.parse()?,
            generation: text.generation,
            place: text.place,
        })
    }
}
