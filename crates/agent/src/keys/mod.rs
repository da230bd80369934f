//! Wrapping keys, which wrap and unwrap the data keys of volumes.
//!
//! A wrapping key belongs to a tenant. It is in a key file, a passphrase, an age identity, a
//! PKCS#11 token or a transit service; this module uses it there, so that the rest of the agent
//! does not depend on its location (docs/reference/key-providers.md).
//!
//! The life of a wrapping key:
//!
//! ```text
//!  1. create   the key itself, where Scree can: a key file, a key on a token
//!  2. derive   the KeyParameters, which are the same on every host, with a verifier
//!  3. store    the parameters at the controller under a KeyId; they hold no secret
//!  4. open     on each host: access the key, and check it with the verifier
//!  5. use      wrap, unwrap, rewrap; check the verifier again if a key is suspect
//! ```
//!
//! What every provider guarantees even if others read and write the database:
//!
//! * A key that was wrapped for a lineage can be unwrapped for that lineage only: the lineage is
//!   the associated data of an authenticated cipher.
//! * Without the wrapping key no one can create a wrapped key: neither a chosen data key nor the
//!   mark of an unencrypted volume, which makes an agent write plaintext. So no provider may wrap
//!   with a public key; [`age`] describes what follows from that.
//! * *The mark of an unencrypted volume* is wrapped like a key. It cannot be made from a wrapped
//!   key, nor the reverse.
//! * A wrong key is distinguished from a damaged volume: only the right key opens the *verifier*, a
//!   random key wrapped for a lineage that no volume has.
//!
//! A call may wait for a network or a token. It belongs on a pool thread or a blocking thread,
//! never on a task or in a volume's loop.
//!
//! Must not know: volumes, leases, who owns which wrapping key.

pub mod age;
pub mod config;
mod files;
mod host_keys;
mod local;
mod parameters;
pub mod pkcs11;
pub(crate) mod private;
mod provider;
mod registry;
mod remote;
mod rewrapping;
pub mod transit;

pub use config::{KeyEntry, KeysFile, KeysFileError, Passphrase};
pub use files::{FileKeyError, PassphraseError};
pub(crate) use host_keys::HostKeys;
pub use host_keys::{HostKeyError, KeyLocations};
pub use parameters::{KeyParameters, KeySource};
pub use private::PrivateFileError;
pub use provider::{KeyProvider, rewrap};
pub use registry::{OpenKeyError, UnknownKey, Unwrapping, VerifiedKey, WrappingKeys, WrongKey};
pub(crate) use rewrapping::Rewrapping;
