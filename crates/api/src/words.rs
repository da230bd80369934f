//! Enumerations of the API: states, kinds and codes, each spelled once.
//!
//! The OpenAPI description lists the words and the server writes them. Clients read such fields as
//! text ([`types`](crate::types)), so that a client keeps working when a later server adds a word.
//! Hosts and controllers parse some of them ([`host`](crate::host)).

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

        // A derived schema would list the variants' names instead of the words.
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
            /// All words.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The word.
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
    /// The state of a volume.
    ///
    /// - `available`: it is not attached
    /// - `in-use`: it is attached, being attached or being detached
    /// - `deleting`: it was deleted, and disappears when its host has closed it
    /// - `error`: it cannot be opened or closed; `message` says why, and the host keeps trying
    VolumeState {
        /// It is not attached.
        Available = "available",
        /// It is attached, being attached or being detached.
        InUse = "in-use",
        /// It was deleted, and disappears when its host has closed it.
        Deleting = "deleting",
        /// It cannot be opened or closed.
        Error = "error",
    }
);

words!(
    /// The state of a snapshot.
    ///
    /// - `pending`: its content is being destaged to the units
    /// - `completed`: volumes can be cloned from it
    /// - `error`: its consistency point is lost; `message` says why
    SnapshotState {
        /// Its content is being destaged to the units.
        Pending = "pending",
        /// Volumes can be cloned from it.
        Completed = "completed",
        /// Its consistency point is lost.
        Error = "error",
    }
);

words!(
    /// How a volume is used as a base image.
    ///
    /// - `marked`: hosts keep its blocks in the image area of their caches
    /// - `pinned`: as `marked`, and they are not evicted
    ImageMark {
        /// Hosts keep its blocks in the image area of their caches.
        Marked = "marked",
        /// As marked, and they are not evicted.
        Pinned = "pinned",
    }
);

words!(
    /// The state of a preload: a host's reading of an image into its cache.
    ///
    /// - `waiting`: the host has not started yet
    /// - `loading`: the host is reading
    /// - `done`: all of it was read
    /// - `skipped`: the host has no cache file
    /// - `error`: it was not read to its end; `message` says why
    PreloadState {
        /// The host has not started yet.
        Waiting = "waiting",
        /// The host is reading.
        Loading = "loading",
        /// All of it was read.
        Done = "done",
        /// The host has no cache file.
        Skipped = "skipped",
        /// It was not read to its end.
        Error = "error",
    }
);

words!(
    /// The state of an audit.
    ///
    /// - `waiting`: its host has not started yet
    /// - `running`: its host is at work
    /// - `done`: the result is there
    /// - `error`: it failed; `message` says why
    AuditState {
        /// Its host has not started yet.
        Waiting = "waiting",
        /// Its host is at work.
        Running = "running",
        /// The result is there.
        Done = "done",
        /// It failed.
        Error = "error",
    }
);

words!(
    /// How a volume's blocks are encrypted.
    Encryption {
        /// With AES-256-GCM, under the volume's own key.
        Aes256Gcm = "aes-256-gcm",
        /// Not encrypted: units can read them.
        None = "none",
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
    /// The state of an attachment, in EC2's words.
    ///
    /// - `attaching`: the host is opening the volume
    /// - `attached`: the volume can be used
    /// - `detaching`: the host is closing the volume
    /// - `detached`: the attachment has ended
    /// - `busy`: it cannot be detached yet, because the guest holds the disk or the volume cannot
    ///   be closed; `message` says which
    /// - `error`: the volume cannot be used; `message` says why, and the host keeps trying
    AttachmentState {
        /// The host is opening the volume.
        Attaching = "attaching",
        /// The volume can be used.
        Attached = "attached",
        /// The host is closing the volume.
        Detaching = "detaching",
        /// The attachment has ended.
        Detached = "detached",
        /// It cannot be detached yet.
        Busy = "busy",
        /// The volume cannot be used. The host keeps trying.
        Error = "error",
    }
);

words!(
    /// A right on an object that another user owns.
    ///
    /// - `read`: attach read-only, clone a snapshot
    /// - `use`: attach, and `read`
    /// - `snapshot`: take snapshots, and see them
    /// - `administer`: everything except transfer
    Right {
        /// Attach read-only, clone a snapshot.
        Read = "read",
        /// Attach, and what [`Right::Read`] has. The only one on hosts.
        Use = "use",
        /// Take snapshots, and see them.
        Snapshot = "snapshot",
        /// Everything except transfer.
        Administer = "administer",
    }
);

words!(
    /// Where a wrapping key is kept; `unknown` if this controller does not know the kind.
    KeyKind {
        /// A file on the host.
        File = "file",
        /// A passphrase.
        Passphrase = "passphrase",
        /// An age identity.
        Age = "age",
        /// A PKCS #11 token.
        Pkcs11 = "pkcs11",
        /// A transit service.
        Transit = "transit",
        /// This controller does not know the kind.
        Unknown = "unknown",
    }
);

words!(
    /// The state of a wrapping key.
    ///
    /// - `active`: it may wrap new data keys
    /// - `retiring`: hosts are rewrapping its data keys with the key that replaces it
    /// - `retired`: it wraps nothing any more, and can be deleted
    KeyState {
        /// It may wrap new data keys.
        Active = "active",
        /// Hosts are rewrapping its data keys with the key that replaces it.
        Retiring = "retiring",
        /// It wraps nothing any more, and can be deleted.
        Retired = "retired",
    }
);

words!(
    /// The state of a storage unit.
    ///
    /// - `healthy`: it works
    /// - `full`: it has no free space
    /// - `read-only`: it accepts no writes
    /// - `missing`: it is not reachable, or another unit is in its place
    /// - `failing`: it is reachable, and operations on it fail
    /// - `disabled`: its daemon is disabled: hosts write nothing to it, and read from it until its
    ///   certificate expires
    /// - `expected`: its daemon was created, and has never started
    /// - `unknown`: no host has reported on it, or in a word that this controller does not know
    UnitState {
        /// It works.
        Healthy = "healthy",
        /// It has no free space.
        Full = "full",
        /// It accepts no writes.
        ReadOnly = "read-only",
        /// It is not reachable, or another unit is in its place.
        Missing = "missing",
        /// It is reachable, and operations on it fail.
        Failing = "failing",
        /// Its daemon is disabled.
        Disabled = "disabled",
        /// Its daemon has never started.
        Expected = "expected",
        /// No host has reported on it, or in a word that this controller does not know.
        Unknown = "unknown",
    }
);

words!(
    /// The kind of a party.
    PartyKind {
        /// A user of volumes.
        User = "user",
        /// A machine with an agent, on which volumes are attached.
        Host = "host",
        /// A daemon that serves a storage unit to hosts.
        Unit = "unit",
    }
);

words!(
    /// The state of the whole cluster.
    Health {
        /// Nothing needs attention.
        Ok = "ok",
        /// `problems` says what needs attention.
        Degraded = "degraded",
    }
);

words!(
    /// The kind of a message about an object, for programs. docs/reference/api.md describes each.
    MessageCode {
        /// The controllers did not grant a lease, or the lease cannot be used.
        LeaseUnavailable = "lease_unavailable",
        /// No controller answered the host.
        ControllerUnavailable = "controller_unavailable",
        /// The wrapping key or the data key cannot be used on the host.
        KeyUnavailable = "key_unavailable",
        /// The database has lost the volume's key or a lease's salt.
        KeyLost = "key_lost",
        /// The journal of the last lease is missing, damaged or out of reach.
        JournalUnavailable = "journal_unavailable",
        /// The volume's content cannot be read from the units.
        ContentUnavailable = "content_unavailable",
        /// The filters of the volume's chain do not start.
        ChainUnavailable = "chain_unavailable",
        /// The host cannot serve the volume over NBD.
        ExportFailed = "export_failed",
        /// The open volume has stopped.
        VolumeStopped = "volume_stopped",
        /// The host does not write unencrypted volumes.
        EncryptionRequired = "encryption_required",
        /// The agent is stopping, or a part of it ended unexpectedly.
        AgentStopping = "agent_stopping",
        /// The VM does not run, cannot be reached, or does not accept the disk.
        VmUnavailable = "vm_unavailable",
        /// The VM's guest does not release the disk.
        DiskInUse = "disk_in_use",
        /// Filters hold writes that the volume does not have yet.
        FilterWritesPending = "filter_writes_pending",
        /// The volume could not be closed; closing is retried.
        CloseFailed = "close_failed",
        /// The host has not reported for longer than its timeout.
        HostUnresponsive = "host_unresponsive",
        /// A forced detachment waits until the host reports or its lease has ended.
        DetachmentPending = "detachment_pending",
        /// The volume was deleted.
        VolumeDeleted = "volume_deleted",
        /// The volume was detached by force; `text` says what was lost.
        DetachedByForce = "detached_by_force",
        /// The VM drops the disk while the host's NBD server restarts.
        VmDoesNotReconnect = "vm_does_not_reconnect",
        /// The volume's row in the database is damaged.
        DatabaseDamaged = "database_damaged",
        /// The volumes may need more space than the units have.
        SpaceOvercommitted = "space_overcommitted",
        /// There are fewer zones than copies.
        ZonesInsufficient = "zones_insufficient",
        /// Existing copysets have several members in one zone.
        ZonesShared = "zones_shared",
        /// Clients do not see the volume's new size yet.
        GrowthPending = "growth_pending",
        /// The snapshot's consistency point was lost.
        ConsistencyPointLost = "consistency_point_lost",
        /// The preload failed.
        PreloadFailed = "preload_failed",
        /// The host has no cache file.
        CacheFileMissing = "cache_file_missing",
        /// The audit failed.
        AuditFailed = "audit_failed",
        /// The unit has no free space.
        UnitFull = "unit_full",
        /// The unit accepts no writes.
        UnitReadOnly = "unit_read_only",
        /// The unit cannot be reached, or another one is in its place.
        UnitMissing = "unit_missing",
        /// Operations on the unit fail.
        UnitFailing = "unit_failing",
        /// The unit's daemon is disabled.
        UnitDisabled = "unit_disabled",
        /// A second daemon claims to be the unit, and is refused.
        UnitDuplicate = "unit_duplicate",
        /// The unit's daemon has never started.
        UnitNotStarted = "unit_not_started",
        /// The unit is in a state that this controller does not know.
        UnitStateUnknown = "unit_state_unknown",
    }
);

impl UnitState {
    /// The code of a message about a unit in this state; `None` if it is healthy.
    #[must_use]
    pub const fn message_code(self) -> Option<MessageCode> {
        Some(match self {
            Self::Healthy => return None,
            Self::Full => MessageCode::UnitFull,
            Self::ReadOnly => MessageCode::UnitReadOnly,
            Self::Missing => MessageCode::UnitMissing,
            Self::Failing => MessageCode::UnitFailing,
            Self::Disabled => MessageCode::UnitDisabled,
            Self::Expected => MessageCode::UnitNotStarted,
            Self::Unknown => MessageCode::UnitStateUnknown,
        })
    }
}

words!(
    /// The kind of a problem, for programs. docs/reference/api.md says what to do about each.
    ProblemCode {
        /// The request is invalid; `field` names the field.
        InvalidArgument = "invalid_argument",
        /// The certificate belongs to no known party, or none was presented.
        Unauthenticated = "unauthenticated",
        /// The caller does not have the right.
        Forbidden = "forbidden",
        /// A limit of a project, a user or a volume is reached.
        QuotaExceeded = "quota_exceeded",
        /// The object does not exist, or the caller may not see it.
        NotFound = "not_found",
        /// The name is taken.
        AlreadyExists = "already_exists",
        /// The object's state does not allow the request.
        Conflict = "conflict",
        /// The idempotency key was used for another request.
        IdempotencyConflict = "idempotency_conflict",
        /// The units do not have enough free space.
        NoCapacity = "no_capacity",
        /// A needed component does not answer; a later retry may succeed.
        Unavailable = "unavailable",
        /// A bug in Scree.
        Internal = "internal",
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    /// The same word is used in the database, in JSON and in output.
    #[test]
    fn a_word_is_spelled_in_one_way_everywhere() {
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
