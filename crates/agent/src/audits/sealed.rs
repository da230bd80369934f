//! What an audit finds about the files of an encrypted volume leaves the host in a sealed report, which
//! opens with the volume's key. Controllers and their database have counts and sums alone
//! (docs/explanation/threat-model.md).

use api::types::{Audit, AuditListing, AuditResult, AuditSealed};
use base::{AuditId, KeyId, Lineage, with_causes};
use catalog::{LineageKey, WrappedKey};
use volume::seal::{BadSealedReport, DataKey, KeyError, SealedReport};
use world::{Random, World};

use crate::keys::{HostKeys, KeyLocations};

/// The length of a sealed report is a multiple of this, in bytes: it reveals no more of its content.
const REPORT_BYTES: usize = 64 << 10;

/// Why a sealed report cannot be read here.
#[derive(Debug, thiserror::Error)]
pub enum SealedError {
    /// The controller does not name the wrapping key.
    #[error("the controller does not say which wrapping key opens it")]
    KeyNotNamed,
    /// The wrapping key is missing here, or is another one.
    #[error("{}", with_causes(.0))]
    Key(#[from] KeyError),
    /// The volume is not encrypted.
    #[error("the volume has no key")]
    NotEncrypted,
    /// The host has not sealed this report.
    #[error(transparent)]
    SealedReport(#[from] BadSealedReport),
    /// The opened report cannot be parsed.
    #[error("what was found makes no sense: {0}")]
    Json(#[from] serde_json::Error),
}

/// The findings, with all that is about files, but the counts, in a sealed report about this audit.
pub(super) fn sealed(
    mut found: AuditResult,
    id: AuditId,
    own: (Lineage, &DataKey),
    random: &dyn Random,
) -> AuditResult {
    let listing = std::mem::take(&mut found.listing);
    let mut text = serde_json::to_vec(&listing).expect("it has nothing but text and numbers");
    // Blanks after JSON are ignored.
    text.resize(text.len().next_multiple_of(REPORT_BYTES), b' ');
    let letter = SealedReport::seal(own, &id.to_string(), text, random);
    found.sealed = Some(AuditSealed {
        lineage: own.0.to_string(),
        salt: letter.salt,
        sealed_report: letter.sealed,
    });
    found
}

/// Opens the findings about files of an encrypted volume, on a machine that has its wrapping key:
/// `None`, if they are not sealed. May wait.
///
/// # Errors
/// [`SealedError`].
pub fn open_listing(
    world: &World,
    locations: KeyLocations,
    audit: &Audit,
) -> Result<Option<AuditListing>, SealedError> {
    let found = audit.result.as_ref();
    let Some(sealed) = found.and_then(|found| found.sealed.as_ref()) else {
        return Ok(None);
    };
    let key = audit.key.as_ref();
    let key = key.filter(|key| key.lineage == sealed.lineage);
    let named = key.ok_or(SealedError::KeyNotNamed)?;
    let (lineage, id) = (named.lineage.parse::<Lineage>(), named.key.parse::<KeyId>());
    let (Ok(lineage), Ok(id)) = (lineage, id) else {
        return Err(SealedError::KeyNotNamed);
    };
    let host = HostKeys::new(world, locations);
    host.list(vec![api::host::WrappingKey {
        id,
        name: named.name.clone(),
        parameters: named.parameters.clone(),
        state: api::host::KeyState::Active,
        replaced_by: None,
    }]);
    let key = LineageKey {
        lineage,
        epoch_first: 0,
        wrapped: Some(WrappedKey(named.wrapped.clone())),
        wrapped_by: Some(id),
        salts: Vec::new(),
    };
    let own = host.sealing_key(&[key])?.ok_or(SealedError::NotEncrypted)?;
    let letter = SealedReport {
        salt: sealed.salt,
        sealed: sealed.sealed_report.clone(),
    };
    let text = letter.open((own.0, &own.1), &audit.id)?;
    Ok(Some(serde_json::from_slice(&text)?))
}
