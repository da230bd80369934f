//! Which of several copies of the database may change the units.
//!
//! A copy would hand out the same segments as the original, and free what the original still needs.
//! Two things keep them apart:
//!
//! * the database records the *location* it was served from. For SQLite that is the data directory:
//!   its birth time, which no tool copies, or its path and inode where the file system has no birth
//!   times. For PostgreSQL it is the server's system identifier and the database's number, so all
//!   controllers on it share the location, and a restored dump does not. Served from another
//!   location, it is a copy, and Scree does not start;
//! * each unit's marker names the *owner*: with `--restored-database` the operator confirms that
//!   all other copies are gone. The database then enters a later generation, and takes over the
//!   units. A generation is a time, so that the last such start wins, whichever copies it was given
//!   to.
//!
//! A copy of a whole file system has the same location as its original, whether it was copied block
//! by block or as a snapshot or clone of btrfs or ZFS; and so has a PostgreSQL server that was
//! copied as a whole (`pg_basebackup`, a standby). Nothing here can tell them apart
//! (docs/internals/catalog.md).

use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use base::{DatabaseId, url};
use world::{Millis, World};

use crate::database::{Database, FolderPlace, OwnerRow, PlaceRow};
use crate::start_error::StartError;
use world::host;

/// Proof that this database may change the units. Its id and generation are read from the database
/// each time, since another controller may have been started with `--restored-database`.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    /// Where it is, for people.
    pub place: String,
    /// Whether the operator has confirmed that the previous owner of the units is gone.
    pub takes_over: bool,
}

/// The location of `folder`.
///
/// # Errors
/// The operating system's error.
pub fn place_of(folder: &Path) -> io::Result<PlaceRow> {
    let born = host::born(folder)?.and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    // A file system without birth times reports zero.
    let born = born.filter(|since| !since.is_zero());
    Ok(PlaceRow::Folder(FolderPlace {
        folder: url::encode(folder),
        inode: Some(host::inode(folder)?.cast_signed()),
        born_ns: born.and_then(|since| i64::try_from(since.as_nanos()).ok()),
    }))
}

/// Whether both may be the same.
fn may_be(one: &PlaceRow, other: &PlaceRow) -> bool {
    match (one, other) {
        (PlaceRow::Folder(one), PlaceRow::Folder(other)) => may_be_folder(one, other),
        (PlaceRow::Server(one), PlaceRow::Server(other)) => one == other,
        _ => false,
    }
}

/// Whether both may be the same: born at the same time, wherever it has been
/// moved since; where the file system does not know that, the same inode at the
/// same path.
fn may_be_folder(one: &FolderPlace, other: &FolderPlace) -> bool {
    match (one.born_ns, other.born_ns) {
        (Some(one), Some(other)) => one == other,
        _ => one.folder == other.folder && is_equal_if_known(one.inode, other.inode),
    }
}

fn is_equal_if_known(one: Option<i64>, other: Option<i64>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one == other)
}

/// The generation after `known`: the current time in seconds, unless the clock is behind. 32 bits
/// suffice until 2106.
fn generation_after(known: u32, now: Millis) -> u32 {
    let seconds = u32::try_from(now.0 / 1000).unwrap_or(0);
    known.saturating_add(1).max(seconds)
}

/// Claims the database of the controller in `folder`. `is_restored`: the operator has confirmed
/// that its other copies are gone.
pub(crate) async fn claim(
    world: &World,
    database: &Database,
    folder: &Path,
    is_restored: bool,
) -> Result<Claim, StartError> {
    let place = match database.cluster().server_location().await? {
        Some(place) => PlaceRow::Server(place),
        None => place_of(folder).map_err(|source| StartError::Place {
            folder: folder.to_owned(),
            source,
        })?,
    };
    let new_id = DatabaseId::from_u128(world.random.u128());
    // Another controller may claim it at the same time; the second one finds it claimed.
    loop {
        let known = database.cluster().owner().await?;
        let now = match &known {
            None => OwnerRow {
                id: new_id,
                generation: 1,
                place: place.clone(),
            },
            Some(known) => {
                let is_same = may_be(&known.place, &place);
                if !is_same && !is_restored {
                    return Err(other_place(folder, &known.place, &place));
                }
                OwnerRow {
                    id: if is_same { known.id } else { new_id },
                    generation: match is_restored {
                        true => generation_after(known.generation, world.clock.wall()),
                        false => known.generation,
                    },
                    place: place.clone(),
                }
            }
        };
        if known.as_ref() == Some(&now)
            || database.cluster().set_owner(known.as_ref(), &now).await?
        {
            return Ok(Claim {
                place: spelled(folder, &now.place),
                takes_over: is_restored,
            });
        }
    }
}

/// The text of a location in a unit's marker.
fn spelled(folder: &Path, place: &PlaceRow) -> String {
    match place {
        PlaceRow::Folder(_) => format!("{} on {}", folder.display(), host::machine_name()),
        PlaceRow::Server(place) => place.to_string(),
    }
}

fn other_place(folder: &Path, was: &PlaceRow, is: &PlaceRow) -> StartError {
    let folder = folder.to_owned();
    match (was, is) {
        (PlaceRow::Folder(was), PlaceRow::Folder(is)) => {
            if was.folder == is.folder {
                return StartError::Renewed { folder };
            }
            let was = url::decode(&was.folder).unwrap_or_else(|| PathBuf::from(&was.folder));
            StartError::Copied { folder, was }
        }
        (was, is) => StartError::Moved {
            was: spelled(Path::new("a folder"), was),
            is: spelled(&folder, is),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::ServerPlace;

    fn place(folder: &str, inode: Option<i64>, born_ns: Option<i64>) -> PlaceRow {
        PlaceRow::Folder(FolderPlace {
            folder: folder.to_owned(),
            inode,
            born_ns,
        })
    }

    #[test]
    fn a_server_is_known_by_its_identifier_and_the_databases_number() {
        let server = |system, database| PlaceRow::Server(ServerPlace { system, database });
        assert!(may_be(&server(-7, 16384), &server(-7, 16384)));
        assert!(!may_be(&server(-7, 16384), &server(-7, 16385)));
        assert!(!may_be(&server(-7, 16384), &server(-8, 16384)));
        let folder = place("/srv/a", Some(7), Some(1));
        assert!(!may_be(&folder, &server(-7, 16384)));
        assert!(!may_be(&server(-7, 16384), &folder));
        let said = other_place(Path::new("/srv/c"), &server(-7, 16384), &server(-8, 16384));
        let said = said.to_string();
        for word in [
            "postgresql:-7/16384",
            "postgresql:-8/16384",
            "--restored-database",
        ] {
            assert!(said.contains(word), "{said}");
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
    fn a_copied_or_recreated_folder_is_named_as_such() {
        let folder = Path::new("/srv/a");
        let is = place("/srv/a", Some(8), Some(2));
        let said = |was: &str| other_place(folder, &place(was, Some(7), Some(1)), &is).to_string();
        assert!(
            said("/srv/a").contains("/srv/a was created again"),
            "{}",
            said("/srv/a")
        );
        assert!(said("/srv/b%20c").contains("/srv/a is a copy of /srv/b c;"));
        // Nothing that Scree writes, but better than no path.
        assert!(said("/srv/%").contains("/srv/a is a copy of /srv/%;"));
    }

    #[test]
    fn a_generation_is_the_current_second_unless_the_clock_is_behind() {
        let at = |known, seconds: i64| generation_after(known, Millis(seconds * 1000 + 999));
        assert_eq!(at(1, 1_800_000_000), 1_800_000_000);
        assert_eq!(at(1_800_000_000, 1_800_000_000), 1_800_000_001);
        assert_eq!(at(7, 0), 8);
        assert_eq!(at(7, -1_000), 8);
        assert_eq!(at(u32::MAX, 0), u32::MAX);
    }
}
