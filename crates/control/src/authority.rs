//! The authority that signs users, hosts and controllers: a certificate and a key in the
//! controllers' data directories. The key is not in the database.
//!
//! ```text
//!   <data>/authority.pem    the certificate, with which signatures are verified
//!   <data>/authority.key    the private key, readable only by the user who runs the controller
//! ```
//!
//! All controllers of a database have the same two files. The first one creates them, and an
//! operator copies them to the other machines. The database holds the certificate's fingerprint, so
//! that no controller signs with another authority.

use std::io;
use std::path::{Path, PathBuf};

use auth::{Authority, AuthorityError, TlsError, certificate_fingerprint};
use world::{World, host};
use zeroize::Zeroizing;

/// Longer files are refused, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityFileError {
    /// One of the files cannot be read or created.
    #[error("cannot use {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Other users than its owner can read the key.
    #[error(
        "{path} is readable by other users (mode {mode:03o}), who can issue certificates for \
         any party with it; run `chmod 600 {path}`, and consider the key compromised",
        path = path.display()
    )]
    Open {
        /// The key file.
        path: PathBuf,
        /// The file's mode.
        mode: u32,
    },
    /// One of the two files exists, and the other does not.
    #[error(
        "{there} exists and {missing} does not; restore it from a backup, or, for a new \
         authority with which all parties have to join again, remove both",
        there = there.display(),
        missing = missing.display()
    )]
    Half {
        /// The file that exists.
        there: PathBuf,
        /// The file that is missing.
        missing: PathBuf,
    },
    /// The cluster has an authority, and the data directory does not have its files.
    #[error(
        "{folder} has no authority.key and authority.pem, and the cluster has an authority \
         ({fingerprint}); copy both files from the folder of another of its controllers, with \
         mode 600. If they are lost everywhere, start one controller with --new-authority: \
         all parties have to join again then",
        folder = folder.display()
    )]
    Missing {
        /// The data directory.
        folder: PathBuf,
        /// The fingerprint of the authority's certificate.
        fingerprint: String,
    },
    /// The cluster has another authority.
    #[error(
        "{path} is another authority ({found}) than the cluster's ({expected}); put authority.key \
         and authority.pem of another of its controllers in their place, with mode 600. If those \
         are lost everywhere, start one controller with --new-authority: all parties have to join \
         again then",
        path = path.display()
    )]
    Other {
        /// The certificate's file.
        path: PathBuf,
        /// Its fingerprint.
        found: String,
        /// The fingerprint of the cluster's authority.
        expected: String,
    },
    /// The certificate cannot be parsed.
    #[error("{path} cannot be used", path = path.display())]
    Certificate {
        /// The certificate's file.
        path: PathBuf,
        /// The cause.
        source: TlsError,
    },
    /// The files are not those of an authority.
    #[error("{path} cannot be used", path = path.display())]
    Authority {
        /// The certificate's file.
        path: PathBuf,
        /// The cause.
        source: AuthorityError,
    },
}

/// The authority that a data directory should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect<'a> {
    /// Any authority; a new one if there is none.
    Any,
    /// The authority with this fingerprint.
    The(&'a str),
}

/// Opens the authority in `folder`, or creates one if there is none and any is expected. Returns it
/// with its fingerprint.
///
/// # Errors
/// [`AuthorityFileError`].
pub fn open_expected(
    world: &World,
    folder: &Path,
    cluster: &str,
    expect: Expect<'_>,
) -> Result<(Authority, String), AuthorityFileError> {
    let path = folder.join("authority.pem");
    if let Expect::The(fingerprint) = expect
        && read(world, &path)?.is_none()
        && read(world, &folder.join("authority.key"))?.is_none()
    {
        return Err(AuthorityFileError::Missing {
            folder: folder.to_owned(),
            fingerprint: fingerprint.to_owned(),
        });
    }
    let authority = open(world, folder, cluster)?;
    let found = certificate_fingerprint(authority.certificate_pem());
    let found = found.map_err(|source| AuthorityFileError::Certificate {
        path: path.clone(),
        source,
    })?;
    match expect {
        Expect::The(expected) if expected != found => Err(AuthorityFileError::Other {
            path,
            found,
            expected: expected.to_owned(),
        }),
        _ => Ok((authority, found)),
    }
}

/// Opens the authority in `folder`, or creates one if there is none.
///
/// # Errors
/// [`AuthorityFileError`].
pub fn open(world: &World, folder: &Path, cluster: &str) -> Result<Authority, AuthorityFileError> {
    let (certificate, key) = (folder.join("authority.pem"), folder.join("authority.key"));
    let unusable = |source| AuthorityFileError::Authority {
        path: certificate.clone(),
        source,
    };
    let half = |there: &Path, missing: &Path| AuthorityFileError::Half {
        there: there.to_owned(),
        missing: missing.to_owned(),
    };
    match (read(world, &certificate)?, read(world, &key)?) {
        (Some(pem), Some(key_pem)) => {
            if let Some(mode) = host::mode_for_others(&key).map_err(failed(&key))? {
                return Err(AuthorityFileError::Open { path: key, mode });
            }
            Authority::open(&pem, &key_pem).map_err(unusable)
        }
        (Some(_), None) => Err(half(&certificate, &key)),
        (None, Some(_)) => Err(half(&key, &certificate)),
        (None, None) => {
            let now = world.clock.wall();
            let (authority, key_pem) =
                Authority::create(cluster, &*world.random, now).map_err(unusable)?;
            // The key is written first: a crash in between leaves a key without a certificate,
            // which is detected.
            write(world, &key, key_pem.as_bytes())?;
            write(world, &certificate, authority.certificate_pem().as_bytes())?;
            Ok(authority)
        }
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> AuthorityFileError {
    let path = path.to_owned();
    move |source| AuthorityFileError::Io { path, source }
}

/// The text in a file; `None` if there is no such file.
fn read(world: &World, path: &Path) -> Result<Option<Zeroizing<String>>, AuthorityFileError> {
    let bytes = match host::read_small(&*world.disk, path, FILE_BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(failed(path))?,
    };
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(Some(Zeroizing::new(text.to_owned()))),
        Err(_) => Err(failed(path)(io::Error::new(
            io::ErrorKind::InvalidData,
            "it is not text",
        ))),
    }
}

/// Writes a private file completely or not at all.
fn write(world: &World, path: &Path, content: &[u8]) -> Result<(), AuthorityFileError> {
    host::write_whole(&*world.disk, path, content).map_err(failed(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_folder() -> (tempfile::TempDir, World) {
        let folder = tempfile::tempdir().expect("a folder");
        (folder, World::real(1))
    }

    #[test]
    fn an_authority_is_created_once_and_opened_afterwards() {
        let (folder, world) = new_folder();
        let first = open(&world, folder.path(), "cluster-1").expect("created");
        let again = open(&world, folder.path(), "cluster-1").expect("opened");
        assert_eq!(first.certificate_pem(), again.certificate_pem());
        let mode = host::mode(&folder.path().join("authority.key")).expect("there");
        assert_eq!(mode, 0o600);
    }

    #[test]
    fn an_authority_of_another_cluster_is_refused() {
        let (folder, world) = new_folder();
        let open = |expect| open_expected(&world, folder.path(), "cluster-1", expect);
        let missing = open(Expect::The("sha256:00"));
        assert!(matches!(missing, Err(AuthorityFileError::Missing { .. })));
        let nothing = world.disk.list(folder.path()).expect("listed");
        assert!(nothing.is_empty(), "nothing is created in its place");
        let (_, fingerprint) = open(Expect::Any).expect("created");
        open(Expect::The(&fingerprint)).expect("the same");
        let Err(AuthorityFileError::Other {
            found, expected, ..
        }) = open(Expect::The("sha256:00"))
        else {
            panic!("another one was used");
        };
        assert_eq!((found, expected.as_str()), (fingerprint, "sha256:00"));
    }

    #[test]
    fn a_certificate_without_its_key_is_refused() {
        for gone in ["authority.pem", "authority.key"] {
            let (folder, world) = new_folder();
            open(&world, folder.path(), "cluster-1").expect("created");
            let path = folder.path().join(gone);
            world.disk.remove(&path).expect("removed");
            let refused = open(&world, folder.path(), "cluster-1");
            assert!(
                matches!(refused, Err(AuthorityFileError::Half { missing, .. })
                if missing == path)
            );
        }
    }
}
