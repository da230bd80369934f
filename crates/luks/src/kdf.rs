//! [`Kdf`]: the derivation of keys from passphrases, with Argon2 (RFC 9106) or PBKDF2 (RFC 8018).
//!
//! Invariant: costs come from an untrusted disk and are checked before a key is derived. So a
//! hostile header can cost a host seconds, and no more.

use argon2::{Algorithm, Argon2, Params, Version};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::xts::{KEY_BYTES, KeyBytes};

/// The maximal memory of a key slot, in KiB: 1 GiB. cryptsetup never chooses more.
pub const MEMORY_KIB_MAX: u32 = 1 << 20;

/// The maximal number of Argon2 lanes. They are computed one after another; cryptsetup chooses at
/// most 4.
pub const LANES_MAX: u32 = 16;

/// The maximal cost of all key slots of a header, in passes over a KiB. 64 passes over 1 GiB take
/// about a minute; cryptsetup chooses four to eight for two seconds on four cores.
pub const PASSES_KIB_MAX: u64 = 64 << 20;

/// The maximal number of PBKDF2 iterations. cryptsetup chooses what takes two seconds, which are
/// some millions.
pub const ITERATIONS_MAX: u32 = 1 << 24;

/// The minimal length of a salt, in bytes.
pub const SALT_BYTES_MIN: usize = 8;

/// A key derivation function with its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kdf {
    /// Argon2, which is memory-hard. The default of LUKS2 is `argon2id`.
    Argon2 {
        /// Whether this is `argon2id`, and not `argon2i`.
        is_id: bool,
        /// The costs.
        cost: Argon2Cost,
        /// The salt of the key slot.
        salt: Vec<u8>,
    },
    /// PBKDF2 with HMAC-SHA-256.
    Pbkdf2 {
        /// The number of iterations.
        iterations: u32,
        /// The salt of the key slot.
        salt: Vec<u8>,
    },
}

/// The costs of Argon2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argon2Cost {
    /// The memory, in KiB.
    pub memory_kib: u32,
    /// The number of passes over the memory.
    pub passes: u32,
    /// The number of parallel lanes.
    pub lanes: u32,
}

impl Default for Argon2Cost {
    /// 64 MiB and four passes, which take 0.2 s. A host may open many disks at once.
    fn default() -> Self {
        Self {
            memory_kib: 64 << 10,
            passes: 4,
            lanes: 1,
        }
    }
}

impl Argon2Cost {
    /// Checks that a header may have this cost.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self {
            memory_kib,
            passes,
            lanes,
        } = *self;
        if memory_kib > MEMORY_KIB_MAX {
            return Err(format!(
                "it needs {memory_kib} KiB of memory; the maximum is {MEMORY_KIB_MAX}"
            ));
        }
        if lanes == 0 || lanes > LANES_MAX {
            return Err(format!(
                "it has {lanes} lanes; 1 to {LANES_MAX} are allowed"
            ));
        }
        if memory_kib < 8 * lanes || passes == 0 {
            return Err(format!(
                "Argon2 does not allow {passes} passes over {memory_kib} KiB"
            ));
        }
        Ok(())
    }
}

impl Kdf {
    /// Checks the parameters. The cost of all slots together is checked with
    /// [`Kdf::passes_kib`].
    pub(super) fn check(&self) -> Result<(), String> {
        let salt = match self {
            Self::Argon2 { cost, salt, .. } => {
                cost.check()?;
                salt
            }
            Self::Pbkdf2 { iterations, salt } => {
                if *iterations == 0 || *iterations > ITERATIONS_MAX {
                    return Err(format!(
                        "it has {iterations} iterations; 1 to {ITERATIONS_MAX} are allowed"
                    ));
                }
                salt
            }
        };
        match salt.len() {
            short if short < SALT_BYTES_MIN => Err(format!(
                "its salt has {short} bytes; at least {SALT_BYTES_MIN} are needed"
            )),
            _ => Ok(()),
        }
    }

    /// The cost, in the unit of [`PASSES_KIB_MAX`].
    pub(super) fn passes_kib(&self) -> u64 {
        match self {
            Self::Argon2 { cost, .. } => u64::from(cost.memory_kib) * u64::from(cost.passes),
            // Two iterations take about as long as a pass over a KiB.
            Self::Pbkdf2 { iterations, .. } => u64::from(*iterations) / 2,
        }
    }

    /// The key of a passphrase. The parameters were checked before.
    pub(super) fn derive(&self, passphrase: &[u8]) -> KeyBytes {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        match self {
            Self::Argon2 { is_id, cost, salt } => {
                let algorithm = match is_id {
                    true => Algorithm::Argon2id,
                    false => Algorithm::Argon2i,
                };
                Params::new(cost.memory_kib, cost.passes, cost.lanes, Some(KEY_BYTES))
                    .map(|params| Argon2::new(algorithm, Version::V0x13, params))
                    .and_then(|argon2| argon2.hash_password_into(passphrase, salt, &mut *key))
                    .expect("costs and salt were checked");
            }
            Self::Pbkdf2 { iterations, salt } => {
                pbkdf2::pbkdf2_hmac::<Sha256>(passphrase, salt, *iterations, &mut *key);
            }
        }
        key
    }
}
