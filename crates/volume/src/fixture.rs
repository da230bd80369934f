//! Keys for tests, the simulator and fuzzers.

use base::Lineage;
use catalog::LineageKey;
use world::simulated::SimulatedRandom;

use crate::seal::{DataKey, Keyring, LeaseSalt, WrappingKey};

/// The keyring of a sealed lineage with `leases` leases, at least one:
/// epochs 1 to `leases`. The same every time.
///
/// # Panics
/// If there was no lease.
#[must_use]
pub fn keyring(leases: u32) -> Keyring {
    let wrapping_key = WrappingKey::from_bytes(&[1; 32]);
    let lineage = Lineage::from_u128(1);
    let data_key = DataKey::from_bytes([2; 32]);
    let key = LineageKey {
        lineage,
        epoch_first: 1,
        wrapped: Some(wrapping_key.wrap(lineage, &data_key, &SimulatedRandom::new(1))),
        wrapped_by: None,
        salts: (1..=leases)
            .map(|epoch| (epoch, LeaseSalt([7; 16])))
            .collect(),
    };
    Keyring::unwrap(&[key], &wrapping_key).expect("it was just wrapped, and leased")
}
