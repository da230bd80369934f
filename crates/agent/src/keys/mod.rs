//! Wrapping keys: who wraps the data keys of volumes, and opens them again.
//!
//! A wrapping key is the tenant's. It lies in a key file, a passphrase, an age
//! identity, a PKCS#11 token or a transit service; this module asks it, so that
//! the rest of the agent need not know where it is (docs/keys.md).
//!
//! The life of a wrapping key:
//!
//! ```text
//!  1. create   make the key itself, where Scree can: a key file, a key on a token
//!  2. found    draw what must be the same on every host: KeyParameters, with a verifier
//!  3. store    the controller keeps them under a KeyId; they hold no secret
//!  4. open     on each host: reach the key, check it by the verifier
//!  5. use      wrap, unwrap, rewrap; the verifier is asked again when in suspicion
//! ```
//!
//! What every provider promises, whoever else reads and writes the database:
//!
//! * What was wrapped for a lineage opens for that lineage only: the lineage is
//!   the associated data of an authenticated cipher.
//! * Whoever has not the wrapping key can make nothing that opens: neither a
//!   data key of his own choosing nor the word that there is none, which lets
//!   an agent write in the clear. So no provider may wrap with a public key:
//!   see [`age`] for what that means there.
//! * *The word that there is none* is wrapped like a key and cannot be made
//!   from one, nor a key from it.
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
mod local;
mod parameters;
pub mod pkcs11;
pub(crate) mod private;
mod provider;
mod registry;
mod remote;
pub mod transit;

pub use config::{KeyEntry, KeysFile, KeysFileError, Passphrase};
pub use files::{FileKeyError, PassphraseError};
pub use parameters::{KeyParameters, KeySource};
pub use private::PrivateFileError;
pub use provider::{KeyProvider, rewrap};
pub use registry::{OpenKeyError, UnknownKey, Unwrapping, WrappingKey, WrappingKeys, WrongKey};
