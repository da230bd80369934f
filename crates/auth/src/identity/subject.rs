//! [`Subject`]: the kind and name for which a certificate is made.

use std::fmt;
use std::str::FromStr;

/// The maximal length of a name, in bytes.
const NAME_BYTES_MAX: usize = 63;

/// The kind of a party.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A person, or a program that acts for one.
    User,
    /// A host, which runs an agent.
    Host,
    /// A controller.
    Controller,
    /// A unit daemon.
    Unit,
}

impl Kind {
    /// The kind as subjects spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Host => "host",
            Self::Controller => "controller",
            Self::Unit => "unit",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// The kind and name of a party, spelled `scree://user/alice`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    kind: Kind,
    name: String,
}

/// Why a text or a name is not a subject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSubject {
    /// The name has other characters, or is too long.
    #[error(
        "{name:?} is not a name: use 1 to 63 lowercase letters, digits, dots, underscores and \
         hyphens, and begin with a letter or digit"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The text is not the URI of a subject.
    #[error(
        "{text:?} is not scree://user/NAME, scree://host/NAME, scree://controller/NAME or \
         scree://unit/NAME"
    )]
    Uri {
        /// The text.
        text: String,
    },
}

impl Subject {
    /// The party of this kind with this name.
    ///
    /// # Errors
    /// [`BadSubject::Name`].
    pub fn new(kind: Kind, name: &str) -> Result<Self, BadSubject> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_allowed = |byte| is_plain(byte) || matches!(byte, b'.' | b'_' | b'-');
        let is_name = name.len() <= NAME_BYTES_MAX
            && name.bytes().next().is_some_and(is_plain)
            && name.bytes().all(is_allowed);
        if !is_name {
            let name = name.to_owned();
            return Err(BadSubject::Name { name });
        }
        let name = name.to_owned();
        Ok(Self { kind, name })
    }

    /// The party's kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The party's name, unique within its kind.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "scree://{}/{}", self.kind, self.name)
    }
}

impl FromStr for Subject {
    type Err = BadSubject;

    fn from_str(text: &str) -> Result<Self, BadSubject> {
        let parts = text
            .strip_prefix("scree://")
            .and_then(|rest| rest.split_once('/'));
        let (kind, name) = match parts {
            Some(("user", name)) => (Kind::User, name),
            Some(("host", name)) => (Kind::Host, name),
            Some(("controller", name)) => (Kind::Controller, name),
            Some(("unit", name)) => (Kind::Unit, name),
            _ => {
                let text = text.to_owned();
                return Err(BadSubject::Uri { text });
            }
        };
        Self::new(kind, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_survives_being_printed_and_parsed() {
        for text in [
            "scree://user/alice",
            "scree://host/h1.example",
            "scree://controller/0_a-b",
        ] {
            let subject: Subject = text.parse().expect("a subject");
            assert_eq!(subject.to_string(), text);
        }
    }

    #[test]
    fn invalid_names_and_uris_are_refused() {
        let long = "a".repeat(64);
        for name in [
            "", ".a", "-a", "A", "a b", "a/b", "a%2f", "ä", "a\0", "a\n", &long,
        ] {
            assert!(Subject::new(Kind::User, name).is_err(), "{name:?}");
        }
        for text in [
            "scree://user",
            "scree://admin/a",
            "https://user/a",
            "scree://user/a/b",
            "SCREE://user/a",
            "",
        ] {
            assert!(text.parse::<Subject>().is_err(), "{text:?}");
        }
    }
}
