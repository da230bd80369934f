//! Sealed reports: what an audit finds about the files of an encrypted volume leaves the host
//! encrypted under a key of the volume. Controllers and their database hold only counts and sums
//! (docs/explanation/threat-model.md).

use api::types::{Audit, AuditListing, AuditResult, AuditSealed};
use base::{AuditId, KeyId, Lineage, with_causes};
use catalog::{LineageKey, WrappedKey};
use volume::seal::{BadSealedReport, DataKey, KeyError, ReportKey, SealedReport};
use world::{Random, World};

use crate::keys::{HostKeys, KeyLocations};

/// Sealed reports are padded to a multiple of this length in bytes, to hide the length of their
/// content.
const REPORT_BYTES: usize = 64 << 10;

/// Why a sealed report cannot be opened here.
#[derive(Debug, thiserror::Error)]
pub enum SealedError {
    /// The controller does not name the wrapping key.
    #[error("the controller does not name the wrapping key of the report")]
    KeyNotNamed,
    /// The wrapping key is missing here, or is not the right one.
    #[error("{}", with_causes(.0))]
    Key(#[from] KeyError),
    /// The volume is not encrypted.
    #[error("the volume has no key")]
    NotEncrypted,
    /// The report was altered, or belongs to another audit or volume.
    #[error(transparent)]
    SealedReport(#[from] BadSealedReport),
    /// The opened report cannot be parsed.
    #[error("the findings cannot be parsed: {0}")]
    Json(#[from] serde_json::Error),
}

/// Moves all findings about files, except counts, into a sealed report that is bound to this audit.
pub(super) fn sealed(
    mut found: AuditResult,
    id: AuditId,
    own: (Lineage, &DataKey),
    random: &dyn Random,
) -> AuditResult {
    let listing = std::mem::take(&mut found.listing);
    let mut text = serde_json::to_vec(&listing).expect("findings are valid JSON");
    // JSON parsers ignore trailing blanks.
    text.resize(text.len().next_multiple_of(REPORT_BYTES), b' ');
    let key = ReportKey {
        lineage: own.0,
        data_key: own.1,
    };
    let sealed_report = SealedReport::seal(key, &id.to_string(), text, random);
    found.sealed = Some(AuditSealed {
        lineage: own.0.to_string(),
        salt: sealed_report.salt,
        sealed_report: sealed_report.sealed,
    });
    found
}

/// Opens the findings about the files of an encrypted volume, on a machine that has its wrapping
/// key; `None` if they are not sealed. May block.
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
    host.list(vec![api::host::ListedKey {
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
    let report = SealedReport {
        salt: sealed.salt,
        sealed: sealed.sealed_report.clone(),
    };
    let key = ReportKey {
        lineage: own.0,
        data_key: &own.1,
    };
    let text = report.open(key, &audit.id)?;
    Ok(Some(serde_json::from_slice(&text)?))
}
