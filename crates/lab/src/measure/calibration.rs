//! [`Calibration`]: the measurements of a machine, as a file.

use std::path::Path;

use crate::cost::{Layer, Target};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::measure::{Cipher, CipherSpeed, Machine, PlaceKind};

/// The format version of the file.
pub const VERSION: u32 = 1;

/// The largest file, in bytes.
const BYTES_MAX: u64 = 16 << 20;

/// A measured layer, with its cipher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredLayer {
    /// The cipher.
    pub cipher: Cipher,
    /// When it was measured.
    pub at: Timestamp,
    /// The cost of encryption.
    pub layer: Layer,
    /// Number of CPU time measurements that are not significant.
    pub unsure: usize,
    /// Number of CPU time measurements.
    pub measured: usize,
}

/// A measured place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPlace {
    /// The kind of the place.
    pub place: PlaceKind,
    /// When it was measured without encryption.
    pub at: Timestamp,
    /// The memory to which F relates, in bytes.
    pub memory_bytes: u64,
    /// The largest data with which F was measured, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tried_bytes: Option<u64>,
    /// The place without encryption.
    pub target: Target,
    /// The layers that encrypt there.
    pub layers: Vec<MeasuredLayer>,
}

/// All measurements of one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The format version: [`VERSION`].
    pub version: u32,
    /// The machine.
    pub machine: Machine,
    /// When the ciphers were measured by themselves; places have their own times.
    pub at: Timestamp,
    /// The ciphers by themselves.
    pub ciphers: Vec<CipherSpeed>,
    /// The measured places.
    pub places: Vec<MeasuredPlace>,
}

/// Why a file is not a calibration.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// The file cannot be read.
    #[error("{0}")]
    Read(#[from] std::io::Error),
    /// The file has another format.
    #[error("it is not a calibration: {0}")]
    Form(#[from] serde_json::Error),
    /// The file has another version.
    #[error("its version is {found}, but this program reads version {VERSION}: calibrate again")]
    Version {
        /// The version of the file.
        found: u32,
    },
    /// A term is negative or not a number.
    #[error("its values for {0} are invalid")]
    Terms(String),
    /// A place or layer occurs twice.
    #[error("it has {0} twice")]
    Twice(PlaceKind),
}

impl Calibration {
    /// Reads a calibration.
    ///
    /// # Errors
    /// [`CalibrationError`].
    pub fn load(path: &Path) -> Result<Self, CalibrationError> {
        let bytes = world::host::read_small(&world::real::RealDisk, path, BYTES_MAX)?;
        Self::parse(&bytes)
    }

    fn parse(bytes: &[u8]) -> Result<Self, CalibrationError> {
        // Other versions may have another format.
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

    /// Writes the calibration, and replaces an existing file.
    ///
    /// # Errors
    /// Any error of the operating system.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        world::host::write_whole(&world::real::RealDisk, path, &json)
    }

    /// The measured place of this kind.
    #[must_use]
    pub fn place(&self, kind: PlaceKind) -> Option<&MeasuredPlace> {
        self.places.iter().find(|one| one.place == kind)
    }

    /// Adds a place, or replaces its earlier measurement. Its layers with other ciphers stay: their
    /// costs are in addition to the place's own.
    pub fn put(&mut self, mut place: MeasuredPlace) {
        let known = self.places.extract_if(.., |one| one.place == place.place);
        for layer in known.flat_map(|one| one.layers) {
            if place.layer(layer.cipher).is_none() {
                place.layers.push(layer);
            }
        }
        place.layers.sort_by_key(|layer| layer.cipher);
        self.places.push(place);
        self.places.sort_by_key(|one| one.place);
    }
}

impl MeasuredLayer {
    /// Why the measurement may be imprecise; `None` if it is significant.
    #[must_use]
    pub fn suspicion(&self) -> Option<String> {
        (self.unsure > 0).then(|| {
            format!(
                "of {} measurements {} are not significant",
                self.measured, self.unsure
            )
        })
    }
}

impl MeasuredPlace {
    /// The largest data with which F was measured, in bytes and relative to memory, if it was
    /// smaller than memory: values for more data are extrapolated.
    #[must_use]
    pub fn guessed_beyond(&self) -> Option<(u64, f64)> {
        let tried = self.tried_bytes?;
        let part = tried as f64 / self.memory_bytes.max(1) as f64;
        (part < 1.0).then_some((tried, part))
    }

    /// The largest data with which F was measured, in bytes, if its value for `data_bytes` with
    /// `memory_bytes` of memory is extrapolated.
    #[must_use]
    pub fn guessed_from(&self, data_bytes: f64, memory_bytes: f64) -> Option<u64> {
        let (tried, part) = self.guessed_beyond()?;
        (data_bytes / memory_bytes.max(1.0) > part).then_some(tried)
    }

    /// The cost of encryption with a cipher there.
    #[must_use]
    pub fn layer(&self, cipher: Cipher) -> Option<&Layer> {
        let mut layers = self.layers.iter();
        let found = layers.find(|layer| layer.cipher == cipher);
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
    fn a_saved_calibration_is_loaded_unchanged() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("calibration.json");
        let mut saved = calibration();
        saved.save(&path).expect("saved");
        assert_eq!(Calibration::load(&path).expect("loaded"), saved);
        // The same place again.
        saved.put(saved.places[0].clone());
        assert_eq!((saved.places.len(), saved.places[0].layers.len()), (1, 1));
        // With another cipher: the layers with the first cipher stay.
        let mut other = saved.places[0].clone();
        other.layers[0].cipher = Cipher::Aes128Gcm;
        saved.put(other);
        let ciphers = saved.places[0].layers.iter().map(|layer| layer.cipher);
        assert_eq!(
            ciphers.collect::<Vec<_>>(),
            [Cipher::Aes128Gcm, Cipher::Aes256Gcm]
        );
    }

    #[test]
    fn values_beyond_the_measured_data_are_extrapolated() {
        const MIB: f64 = (1 << 20) as f64;
        let mut place = calibration().places.remove(0);
        assert_eq!(place.guessed_from(512.0 * MIB, 1024.0 * MIB), None);
        let guessed = place.guessed_from(513.0 * MIB, 1024.0 * MIB);
        assert_eq!(guessed, Some(512 << 20));
        // With more memory, the same part of it counts.
        assert_eq!(place.guessed_from(513.0 * MIB, 2048.0 * MIB), None);
        place.tried_bytes = Some(1536 << 20);
        assert_eq!(place.guessed_from(9000.0 * MIB, 1024.0 * MIB), None);
        place.tried_bytes = None;
        assert_eq!(place.guessed_from(9000.0 * MIB, 1024.0 * MIB), None);
    }

    #[test]
    fn an_invalid_calibration_is_refused() {
        let text = |change: fn(&mut Calibration)| {
            let mut one = calibration();
            change(&mut one);
            serde_json::to_vec(&one).expect("JSON")
        };
        let refused = |bytes: &[u8]| Calibration::parse(bytes).expect_err("refused").to_string();
        assert!(refused(b"{}").contains("version"));
        assert!(refused(b"").contains("not a calibration"));
        let version = text(|one| one.version = 7);
        assert!(refused(&version).contains("version is 7"));
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
