//! [`RemoteKey`]: wrapping keys that are never in the agent's memory: the agent sends data keys to
//! a token or a service.
//!
//! A data key is sealed as its 32 bytes, the mark of an unencrypted volume as the text `unsealed`;
//! the associated data is the lineage in both cases. The cipher authenticates the content, so one
//! call tells which of the two it is.

use std::error::Error;
use std::sync::Arc;

use base::Lineage;
use catalog::WrappedKey;
use volume::seal::{DataKey, KeyError, UnwrapKeys, Unwrapped};
use zeroize::Zeroizing;

use super::KeyProvider;

const NONE: &[u8] = b"unsealed";

/// The longest wrapped key that is sent to a remote key: the database is not trusted.
const WRAPPED_BYTES_MAX: usize = 1024;

/// The answer of a remote key to a request to decrypt.
pub(super) enum Opened {
    /// The decrypted bytes.
    Plain(Zeroizing<Vec<u8>>),
    /// The key did not encrypt this with this associated data.
    Refused,
}

/// An authenticated cipher with associated data in another process or device.
pub(super) trait RemoteCipher: Send + Sync {
    /// Its error.
    type Error: Error + Send + Sync + 'static;

    fn seal(&self, associated: &[u8], plain: &[u8]) -> Result<Vec<u8>, Self::Error>;

    fn open(&self, associated: &[u8], sealed: &[u8]) -> Result<Opened, Self::Error>;

    fn description(&self) -> String;
}

/// The key provider over a remote cipher.
pub(super) struct RemoteKey<C>(pub(super) C);

impl<C: RemoteCipher> RemoteKey<C> {
    fn seal(&self, lineage: Lineage, plain: &[u8]) -> Result<WrappedKey, KeyError> {
        match self.0.seal(&lineage.as_u128().to_le_bytes(), plain) {
            Ok(sealed) => Ok(WrappedKey(sealed)),
            Err(error) => Err(unavailable(lineage, error)),
        }
    }
}

fn unavailable(lineage: Lineage, error: impl Error + Send + Sync + 'static) -> KeyError {
    KeyError::Unavailable {
        lineage,
        source: Arc::new(error),
    }
}

impl<C: RemoteCipher> UnwrapKeys for RemoteKey<C> {
    fn unwrap_key(&self, lineage: Lineage, wrapped: &WrappedKey) -> Result<Unwrapped, KeyError> {
        if wrapped.0.len() > WRAPPED_BYTES_MAX {
            return Err(KeyError::Unwrap { lineage });
        }
        let opened = self.0.open(&lineage.as_u128().to_le_bytes(), &wrapped.0);
        let plain = match opened.map_err(|error| unavailable(lineage, error))? {
            Opened::Plain(plain) => plain,
            Opened::Refused => return Err(KeyError::Unwrap { lineage }),
        };
        if *plain == NONE {
            return Ok(Unwrapped::None);
        }
        let bytes = Zeroizing::new(
            <[u8; 32]>::try_from(plain.as_slice()).map_err(|_| KeyError::Unwrap { lineage })?,
        );
        Ok(Unwrapped::Key(DataKey::from_bytes(*bytes)))
    }
}

impl<C: RemoteCipher> KeyProvider for RemoteKey<C> {
    fn wrap(&self, lineage: Lineage, key: &DataKey) -> Result<WrappedKey, KeyError> {
        self.seal(lineage, key.bytes())
    }

    fn wrap_none(&self, lineage: Lineage) -> Result<WrappedKey, KeyError> {
        self.seal(lineage, NONE)
    }

    fn description(&self) -> String {
        self.0.description()
    }
}
