//! [`SealedReport`]: a host's report about a volume, which only a holder of the volume's key can
//! open. Controllers store and pass it on without being able to read it.
//!
//! Each report is sealed with a key of its own, derived from the volume's data key and 256 random
//! bits: so no (key, nonce) is used twice, whatever else is derived from the data key.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use base::Lineage;
use world::Random;

use super::DataKey;

/// A sealed report. It may be stored anywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedReport {
    /// The salt from which its key is derived, together with the data key.
    pub salt: [u8; 32],
    /// The sealed text and 16 bytes of tag.
    pub sealed: Vec<u8>,
}

/// The data key that seals the reports of a lineage.
#[derive(Debug, Clone, Copy)]
pub struct ReportKey<'a> {
    /// The lineage.
    pub lineage: Lineage,
    /// Its data key.
    pub data_key: &'a DataKey,
}

/// A report that is of another volume, about another subject, or altered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the report does not open with the volume's key: it is of another volume, or was altered")]
pub struct BadSealedReport;

impl SealedReport {
    /// Seals `text` about a subject.
    #[must_use]
    pub fn seal(key: ReportKey<'_>, about: &str, mut text: Vec<u8>, random: &dyn Random) -> Self {
        let mut salt = [0; 32];
        random.fill(&mut salt);
        aead(key.data_key, &salt)
            .seal_in_place_append_tag(nonce(), associated(key.lineage, about), &mut text)
            .expect("reports are far below GCM's limit");
        Self { salt, sealed: text }
    }

    /// Opens the report.
    ///
    /// # Errors
    /// [`BadSealedReport`].
    pub fn open(mut self, key: ReportKey<'_>, about: &str) -> Result<Vec<u8>, BadSealedReport> {
        let aead = aead(key.data_key, &self.salt);
        let opened = aead.open_in_place(nonce(), associated(key.lineage, about), &mut self.sealed);
        let length = opened.map_err(|_| BadSealedReport)?.len();
        self.sealed.truncate(length);
        Ok(self.sealed)
    }
}

fn aead(key: &DataKey, salt: &[u8; 32]) -> LessSafeKey {
    let unbound = UnboundKey::new(&AES_256_GCM, &*key.report_key(salt)).expect("it has 32 bytes");
    LessSafeKey::new(unbound)
}

/// The nonce of every report: its key seals nothing else.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

fn associated(lineage: Lineage, about: &str) -> Aad<Vec<u8>> {
    Aad::from([&lineage.as_u128().to_le_bytes()[..], about.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use world::simulated::SimulatedRandom;

    use super::*;

    #[test]
    fn a_report_opens_only_with_the_key_of_its_volume_and_for_its_subject() {
        let random = SimulatedRandom::new(1);
        let lineage = Lineage::from_u128(5);
        let data_key = DataKey::generate(&random);
        let key = ReportKey {
            lineage,
            data_key: &data_key,
        };
        let text = b"/etc/passwd".to_vec();
        let report = SealedReport::seal(key, "audit-1", text.clone(), &random);
        let open = |report: &SealedReport, key, about| report.clone().open(key, about);
        assert_eq!(open(&report, key, "audit-1"), Ok(text.clone()));
        let has = |part: &[u8]| report.sealed.windows(part.len()).any(|at| at == part);
        assert!(!has(b"passwd"));
        let other_data_key = DataKey::generate(&random);
        let of_another_key = ReportKey {
            data_key: &other_data_key,
            ..key
        };
        let of_another_lineage = ReportKey {
            lineage: Lineage::from_u128(6),
            ..key
        };
        for (other, about) in [
            (of_another_key, "audit-1"),
            (of_another_lineage, "audit-1"),
            (key, "audit-2"),
        ] {
            assert_eq!(open(&report, other, about), Err(BadSealedReport));
        }
        for at in 0..report.sealed.len() {
            let mut altered = report.clone();
            altered.sealed[at] ^= 1;
            assert_eq!(open(&altered, key, "audit-1"), Err(BadSealedReport));
        }
        let mut altered = report.clone();
        altered.salt[0] ^= 1;
        assert_eq!(open(&altered, key, "audit-1"), Err(BadSealedReport));
        let again = SealedReport::seal(key, "audit-1", text, &random);
        assert_ne!(again.salt, report.salt, "each has a key of its own");
    }

    /// A sealed report, byte by byte. It protects the derivation of its key and its associated
    /// data: with others, the reports that controllers store do not open. The bytes were computed
    /// without this code.
    #[test]
    fn the_fixture_of_a_sealed_report_is_opened() {
        #[rustfmt::skip]
        const SEALED: [u8; 27] = [
            0x29, 0x61, 0x9c, 0x0a, 0xef, 0x33, 0x01, 0x38, 0xd0, 0x9b, 0xee, 0x64,
            0xf9, 0xf0, 0x79, 0xeb, 0xa0, 0x22, 0x16, 0xdf, 0xcd, 0xea, 0xd4, 0x3a,
            0xd2, 0x09, 0x8e,
        ];
        let bytes = |first: u8| std::array::from_fn(|index| first + index as u8);
        let report = SealedReport {
            salt: bytes(0x40),
            sealed: SEALED.to_vec(),
        };
        let key = ReportKey {
            lineage: Lineage::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
            data_key: &DataKey::from_bytes(bytes(0)),
        };
        assert_eq!(report.open(key, "audit 7"), Ok(b"all is well".to_vec()));
    }
}
