//! [`KeyProvider`]: the operations of a wrapping key, independent of its location.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base::Lineage;
use catalog::WrappedKey;
use volume::seal::{DataKey, KeyError, UnwrapKeys, Unwrapped};

/// A wrapping key. Wrapping and unwrapping may block.
pub trait KeyProvider: UnwrapKeys {
    /// Wraps the data key of `lineage`.
    ///
    /// # Errors
    /// [`KeyError::Unavailable`].
    fn wrap(&self, lineage: Lineage, key: &DataKey) -> Result<WrappedKey, KeyError>;

    /// Wraps the mark that `lineage` is not encrypted, in place of a data key.
    ///
    /// # Errors
    /// [`KeyError::Unavailable`].
    fn wrap_none(&self, lineage: Lineage) -> Result<WrappedKey, KeyError>;

    /// A description with the location, such as "the key file /etc/scree/main.key". It holds no
    /// secret.
    fn description(&self) -> String;
}

/// Unwraps with `from` and wraps with `to` the data key of `lineage`, or the mark of an unencrypted
/// volume. The result is unwrapped once before this returns, because it will replace the old bytes.
///
/// # Errors
/// [`KeyError::Unwrap`] if `from` did not wrap it; [`KeyError::Unavailable`].
pub fn rewrap(
    lineage: Lineage,
    wrapped: &WrappedKey,
    from: &dyn KeyProvider,
    to: &dyn KeyProvider,
) -> Result<WrappedKey, KeyError> {
    let before = from.unwrap_key(lineage, wrapped)?;
    let rewrapped = match &before {
        Unwrapped::Key(key) => to.wrap(lineage, key)?,
        Unwrapped::None => to.wrap_none(lineage)?,
    };
    let is_same = match (&before, to.unwrap_key(lineage, &rewrapped)?) {
        (Unwrapped::Key(before), Unwrapped::Key(after)) => {
            verify_slices_are_equal(before.bytes(), after.bytes()).is_ok()
        }
        (Unwrapped::None, Unwrapped::None) => true,
        _ => false,
    };
    if is_same {
        Ok(rewrapped)
    } else {
        Err(KeyError::Unwrap { lineage })
    }
}
