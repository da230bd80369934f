//! Wrapping keys: they wrap the data keys of volumes, and open them again.
//!
//! A wrapping key is the tenant's. It lies in a key file, a passphrase, an age
//! identity, a PKCS#11 token or a transit service; this module asks it, so that
//! the rest of the agent need not know where it is (docs/reference/key-providers.md).
//!
//! The life of a wrapping key:
//!
//! ```text
//!  1. create   make the key itself, where Scree can: a key file, a key on a token
//!  2. found    make what is the same on every host: KeyParameters, with a verifier
//!  3. store    the controller keeps them under a KeyId; they hold no secret
//!  4. open     on each host: reach the key, check it by the verifier
//!  5. use      wrap, unwrap, rewrap; the verifier is tried again if a key is suspect
//! ```
//!
//! What every provider promises, even if others read and write the database:
//!
//! * What was wrapped for a lineage opens for that lineage only: the lineage is
//!   the associated data of an authenticated cipher.
//! * Without the wrapping key nothing can be made that opens: neither a chosen
//!   data key nor the mark of an unencrypted volume, which lets an agent write
//!   plaintext. So no provider may wrap with a public key: see [`age`] for what
//!   that means there.
//! * *The mark of an unencrypted volume* is wrapped like a key and cannot be
//!   made from one, nor a key from it.
//! * A wrong key is told from a damaged volume: a *verifier*, a random key
//!   wrapped for a lineage that no volume has, opens with the right one.
//!
//! A call may wait for a network or a token. All of this belongs on a pool
//! thread or a blocking one, never on a task and never in a volume's loop.
//!
//! It must not know: volumes, leases, who owns which wrapping key.

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
pub use registry::{OpenKeyError, UnknownKey, Unwrapping, WrappingKey, WrappingKeys, WrongKey};
pub(crate) use rewrapping::Rewrapping;
