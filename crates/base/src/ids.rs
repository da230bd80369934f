//! Identifiers, as people and files spell them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Text that is not an identifier of the kind that was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct ParseIdError {
    /// What was given.
    pub text: String,
    /// What it should look like.
    pub expected: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $digits:literal, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            const MASK: u128 = if $digits == 32 { u128::MAX } else { (1 << ($digits * 4)) - 1 };

            /// The identifier made of the low bits of `random`.
            #[must_use]
            pub const fn from_u128(random: u128) -> Self {
                Self(random & Self::MASK)
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
    /// A virtual disk: `vol-` and 17 hex digits.
    VolumeId, "vol-", 17, "a volume id (`vol-` and 17 hex digits)"
);
id!(
    /// A named, read-only moment of a volume: `snap-` and 17 hex digits.
    SnapshotId, "snap-", 17, "a snapshot id (`snap-` and 17 hex digits)"
);
id!(
    /// A storage unit: `unit-` and 17 hex digits.
    UnitId, "unit-", 17, "a unit id (`unit-` and 17 hex digits)"
);
id!(
    /// A user or a host: `party-` and 17 hex digits.
    PartyId, "party-", 17, "a party id (`party-` and 17 hex digits)"
);
id!(
    /// A volume on a host: `att-` and 17 hex digits.
    AttachmentId, "att-", 17, "an attachment id (`att-` and 17 hex digits)"
);
id!(
    /// The filters between a volume and who uses it: `chain-` and 17 hex digits.
    ChainId, "chain-", 17, "a chain id (`chain-` and 17 hex digits)"
);
id!(
    /// What some units alone have of a volume: `audit-` and 17 hex digits.
    AuditId, "audit-", 17, "an audit's id (`audit-` and 17 hex digits)"
);
id!(
    /// A wrapping key: `key-` and 17 hex digits.
    KeyId, "key-", 17, "a key id (`key-` and 17 hex digits)"
);
id!(
    /// What quotas are for: `proj-` and 17 hex digits.
    ProjectId, "proj-", 17, "a project id (`proj-` and 17 hex digits)"
);
id!(
    /// A right that somebody was given: `grant-` and 17 hex digits.
    GrantId, "grant-", 17, "a grant id (`grant-` and 17 hex digits)"
);
id!(
    /// A folder of journals that several hosts mount: `jrnl-` and 17 hex digits.
    JournalFolderId, "jrnl-", 17, "a journal folder's id (`jrnl-` and 17 hex digits)"
);
id!(
    /// All that shares one database: `cluster-` and 32 hex digits.
    ClusterId, "cluster-", 32, "a cluster id (`cluster-` and 32 hex digits)"
);
id!(
    /// One copy of a database, of which each knows no other:
    /// `database-` and 32 hex digits.
    DatabaseId, "database-", 32, "a database id (`database-` and 32 hex digits)"
);
id!(
    /// Who wrote a block: part of the associated data of its seal, so that a
    /// block of one volume never opens as a block of another.
    Lineage, "lineage-", 32, "a lineage (`lineage-` and 32 hex digits)"
);

/// What the segments of one lineage have in common on a unit: 64 bits of a hash of the
/// lineage (`auth::lineage_tag_of`). A unit learns from it which segments belong
/// together, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LineageTag(pub u64);

impl LineageTag {
    /// No lineage: the caller names none, or the unit stores none.
    pub const NONE: Self = Self(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_spelt_and_read_back() {
        let id = VolumeId::from_u128(u128::MAX);
        assert_eq!(id.to_string(), "vol-fffffffffffffffff");
        assert_eq!(id.to_string().parse(), Ok(id));
        let lineage = Lineage::from_u128(7);
        assert_eq!(lineage.to_string().parse(), Ok(lineage));
    }

    #[test]
    fn text_that_is_no_id_is_refused() {
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
