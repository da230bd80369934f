//! [`Profiles`]: the identities of the command line's user, a file for each.
//!
//! ```text
//!   ~/.config/scree/profiles/NAME.toml   a certificate, its key, and the URL
//!   ~/.config/scree/current              the name of the current profile
//! ```

use std::path::PathBuf;

use api::{Profile, ProfileError};
use world::{OpenMode, World, host};

use crate::commands::Failure;

/// The name of the profile if none is given.
pub const FIRST: &str = "default";

/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// The profiles of this user.
pub struct Profiles {
    world: World,
    folder: PathBuf,
}

impl Profiles {
    /// The profiles in the folder that the environment names.
    pub fn of_user() -> Result<Self, Failure> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let folder = match (
            variable(crate::environment::CONFIG.name),
            variable("XDG_CONFIG_HOME"),
        ) {
            (Some(folder), _) => PathBuf::from(folder),
            (None, Some(folder)) => PathBuf::from(folder).join("scree"),
            (None, None) => match variable("HOME") {
                Some(home) => PathBuf::from(home).join(".config/scree"),
                None => {
                    return Err(Failure::new(
                        "neither HOME nor SCREE_CONFIG is set: set SCREE_CONFIG to a folder for profiles",
                    ));
                }
            },
        };
        Ok(Self {
            world: World::real(1),
            folder,
        })
    }

    /// Whether the user has logged in.
    pub fn is_any(&self) -> bool {
        self.current().is_some()
    }

    /// The world that has the files.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The profile of this name, or the current one, with its path.
    pub fn open(&self, name: Option<&str>) -> Result<(Profile, PathBuf), Failure> {
        let current = self.current();
        let name = name.or(current.as_deref()).unwrap_or(FIRST);
        let path = self.path(name)?;
        match Profile::read(&self.world, &path) {
            Ok(profile) => Ok((profile, path)),
            Err(ProfileError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                Err(Failure::new(format!(
                    "there is no profile {name:?}: run `scree login`, or use the data directory of a \
                     `scree up` with --dir DIR or SCREE_DIR"
                )))
            }
            Err(error) => Err(Failure::of(&error)),
        }
    }

    /// Writes a profile, and makes it the current one.
    pub fn store(&self, name: Option<&str>, profile: &Profile) -> Result<PathBuf, Failure> {
        let name = name.unwrap_or(FIRST);
        let path = self.path(name)?;
        host::make_folders(&*self.world.disk, host::parent_of(&path))?;
        profile
            .write(&self.world, &path)
            .map_err(|error| Failure::of(&error))?;
        self.set_current(name)?;
        Ok(path)
    }

    fn path(&self, name: &str) -> Result<PathBuf, Failure> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
            return Err(Failure::new(format!(
                "{name:?} is not a profile's name: use letters, digits, '-' and '_'"
            )));
        }
        Ok(self.folder.join("profiles").join(format!("{name}.toml")))
    }

    fn current(&self) -> Option<String> {
        let file = self
            .world
            .disk
            .open(&self.folder.join("current"), OpenMode::Read);
        let file = file.ok()?;
        let length = usize::try_from(file.length().ok()?)
            .ok()?
            .min(NAME_BYTES_MAX);
        let mut bytes = vec![0; length];
        file.read_at(&mut bytes, 0).ok()?;
        Some(String::from_utf8(bytes).ok()?.trim().to_owned()).filter(|name| !name.is_empty())
    }

    fn set_current(&self, name: &str) -> Result<(), Failure> {
        let path = self.folder.join("current");
        Ok(host::write_whole(
            &*self.world.disk,
            &path,
            name.as_bytes(),
        )?)
    }
}
