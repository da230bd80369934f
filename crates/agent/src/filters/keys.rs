//! [`FilterKeys`]: the keys of filters, which policies name.
//!
//! ```text
//!   <data>/filter-keys/TENANT/NAME  readable by this user only; its first line is the passphrase
//!   DIR/keys/NAME                   the same for a relay
//! ```
//!
//! The filters of a volume can use only the keys of the volume's owner.

use std::path::{Path, PathBuf};

use auth::{Kind, Subject};
use chain::{KeyError, KeySource};
use world::World;
use zeroize::Zeroizing;

use crate::keys::private::{self, PrivateFileError};

/// The keys of one tenant, or of a relay.
pub struct FilterKeys {
    world: World,
    /// `None`: there are no keys.
    folder: Option<PathBuf>,
    /// Errors are shown to a tenant: they must not reveal paths of the host.
    is_tenants: bool,
}

impl FilterKeys {
    /// The keys of `tenant` below `folder`.
    pub(crate) fn of_tenant(world: &World, folder: &Path, tenant: &str) -> Self {
        let is_name = Subject::new(Kind::User, tenant).is_ok();
        Self {
            world: world.clone(),
            folder: is_name.then(|| folder.join(tenant)),
            is_tenants: true,
        }
    }

    /// The keys in `folder`.
    #[must_use]
    pub fn in_folder(world: &World, folder: &Path) -> Self {
        Self {
            world: world.clone(),
            folder: Some(folder.to_owned()),
            is_tenants: false,
        }
    }
}

impl KeySource for FilterKeys {
    fn passphrase(&self, name: &str) -> Result<Zeroizing<Vec<u8>>, KeyError> {
        let missing = || KeyError::NotFound(name.to_owned());
        // The name of a key must not lead out of the folder.
        let is_name = !name.is_empty() && !name.starts_with('.') && !name.contains('/');
        let folder = self.folder.as_ref().filter(|_| is_name);
        let path = folder.ok_or_else(missing)?.join(name);
        match private::read_line(&self.world, &path, "passphrase") {
            Ok(line) => Ok(Zeroizing::new(line.as_bytes().to_vec())),
            Err(PrivateFileError::Read { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                Err(missing())
            }
            Err(error) => {
                let why = base::with_causes(&error);
                // A tenant must not learn where the host stores its keys.
                let reason = match self.is_tenants {
                    true => {
                        tracing::warn!(key = name, error = why, "agent cannot use filter key");
                        "the host's operator must repair its file; see the log of the host"
                            .to_owned()
                    }
                    false => why,
                };
                let name = name.to_owned();
                Err(KeyError::Unusable { name, reason })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an operator puts keys there")]
    fn a_tenant_has_only_its_own_keys_and_only_private_ones() {
        let folder = tempfile::tempdir().expect("a folder");
        let world = World::real(1);
        for (tenant, key) in [("alice", "hers"), ("bob", "his")] {
            let own = folder.path().join(tenant);
            fs::create_dir(&own).expect("made");
            let file = own.join("disk");
            fs::write(&file, format!("{key}\nmore\n")).expect("written");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("set");
        }
        let of = |tenant: &str| FilterKeys::of_tenant(&world, folder.path(), tenant);
        assert_eq!(*of("alice").passphrase("disk").expect("hers"), b"hers");
        assert_eq!(*of("bob").passphrase("disk").expect("his"), b"his");
        for (tenant, name) in [
            ("alice", "other"),
            ("alice", "../bob/disk"),
            ("alice", ".."),
            ("carol", "disk"),
            ("../alice", "disk"),
            ("", "disk"),
        ] {
            let found = of(tenant).passphrase(name);
            assert_eq!(found, Err(KeyError::NotFound(name.to_owned())), "{tenant}");
        }
        let relays = FilterKeys::in_folder(&world, &folder.path().join("bob"));
        assert_eq!(*relays.passphrase("disk").expect("his"), b"his");
        let other = relays.passphrase("../alice/disk");
        assert!(matches!(other, Err(KeyError::NotFound(_))), "{other:?}");
        let open = folder.path().join("alice/disk");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).expect("set");
        let refused = of("alice")
            .passphrase("disk")
            .expect_err("others may read it");
        assert!(matches!(refused, KeyError::Unusable { .. }), "{refused}");
        let path = folder.path().display().to_string();
        assert!(!refused.to_string().contains(&path), "{refused}");
        let own = FilterKeys::in_folder(&world, &folder.path().join("alice"));
        let refused = own.passphrase("disk").expect_err("others may read it");
        assert!(refused.to_string().contains(&path), "{refused}");
    }
}
