//! The words that fields of the API are limited to, as the description lists
//! them and the server writes them.
//!
//! What a client reads is text all the same ([`types`](crate::types)), so that one
//! of an earlier version goes on when a later server has a word more. Hosts and
//! controllers read some of them as they are ([`host`](crate::host)).

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

macro_rules! words {
    ($(#[doc = $doc:literal])* $name:ident {
        $($(#[$word_doc:meta])* $variant:ident = $word:literal,)+
    }) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$word_doc])* $variant,)+
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                stringify!($name).into()
            }
        }

        // Derived, it would have the variants' names for words.
        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let lines = [$($doc),*].map(|line: &str| line.strip_prefix(' ').unwrap_or(line));
                ObjectBuilder::new()
                    .schema_type(Type::String)
                    .description(Some(lines.join("\n")))
                    .enum_values(Some(Self::ALL.iter().map(|one| one.as_str())))
                    .into()
            }
        }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// As it is spelt.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().copied().find(|one| one.as_str() == text);
                found.ok_or_else(|| {
                    let words: Vec<&str> = Self::ALL.iter().map(|one| one.as_str()).collect();
                    format!("{text:?} is none of {}", words.join(", "))
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
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

words!(
    /// How a volume is.
    ///
    /// - `available`: nobody has it attached
    /// - `in-use`: it is attached, or on its way there or back
    /// - `deleting`: it was deleted, and is gone as soon as its host has closed it
    /// - `error`: it cannot be opened or closed; `reason` says why, and it is tried again
    VolumeState {
        /// Nobody has it attached.
        Available = "available",
        /// It is attached, or on its way.
        InUse = "in-use",
        /// It was deleted, and is gone soon.
        Deleting = "deleting",
        /// It cannot be opened or closed: the reason says why.
        Error = "error",
    }
);

words!(
    /// How a snapshot is.
    ///
    /// - `pending`: its moment was taken, or will be; what was written until then is on its way
    ///   to the units
    /// - `completed`: a volume can be made from it
    /// - `error`: its moment is lost; `reason` says why
    SnapshotState {
        /// On its way to the units.
        Pending = "pending",
        /// A volume can be made from it.
        Completed = "completed",
        /// Its moment is lost: the reason says why.
        Error = "error",
    }
);

words!(
    /// How a volume is a base image.
    ///
    /// - `marked`: hosts keep its blocks in the part of their caches that is for images
    /// - `pinned`: and they stay there
    ImageMark {
        /// Its blocks are kept as an image's.
        Marked = "marked",
        /// And they stay.
        Pinned = "pinned",
    }
);

words!(
    /// How far a host has read an image into its cache.
    ///
    /// - `waiting`: the host has not begun yet
    /// - `loading`: it reads
    /// - `done`: all of it was read
    /// - `skipped`: the host has no cache in a file
    /// - `error`: it was not read to its end; `reason` says why
    PreloadState {
        /// The host has not begun yet.
        Waiting = "waiting",
        /// It reads.
        Loading = "loading",
        /// All of it was read.
        Done = "done",
        /// The host has no cache to read it into.
        Skipped = "skipped",
        /// It was not read to its end: the reason says why.
        Error = "error",
    }
);

words!(
    /// How far an audit is.
    ///
    /// - `waiting`: its host has not begun yet
    /// - `running`: it is being done
    /// - `done`: it is known what was found
    /// - `error`: it has come to nothing; `reason` says why
    AuditState {
        /// Its host has not begun yet.
        Waiting = "waiting",
        /// It is being done.
        Running = "running",
        /// It is known what was found.
        Done = "done",
        /// It has come to nothing: the reason says why.
        Error = "error",
    }
);

words!(
    /// How a volume's blocks are sealed.
    Encryption {
        /// With AES-256-GCM, under the volume's own key.
        Aes256Gcm = "aes-256-gcm",
        /// Not at all: units can read them.
        None = "none",
    }
);

words!(
    /// How a volume's blocks are sealed; `unknown` for one whose entry is damaged.
    EncryptionShown {
        /// With AES-256-GCM, under the volume's own key.
        Aes256Gcm = "aes-256-gcm",
        /// Not at all: units can read them.
        None = "none",
        /// Its entry is damaged.
        Unknown = "unknown",
    }
);

words!(
    /// How a volume is attached.
    Access {
        /// Reads and writes.
        ReadWrite = "read-write",
        /// Reads only.
        ReadOnly = "read-only",
    }
);

words!(
    /// How far an attachment has come, in EC2's words.
    ///
    /// - `attaching`: on its way
    /// - `attached`: it can be used
    /// - `detaching`: on its way out
    /// - `detached`: it has ended
    /// - `busy`: it should end and cannot yet: the guest does not let go, or the
    ///   volume cannot be closed; `reason` says which
    /// - `error`: it cannot be used; `reason` says why, and it is tried again
    AttachmentState {
        /// On its way.
        Attaching = "attaching",
        /// It can be used.
        Attached = "attached",
        /// On its way out.
        Detaching = "detaching",
        /// It has ended.
        Detached = "detached",
        /// It should end, and does not: the reason says why.
        Busy = "busy",
        /// It cannot be used: the reason says why. It is tried again.
        Error = "error",
    }
);

words!(
    /// A right on something of somebody else's.
    ///
    /// - `read`: attach read-only, clone from a snapshot
    /// - `use`: attach, and `read`
    /// - `snapshot`: take snapshots, and see them
    /// - `administer`: everything but giving it away
    Right {
        /// Attach read-only, clone from a snapshot.
        Read = "read",
        /// Attach, and what [`Right::Read`] has. The only one on hosts.
        Use = "use",
        /// Take snapshots, and see them.
        Snapshot = "snapshot",
        /// Everything but giving it away.
        Administer = "administer",
    }
);

words!(
    /// What holds a wrapping key; `unknown` for one of a kind that this controller does not
    /// know.
    KeyKind {
        /// A file of the host's.
        File = "file",
        /// A passphrase.
        Passphrase = "passphrase",
        /// An age identity.
        Age = "age",
        /// A PKCS #11 token.
        Pkcs11 = "pkcs11",
        /// A transit service.
        Transit = "transit",
        /// This controller does not know.
        Unknown = "unknown",
    }
);

words!(
    /// What is done with a wrapping key.
    ///
    /// - `active`: it may wrap new data keys
    /// - `retiring`: what it wraps is being wrapped by the one that replaces it
    /// - `retired`: it wraps nothing any more, and can be deleted
    KeyState {
        /// It may wrap new data keys.
        Active = "active",
        /// It wraps nothing new, and what it wraps is wrapped by another one.
        Retiring = "retiring",
        /// It wraps nothing any more.
        Retired = "retired",
    }
);

words!(
    /// How a storage unit is.
    ///
    /// - `healthy`: it does what it is asked
    /// - `full`: it has no room for more
    /// - `read-only`: it takes no writes
    /// - `missing`: it is not there, or not the one it should be
    /// - `failing`: it is there, and operations on it fail
    /// - `disabled`: its daemon is: nothing more is put there, and hosts read it until its
    ///   certificate ends
    /// - `expected`: its daemon was made, and has not begun yet
    /// - `unknown`: no host has said, or in a word that this controller does not know
    UnitState {
        /// It does what it is asked.
        Healthy = "healthy",
        /// It has no room for more.
        Full = "full",
        /// It takes no writes.
        ReadOnly = "read-only",
        /// It is not there, or not the one it should be.
        Missing = "missing",
        /// It is there, and operations on it fail.
        Failing = "failing",
        /// Its daemon is.
        Disabled = "disabled",
        /// Its daemon has not begun yet.
        Expected = "expected",
        /// No host has said, or in a word that this controller does not know.
        Unknown = "unknown",
    }
);

words!(
    /// A user, a host or a unit daemon.
    PartyKind {
        /// Somebody who asks for volumes.
        User = "user",
        /// A machine with an agent, where volumes are attached.
        Host = "host",
        /// A daemon that keeps a storage unit for hosts.
        Unit = "unit",
    }
);

words!(
    /// How the whole is doing.
    Health {
        /// Nothing needs anybody's attention.
        Ok = "ok",
        /// `problems` says what does.
        Degraded = "degraded",
    }
);

words!(
    /// The kind of a problem, for programs. docs/api.md says what to do about each.
    ProblemCode {
        /// The request makes no sense; `field` says which part of it.
        InvalidArgument = "invalid-argument",
        /// Nobody is known by the certificate that was shown, or none was.
        Unauthenticated = "unauthenticated",
        /// The one who asks may not.
        Forbidden = "forbidden",
        /// The project has as much as it may have.
        QuotaExceeded = "quota-exceeded",
        /// There is no such thing, or none that the one who asks may see.
        NotFound = "not-found",
        /// The name belongs to something else.
        AlreadyExists = "already-exists",
        /// The thing is in a state in which this cannot be done.
        Conflict = "conflict",
        /// The idempotency key was used for another request.
        IdempotencyConflict = "idempotency-conflict",
        /// The units have no room for what is asked.
        NoCapacity = "no-capacity",
        /// Something that is needed does not answer; asking again later may help.
        Unavailable = "unavailable",
        /// A fault of Scree.
        Internal = "internal",
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    /// In the database, in JSON and for people.
    #[test]
    fn a_word_is_spelt_in_one_way_everywhere() {
        for state in UnitState::ALL {
            let word = state.as_str();
            assert_eq!(state.to_string(), word);
            assert_eq!(word.parse(), Ok(*state));
            let json = format!("{word:?}");
            assert_eq!(serde_json::to_string(state).ok(), Some(json.clone()));
            assert_eq!(serde_json::from_str(&json).ok(), Some(*state));
        }
        assert_eq!(
            "write".parse::<Access>(),
            Err(r#""write" is none of read-write, read-only"#.to_owned())
        );
        assert!(serde_json::from_str::<Access>(r#""write""#).is_err());
    }
}
