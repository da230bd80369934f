//! Identifiers: a prefix that says what is named, and hex digits.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The error for text that is not an identifier of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct ParseIdError {
    /// The text.
    pub text: String,
    /// The expected form, for users.
    pub expected: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $digits:literal, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            const MASK: u128 = if $digits == 32 { u128::MAX } else { (1 << ($digits * 4)) - 1 };

            /// The identifier with the low bits of `number`. New identifiers are made of random
            /// numbers.
            #[must_use]
            pub const fn from_u128(number: u128) -> Self {
                Self(number & Self::MASK)
            }

            /// The identifier as a number.
            #[must_use]
            pub const fn as_u128(self) -> u128 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!($prefix, "{:0", $digits, "x}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, formatter)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                text.strip_prefix($prefix)
                    .filter(|digits| digits.len() == $digits)
                    .filter(|digits| {
                        digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
                    })
                    .and_then(|digits| u128::from_str_radix(digits, 16).ok())
                    .map(Self)
                    .ok_or_else(|| ParseIdError { text: text.to_owned(), expected: $expected })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = Cow::<str>::deserialize(from)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    };
}

id!(
    /// A volume: `vol-` and 17 hex digits.
    VolumeId, "vol-", 17, "a volume id (`vol-` and 17 hex digits)"
);
id!(
    /// A snapshot of a volume: `snap-` and 17 hex digits.
    SnapshotId, "snap-", 17, "a snapshot id (`snap-` and 17 hex digits)"
);
id!(
    /// A storage unit: `unit-` and 17 hex digits.
    UnitId, "unit-", 17, "a unit id (`unit-` and 17 hex digits)"
);
id!(
    /// A user, a host or a unit daemon: `party-` and 17 hex digits.
    PartyId, "party-", 17, "a party id (`party-` and 17 hex digits)"
);
id!(
    /// The attachment of a volume to a host: `att-` and 17 hex digits.
    AttachmentId, "att-", 17, "an attachment id (`att-` and 17 hex digits)"
);
id!(
    /// The chain of a volume: `chain-` and 17 hex digits.
    ChainId, "chain-", 17, "a chain id (`chain-` and 17 hex digits)"
);
id!(
    /// An audit of what some units alone hold of a volume: `audit-` and 17 hex digits.
    AuditId, "audit-", 17, "an audit id (`audit-` and 17 hex digits)"
);
id!(
    /// A wrapping key: `key-` and 17 hex digits.
    KeyId, "key-", 17, "a key id (`key-` and 17 hex digits)"
);
id!(
    /// A project, which has a quota: `proj-` and 17 hex digits.
    ProjectId, "proj-", 17, "a project id (`proj-` and 17 hex digits)"
);
id!(
    /// A grant of a right to a user: `grant-` and 17 hex digits.
    GrantId, "grant-", 17, "a grant id (`grant-` and 17 hex digits)"
);
id!(
    /// A folder of journals that several hosts mount: `jrnl-` and 17 hex digits.
    JournalFolderId, "jrnl-", 17, "a journal folder id (`jrnl-` and 17 hex digits)"
);
id!(
    /// A cluster, which is everything that shares one database: `cluster-` and 32 hex digits.
    ClusterId, "cluster-", 32, "a cluster id (`cluster-` and 32 hex digits)"
);
id!(
    /// One copy of a cluster's database, which knows nothing of other copies: `database-` and 32
    /// hex digits.
    DatabaseId, "database-", 32, "a database id (`database-` and 32 hex digits)"
);
id!(
    /// The identity under which a volume's blocks are sealed: `lineage-` and 32 hex digits. It is
    /// part of the associated data of each seal, so that a block of one volume never opens as a
    /// block of another.
    Lineage, "lineage-", 32, "a lineage (`lineage-` and 32 hex digits)"
);

/// The tag of the segments of one lineage on a unit: 64 bits of a hash of the lineage
/// (`auth::lineage_tag_of`). It reveals to the unit only which segments belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LineageTag(pub u64);

impl LineageTag {
    /// No tag: the caller names no lineage, or the unit stores no tags.
    pub const NONE: Self = Self(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_being_printed_and_parsed() {
        let id = VolumeId::from_u128(u128::MAX);
        assert_eq!(id.to_string(), "vol-fffffffffffffffff");
        assert_eq!(id.to_string().parse(), Ok(id));
        let lineage = Lineage::from_u128(7);
        assert_eq!(lineage.to_string().parse(), Ok(lineage));
    }

    #[test]
    fn text_that_is_not_an_id_is_refused() {
        for text in [
            "",
            "vol-",
            "vol-1",
            "snap-00000000000000001",
            "vol-0000000000000000G",
        ] {
            assert!(text.parse::<VolumeId>().is_err(), "{text}");
        }
        assert!("vol-+0000000000000001".parse::<VolumeId>().is_err());
    }
}
