//! As whom this host uses the units, and what it says of those that are
//! somebody else's.

use api::host::Cluster;
use base::with_causes;
use unit::Owner;
use unit::UnitError;

/// Who this is, for the units.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub owner: Owner,
    /// The operator says that whoever has the units is gone.
    pub takes_over: bool,
}

impl Claim {
    pub fn of(cluster: &Cluster) -> Self {
        Self {
            owner: Owner {
                database: cluster.owner.database,
                generation: cluster.owner.generation,
                place: cluster.owner.place.clone(),
            },
            takes_over: cluster.takes_over,
        }
    }

    /// What a unit's error says, with its causes and what there is to do.
    pub fn spell(&self, error: &UnitError) -> String {
        let text = with_causes(error);
        match self.hint(error) {
            Some(hint) => format!("{text}; {hint}"),
            None => text,
        }
    }

    /// What there is to do about a unit's error, if that is more than it says.
    pub fn hint(&self, error: &UnitError) -> Option<&'static str> {
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
