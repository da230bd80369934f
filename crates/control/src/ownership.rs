//! Which of several copies of D may change the units.
//!
//! A copy of D has the same database, so it would hand out the same segments
//! as the original and free what that still needs. Two things keep them apart:
//!
//! * the database knows the *place* it was served from: when D was made, which
//!   no tool copies, or D's path and inode where the file system does not know
//!   that. Served from another place, it is a copy, and Scree does not start;
//! * each unit's marker names the *owner*: a database that is served with the
//!   word of the operator that the others are gone (`--restored-database`)
//!   enters a later generation, and the units are its own from then on. A
//!   generation is a moment, so that the last of several such words counts,
//!   whichever copies it was said to.
//!
//! A copy of a whole file system has the same place as its original, whether it
//! was made block by block or as a snapshot or clone of btrfs or ZFS; nothing
//! here can tell them apart.

use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use base::{DatabaseId, url};
use world::{Millis, World};

use crate::control::StartError;
use crate::database::{Database, OwnerRow, PlaceRow};
use world::host;

/// Who this is, for the units.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    /// Which copy of the database.
    pub database: DatabaseId,
    /// The second of the operator's last word.
    pub generation: u32,
    /// Where, for people.
    pub place: String,
    /// The operator says that whoever has the units is gone.
    pub takes_over: bool,
}

/// The place that `folder` is.
///
/// # Errors
/// As the operating system says.
pub fn place_of(folder: &Path) -> io::Result<PlaceRow> {
    let born = host::born(folder)?.and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    // Zero is what a file system says that does not know it.
    let born = born.filter(|since| !since.is_zero());
    Ok(PlaceRow {
        folder: url::encode(folder),
        inode: Some(host::inode(folder)?.cast_signed()),
        born_ns: born.and_then(|since| i64::try_from(since.as_nanos()).ok()),
    })
}

/// Whether both may be the same: born at the same time, wherever it has been
/// moved since; where the file system does not know that, the same inode at the
/// same path.
fn may_be(one: &PlaceRow, other: &PlaceRow) -> bool {
    match (one.born_ns, other.born_ns) {
        (Some(one), Some(other)) => one == other,
        _ => one.folder == other.folder && is_equal_if_known(one.inode, other.inode),
    }
}

fn is_equal_if_known(one: Option<i64>, other: Option<i64>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one == other)
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
                return Err(other_place(folder, &known.place, &place));
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
    let host = host::name();
    Ok(Claim {
        database: now.id,
        generation: now.generation,
        place: format!("{} on {host}", folder.display()),
        takes_over: is_restored,
    })
}

fn other_place(folder: &Path, was: &PlaceRow, is: &PlaceRow) -> StartError {
    let folder = folder.to_owned();
    if was.folder == is.folder {
        return StartError::Renewed { folder };
    }
    let was = url::decode(&was.folder).unwrap_or_else(|| PathBuf::from(&was.folder));
    StartError::Copied { folder, was }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(folder: &str, inode: Option<i64>, born_ns: Option<i64>) -> PlaceRow {
        PlaceRow {
            folder: folder.to_owned(),
            inode,
            born_ns,
        }
    }

    #[test]
    fn a_folder_is_known_by_its_birth_wherever_it_was_moved() {
        let known = place("/srv/a", Some(7), Some(1));
        assert!(may_be(&known, &place("/srv/b", Some(7), Some(1))));
        assert!(may_be(&known, &place("/srv/b", None, Some(1))));
        assert!(!may_be(&known, &place("/srv/a", Some(7), Some(2))));
    }

    /// A copy at the path of its original passed for it.
    #[test]
    fn a_folder_without_a_birth_is_known_by_its_path_and_inode() {
        for (one, other) in [(None, None), (Some(1), None), (None, Some(1))] {
            let known = place("/srv/a", Some(7), one);
            assert!(may_be(&known, &place("/srv/a", Some(7), other)));
            assert!(!may_be(&known, &place("/srv/a", Some(8), other)));
            assert!(!may_be(&known, &place("/srv/b", Some(7), other)));
            // It was noted before inodes were.
            assert!(may_be(
                &place("/srv/a", None, one),
                &place("/srv/a", Some(8), other)
            ));
            assert!(!may_be(
                &place("/srv/a", None, one),
                &place("/srv/b", Some(8), other)
            ));
        }
    }

    #[test]
    fn a_folder_that_is_not_the_one_it_was_is_called_what_it_is() {
        let folder = Path::new("/srv/a");
        let is = place("/srv/a", Some(8), Some(2));
        let said = |was: &str| other_place(folder, &place(was, Some(7), Some(1)), &is).to_string();
        assert!(
            said("/srv/a").contains("/srv/a was made anew"),
            "{}",
            said("/srv/a")
        );
        assert!(said("/srv/b%20c").contains("/srv/a is a copy of /srv/b c;"));
        // Nothing that Scree writes, but better than no path.
        assert!(said("/srv/%").contains("/srv/a is a copy of /srv/%;"));
    }

    #[test]
    fn a_generation_is_the_second_that_it_is_unless_the_clock_is_behind() {
        let at = |known, seconds: i64| generation_after(known, Millis(seconds * 1000 + 999));
        assert_eq!(at(1, 1_800_000_000), 1_800_000_000);
        assert_eq!(at(1_800_000_000, 1_800_000_000), 1_800_000_001);
        assert_eq!(at(7, 0), 8);
        assert_eq!(at(7, -1_000), 8);
        assert_eq!(at(u32::MAX, 0), u32::MAX);
    }
}
