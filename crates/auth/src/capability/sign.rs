//! Signing and verifying capabilities.

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use zeroize::Zeroizing;

use crate::capability::{BadCapability, Capability};

/// The length of a signature, in bytes.
pub const SIGNATURE_BYTES: usize = 64;

/// A prefix that is signed with every capability and not sent, so that nothing else that this key
/// signs can pass for a capability.
const DOMAIN: &[u8; 16] = b"scree capability";

/// An encoded capability with its signature. It is not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedCapability(pub Vec<u8>);

/// The key with which controllers sign.
pub struct SigningKey(Ed25519KeyPair);

/// The key with which daemons verify, 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifyingKey(pub [u8; 32]);

/// The length of a key, for HKDF.
struct Seed;

impl KeyType for Seed {
    fn len(&self) -> usize {
        32
    }
}

impl SigningKey {
    /// Derives the key from a secret of the cluster's controllers, of any length. All holders of
    /// the secret derive the same key.
    #[must_use]
    pub fn derive(secret: &[u8]) -> Self {
        let mut seed = Zeroizing::new([0; 32]);
        Salt::new(HKDF_SHA256, b"scree")
            .extract(secret)
            .expand(&[b"capability signing key"], Seed)
            .and_then(|key| key.fill(&mut *seed))
            .expect("32 bytes are few enough for HKDF");
        let pair = Ed25519KeyPair::from_seed_unchecked(&*seed);
        Self(pair.expect("any 32 bytes are a seed"))
    }

    /// The public key.
    ///
    /// # Panics
    /// Never: an Ed25519 key has 32 bytes.
    #[must_use]
    pub fn verifying_key(&self) -> VerifyingKey {
        let public = self.0.public_key().as_ref();
        VerifyingKey(public.try_into().expect("32 bytes"))
    }

    /// Signs a capability.
    ///
    /// # Panics
    /// If a list has more than [`ITEMS_MAX`](crate::capability::ITEMS_MAX) items.
    #[must_use]
    pub fn sign(&self, capability: &Capability) -> SignedCapability {
        self.sign_bytes(&capability.encode())
    }

    /// Signs any bytes, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn sign_bytes(&self, bytes: &[u8]) -> SignedCapability {
        let signature = self.0.sign(&signed_text(bytes));
        SignedCapability([bytes, signature.as_ref()].concat())
    }
}

impl VerifyingKey {
    /// Verifies and decodes a capability.
    ///
    /// # Errors
    /// [`BadCapability`].
    pub fn verify(&self, signed: &[u8]) -> Result<Capability, BadCapability> {
        let length = signed.len();
        let end = length
            .checked_sub(SIGNATURE_BYTES)
            .ok_or(BadCapability::Length(length))?;
        let (bytes, signature) = signed.split_at(end);
        UnparsedPublicKey::new(&ED25519, self.0)
            .verify(&signed_text(bytes), signature)
            .map_err(|_| BadCapability::Signature)?;
        Capability::decode(bytes)
    }
}

fn signed_text(bytes: &[u8]) -> Vec<u8> {
    [DOMAIN, bytes].concat()
}

#[cfg(test)]
mod tests {
    use base::{ClusterId, CopysetId, LineageTag, SegmentId, UnitId};
    use proptest::prelude::*;
    use world::Millis;

    use super::*;
    use crate::capability::{Fence, ITEMS_MAX, Scope};

    fn of(scope: Scope) -> Capability {
        Capability {
            cluster: ClusterId::from_u128(1),
            holder: [9; 32],
            made: Millis(-5),
            ends: Millis(60_000),
            generation: 2,
            scope,
        }
    }

    fn scopes() -> impl Strategy<Value = Scope> {
        let numbers = || prop::collection::vec(any::<u64>(), 0..20);
        let serials =
            (0..1_u64 << 36, 1..1_u64 << 20).prop_map(|(first, count)| first..first + count);
        let serials = prop::collection::vec(serials, 0..20);
        prop_oneof![
            (any::<u64>(), any::<u64>(), any::<u32>(), serials).prop_map(
                |(lineage_tag, fence, epoch, serials)| Scope::Lease {
                    lineage_tag: LineageTag(lineage_tag),
                    fence: Fence(fence),
                    epoch,
                    serials,
                }
            ),
            numbers().prop_map(|lineage_tags| Scope::Read {
                lineage_tags: lineage_tags.into_iter().map(LineageTag).collect(),
            }),
            numbers().prop_map(|ids| {
                let ids = ids.into_iter().map(|id| id >> 16);
                let mut segments: Vec<_> = ids.filter_map(SegmentId::from_bits).collect();
                segments.sort_unstable();
                Scope::Free { segments }
            }),
            (
                prop::collection::vec(0_u16..4096, 0..20),
                prop::collection::vec(any::<u128>(), 0..20)
            )
                .prop_map(|(ids, units)| Scope::Repair {
                    copysets: ids.into_iter().filter_map(CopysetId::new).collect(),
                    units: units.into_iter().map(UnitId::from_u128).collect(),
                }),
            any::<u64>().prop_map(|leases| Scope::Count { leases }),
        ]
    }

    proptest! {
        #[test]
        fn signed_capabilities_round_trip_and_altered_ones_are_refused(
            scope in scopes(),
            flip in any::<prop::sample::Index>(),
            bit in 0..8_u32,
        ) {
            let key = SigningKey::derive(b"secret");
            let capability = of(scope);
            let SignedCapability(bytes) = key.sign(&capability);
            let verifier = key.verifying_key();
            prop_assert_eq!(verifier.verify(&bytes), Ok(capability));
            let other = SigningKey::derive(b"another").verifying_key();
            prop_assert_eq!(other.verify(&bytes), Err(BadCapability::Signature));
            let mut altered = bytes.clone();
            altered[flip.index(bytes.len())] ^= 1 << bit;
            prop_assert!(verifier.verify(&altered).is_err());
            prop_assert!(verifier.verify(&bytes[..flip.index(bytes.len())]).is_err());
        }

        #[test]
        fn arbitrary_signed_bytes_are_parsed_safely(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let key = SigningKey::derive(b"secret");
            let _ = key.verifying_key().verify(&key.sign_bytes(&bytes).0);
        }
    }

    #[test]
    fn malformed_capabilities_are_refused_with_a_reason() {
        let key = SigningKey::derive(b"secret");
        let read = of(Scope::Read {
            lineage_tags: vec![LineageTag(1)],
        });
        let refused = |at: usize, value: u8| {
            let mut bytes = read.encode();
            bytes[at] = value;
            let signed = key.sign_bytes(&bytes);
            key.verifying_key()
                .verify(&signed.0)
                .expect_err("it is odd")
        };
        assert_eq!(refused(0, 2), BadCapability::Format(2));
        assert_eq!(refused(2, 6), BadCapability::Kind(6));
        assert_eq!(refused(4, 2), BadCapability::Length(104));
        assert_eq!(refused(4, 0), BadCapability::Length(104));
        assert_eq!(refused(6, 1), BadCapability::Items);
        let lease = of(Scope::Lease {
            lineage_tag: LineageTag(1),
            fence: Fence(1),
            epoch: 1,
            serials: std::iter::once(5..5).collect(),
        });
        let SignedCapability(bytes) = key.sign(&lease);
        let verifier = key.verifying_key();
        assert_eq!(verifier.verify(&bytes), Err(BadCapability::Items));
        assert_eq!(verifier.verify(&[]), Err(BadCapability::Length(0)));
    }

    #[test]
    fn the_largest_fits() {
        let key = SigningKey::derive(b"secret");
        let lineage_tags = (0..ITEMS_MAX as u64).map(LineageTag).collect();
        let capability = of(Scope::Read { lineage_tags });
        let SignedCapability(bytes) = key.sign(&capability);
        assert_eq!(key.verifying_key().verify(&bytes), Ok(capability));
    }
}
