//! Whose database says what lies on a unit.
//!
//! A database that is copied, and both copies served, would hand out the same
//! segments and free what the other needs. So a unit's marker names the one
//! copy that may change it, and every change that looks at the marker looks at
//! that too. All hosts that work with one database have one owner: this keeps
//! databases apart, not processes.
//!
//! ```text
//!  no owner yet            ─► claimed
//!  an earlier generation   ─► claimed: whoever it was has been replaced
//!  this owner              ─► used
//!  the same generation     ─► held: only read, unless the operator has just
//!                             said that the other is gone
//!  a later generation      ─► held: this is the one that has been replaced
//! ```

use std::fmt;

use base::DatabaseId;
use serde::{Deserialize, Serialize};

/// See the module's head.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "Text", into = "Text")]
pub struct Owner {
    /// Which copy of the database.
    pub database: DatabaseId,
    /// Grows each time the operator says, to this copy or one that it was made
    /// from, that the others are gone: to the second since 1970 in which that
    /// is said, or by one if it is that far already. So of two copies that
    /// were told so, the one that was told last has the later one.
    pub generation: u32,
    /// Where it is served, for people.
    pub place: String,
}

/// What their place is called does not matter.
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
