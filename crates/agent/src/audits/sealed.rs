//! What is found of the files of a sealed volume: it leaves the host in a letter, which opens with
//! the volume's key. Controllers and their database have counts and sums alone
//! (docs/threat-model.md).

use api::types::{Audit, AuditFound, AuditListing, AuditSealed};
use base::{AuditId, KeyId, Lineage, with_causes};
use catalog::{LineageKey, WrappedKey};
use volume::seal::{BadSealedReport, DataKey, KeyError, SealedReport};
use world::{Random, World};

use crate::host_keys::{HostKeys, KeyPlaces};

/// How long a letter is says no more of what is in it than how many times this, in bytes.
const LETTER_BYTES: usize = 64 << 10;

/// Why a letter says nothing to whoever has it here.
#[derive(Debug, thiserror::Error)]
pub enum SealedError {
    /// The controller has not said what opens it.
    #[error("the controller does not say which wrapping key opens it")]
    Unsaid,
    /// The wrapping key is not here, or is another one.
    #[error("{}", with_causes(.0))]
    Key(#[from] KeyError),
    /// The volume is not sealed.
    #[error("the volume has no key")]
    None,
    /// It is not what the host has sealed.
    #[error(transparent)]
    SealedReport(#[from] BadSealedReport),
    /// It makes no sense.
    #[error("what was found makes no sense: {0}")]
    Json(#[from] serde_json::Error),
}

/// What was found, with all that is of files but counts in a letter about this audit.
pub(super) fn sealed(
    mut found: AuditFound,
    id: AuditId,
    own: (Lineage, &DataKey),
    random: &dyn Random,
) -> AuditFound {
    let listing = std::mem::take(&mut found.listing);
    let mut text = serde_json::to_vec(&listing).expect("it has nothing but text and numbers");
    // Blanks after JSON say nothing.
    text.resize(text.len().next_multiple_of(LETTER_BYTES), b' ');
    let letter = SealedReport::seal(own, &id.to_string(), text, random);
    found.sealed = Some(AuditSealed {
        lineage: own.0.to_string(),
        salt: letter.salt,
        letter: letter.sealed,
    });
    found
}

/// Opens what an audit of a sealed volume has found of files, where its wrapping key is: `None`,
/// if nothing is sealed. May wait.
///
/// # Errors
/// [`SealedError`].
pub fn open_listing(
    world: &World,
    places: KeyPlaces,
    audit: &Audit,
) -> Result<Option<AuditListing>, SealedError> {
    let found = audit.found.as_ref();
    let Some(sealed) = found.and_then(|found| found.sealed.as_ref()) else {
        return Ok(None);
    };
    let said = audit.key.as_ref();
    let said = said.filter(|key| key.lineage == sealed.lineage);
    let said = said.ok_or(SealedError::Unsaid)?;
    let (lineage, id) = (said.lineage.parse::<Lineage>(), said.key.parse::<KeyId>());
    let (Ok(lineage), Ok(id)) = (lineage, id) else {
        return Err(SealedError::Unsaid);
    };
    let host = HostKeys::new(world, places);
    host.list(vec![api::host::WrappingKey {
        id,
        name: said.name.clone(),
        parameters: said.parameters.clone(),
        state: api::host::KeyState::Active,
        replaced_by: None,
    }]);
    let key = LineageKey {
        lineage,
        epoch_first: 0,
        wrapped: Some(WrappedKey(said.wrapped.clone())),
        wrapped_by: Some(id),
        salts: Vec::new(),
    };
    let own = host.sealing_key(&[key])?.ok_or(SealedError::None)?;
    let letter = SealedReport {
        salt: sealed.salt,
        sealed: sealed.letter.clone(),
    };
    let text = letter.open((own.0, &own.1), &audit.id)?;
    Ok(Some(serde_json::from_slice(&text)?))
}
