//! [`UnitOwner`]: the owner in whose name this host uses units, and what it says of units that
//! another one has.

use api::host::Cluster;
use base::with_causes;
use unit::Owner;
use unit::UnitError;

/// The copy of the database that this host's controllers have, as units know it.
#[derive(Debug, Clone)]
pub(crate) struct UnitOwner {
    pub owner: Owner,
    /// The operator says that any other owner of the units is gone.
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

    /// The text of a unit's error, with its causes and the remedy.
    pub fn describe(&self, error: &UnitError) -> String {
        let text = with_causes(error);
        match self.remedy(error) {
            Some(remedy) => format!("{text}; {remedy}"),
            None => text,
        }
    }

    /// The remedy for a unit's error, if the error does not say it itself.
    pub fn remedy(&self, error: &UnitError) -> Option<&'static str> {
        match error {
            // This database, but from a time before it entered a generation.
            UnitError::Held { holder, .. } if holder.database == self.owner.database => Some(
                "this database is older than that one's: put the newer one back, or, if it is \
                 lost, start `scree up`, or one controller, once with `--restored-database`",
            ),
            UnitError::Held { .. } => Some(
                "stop that one, or, if it is gone for good, start this one's `scree up`, or one of \
                 its controllers, once with `--restored-database`",
            ),
            _ => None,
        }
    }
}
