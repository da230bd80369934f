//! Where encryption could run, and with what, of what is asked and was calibrated.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::args::PredictArguments;
use crate::commands::Console;
use crate::commands::Failure;
use crate::cost::Layer;
use crate::measure::{Calibration, Cipher, MeasuredPlace, PlaceKind};

/// What a file system and a cipher below it have at once, in bytes.
const BLOCK_BYTES: f64 = 4096.0;

/// One of them.
pub struct Candidate<'a> {
    pub calibration: &'a Calibration,
    pub place: &'a MeasuredPlace,
    pub cipher: Cipher,
    pub layer: Layer,
    /// When that was measured.
    pub at: Timestamp,
    /// It was measured with another cipher.
    pub is_by_cipher: bool,
    /// How much of it may be chance.
    pub suspicion: Option<String>,
}

/// All that are asked for, and were calibrated in one of these.
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
            let why = format!("{kind} is in several of these calibrations: leave one out");
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
                false => Err("it does not have that"),
                true => by_cipher(calibration, place, *cipher)
                    .ok_or("nothing of that mode was calibrated there"),
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

/// The places that are asked for, or else all. What is above memory is asked for files, and not
/// for what reaches a disk.
fn kinds(
    console: &dyn Console,
    calibrations: &[Calibration],
    arguments: &PredictArguments,
) -> Result<Vec<PlaceKind>, Failure> {
    let asked = &arguments.workload;
    let is_of_disk = asked.direct.is_some() || !asked.traces.is_empty();
    let is_unfit = |kind: &PlaceKind| is_of_disk && *kind == PlaceKind::GuestStackable;
    let why = format!(
        "{} encrypts files, and requests past memory do not tell what files are asked for",
        PlaceKind::GuestStackable
    );
    if !arguments.places.is_empty() {
        return match arguments.places.iter().any(is_unfit) {
            true => Err(Failure::new(why)),
            false => Ok(arguments.places.clone()),
        };
    }
    let places = calibrations.iter().flat_map(|one| &one.places);
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

/// A layer with a cipher that was not tried there, but with a key of another length.
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
