//! What makes a key of a passphrase: Argon2 (RFC 9106) and PBKDF2 (RFC 8018).
//!
//! Invariant: costs come from a disk that is not trusted, and are bounded before anything
//! is derived. So whoever can write a header can have a host work for seconds, and no more.

use argon2::{Algorithm, Argon2, Params, Version};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::xts::{KEY_BYTES, KeyBytes};

/// cryptsetup's own choice is never more. In KiB: 1 GiB.
pub const MEMORY_KIB_MAX: u32 = 1 << 20;

/// Lanes of Argon2. They are computed one after the other here; cryptsetup makes 4 at most.
pub const LANES_MAX: u32 = 16;

/// Of all key slots of a header: passes over a KiB. 64 passes over 1 GiB take about a
/// minute; what cryptsetup makes in two seconds of four cores is four to eight.
pub const PASSES_KIB_MAX: u64 = 64 << 20;

/// Of PBKDF2. cryptsetup makes as many as take two seconds, some millions.
pub const ITERATIONS_MAX: u32 = 1 << 24;

/// The shortest salt that is no mistake, in bytes.
pub const SALT_BYTES_MIN: usize = 8;

/// How a passphrase becomes a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kdf {
    /// Memory-hard. What LUKS2 uses by default is the kind `argon2id`.
    Argon2 {
        /// `argon2id`, rather than `argon2i`.
        is_id: bool,
        /// The costs.
        cost: Argon2Cost,
        /// Per slot.
        salt: Vec<u8>,
    },
    /// With HMAC-SHA-256.
    Pbkdf2 {
        /// How often it is hashed.
        iterations: u32,
        /// Per slot.
        salt: Vec<u8>,
    },
}

/// The costs of Argon2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argon2Cost {
    /// In KiB.
    pub memory_kib: u32,
    /// Passes over the memory.
    pub passes: u32,
    /// Parallel lanes.
    pub lanes: u32,
}

impl Default for Argon2Cost {
    /// 64 MiB, four passes: 0.2 s, and a host may open many disks at once.
    fn default() -> Self {
        Self {
            memory_kib: 64 << 10,
            passes: 4,
            lanes: 1,
        }
    }
}

impl Argon2Cost {
    /// Whether a header may ask for it.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self {
            memory_kib,
            passes,
            lanes,
        } = *self;
        if memory_kib > MEMORY_KIB_MAX {
            return Err(format!(
                "it takes {memory_kib} KiB of memory, and may take {MEMORY_KIB_MAX}"
            ));
        }
        if lanes == 0 || lanes > LANES_MAX {
            return Err(format!("it has {lanes} lanes, and may have {LANES_MAX}"));
        }
        if memory_kib < 8 * lanes || passes == 0 {
            return Err(format!(
                "{passes} passes over {memory_kib} KiB are no Argon2"
            ));
        }
        Ok(())
    }
}

impl Kdf {
    /// Whether it may be derived at all. What of it is not bounded here is by
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
                        "it has {iterations} iterations, and may have {ITERATIONS_MAX}"
                    ));
                }
                salt
            }
        };
        match salt.len() {
            short if short < SALT_BYTES_MIN => Err(format!("its salt has {short} bytes")),
            _ => Ok(()),
        }
    }

    /// What it costs, measured as [`PASSES_KIB_MAX`].
    pub(super) fn passes_kib(&self) -> u64 {
        match self {
            Self::Argon2 { cost, .. } => u64::from(cost.memory_kib) * u64::from(cost.passes),
            // Two iterations take about as long as a pass over a KiB.
            Self::Pbkdf2 { iterations, .. } => u64::from(*iterations) / 2,
        }
    }

    /// The key of a passphrase. It was checked.
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
