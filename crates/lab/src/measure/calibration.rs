//! [`Calibration`]: what was measured, as a file.

use std::path::Path;

use crate::cost::{Layer, Target};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::measure::{Cipher, CipherSpeed, Machine, PlaceKind};

/// The form of the file.
pub const VERSION: u32 = 1;

/// No such file is longer, in bytes.
const BYTES_MAX: u64 = 16 << 20;

/// A layer, with its cipher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredLayer {
    /// With what it encrypts.
    pub cipher: Cipher,
    /// When it was measured.
    pub at: Timestamp,
    /// What it costs.
    pub layer: Layer,
    /// So many of the measurements of its CPU time may be nothing but chance.
    pub unsure: usize,
    /// Of so many.
    pub measured: usize,
}

/// A place on a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPlace {
    /// Which.
    pub place: PlaceKind,
    /// When it was measured without encryption.
    pub at: Timestamp,
    /// The memory that its F is of, in bytes.
    pub memory_bytes: u64,
    /// F was tried with data of up to so many bytes; a calibration of an earlier build does not
    /// say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tried_bytes: Option<u64>,
    /// Without encryption.
    pub target: Target,
    /// With it.
    pub layers: Vec<MeasuredLayer>,
}

/// All that was measured on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// [`VERSION`].
    pub version: u32,
    /// Where.
    pub machine: Machine,
    /// When ciphers were measured by themselves; places have times of their own.
    pub at: Timestamp,
    /// Ciphers by themselves.
    pub ciphers: Vec<CipherSpeed>,
    /// Places.
    pub places: Vec<MeasuredPlace>,
}

/// Why a file is no calibration.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// It cannot be read.
    #[error("{0}")]
    Read(#[from] std::io::Error),
    /// It is something else.
    #[error("it is no calibration: {0}")]
    Form(#[from] serde_json::Error),
    /// Of another version.
    #[error("it is of version {found}, and this program knows {VERSION}: calibrate once more")]
    Version {
        /// Which.
        found: u32,
    },
    /// A term is below 0, or no number.
    #[error("what it says of {0} cannot be")]
    Terms(String),
    /// It has a place more than once.
    #[error("it has {0} twice")]
    Twice(PlaceKind),
}

impl Calibration {
    /// Reads one.
    ///
    /// # Errors
    /// [`CalibrationError`].
    pub fn load(path: &Path) -> Result<Self, CalibrationError> {
        let bytes = world::host::read_small(&world::real::RealDisk, path, BYTES_MAX)?;
        Self::parse(&bytes)
    }

    fn parse(bytes: &[u8]) -> Result<Self, CalibrationError> {
        // The form may differ where the version does.
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let Head { version } = serde_json::from_slice(bytes)?;
        if version != VERSION {
            return Err(CalibrationError::Version { found: version });
        }
        let read: Self = serde_json::from_slice(bytes)?;
        let wrong = |what: String| Err(CalibrationError::Terms(what));
        for (number, one) in read.ciphers.iter().enumerate() {
            let mut before = read.ciphers[..number].iter();
            let is_twice = before.any(|other| other.cipher == one.cipher);
            if is_twice || !one.cpu.read.is_valid() || !one.cpu.write.is_valid() {
                return wrong(one.cipher.to_string());
            }
        }
        for (number, place) in read.places.iter().enumerate() {
            let mut before = read.places[..number].iter();
            if before.any(|other| other.place == place.place) {
                return Err(CalibrationError::Twice(place.place));
            }
            if !place.target.is_valid() {
                return wrong(place.place.to_string());
            }
            for (number, one) in place.layers.iter().enumerate() {
                let mut before = place.layers[..number].iter();
                let is_twice = before.any(|other| other.cipher == one.cipher);
                let is_there = place.place.ciphers().contains(&one.cipher);
                let is_counted = one.unsure <= one.measured;
                if is_twice || !is_there || !is_counted || !one.layer.is_valid() {
                    return wrong(format!("{} with {}", place.place, one.cipher));
                }
            }
        }
        Ok(read)
    }

    /// Writes it, in the place of what is there.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        world::host::write_whole(&world::real::RealDisk, path, &json)
    }

    /// A place that was measured.
    #[must_use]
    pub fn place(&self, kind: PlaceKind) -> Option<&MeasuredPlace> {
        self.places.iter().find(|one| one.place == kind)
    }

    /// Puts what was measured in the place of what was known of the same. What other ciphers
    /// cost there stays: it is in addition to what the place does in any case.
    pub fn put(&mut self, mut place: MeasuredPlace) {
        let known = self.places.extract_if(.., |one| one.place == place.place);
        for layer in known.flat_map(|one| one.layers) {
            if place.layer(layer.cipher).is_none() {
                place.layers.push(layer);
            }
        }
        place.layers.sort_by_key(|one| one.cipher);
        self.places.push(place);
        self.places.sort_by_key(|one| one.place);
    }
}

impl MeasuredLayer {
    /// What is to be known of it, if much of it may be chance.
    #[must_use]
    pub fn suspicion(&self) -> Option<String> {
        (self.unsure > 0).then(|| {
            format!(
                "of {} measurements {} may be nothing but chance",
                self.measured, self.unsure
            )
        })
    }
}

impl MeasuredPlace {
    /// With how much data F was tried at most, in bytes, and which part of the memory that is, of
    /// 1, if it was less than there is memory: what it says of more is a guess.
    #[must_use]
    pub fn guessed_beyond(&self) -> Option<(u64, f64)> {
        let tried = self.tried_bytes?;
        let part = tried as f64 / self.memory_bytes.max(1) as f64;
        (part < 1.0).then_some((tried, part))
    }

    /// With how much data F was tried at most, in bytes, if what it says of `data_bytes` in a
    /// memory of `memory_bytes` is a guess from that.
    #[must_use]
    pub fn guessed_from(&self, data_bytes: f64, memory_bytes: f64) -> Option<u64> {
        let (tried, part) = self.guessed_beyond()?;
        (data_bytes / memory_bytes.max(1.0) > part).then_some(tried)
    }

    /// What encryption with a cipher costs there.
    #[must_use]
    pub fn layer(&self, cipher: Cipher) -> Option<&Layer> {
        let mut layers = self.layers.iter();
        let found = layers.find(|one| one.cipher == cipher);
        found.map(|one| &one.layer)
    }
}

#[cfg(test)]
mod tests {
    use crate::cost::{Both, BySize, Curve, Linear};

    use super::*;

    fn calibration() -> Calibration {
        let line = Linear {
            byte_s: 1e-9,
            operation_s: 2e-6,
        };
        let lines = Both {
            read: line,
            write: line,
        };
        let by_size = || BySize::new(vec![(4096.0, 1e-6), (8192.0, 2e-6)]).expect("sizes");
        let sized = || Both {
            read: by_size(),
            write: by_size(),
        };
        Calibration {
            version: VERSION,
            machine: Machine::here(),
            at: Timestamp::UNIX_EPOCH,
            ciphers: Vec::new(),
            places: vec![MeasuredPlace {
                place: PlaceKind::Agent,
                at: Timestamp::UNIX_EPOCH,
                memory_bytes: 1 << 30,
                tried_bytes: Some(512 << 20),
                target: Target {
                    bytes_per_s: Both {
                        read: 1e8,
                        write: 5e7,
                    },
                    reads: Curve::flat(),
                    writes: Curve::flat(),
                    cpu: lines,
                    direct_cpu: lines,
                    direct_latency: lines,
                },
                layers: vec![MeasuredLayer {
                    cipher: Cipher::Aes256Gcm,
                    at: Timestamp::UNIX_EPOCH,
                    layer: Layer {
                        cpu: sized(),
                        latency: sized(),
                        request_bytes_max: 131_072.0,
                        merged_bytes: 131_072.0,
                        apart_s: Both::default(),
                        is_above_memory: false,
                    },
                    unsure: 0,
                    measured: 4,
                }],
            }],
        }
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("calibration.json");
        let mut saved = calibration();
        saved.save(&path).expect("saved");
        assert_eq!(Calibration::load(&path).expect("loaded"), saved);
        // Once more, of the same place.
        saved.put(saved.places[0].clone());
        assert_eq!((saved.places.len(), saved.places[0].layers.len()), (1, 1));
        // With another cipher: of the first, what was known is known.
        let mut other = saved.places[0].clone();
        other.layers[0].cipher = Cipher::Aes128Gcm;
        saved.put(other);
        let ciphers = saved.places[0].layers.iter().map(|one| one.cipher);
        assert_eq!(
            ciphers.collect::<Vec<_>>(),
            [Cipher::Aes128Gcm, Cipher::Aes256Gcm]
        );
    }

    #[test]
    fn what_was_not_tried_is_guessed() {
        const MIB: f64 = (1 << 20) as f64;
        let mut place = calibration().places.remove(0);
        assert_eq!(place.guessed_from(512.0 * MIB, 1024.0 * MIB), None);
        let guessed = place.guessed_from(513.0 * MIB, 1024.0 * MIB);
        assert_eq!(guessed, Some(512 << 20));
        // Of more memory it is as with as large a part of this.
        assert_eq!(place.guessed_from(513.0 * MIB, 2048.0 * MIB), None);
        place.tried_bytes = Some(1536 << 20);
        assert_eq!(place.guessed_from(9000.0 * MIB, 1024.0 * MIB), None);
        place.tried_bytes = None;
        assert_eq!(place.guessed_from(9000.0 * MIB, 1024.0 * MIB), None);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let text = |change: fn(&mut Calibration)| {
            let mut one = calibration();
            change(&mut one);
            serde_json::to_vec(&one).expect("JSON")
        };
        let refused = |bytes: &[u8]| Calibration::parse(bytes).expect_err("refused").to_string();
        assert!(refused(b"{}").contains("version"));
        assert!(refused(b"").contains("no calibration"));
        let version = text(|one| one.version = 7);
        assert!(refused(&version).contains("version 7"));
        let endless = text(|one| one.places[0].layers[0].layer.request_bytes_max = 0.0);
        assert!(refused(&endless).contains("agent with aes-256-gcm"));
        let slow = text(|one| one.places[0].target.bytes_per_s.read = 0.0);
        assert!(refused(&slow).contains("agent"));
        let twice = text(|one| one.places.push(one.places[0].clone()));
        assert!(refused(&twice).contains("agent twice"));
        let cipher = text(|one| {
            let layers = &mut one.places[0].layers;
            layers.push(layers[0].clone());
        });
        assert!(refused(&cipher).contains("agent with aes-256-gcm"));
        let other = text(|one| one.places[0].layers[0].cipher = Cipher::Aes128Xts);
        assert!(refused(&other).contains("agent with aes-128-xts"));
        let unsure = text(|one| one.places[0].layers[0].unsure = 5);
        assert!(refused(&unsure).contains("agent with aes-256-gcm"));
        let saving = text(|one| {
            let mut cpu: Both<Linear> = Both::default();
            cpu.write.byte_s = -1e-9;
            one.ciphers.push(crate::measure::CipherSpeed {
                cipher: Cipher::Aes128Gcm,
                cpu,
                blocks: Vec::new(),
            });
        });
        assert!(refused(&saving).contains("aes-128-gcm"));
        let cut = text(|_| ());
        for length in [1, cut.len() / 2, cut.len() - 1] {
            refused(&cut[..length]);
        }
    }
}
