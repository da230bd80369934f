//! [`UnitOwner`]: the owner in whose name this host uses units, and the remedy when another owner
//! holds a unit.

use api::host::Cluster;
use base::with_causes;
use unit::Owner;
use unit::UnitError;

/// Identity of the database of this host's controllers, as units store it.
#[derive(Debug, Clone)]
pub(crate) struct UnitOwner {
    pub owner: Owner,
    /// The operator has declared that every other owner of the units is gone for good.
    pub takes_over: bool,
}

impl UnitOwner {
    pub fn new(cluster: &Cluster) -> Self {
        Self {
            owner: Owner {
                database: cluster.owner.database,
                generation: cluster.owner.generation,
                place: cluster.owner.location.clone(),
            },
            takes_over: cluster.takes_over,
        }
    }

    /// The text of a unit's error, with its causes and a remedy.
    pub fn describe(&self, error: &UnitError) -> String {
        let text = with_causes(error);
        match self.remedy(error) {
            Some(remedy) => format!("{text}; {remedy}"),
            None => text,
        }
    }

    /// The remedy for a unit's error, unless the text of the error has one.
    pub fn remedy(&self, error: &UnitError) -> Option<&'static str> {
        match error {
            // The same database, before it entered the unit's generation.
            UnitError::Held { holder, .. } if holder.database == self.owner.database => Some(
                "this database is older than that one's: restore the newer one, or, if it is lost, \
                 start `scree up`, or one controller, once with `--restored-database`",
            ),
            UnitError::Held { .. } => Some(
                "stop that one, or, if it is gone for good, start this one's `scree up`, or one of \
                 its controllers, once with `--restored-database`",
            ),
            _ => None,
        }
    }
}
