//! Where encryption could run, and with what, of what is asked and was calibrated.

use jiff::Timestamp;
use measure::{Calibration, Cipher, MeasuredPlace, PlaceKind};
use model::cost::Layer;

use crate::args::PredictArguments;
use crate::commands::Failure;
use crate::output::{Format, print_notice};

/// What a file system and a cipher below it have at once, in bytes.
const BLOCK_BYTES: f64 = 4096.0;
/// One of them.
pub struct Chosen<'a> {
    pub place: &'a MeasuredPlace,
    pub cipher: Cipher,
    pub layer: Layer,
    /// When that was measured.
    pub at: Timestamp,
    /// It was measured with another cipher.
    pub is_by_cipher: bool,
    /// How much of it may be chance.
    pub doubt: Option<String>,
}

/// All that are asked for.
pub fn chosen<'a>(
    format: Format,
    calibration: &'a Calibration,
    arguments: &PredictArguments,
) -> Result<Vec<Chosen<'a>>, Failure> {
    let mut found = Vec::new();
    for kind in kinds(format, calibration, arguments)? {
        let Some(place) = calibration.place(kind) else {
            return Err(Failure::new(format!(
                "{kind} was not calibrated: `scree cost calibrate --place {kind}`"
            )));
        };
        for one in &place.layers {
            if arguments.ciphers.is_empty() || arguments.ciphers.contains(&one.cipher) {
                found.push(Chosen {
                    place,
                    cipher: one.cipher,
                    layer: one.layer.clone(),
                    at: one.at,
                    is_by_cipher: false,
                    doubt: one.doubt(),
                });
            }
        }
        let missing = arguments
            .ciphers
            .iter()
            .copied()
            .filter(|cipher| kind.ciphers().contains(cipher) && place.layer(*cipher).is_none());
        found.extend(missing.filter_map(|cipher| by_cipher(calibration, place, cipher)));
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
    format: Format,
    calibration: &Calibration,
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
    let mut kinds: Vec<PlaceKind> = calibration.places.iter().map(|one| one.place).collect();
    if kinds.extract_if(.., |kind| is_unfit(kind)).count() > 0 {
        print_notice(format, &format!("{why}; it is left out"));
    }
    Ok(kinds)
}

/// A layer with a cipher that was not tried there, but with a key of another length.
fn by_cipher<'a>(
    calibration: &Calibration,
    place: &'a MeasuredPlace,
    cipher: Cipher,
) -> Option<Chosen<'a>> {
    let speed = |cipher: Cipher| {
        let mut all = calibration.ciphers.iter();
        all.find(|one| one.cipher == cipher).map(|one| one.cpu)
    };
    let mut alike = place.layers.iter();
    let tried = alike.find(|one| one.cipher.is_of_one_mode(cipher))?;
    let (old, new) = (speed(tried.cipher)?, speed(cipher)?);
    Some(Chosen {
        place,
        cipher,
        layer: tried.layer.exchanged(&old, &new, BLOCK_BYTES),
        at: tried.at,
        is_by_cipher: true,
        doubt: tried.doubt(),
    })
}
