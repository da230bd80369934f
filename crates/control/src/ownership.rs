//! Which of several copies of D may change the units.
//!
//! A copy of D has the same database, so it would hand out the same segments
//! as the original and free what that still needs. Two things keep them apart:
//!
//! * the database knows the *place* it was served from: D's path, and when D
//!   was made, which no tool copies. Served from another place, it is a copy,
//!   or was moved, and Scree does not start;
//! * each unit's marker names the *owner*: a database that is served with the
//!   word of the operator that the others are gone (`--restored-database`)
//!   counts one generation more, and the units are its own from then on.
//!
//! A copy of a whole file system, block by block, has the same place as its
//! original; nothing here can tell them apart.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use base::DatabaseId;
use unit::UnitError;
use unit::folder::{Owner, url};
use world::World;

use crate::control::StartError;
use crate::database::{Database, OwnerRow, PlaceRow};
use crate::error::with_causes;

/// Who this is, for the units.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub owner: Owner,
    /// The operator says that whoever has the units is gone.
    pub takes_over: bool,
}

/// The place that `folder` is. `world` knows no birth times.
pub(crate) fn place_of(folder: &Path) -> io::Result<PlaceRow> {
    let born = match std::fs::metadata(folder)?.created() {
        Ok(born) => born.duration_since(SystemTime::UNIX_EPOCH).ok(),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => None,
        Err(error) => return Err(error),
    };
    Ok(PlaceRow {
        folder: url::encode(folder),
        born_ns: born.and_then(|since| i64::try_from(since.as_nanos()).ok()),
    })
}

/// Whether both may be the same: not every file system knows when a folder was
/// made.
fn may_be(one: &PlaceRow, other: &PlaceRow) -> bool {
    let is_born_apart = one.born_ns.is_some_and(|born| {
        let other = other.born_ns;
        other.is_some_and(|other| other != born)
    });
    one.folder == other.folder && !is_born_apart
}

/// Who the database in `folder` is. `is_restored`: the operator has said that
/// its other copies are gone.
pub(crate) async fn claim(
    world: &World,
    database: &Database,
    folder: &Path,
    is_restored: bool,
) -> Result<Claim, StartError> {
    let place = place_of(folder).map_err(|source| StartError::Place {
        folder: folder.to_owned(),
        source,
    })?;
    let known = database.owner().await?;
    let new_id = || DatabaseId::from_random(world.random.u128());
    let now = match &known {
        None => OwnerRow {
            id: new_id(),
            generation: 1,
            place,
        },
        Some(known) => {
            let is_same = may_be(&known.place, &place);
            if !is_same && !is_restored {
                return Err(StartError::Copied {
                    folder: folder.to_owned(),
                    was: url::decode(&known.place.folder).unwrap_or_default(),
                });
            }
            OwnerRow {
                id: if is_same { known.id } else { new_id() },
                generation: known.generation.saturating_add(is_restored.into()),
                place,
            }
        }
    };
    if known.as_ref() != Some(&now) {
        database.set_owner(&now).await?;
    }
    let host = world::real::host_name();
    Ok(Claim {
        owner: Owner {
            database: now.id,
            generation: now.generation,
            place: format!("{} on {host}", folder.display()),
        },
        takes_over: is_restored,
    })
}

/// What a unit's error says, with its causes and what there is to do.
pub(crate) fn spell(error: &UnitError) -> String {
    let text = with_causes(error);
    match error {
        UnitError::Held { .. } => format!(
            "{text}; stop that one, or, if it is gone for good, start this one once with `scree \
             up --restored-database`"
        ),
        _ => text,
    }
}
