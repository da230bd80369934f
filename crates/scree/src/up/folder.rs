//! Checks whether a folder can be a data directory, before anything is created in it.

use std::io;
use std::path::{Path, PathBuf};

use api::Profile;
use auth::{Kind, Subject};
use control::folder::api_socket;
use world::{World, host};

use super::identity_of;
use crate::commands::Failure;
use crate::output::shell_word;

/// The longest path that a Unix socket can have, in bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Files that prove a data directory: of a controller that has served its database, and of an agent
/// that has run. There may be other files beside them, such as a cache that the operator put there.
const PROOFS: [&str; 2] = ["scree.db", "agent.lock"];

/// Files that an interrupted first start may have left in a folder.
const OURS: [&str; 24] = [
    "lock",
    "database",
    "authority.key",
    "authority.pem",
    "identity.toml",
    "agent.lock",
    "keys",
    "units",
    "journal",
    "chains",
    "events",
    "filter-certificates",
    "filter-keys",
    "filter-programs",
    "filter-run",
    "filter-sockets",
    "vm",
    "api.sock",
    "nbd.sock",
    "scree.db-wal",
    "scree.db-shm",
    "unpinned",
    "unpinned.new",
    "lost+found",
];

/// Checks that `folder` is new, empty or a data directory. A folder that cannot be read is reported
/// where it is opened.
pub(super) fn check_folder(folder: &Path) -> Result<(), Failure> {
    let path = folder.display();
    let socket = api_socket(&whole_path(folder)?);
    let bytes = socket.as_os_str().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        return Err(Failure::new(format!(
            "the path {path} is too long: {socket} would have {bytes} bytes, and the path of a Unix \
             socket has at most {SOCKET_PATH_BYTES_MAX}; give a data directory closer to the root",
            socket = socket.display()
        )));
    }
    let names = match host::names(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(Failure::new(format!(
                "{path} is not a folder: give an empty or new folder, or an existing data directory"
            )));
        }
        Err(_) => return Ok(()),
        Ok(names) => names,
    };
    let mut other = None;
    for name in names {
        if PROOFS.iter().any(|proof| name == *proof) {
            return Ok(());
        }
        if OURS.iter().all(|ours| name != *ours) {
            other = Some(name);
        }
    }
    match other {
        Some(name) => Err(Failure::new(format!(
            "{path} is not empty and not a data directory: it contains {name:?}, which is not a file of \
             Scree; give an empty or new folder, or an existing data directory"
        ))),
        None => Ok(()),
    }
}

/// The host or unit daemon whose data directory `folder` is; `None` if it has a database, too.
fn party_of(folder: &Path) -> Option<Subject> {
    let names = host::names(folder).ok()?;
    if names
        .iter()
        .any(|name| name == "scree.db" || name == "database")
    {
        return None;
    }
    let profile = Profile::read(&World::real(1), &identity_of(folder)).ok()?;
    profile.subject.parse().ok()
}

/// Says whose data directory `folder` is, if it is that of an agent or a unit daemon.
pub fn described_party_folder(folder: &Path) -> Option<String> {
    party_of(folder).map(|party| described(folder, &party))
}

fn described(folder: &Path, party: &Subject) -> String {
    let (path, name) = (folder.display(), party.name());
    match party.kind() {
        Kind::Unit => format!("{path} is the data directory of unit daemon {name}"),
        _ => format!("{path} is the data directory of host {name}'s agent"),
    }
}

/// Refuses the data directory of an agent or a unit daemon as that of a controller. It changes
/// nothing.
pub(super) fn check_no_party(folder: &Path) -> Result<(), Failure> {
    let Some(party) = party_of(folder) else {
        return Ok(());
    };
    let word = shell_word(folder);
    let start = match party.kind() {
        Kind::Unit => format!("scree unit --dir {word} --listen ADDR:PORT"),
        _ => format!("scree agent --dir {word}"),
    };
    let what = described(folder, &party);
    Err(Failure::new(format!(
        "{what}: start it with `{start}`, or give a folder of its own"
    )))
}

/// The absolute path of `folder` without symbolic links, even if it does not exist yet.
fn whole_path(folder: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(folder)?;
    let mut missing = Vec::new();
    for there in absolute.ancestors() {
        match host::resolve(there) {
            Ok(path) => {
                return Ok(missing
                    .iter()
                    .rev()
                    .fold(path, |path, part| path.join(part)));
            }
            Err(_) => missing.extend(there.file_name()),
        }
    }
    Ok(absolute)
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "these tests are users of a real machine"
)]
mod tests {
    use std::fs;

    use super::*;

    /// Why a folder with these files is refused, if it is.
    fn refused(names: &[&str]) -> Option<String> {
        let folder = tempfile::tempdir().expect("a folder");
        for name in names {
            fs::write(folder.path().join(name), "").expect("written");
        }
        let checked = check_folder(folder.path());
        checked.err().map(|failure| failure.to_string())
    }

    #[test]
    fn an_empty_or_new_folder_and_a_data_directory_are_accepted() {
        let parent = tempfile::tempdir().expect("a folder");
        assert!(check_folder(&parent.path().join("new")).is_ok());
        for names in [
            &[][..],
            &["lost+found"],
            &["identity.toml", "agent.lock", "keys", "journal"],
            &["identity.toml", "unpinned", "unpinned.new"],
            &["lock", "database", "authority.pem", "authority.key"],
            &["scree.db", "notes.txt"],
            &["identity.toml", "agent.lock", "cache"],
        ] {
            assert_eq!(refused(names), None, "{names:?}");
        }
    }

    /// A missing scree.db was once reported for agents' folders, too, which never have one.
    #[test]
    fn a_folder_with_a_foreign_file_is_refused_with_the_name_of_the_file() {
        for names in [&["notes.txt"][..], &["identity.toml", "notes.txt"]] {
            let why = refused(names).expect("it is refused");
            assert!(why.contains("contains \"notes.txt\""), "{why}");
            assert!(!why.contains("scree.db"), "{why}");
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        let why = check_folder(file.path()).expect_err("it is refused");
        assert!(why.to_string().contains("is not a folder"), "{why}");
    }
}
