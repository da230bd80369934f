//! Letters: what a host says of a volume to whoever can open the volume's key, by way of those
//! who cannot.
//!
//! Each is sealed with a key of its own, which is made of the volume's data key and of 256 random
//! bits: so no (key, nonce) comes twice, whatever else the data key makes.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use base::Lineage;
use world::Random;

use super::DataKey;

/// A letter, as it may lie anywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedReport {
    /// What its key is made of, besides the data key.
    pub salt: [u8; 32],
    /// What it says, sealed, and 16 bytes of tag.
    pub sealed: Vec<u8>,
}

/// It is of another volume, about something else, or was altered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it does not open with the volume's key: it is another's, or was altered")]
pub struct BadSealedReport;

impl SealedReport {
    /// Seals what is to be said about something of a lineage whose data key this is.
    #[must_use]
    pub fn seal(
        (lineage, key): (Lineage, &DataKey),
        about: &str,
        mut text: Vec<u8>,
        random: &dyn Random,
    ) -> Self {
        let mut salt = [0; 32];
        random.fill(&mut salt);
        aead(key, &salt)
            .seal_in_place_append_tag(nonce(), associated(lineage, about), &mut text)
            .expect("letters are far below GCM's limit");
        Self { salt, sealed: text }
    }

    /// What it says.
    ///
    /// # Errors
    /// [`BadSealedReport`].
    pub fn open(
        mut self,
        (lineage, key): (Lineage, &DataKey),
        about: &str,
    ) -> Result<Vec<u8>, BadSealedReport> {
        let aead = aead(key, &self.salt);
        let opened = aead.open_in_place(nonce(), associated(lineage, about), &mut self.sealed);
        let length = opened.map_err(|_| BadSealedReport)?.len();
        self.sealed.truncate(length);
        Ok(self.sealed)
    }
}

fn aead(key: &DataKey, salt: &[u8; 32]) -> LessSafeKey {
    let own = key.of_report(salt);
    let unbound = UnboundKey::new(&AES_256_GCM, own.bytes()).expect("it has 32 bytes");
    LessSafeKey::new(unbound)
}

/// Its key seals nothing else.
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
    fn a_letter_opens_with_the_key_of_its_volume_and_about_its_subject_only() {
        let random = SimulatedRandom::new(1);
        let lineage = Lineage::from_u128(5);
        let key = DataKey::generate(&random);
        let text = b"/etc/passwd".to_vec();
        let letter = SealedReport::seal((lineage, &key), "audit-1", text.clone(), &random);
        let open = |letter: &SealedReport, own, about| letter.clone().open(own, about);
        assert_eq!(open(&letter, (lineage, &key), "audit-1"), Ok(text.clone()));
        let has = |part: &[u8]| letter.sealed.windows(part.len()).any(|at| at == part);
        assert!(!has(b"passwd"));
        let other_key = DataKey::generate(&random);
        let other = Lineage::from_u128(6);
        for (own, about) in [
            ((lineage, &other_key), "audit-1"),
            ((other, &key), "audit-1"),
            ((lineage, &key), "audit-2"),
        ] {
            assert_eq!(open(&letter, own, about), Err(BadSealedReport));
        }
        for at in 0..letter.sealed.len() {
            let mut altered = letter.clone();
            altered.sealed[at] ^= 1;
            assert_eq!(
                open(&altered, (lineage, &key), "audit-1"),
                Err(BadSealedReport)
            );
        }
        let mut altered = letter.clone();
        altered.salt[0] ^= 1;
        assert_eq!(
            open(&altered, (lineage, &key), "audit-1"),
            Err(BadSealedReport)
        );
        let again = SealedReport::seal((lineage, &key), "audit-1", text, &random);
        assert_ne!(again.salt, letter.salt, "each has a key of its own");
    }
}
