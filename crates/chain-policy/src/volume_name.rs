//! The volume that a policy names, read without the rest of the policy.

use serde::Deserialize;

use crate::{PolicyError, TEXT_BYTES_MAX, toml_problem};

#[derive(Deserialize)]
struct Named {
    volume: String,
}

/// The volume that a policy names. A controller checks the user's right on that volume first, so
/// that a user without the right cannot make it compile expensive patterns.
///
/// # Errors
/// [`PolicyError::TooLong`], [`PolicyError::Toml`].
pub fn volume_of(text: &str) -> Result<String, PolicyError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(PolicyError::TooLong(text.len()));
    }
    let named: Result<Named, _> = toml::from_str(text);
    let named = named.map_err(|error| PolicyError::Toml(toml_problem(&error)))?;
    Ok(named.volume)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_is_known_whatever_the_filters_are() {
        let text = "volume = 'web-1'\ncolor = 1\n[[filter]]\nkind = 'monitor'\npaths = ['{']";
        assert_eq!(volume_of(text), Ok("web-1".to_owned()));
        for text in ["", "volume = 1", "volume = "] {
            let refused = volume_of(text);
            assert!(matches!(refused, Err(PolicyError::Toml(_))), "{text:?}");
        }
        let long = "#".repeat(TEXT_BYTES_MAX + 1);
        assert!(matches!(volume_of(&long), Err(PolicyError::TooLong(_))));
    }
}
