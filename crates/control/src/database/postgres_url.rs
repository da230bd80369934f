//! The URL of a PostgreSQL database. It may contain a password and is therefore never printed.
//!
//! ```text
//!   postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full&sslrootcert=FILE
//! ```
//!
//! Invariant: neither the printed form of a [`PostgresUrl`] nor an error about one has more of it
//! than server, database and user. So a text in which part of the password may be taken for another
//! part is refused.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;
use world::{World, host};
use zeroize::Zeroizing;

/// The largest file with a URL, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The parameters that a URL may have. Others would be ignored silently, and their values logged.
const PARAMETERS: [&str; 14] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "ssl-mode",
    "ssl-root-cert",
    "user",
];

/// The URL of a PostgreSQL database.
#[derive(Clone)]
pub struct PostgresUrl {
    text: Zeroizing<String>,
    shown: String,
    has_password: bool,
}

/// Why a URL cannot be used. It quotes nothing of it.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The text is not a PostgreSQL URL.
    #[error(
        "the database's URL is invalid: {why}; write it as postgres://USER:PASSWORD@HOST:PORT/DATABASE"
    )]
    Bad {
        /// What is wrong with it.
        why: String,
    },
    /// The file with it cannot be read.
    #[error("cannot read the database's URL from {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Other users than its owner can read the file.
    #[error(
        "{path} can be read by others (mode {mode:03o}), and may hold a password; run `chmod 600 \
         {path}`, and consider the password known",
        path = path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// The file's mode.
        mode: u32,
    },
}

impl PostgresUrl {
    /// Reads the URL from the first line of a private file.
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn read(world: &World, path: &Path) -> Result<Self, AddressError> {
        let failed = |source| AddressError::Io {
            path: path.to_owned(),
            source,
        };
        if let Some(mode) = host::mode_for_others(path).map_err(failed)? {
            let path = path.to_owned();
            return Err(AddressError::Open { path, mode });
        }
        let bytes = host::read_small(&*world.disk, path, FILE_BYTES_MAX).map_err(failed)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| bad("the file is not text"))?;
        text.lines().next().unwrap_or_default().trim().parse()
    }

    /// The text with the password, for connecting.
    pub(super) fn reveal(&self) -> &str {
        &self.text
    }

    /// Whether it has a password.
    #[must_use]
    pub fn has_password(&self) -> bool {
        self.has_password
    }
}

impl FromStr for PostgresUrl {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let rest = text
            .strip_prefix("postgres://")
            .or_else(|| text.strip_prefix("postgresql://"));
        let rest = rest.ok_or_else(|| bad("it does not begin with postgres://"))?;
        if rest.contains('#') {
            return Err(bad("a '#' in it must be written as %23"));
        }
        let (place, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let names = parameters.split('&').filter(|one| !one.is_empty());
        let mut names = names.map(|name| name.split_once('=').unwrap_or((name, "")).0);
        if names.any(|name| !PARAMETERS.contains(&name)) {
            let known = PARAMETERS.join(", ");
            return Err(bad(&format!(
                "it has an unknown parameter (known are {known}), or a '?' or '&' is not \
                 written as %3F or %26"
            )));
        }
        let (server, database) = place.split_once('/').unwrap_or((place, ""));
        if server.matches('@').count() > 1 || database.contains(['@', '/', ':']) {
            let why = "a '@', '/' or ':' in its password or database must be written as %40, %2F \
                       or %3A";
            return Err(bad(why));
        }
        // The error quotes at most the value of a parameter, none of which is secret here.
        let options = PgConnectOptions::from_str(text).map_err(|error| bad(&error.to_string()))?;
        let Some(database) = options.get_database() else {
            return Err(bad("it names no database"));
        };
        let place = match options.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => format!("{}:{}", options.get_host(), options.get_port()),
        };
        let has_password = server
            .split_once('@')
            .is_some_and(|(user, _)| user.contains(':'))
            || parameters
                .split('&')
                .any(|one| one.starts_with("password="));
        Ok(Self {
            shown: format!(
                "the PostgreSQL database {database} at {place}, as {}",
                options.get_username()
            ),
            text: Zeroizing::new(text.to_owned()),
            has_password,
        })
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.shown)
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PostgresUrl({})", self.shown)
    }
}

fn bad(why: &str) -> AddressError {
    AddressError::Bad {
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_its_password() {
        for text in [
            "postgres://scree:hunter2@db.example:5433/disks?sslmode=verify-full",
            "postgresql://scree@db.example:5433/disks?password=hunter2",
            "postgres://scree:hunter2%2F%40%23@db.example:5433/disks",
        ] {
            let url: PostgresUrl = text.parse().expect("a URL");
            assert!(url.has_password(), "{text}");
            assert_eq!(
                url.to_string(),
                "the PostgreSQL database disks at db.example:5433, as scree"
            );
            assert!(!format!("{url:?}").contains("hunter2"));
            assert_eq!(url.reveal(), text);
        }
        let local: PostgresUrl = "postgres://scree@%2Frun%2Fpg/disks".parse().expect("a URL");
        assert!(!local.has_password());
        assert!(local.to_string().contains("disks at /run/pg, as scree"));
    }

    #[test]
    fn a_bad_url_is_refused_without_being_quoted() {
        for text in [
            "",
            "scree.db",
            "mysql://scree:hunter2@db/disks",
            "postgres://scree:hunter2@db",
            "postgres://scree:12/hunter2@db/disks",
            "postgres://scree:12#hunter2@db/disks",
            "postgres://scree:12?hunter2@db/disks",
            "postgres://scree:12@hunter2@db/disks",
            "postgres://scree@db/disks?pasword=hunter2",
            "postgres://scree@db/disks?sslmode=no",
            "postgres://scree:hunter2@db:port/disks",
        ] {
            let refused = text.parse::<PostgresUrl>().expect_err(text).to_string();
            assert!(!refused.contains("hunter2"), "{text}: {refused}");
            assert!(refused.contains("write it as postgres://"), "{refused}");
        }
    }

    #[test]
    fn a_file_with_a_url_is_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("url");
        let world = World::real(1);
        let text = b"postgres://scree:hunter2@db/disks\n";
        host::write_whole(&*world.disk, &path, text).expect("written");
        let url = PostgresUrl::read(&world, &path).expect("a URL");
        assert_eq!(url.reveal(), "postgres://scree:hunter2@db/disks");
        #[expect(clippy::disallowed_methods, reason = "a mode that Scree never gives")]
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("set");
        let refused = PostgresUrl::read(&world, &path);
        assert!(matches!(
            refused,
            Err(AddressError::Open { mode: 0o640, .. })
        ));
    }
}
