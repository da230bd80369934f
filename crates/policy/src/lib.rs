//! Floor 2: a chain as its owner writes it down (docs/chains.md, "Policies").
//!
//! ```toml
//! volume = "web-1"
//!
//! [[box]]
//! kind = "rate"
//! name = "limits"
//! iops = 2000
//! bytes_per_second = "100M"
//! ```
//!
//! Invariant: what is parsed can be built. Whatever is refused is refused here, before
//! anybody's disk depends on it.
//!
//! Must not know: how a box does its work, nor any key: a policy names keys, and controllers
//! read policies.

mod encrypt;
mod fault;
mod monitor;
mod named;
mod rate;
mod replicate;
mod size;

pub use encrypt::{EncryptConfig, Format};
pub use fault::{DELAY_MS_MAX, FaultConfig};
pub use monitor::{Action, Glob, MonitorConfig, Operation, Rule};
pub use named::volume_of;
pub use rate::RateConfig;
pub use replicate::{Replica, ReplicateConfig};

use std::collections::HashSet;

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A longer text is no policy, in bytes.
pub const TEXT_BYTES_MAX: usize = 64 << 10;

/// So many boxes a chain has at most: each costs something, and a mistake in what writes
/// policies should not cost everything.
pub const BOXES_MAX: usize = 16;

/// A name of a box is as long at most, in bytes.
const NAME_BYTES_MAX: usize = 32;

/// The kinds of boxes, as they are written.
const KINDS: [&str; 5] = ["monitor", "encrypt", "replicate", "rate", "fault"];

/// A chain, for a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Of which volume: its name or id.
    pub volume: String,
    /// Only where this machine has it, by name.
    pub vm: Option<String>,
    /// The uppermost first: the way of a write, from the machine to the volume. At least
    /// one, [`BOXES_MAX`] at most.
    pub boxes: Vec<BoxPolicy>,
}

/// A box of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxPolicy {
    /// Whose name no other box of the chain has.
    pub name: String,
    /// What it is, and how.
    pub kind: BoxKind,
}

/// What a box is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BoxKind {
    /// Says what happens to files.
    Monitor(MonitorConfig),
    /// Encrypts what lies below.
    Encrypt(EncryptConfig),
    /// Writes elsewhere as well.
    Replicate(ReplicateConfig),
    /// Limits requests and bytes.
    Rate(RateConfig),
    /// Spoils requests.
    Fault(FaultConfig),
}

impl BoxKind {
    /// As it is written.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Monitor(_) => "monitor",
            Self::Encrypt(_) => "encrypt",
            Self::Replicate(_) => "replicate",
            Self::Rate(_) => "rate",
            Self::Fault(_) => "fault",
        }
    }
}

/// Why a text is no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// It is longer than [`TEXT_BYTES_MAX`].
    #[error("it has {0} bytes, and may have {TEXT_BYTES_MAX}")]
    Long(usize),
    /// It is no TOML, or has a word that a policy has not.
    #[error("{0}")]
    Text(String),
    /// A chain of no boxes is none.
    #[error("it has no [[box]]; to be without boxes, delete the chain")]
    Empty,
    /// More than [`BOXES_MAX`].
    #[error("it has {0} boxes, and may have {BOXES_MAX}")]
    Many(usize),
    /// A box is wrong.
    #[error("box {number}{}: {reason}", name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default())]
    Box {
        /// Which one, from 1.
        number: usize,
        /// Its name, if it has one.
        name: Option<String>,
        /// What is wrong.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    volume: String,
    vm: Option<String>,
    #[serde(rename = "box", default)]
    boxes: Vec<toml::Table>,
}

impl Policy {
    /// Reads what somebody wrote.
    ///
    /// # Errors
    /// [`PolicyError`]; of several mistakes the first.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(PolicyError::Long(text.len()));
        }
        let read = toml::from_str(text);
        let written: Written = read.map_err(|error| PolicyError::Text(error.to_string()))?;
        match written.boxes.len() {
            0 => return Err(PolicyError::Empty),
            many if many > BOXES_MAX => return Err(PolicyError::Many(many)),
            _ => {}
        }
        let mut names = HashSet::new();
        let mut boxes = Vec::new();
        for (number, table) in (1..).zip(written.boxes) {
            let name = table.get("name").and_then(|name| name.as_str());
            let name = name.map(str::to_owned);
            let read = box_of(table).and_then(|read| match names.insert(read.name.clone()) {
                true => Ok(read),
                false => Err("another box of this chain has its name".to_owned()),
            });
            boxes.push(read.map_err(|reason| PolicyError::Box {
                number,
                name,
                reason,
            })?);
        }
        Ok(Self {
            volume: written.volume,
            vm: written.vm,
            boxes,
        })
    }
}

fn box_of(mut table: toml::Table) -> Result<BoxPolicy, String> {
    let kind = word(&mut table, "kind")?.ok_or_else(|| {
        let kinds = KINDS.join(", ");
        format!("it has no kind, which is one of {kinds}")
    })?;
    let name = word(&mut table, "name")?.unwrap_or_else(|| kind.clone());
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_name) {
        return Err(format!(
            "a name has 1 to {NAME_BYTES_MAX} characters of a-z, 0-9 and -"
        ));
    }
    let kind = match kind.as_str() {
        "monitor" => {
            let config: MonitorConfig = parameters(table)?;
            config.check()?;
            BoxKind::Monitor(config)
        }
        "encrypt" => {
            let config: EncryptConfig = parameters(table)?;
            config.check()?;
            BoxKind::Encrypt(config)
        }
        "replicate" => {
            let config: ReplicateConfig = parameters(table)?;
            config.check()?;
            BoxKind::Replicate(config)
        }
        "rate" => {
            let config: RateConfig = parameters(table)?;
            config.check()?;
            BoxKind::Rate(config)
        }
        "fault" => {
            let config: FaultConfig = parameters(table)?;
            config.check()?;
            BoxKind::Fault(config)
        }
        other => {
            let kinds = KINDS.join(", ");
            return Err(format!("there is no kind {other:?}; there are {kinds}"));
        }
    };
    Ok(BoxPolicy { name, kind })
}

/// A word that every box may have.
fn word(table: &mut toml::Table, key: &str) -> Result<Option<String>, String> {
    match table.remove(key) {
        None => Ok(None),
        Some(toml::Value::String(word)) => Ok(Some(word)),
        Some(other) => Err(format!("{key} is {other}, and has to be a string")),
    }
}

/// What is left is the kind's own.
fn parameters<T: DeserializeOwned>(table: toml::Table) -> Result<T, String> {
    table
        .try_into()
        .map_err(|error: toml::de::Error| error.message().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
        volume = "web-1"
        vm = "web"

        [[box]]
        kind = "rate"
        name = "limits"
        iops = 2000
        bytes_per_second = "100M"

        [[box]]
        kind = "encrypt"
        key = "web-disk"
        format = "if-empty"
        allow_discard = true
        reencrypt = 2

        [[box]]
        kind = "fault"
        read_errors_one_in = 1000
    "#;

    fn refused(text: &str) -> String {
        let error = Policy::parse(text).expect_err("it is refused");
        error.to_string()
    }

    #[test]
    fn a_policy_is_read_as_it_was_written() {
        let policy = Policy::parse(WHOLE).expect("it is one");
        let expected = Policy {
            volume: "web-1".to_owned(),
            vm: Some("web".to_owned()),
            boxes: vec![
                BoxPolicy {
                    name: "limits".to_owned(),
                    kind: BoxKind::Rate(RateConfig {
                        iops: Some(2000),
                        bytes_per_second: Some(100 << 20),
                    }),
                },
                BoxPolicy {
                    name: "encrypt".to_owned(),
                    kind: BoxKind::Encrypt(EncryptConfig {
                        key: "web-disk".to_owned(),
                        format: Format::IfEmpty,
                        allow_discard: true,
                        reencrypt: 2,
                    }),
                },
                BoxPolicy {
                    name: "fault".to_owned(),
                    kind: BoxKind::Fault(FaultConfig {
                        read_errors_one_in: 1000,
                        ..FaultConfig::default()
                    }),
                },
            ],
        };
        assert_eq!(policy, expected);
    }

    #[test]
    fn what_is_wrong_is_said_with_where_it_is() {
        let of_box = |lines: &str| format!("volume = \"a\"\n[[box]]\n{lines}");
        for (text, expected) in [
            ("volume = \"a\"".to_owned(), "delete the chain"),
            (of_box("name = \"x\""), "box 1 (x): it has no kind"),
            (
                of_box("kind = \"turbo\""),
                "there is no kind \"turbo\"; there are monitor, encrypt, replicate",
            ),
            (of_box("kind = 3"), "kind is 3, and has to be a string"),
            (of_box("kind = \"rate\"\niops = 0"), "iops is at least 1"),
            (of_box("kind = \"rate\"\niops = -4"), "invalid value"),
            (
                of_box("kind = \"rate\"\nspeed = 4"),
                "unknown field `speed`",
            ),
            (of_box("kind = \"rate\""), "it limits nothing"),
            (
                of_box("kind = \"rate\"\nbytes_per_second = \"fast\""),
                "\"fast\" is not a size",
            ),
            (of_box("kind = \"encrypt\""), "missing field `key`"),
            (of_box("kind = \"encrypt\"\nkey = \"\""), "key names a key"),
            (
                of_box("kind = \"encrypt\"\nkey = \"../x\""),
                "key names a key",
            ),
            (
                of_box("kind = \"encrypt\"\nkey = \"k\"\nformat = \"always\""),
                "unknown variant `always`",
            ),
            (
                of_box("kind = \"fault\"\nname = \"A b\""),
                "of a-z, 0-9 and -",
            ),
            (
                of_box("kind = \"fault\"\n[[box]]\nkind = \"fault\""),
                "box 2: another box of this chain has its name",
            ),
            (
                "[[box]]\nkind = \"fault\"".to_owned(),
                "missing field `volume`",
            ),
            ("volume = ".to_owned(), "TOML parse error at line 1"),
            (
                "colour = 1\nvolume = \"a\"".to_owned(),
                "unknown field `colour`",
            ),
        ] {
            let said = refused(&text);
            assert!(said.contains(expected), "{text}: {said}");
        }
    }

    #[test]
    fn a_policy_has_its_bounds() {
        let long = format!("volume = \"{}\"", "a".repeat(TEXT_BYTES_MAX));
        assert!(refused(&long).contains("may have 65536"));
        let mut many = "volume = \"a\"".to_owned();
        for number in 0..=BOXES_MAX {
            many += &format!("\n[[box]]\nkind = \"fault\"\nname = \"b{number}\"");
        }
        assert!(refused(&many).contains("it has 17 boxes, and may have 16"));
    }
}
