//! Runs the fuzz targets on randomly changed inputs, without coverage and without a nightly
//! compiler.
//!
//! ```text
//! mutate [--seconds N] [--seed N] [TARGET …]    all targets if none is named
//! mutate --write-seeds FOLDER                   a corpus for cargo-fuzz
//! mutate --run FILE TARGET                      one saved input
//! mutate --make-images FOLDER                   the file systems of seeds
//! ```
//!
//! The seed and the number of an input determine it, so `--seed` reproduces a failure. The input of
//! a failure is also written to `fuzz/artifacts/`.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use scree_fuzz::{TARGETS, Target};

/// The random generator SplitMix64.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Numbers at which arithmetic is likely to overflow.
const LIMITS: [u64; 10] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

fn mutate(data: &mut Vec<u8>, other: &[u8], random: &mut SplitMix) {
    for _ in 0..1 + random.below(6) {
        let at = random.below(data.len());
        // Fields are mostly at the front.
        let at = if random.below(2) == 0 {
            at.min(random.below(160))
        } else {
            at
        };
        match random.below(9) {
            0 | 1 if !data.is_empty() => data[at] ^= 1 << random.below(8),
            2 if !data.is_empty() => data[at] = random.next() as u8,
            3 | 4 => {
                let width = [1, 2, 4, 8][random.below(4)];
                let number = LIMITS[random.below(LIMITS.len())];
                let number = number.wrapping_add(random.below(3) as u64).wrapping_sub(1);
                let (little, big) = (number.to_le_bytes(), number.to_be_bytes());
                let bytes = match random.below(2) {
                    0 => &little[..width],
                    _ => &big[8 - width..],
                };
                for (into, from) in data.iter_mut().skip(at).zip(bytes) {
                    *into = *from;
                }
            }
            5 => data.truncate(at),
            6 => {
                let length = random.below(64);
                let more: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
                data.splice(at..at, more);
            }
            7 => {
                let end = (at + random.below(64)).min(data.len());
                let copy = data[at.min(end)..end].to_vec();
                data.splice(at..at, copy);
            }
            _ => {
                let from = random.below(other.len());
                let end = (from + random.below(256)).min(other.len());
                data.truncate(at);
                data.extend_from_slice(&other[from..end]);
            }
        }
        data.truncate(1 << 16);
    }
}

fn input(target: &Target, seeds: &[Vec<u8>], seed: u64, number: u64) -> Vec<u8> {
    let name = target
        .name
        .bytes()
        .fold(seed, |hash, byte| hash.rotate_left(7) ^ u64::from(byte));
    let mut random = SplitMix(name ^ number.wrapping_mul(0x2545_f491_4f6c_dd1d));
    if let Some(seed) = seeds.get(number as usize) {
        return seed.clone();
    }
    let mut data = seeds[random.below(seeds.len())].clone();
    let other = &seeds[random.below(seeds.len())];
    mutate(&mut data, other, &mut random);
    data
}

/// Runs a target for `time`. Returns whether no input failed.
fn run(target: &Target, seed: u64, time: Duration) -> bool {
    let seeds = (target.seeds)();
    let begun = Instant::now();
    let mut number = 0;
    while begun.elapsed() < time || number < seeds.len() as u64 {
        let data = input(target, &seeds, seed, number);
        if catch_unwind(|| (target.run)(&data)).is_err() {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("artifacts")
                .join(target.name);
            let path = folder.join(format!("seed-{seed}-input-{number}"));
            std::fs::create_dir_all(&folder).expect("the artifacts folder can be made");
            std::fs::write(&path, &data).expect("the input can be written");
            println!(
                "{}: FAILED at seed {seed}, input {number}: {}",
                target.name,
                path.display()
            );
            return false;
        }
        number += 1;
    }
    println!(
        "{}: {number} inputs in {:.1} s",
        target.name,
        begun.elapsed().as_secs_f64()
    );
    true
}

fn usage() -> ! {
    eprintln!(
        "mutate [--seconds N] [--seed N] [TARGET …] | --write-seeds FOLDER | --make-images FOLDER"
    );
    eprintln!(
        "targets: {}",
        TARGETS
            .iter()
            .map(|target| target.name)
            .collect::<Vec<_>>()
            .join(" ")
    );
    std::process::exit(2);
}

fn main() {
    let (mut seconds, mut seed, mut folder, mut one) = (1.0, 1, None, None);
    let mut chosen: Vec<&Target> = Vec::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| usage());
        match word.as_str() {
            "--seconds" => seconds = value().parse().unwrap_or_else(|_| usage()),
            "--seed" => seed = value().parse().unwrap_or_else(|_| usage()),
            "--make-images" => return scree_fuzz::images::make(Path::new(&value())),
            "--run" => one = Some(value()),
            "--write-seeds" => folder = Some(PathBuf::from(value())),
            name => match TARGETS.iter().find(|target| target.name == name) {
                Some(target) => chosen.push(target),
                None => usage(),
            },
        }
    }
    if let (Some(path), [target]) = (&one, &chosen[..]) {
        let data = std::fs::read(path).expect("the input can be read");
        return (target.run)(&data);
    }
    if chosen.is_empty() {
        chosen.extend(TARGETS);
    }
    if let Some(folder) = folder {
        for target in chosen {
            let folder = folder.join(target.name);
            std::fs::create_dir_all(&folder).expect("the folder can be made");
            for (number, data) in (target.seeds)().iter().enumerate() {
                std::fs::write(folder.join(format!("seed-{number}")), data)
                    .expect("the folder can be written");
            }
        }
        return;
    }
    let time = Duration::from_secs_f64(seconds);
    let failed = chosen
        .iter()
        .filter(|target| !run(target, seed, time))
        .count();
    std::process::exit(i32::from(failed > 0));
}
