//! Which of several copies of D may change the units.
//!
//! A copy of D has the same database, so it would hand out the same segments
//! as the original and free what that still needs. Two things keep them apart:
//!
//! * the database knows the *place* it was served from: when D was made, which
//!   no tool copies, or D's path where the file system does not know that.
//!   Served from another place, it is a copy, and Scree does not start;
//! * each unit's marker names the *owner*: a database that is served with the
//!   word of the operator that the others are gone (`--restored-database`)
//!   enters a later generation, and the units are its own from then on. A
//!   generation is a moment, so that the last of several such words counts,
//!   whichever copies it was said to.
//!
//! A copy of a whole file system, block by block, has the same place as its
//! original; nothing here can tell them apart.

use std::io;
use std::path::Path;
use std::time::UNIX_EPOCH;

use base::{DatabaseId, with_causes};
use unit::UnitError;
use unit::folder::{Owner, url};
use world::{Millis, World};

use crate::control::StartError;
use crate::database::{Database, OwnerRow, PlaceRow};
use crate::host;

/// Who this is, for the units.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub owner: Owner,
    /// The operator says that whoever has the units is gone.
    pub takes_over: bool,
}

/// The place that `folder` is.
pub(crate) fn place_of(folder: &Path) -> io::Result<PlaceRow> {
    let born = host::born(folder)?.and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    Ok(PlaceRow {
        folder: url::encode(folder),
        born_ns: born.and_then(|since| i64::try_from(since.as_nanos()).ok()),
    })
}

/// Whether both may be the same: born at the same time, wherever it has been
/// moved since; where the file system does not know that, at the same path.
fn may_be(one: &PlaceRow, other: &PlaceRow) -> bool {
    match (one.born_ns, other.born_ns) {
        (Some(one), Some(other)) => one == other,
        _ => one.folder == other.folder,
    }
}

/// The generation after `known`: the second that it is, unless the clock is
/// behind. Enough for 32 bits until 2106.
fn generation_after(known: u32, now: Millis) -> u32 {
    let seconds = u32::try_from(now.0 / 1000).unwrap_or(0);
    known.saturating_add(1).max(seconds)
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
                generation: match is_restored {
                    true => generation_after(known.generation, world.clock.wall()),
                    false => known.generation,
                },
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
