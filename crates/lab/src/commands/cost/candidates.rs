//! [`candidates`]: the calibrated combinations of place and cipher that a prediction compares.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::args::PredictArguments;
use crate::commands::Console;
use crate::commands::Failure;
use crate::cost::Layer;
use crate::measure::{Calibration, Cipher, MeasuredPlace, PlaceKind};

/// The block size of a file system and of a cipher below it, in bytes.
const BLOCK_BYTES: f64 = 4096.0;

/// A place with a cipher.
pub struct Candidate<'a> {
    pub calibration: &'a Calibration,
    pub place: &'a MeasuredPlace,
    pub cipher: Cipher,
    pub layer: Layer,
    /// When the layer was measured.
    pub at: Timestamp,
    /// The layer was measured with another cipher, and converted.
    pub is_by_cipher: bool,
    /// Why its measurement may be imprecise.
    pub suspicion: Option<String>,
}

/// The requested combinations that are in one of the calibrations.
pub fn candidates<'a>(
    console: &dyn Console,
    calibrations: &'a [Calibration],
    arguments: &PredictArguments,
) -> Result<Vec<Candidate<'a>>, Failure> {
    let mut found = Vec::new();
    for kind in kinds(console, calibrations, arguments)? {
        let having = |calibration: &'a Calibration| Some((calibration, calibration.place(kind)?));
        let mut having = calibrations.iter().filter_map(having);
        let Some((calibration, place)) = having.next() else {
            return Err(Failure::new(format!(
                "{kind} was not calibrated: `scree cost calibrate --place {kind}`"
            )));
        };
        if having.next().is_some() {
            let why = format!("{kind} is in several of these calibrations: use only one");
            return Err(Failure::new(why));
        }
        for one in &place.layers {
            if arguments.ciphers.is_empty() || arguments.ciphers.contains(&one.cipher) {
                found.push(Candidate {
                    calibration,
                    place,
                    cipher: one.cipher,
                    layer: one.layer.clone(),
                    at: one.at,
                    is_by_cipher: false,
                    suspicion: one.suspicion(),
                });
            }
        }
        for cipher in &arguments.ciphers {
            if place.layer(*cipher).is_some() {
                continue;
            }
            let by_cipher = match kind.ciphers().contains(cipher) {
                false => Err("the place does not support this cipher"),
                true => by_cipher(calibration, place, *cipher)
                    .ok_or("no cipher of that mode was calibrated there"),
            };
            match by_cipher {
                Ok(one) => found.push(one),
                Err(why) => {
                    let notice = format!("{kind} with {cipher} is left out: {why}");
                    console.notice(&notice);
                }
            }
        }
    }
    match found.is_empty() {
        true => Err(Failure::new(
            "no such place and cipher was calibrated: `scree cost calibrate --place PLACE`",
        )),
        false => Ok(found),
    }
}

/// The requested places, or else all. Places above the page cache are compared for files, but not
/// for requests that reach a disk.
fn kinds(
    console: &dyn Console,
    calibrations: &[Calibration],
    arguments: &PredictArguments,
) -> Result<Vec<PlaceKind>, Failure> {
    let asked = &arguments.workload;
    let is_of_disk = asked.direct.is_some() || !asked.traces.is_empty();
    let is_unfit = |kind: &PlaceKind| is_of_disk && *kind == PlaceKind::GuestStackable;
    let why = format!(
        "{} encrypts files, whose requests are unknown with direct I/O",
        PlaceKind::GuestStackable
    );
    if !arguments.places.is_empty() {
        return match arguments.places.iter().any(is_unfit) {
            true => Err(Failure::new(why)),
            false => Ok(arguments.places.clone()),
        };
    }
    let places = calibrations
        .iter()
        .flat_map(|calibration| &calibration.places);
    let known: BTreeSet<PlaceKind> = places.map(|one| one.place).collect();
    let (mut kinds, mut unknown) = (Vec::new(), Vec::new());
    for kind in PlaceKind::ALL {
        match known.contains(&kind) {
            false => unknown.push(kind.name()),
            true if is_unfit(&kind) => console.notice(&format!("{why}; it is left out")),
            true => kinds.push(kind),
        }
    }
    if !known.is_empty() && !unknown.is_empty() {
        let unknown = unknown.join(", ");
        let notice = format!("{unknown}: not calibrated, so not compared (--calibration FILE)");
        console.notice(&notice);
    }
    Ok(kinds)
}

/// A layer with a cipher that was not measured there, derived from a cipher with another key
/// length.
fn by_cipher<'a>(
    calibration: &'a Calibration,
    place: &'a MeasuredPlace,
    cipher: Cipher,
) -> Option<Candidate<'a>> {
    let speed = |cipher: Cipher| {
        let mut all = calibration.ciphers.iter();
        all.find(|one| one.cipher == cipher).map(|one| one.cpu)
    };
    let mut alike = place.layers.iter();
    let tried = alike.find(|one| one.cipher.is_of_one_mode(cipher))?;
    let (old, new) = (speed(tried.cipher)?, speed(cipher)?);
    Some(Candidate {
        calibration,
        place,
        cipher,
        layer: tried.layer.exchanged(&old, &new, BLOCK_BYTES),
        at: tried.at,
        is_by_cipher: true,
        suspicion: tried.suspicion(),
    })
}
