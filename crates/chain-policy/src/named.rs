//! The volume of a policy, before the rest of it is read.

use serde::Deserialize;

use crate::{PolicyError, TEXT_BYTES_MAX};

#[derive(Deserialize)]
struct Named {
    volume: String,
}

/// The volume that a text names. Whoever must ask whether somebody may change that volume
/// need not read for him what patterns he wrote: those cost more than he did.
///
/// # Errors
/// [`PolicyError::Long`], [`PolicyError::Text`].
pub fn volume_of(text: &str) -> Result<String, PolicyError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(PolicyError::Long(text.len()));
    }
    let named: Result<Named, _> = toml::from_str(text);
    let named = named.map_err(|error| PolicyError::Text(error.to_string()))?;
    Ok(named.volume)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_is_known_whatever_the_filters_are() {
        let text = "volume = 'web-1'\ncolour = 1\n[[filter]]\nkind = 'monitor'\npaths = ['{']";
        assert_eq!(volume_of(text), Ok("web-1".to_owned()));
        for text in ["", "volume = 1", "volume = "] {
            let refused = volume_of(text);
            assert!(matches!(refused, Err(PolicyError::Text(_))), "{text:?}");
        }
        let long = "#".repeat(TEXT_BYTES_MAX + 1);
        assert!(matches!(volume_of(&long), Err(PolicyError::Long(_))));
    }
}
