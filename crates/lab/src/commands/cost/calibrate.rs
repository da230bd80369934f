//! `scree cost calibrate`.

use std::path::Path;
use std::time::Duration;

use base::report::Table;

use super::scratch::Scratch;
use super::{load, percent, refused, seconds, suspect};
use crate::args::CalibrateArguments;
use crate::commands::Failure;
use crate::commands::files::failed;
use crate::commands::{Console, Progress, print};
use crate::measure::place::place;
use crate::measure::{
    Calibration, Cipher, CipherSpeed, Effort, Machine, MeasuredPlace, PlaceKind, Stop, VERSION,
    Waiting, now,
};

/// Runs `scree cost calibrate`.
pub fn run(console: &dyn Console, arguments: &CalibrateArguments) -> Result<(), Failure> {
    let path = &arguments.calibration.calibration;
    // Arguments are checked before the measurement, which takes long.
    let known = match world::host::inode(path) {
        Ok(_) => Some(known(arguments)?),
        Err(_) => None,
    };
    check_ciphers(arguments)?;
    let effort = Effort {
        rounds: arguments.rounds,
        bytes: arguments.bytes.max(1 << 20) / (1 << 20) * (1 << 20),
        memory_bytes: arguments.memory.unwrap_or(Machine::here().memory_bytes),
        curve_bytes_max: arguments.data_max,
    };
    let stop = console.stop_on_signal()?;
    let scratch = Scratch::make(&arguments.place.folder)?;
    // Large requests use four times as much.
    let bytes_max = 4 * effort.bytes;
    let settings = scratch.settings(&arguments.place, &arguments.places, bytes_max, &stop)?;
    let progress = console.progress("ciphers");
    let ciphers = measure_ciphers(&*progress, arguments.cipher_time, &stop)?;
    let mut calibration = Calibration {
        version: VERSION,
        // The clock rate of the CPU is highest right after work.
        machine: Machine::busy(),
        at: now(),
        ciphers,
        places: known.map(|known| known.places).unwrap_or_default(),
    };
    save(&calibration, path)?;
    for kind in &arguments.places {
        let ciphers = kind.ciphers().iter().copied();
        let wanted = ciphers
            .filter(|cipher| arguments.ciphers.is_empty() || arguments.ciphers.contains(cipher));
        let wanted: Vec<Cipher> = wanted.collect();
        progress.say(format!("{kind} starts"));
        let mut opened = place(*kind, &settings).map_err(refused)?;
        let mut waiting = Waiting {
            say: &mut |doing| progress.say(doing),
            stop: &stop,
        };
        let measured =
            crate::measure::calibrate(*kind, &mut *opened, &wanted, &effort, &mut waiting);
        calibration.put(measured.map_err(refused)?);
        // The next place may fail; this result is kept.
        save(&calibration, path)?;
    }
    drop(progress);
    scratch.remove()?;
    show_notices(console, arguments, &calibration);
    Ok(print(console, &calibration, shown)?)
}

/// Checks that each place supports at least one of the ciphers.
fn check_ciphers(arguments: &CalibrateArguments) -> Result<(), Failure> {
    let is_supported = |kind: &PlaceKind| {
        let mut ciphers = arguments.ciphers.iter();
        arguments.ciphers.is_empty() || ciphers.any(|cipher| kind.ciphers().contains(cipher))
    };
    let Some(kind) = arguments.places.iter().find(|kind| !is_supported(kind)) else {
        return Ok(());
    };
    let names: Vec<String> = kind.ciphers().iter().map(ToString::to_string).collect();
    Err(Failure::new(format!(
        "{kind} has none of these ciphers: use {}",
        names.join(", ")
    )))
}

fn measure_ciphers(
    progress: &dyn Progress,
    time: Duration,
    stop: &Stop,
) -> Result<Vec<CipherSpeed>, Failure> {
    let mut speeds = Vec::new();
    for cipher in Cipher::ALL {
        progress.say(format!("{cipher} by itself"));
        let speed = CipherSpeed::measure(cipher, time.as_secs_f64(), stop);
        speeds.push(speed.map_err(refused)?);
    }
    Ok(speeds)
}

/// Shows which measurements are extrapolated or imprecise.
fn show_notices(console: &dyn Console, arguments: &CalibrateArguments, calibration: &Calibration) {
    // All places were measured with the same --data-max.
    let places = arguments.places.iter();
    let mut beyond = places.filter_map(|kind| calibration.place(*kind)?.guessed_beyond());
    if let Some((tried, part)) = beyond.next() {
        let notice = format!(
            "the effect of memory was measured with data of up to {} ({} of memory; --data-max); \
             predictions for more data are extrapolated",
            base::size::about_bytes(tried),
            percent(part)
        );
        console.notice(&notice);
    }
    for place in &calibration.places {
        for layer in &place.layers {
            if let Some(suspicion) = layer.suspicion() {
                console.notice(&suspect(place.place, layer.cipher, &suspicion));
            }
        }
    }
}

fn save(calibration: &Calibration, path: &Path) -> Result<(), Failure> {
    calibration.save(path).map_err(|error| failed(path, error))
}

/// The existing calibration: places that are not measured again stay.
fn known(arguments: &CalibrateArguments) -> Result<Calibration, Failure> {
    let path = &arguments.calibration.calibration;
    let (known, differs) = load(path)?;
    match differs {
        None => Ok(known),
        Some(why) => Err(failed(
            path,
            format!("{why}; remove the file, or use another --calibration"),
        )),
    }
}

fn shown(calibration: &Calibration) -> String {
    let machine = &calibration.machine;
    let mut text = format!(
        "{}, {} × {}, {} of memory, {}\n\n",
        machine.name,
        machine.cpus,
        machine.processor,
        base::size::about_bytes(machine.memory_bytes),
        calibration.at,
    );
    let mut table = Table::new(&["CIPHER", "BLOCK", "ENCRYPTS", "DECRYPTS", "CYCLES A BYTE"]);
    for one in &calibration.ciphers {
        for (bytes, both) in &one.blocks {
            let rate = |block_s: f64| format!("{:.0} MB/s", *bytes as f64 / block_s / 1e6);
            let cycles = |block_s: f64| {
                let of = |cycles_per_s| format!("{:.2}", block_s * cycles_per_s / *bytes as f64);
                machine.cycles_per_s.map_or("?".to_owned(), of)
            };
            table.row(vec![
                one.cipher.to_string(),
                base::size::exact_bytes(*bytes),
                rate(both.write),
                rate(both.read),
                format!("{}, {}", cycles(both.write), cycles(both.read)),
            ]);
        }
    }
    text += &table.to_string();
    if !calibration.places.is_empty() {
        text += &format!("\n{}", places(&calibration.places));
    }
    text
}

fn places(places: &[MeasuredPlace]) -> String {
    let mut table = Table::new(&[
        "PLACE",
        "CIPHER",
        "A GB WRITTEN",
        "A WRITE",
        "A GB READ",
        "A READ",
    ]);
    let mut targets = String::new();
    for one in places {
        for layer in &one.layers {
            let cpu = &layer.layer.cpu;
            let (read, write) = (cpu.read.line(), cpu.write.line());
            table.row(vec![
                one.place.to_string(),
                layer.cipher.to_string(),
                seconds(1e9 * write.byte_s),
                seconds(write.operation_s),
                seconds(1e9 * read.byte_s),
                seconds(read.operation_s),
            ]);
        }
        let rate = one.target.bytes_per_s;
        targets += &format!(
            "{} without encryption: {:.0} MB/s read, {:.0} MB/s written{}\n",
            one.place,
            rate.read / 1e6,
            rate.write / 1e6,
            factor(one),
        );
    }
    format!("Added CPU time:\n{table}\n{targets}")
}

fn factor(place: &MeasuredPlace) -> String {
    let first = place.target.reads.points().first();
    match first {
        Some(point) if point.speedup > 1.0 => format!(
            "; from memory {:.0} times as fast, with data of {:.0} % of it",
            point.speedup,
            100.0 * point.data_ratio
        ),
        _ => String::new(),
    }
}
