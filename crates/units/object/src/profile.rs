//! The credential files of Amazon's own tools, `~/.aws/credentials` and `~/.aws/config`, as far
//! as they hold keys.
//!
//! ```text
//!  credentials   [NAME]           aws_access_key_id, aws_secret_access_key,
//!                                 aws_session_token
//!  config        [profile NAME]   the same, region, endpoint_url
//!                [default]
//! ```
//!
//! The environment takes precedence: profiles are read only if it names neither a key nor
//! another source of one. Other settings (single sign-on, roles, programs that provide keys,
//! services) are ignored.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum length of such a file that is read, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// The profile that is used if none is named.
const DEFAULT: &str = "default";

/// Names of the settings, in files and in the environment.
const SETTINGS: [(&str, &str); 5] = [
    ("aws_access_key_id", "AWS_ACCESS_KEY_ID"),
    ("aws_secret_access_key", "AWS_SECRET_ACCESS_KEY"),
    ("aws_session_token", "AWS_SESSION_TOKEN"),
    ("region", "AWS_REGION"),
    ("endpoint_url", "AWS_ENDPOINT_URL"),
];

/// If one of these is in the environment, credentials come from elsewhere.
const OTHER_SOURCES: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// A file cannot be read.
    #[error("{path}")]
    Unreadable {
        /// The file.
        path: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// No file has the profile.
    #[error(
        "the profile {name:?}, which AWS_PROFILE names, is neither in {credentials} nor in {config}"
    )]
    NoProfile {
        /// The profile's name.
        name: String,
        /// The file of credentials.
        credentials: String,
        /// The file of the configuration.
        config: String,
    },
    /// The profile has no keys.
    #[error(
        "the profile {name:?} has no aws_access_key_id with an aws_secret_access_key: Scree reads \
         no other kind of profile; put keys there, or into the environment"
    )]
    NoKeys {
        /// The profile's name.
        name: String,
    },
}

/// The environment and access to the files that it names.
pub(crate) struct Environment<'a, R> {
    pub(crate) settings: &'a [(String, String)],
    /// Reads a file; `None` if it is not there.
    pub(crate) read: R,
}

impl<R: Fn(&Path) -> io::Result<Option<String>>> Environment<'_, R> {
    fn value(&self, name: &str) -> Option<&str> {
        let mut settings = self.settings.iter();
        let found = settings.find(|(known, _)| known == name);
        found
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    /// The file that a setting names, or the default one in the home folder.
    fn file(&self, setting: &str, name: &str) -> Option<PathBuf> {
        match self.value(setting) {
            Some(path) => Some(path.into()),
            None => Some(Path::new(self.value("HOME")?).join(".aws").join(name)),
        }
    }

    fn sections(&self, path: Option<&Path>) -> Result<Vec<Section>, ProfileError> {
        let Some(path) = path else {
            return Ok(Vec::new());
        };
        match (self.read)(path) {
            Ok(text) => Ok(parse(&text.unwrap_or_default())),
            Err(source) => Err(ProfileError::Unreadable {
                path: path.display().to_string(),
                source,
            }),
        }
    }

    /// The settings of the profile that are not in the environment.
    ///
    /// # Errors
    /// [`ProfileError`], if a profile is named that cannot be used.
    pub(crate) fn profile(&self) -> Result<Vec<(String, String)>, ProfileError> {
        if OTHER_SOURCES.iter().any(|name| self.value(name).is_some()) {
            return Ok(Vec::new());
        }
        let credentials = self.file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
        let config = self.file("AWS_CONFIG_FILE", "config");
        let named = self.value("AWS_PROFILE");
        let name = named.unwrap_or(DEFAULT);
        let mut found: Option<Vec<(String, String)>> = None;
        let mut add = |sections: Vec<Section>, is_it: &dyn Fn(&str) -> bool| {
            for section in sections.into_iter().filter(|section| is_it(&section.name)) {
                found.get_or_insert_default().extend(section.settings);
            }
        };
        add(self.sections(credentials.as_deref())?, &|found| {
            found == name
        });
        add(
            self.sections(config.as_deref())?,
            &|found| match found.strip_prefix("profile ") {
                Some(found) => found.trim() == name,
                None => found == DEFAULT && name == DEFAULT,
            },
        );
        let shown = |path: Option<PathBuf>| path.unwrap_or_default().display().to_string();
        let found = match (found, named) {
            (Some(found), _) => found,
            (None, None) => return Ok(Vec::new()),
            (None, Some(name)) => {
                return Err(ProfileError::NoProfile {
                    name: name.to_owned(),
                    credentials: shown(credentials),
                    config: shown(config),
                });
            }
        };
        // The first value counts: credentials, then the configuration.
        let of = |key: &str| found.iter().find(|(known, _)| known == key);
        let has_keys = ["aws_access_key_id", "aws_secret_access_key"];
        if named.is_some() && !has_keys.iter().all(|key| of(key).is_some()) {
            return Err(ProfileError::NoKeys {
                name: name.to_owned(),
            });
        }
        let is_set = |setting: &str| {
            self.value(setting).is_some()
                || (setting == "AWS_REGION" && self.value("AWS_DEFAULT_REGION").is_some())
        };
        let missing = SETTINGS.iter().filter(|(_, setting)| !is_set(setting));
        Ok(missing
            .filter_map(|(key, setting)| Some(((*setting).to_owned(), of(key)?.1.clone())))
            .collect())
    }
}

/// A section of such a file.
struct Section {
    name: String,
    settings: Vec<(String, String)>,
}

/// Omits the values, which are secrets.
impl fmt::Debug for Section {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "[{}]", self.name)
    }
}

/// Parses `[section]` and `key = value`. Comments (`#`, `;`) and indented lines, which belong to
/// nested settings, are ignored.
fn parse(text: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in text.lines() {
        if line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest.split(']').next().unwrap_or_default().trim();
            sections.push(Section {
                name: name.to_owned(),
                settings: Vec::new(),
            });
        } else if let (Some((key, value)), Some(section)) =
            (line.split_once('='), sections.last_mut())
        {
            // A comment behind a value has a space before it.
            let value = value.split(" #").next().unwrap_or_default().trim();
            let key = key.trim().to_ascii_lowercase();
            section.settings.push((key, value.to_owned()));
        }
    }
    sections
}

/// As [`Environment::read`], on this machine.
#[expect(
    clippy::disallowed_methods,
    reason = "these are files of the user who starts the process; a simulator uses no store"
)]
pub(crate) fn read(path: &Path) -> io::Result<Option<String>> {
    match std::fs::metadata(path) {
        Ok(found) if found.len() > BYTES_MAX => Err(io::ErrorKind::FileTooLarge.into()),
        Ok(_) => std::fs::read_to_string(path).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "# keys\n\
        [default]\n\
        aws_access_key_id = D1\n\
        aws_secret_access_key=S1 # rotated\n\
        \n\
        [ store ]\n\
        aws_access_key_id = D2\r\n\
        aws_secret_access_key = S2+/=\r\n\
        aws_session_token = T2\n\
        [half]\n\
        aws_access_key_id = D3\n";

    const CONFIG: &str = "[default]\n\
        region = eu-west-1\n\
        s3 =\n\
        \x20 endpoint_url = http://not.this\n\
        [profile store]\n\
        endpoint_url = https://store.example\n\
        Region = here\n\
        [store]\n\
        region = not.this\n\
        [profile sso]\n\
        sso_session = work\n";

    fn profile(environment: &[(&str, &str)]) -> Result<Vec<(String, String)>, ProfileError> {
        let settings: Vec<(String, String)> = environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let read = |path: &Path| match path.to_str() {
            Some("/home/a/.aws/credentials" | "/etc/keys") => Ok(Some(CREDENTIALS.to_owned())),
            Some("/home/a/.aws/config") => Ok(Some(CONFIG.to_owned())),
            Some("/root/.aws/credentials") => Err(io::ErrorKind::PermissionDenied.into()),
            _ => Ok(None),
        };
        let settings = &settings;
        Environment { settings, read }.profile()
    }

    fn pairs(found: &[(String, String)]) -> Vec<(&str, &str)> {
        let pairs = found.iter();
        pairs
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect()
    }

    #[test]
    fn keys_come_from_the_profile_that_is_named_or_the_default() {
        let found = profile(&[("HOME", "/home/a")]).expect("read");
        let expected = [
            ("AWS_ACCESS_KEY_ID", "D1"),
            ("AWS_SECRET_ACCESS_KEY", "S1"),
            ("AWS_REGION", "eu-west-1"),
        ];
        assert_eq!(pairs(&found), expected);
        let found = profile(&[("HOME", "/home/a"), ("AWS_PROFILE", "store")]).expect("read");
        let expected = [
            ("AWS_ACCESS_KEY_ID", "D2"),
            ("AWS_SECRET_ACCESS_KEY", "S2+/="),
            ("AWS_SESSION_TOKEN", "T2"),
            ("AWS_REGION", "here"),
            ("AWS_ENDPOINT_URL", "https://store.example"),
        ];
        assert_eq!(pairs(&found), expected);
        let found = profile(&[("AWS_SHARED_CREDENTIALS_FILE", "/etc/keys")]).expect("read");
        assert_eq!(pairs(&found)[0], ("AWS_ACCESS_KEY_ID", "D1"));
    }

    #[test]
    fn the_environment_takes_precedence() {
        let home = ("HOME", "/home/a");
        let own = profile(&[home, ("AWS_ACCESS_KEY_ID", "E")]).expect("read");
        assert_eq!(pairs(&own), []);
        let there = [
            home,
            ("AWS_DEFAULT_REGION", "there"),
            ("AWS_ENDPOINT_URL", "x"),
        ];
        let found = profile(&there).expect("read");
        assert_eq!(found.len(), 2, "{:?}", pairs(&found));
        assert_eq!(pairs(&profile(&[]).expect("no home")), []);
        assert_eq!(
            pairs(&profile(&[("HOME", "/home/b")]).expect("no files")),
            []
        );
    }

    #[test]
    fn an_unusable_profile_is_an_error_that_says_why() {
        let of = |name| profile(&[("HOME", "/home/a"), ("AWS_PROFILE", name)]);
        for (name, words) in [
            ("other", "neither in /home/a/.aws/credentials nor in"),
            ("half", "no aws_access_key_id with an aws_secret_access_key"),
            ("sso", "no other kind of profile"),
        ] {
            let refused = of(name).expect_err(name).to_string();
            assert!(refused.contains(words), "{refused}");
        }
        let refused = profile(&[("HOME", "/root")]).expect_err("unreadable");
        assert!(
            matches!(refused, ProfileError::Unreadable { .. }),
            "{refused}"
        );
    }
}
