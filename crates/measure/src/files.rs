//! Work on files.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use model::cost::{Both, Flow};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rustix::fs::{Advice, OFlags, fadvise, syncfs};
use world::PageBuffer;

use crate::error::At as _;
use crate::work::Stopwatch;
use crate::{MeasureError, Work};

/// Who works between requests reads so much at once, in bytes, and sums it up so often: what
/// counting words takes, about.
const APART_BYTES: usize = 64 << 10;

const APART_SUMS: usize = 4;

/// Work is the same each time.
const SEED: u64 = 41;

/// What is written: bytes that nothing makes shorter.
pub(crate) fn content(bytes: usize) -> PageBuffer {
    let mut content = PageBuffer::default();
    content.resize(bytes);
    SmallRng::seed_from_u64(SEED).fill_bytes(&mut content);
    content
}

/// Where requests go: each place once, in any order, with whether it is read there.
pub(crate) fn places(bytes: u64, request_bytes: u64, read_percent: u32) -> Vec<(u64, bool)> {
    let count = bytes / request_bytes;
    let reads = count * u64::from(read_percent) / 100;
    let mut random = SmallRng::seed_from_u64(SEED);
    let mut offsets: Vec<u64> = (0..count).map(|at| at * request_bytes).collect();
    offsets.shuffle(&mut random);
    let mut kinds: Vec<bool> = (0..count).map(|at| at < reads).collect();
    kinds.shuffle(&mut random);
    offsets.into_iter().zip(kinds).collect()
}

fn path(folder: &Path) -> PathBuf {
    folder.join("measured")
}

/// Makes the file that is read, durably.
pub(crate) fn prepare(work: &Work, folder: &Path) -> Result<(), MeasureError> {
    let bytes = match *work {
        Work::Write { .. } | Work::Words { .. } => return clear(folder),
        Work::ReadCold { bytes, .. }
        | Work::ReadWarm { bytes, .. }
        | Work::Apart { bytes }
        | Work::Direct { bytes, .. } => bytes,
    };
    let path = path(folder);
    let mut file = File::create(&path).at(&path)?;
    write_all(&mut file, bytes, 1 << 20).at(&path)?;
    file.sync_all().at(&path)
}

fn write_all(file: &mut File, bytes: u64, request_bytes: u64) -> std::io::Result<()> {
    let content = content(request_bytes as usize);
    let mut left = bytes;
    while left > 0 {
        let now = left.min(request_bytes);
        file.write_all(&content[..now as usize])?;
        left -= now;
    }
    Ok(())
}

/// Removes what there is, durably: what its end costs is nobody else's.
pub(crate) fn clear(folder: &Path) -> Result<(), MeasureError> {
    let path = path(folder);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).at(&path),
        _ => {}
    }
    let folder_file = File::open(folder).at(folder)?;
    syncfs(&folder_file).map_err(Into::into).at(folder)
}

/// Makes memory forget files. All of it, if this process may; else the one that is read.
pub(crate) fn forget(folder: &Path) -> Result<(), MeasureError> {
    let switch = Path::new("/proc/sys/vm/drop_caches");
    if std::fs::write(switch, "3").is_ok() {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder).at(folder)? {
        let path = entry.at(folder)?.path();
        if path.is_file() {
            let file = File::open(&path).at(&path)?;
            let forgotten = fadvise(&file, 0, None, Advice::DontNeed);
            forgotten.map_err(Into::into).at(&path)?;
        }
    }
    Ok(())
}

/// What this process has had fetched from storage, in bytes.
pub(crate) fn fetched() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes: "));
    line.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Does it, and says what was asked for.
pub(crate) fn run(
    work: &Work,
    folder: &Path,
    watch: &mut Stopwatch,
) -> Result<Both<Flow>, MeasureError> {
    let path = path(folder);
    let mut flow = Both::default();
    match *work {
        Work::Write {
            bytes,
            request_bytes,
        } => {
            let mut file = File::create(&path).at(&path)?;
            write_all(&mut file, bytes, request_bytes).at(&path)?;
            watch.returned();
            file.sync_all().at(&path)?;
            flow.write = Flow::of(bytes, request_bytes);
        }
        Work::ReadCold {
            bytes,
            request_bytes,
            is_random: true,
        } => {
            let file = File::open(&path).at(&path)?;
            fadvise(&file, 0, None, Advice::Random)
                .map_err(Into::into)
                .at(&path)?;
            let mut buffer = vec![0; request_bytes as usize];
            for (offset, _) in places(bytes, request_bytes, 100) {
                file.read_exact_at(&mut buffer, offset).at(&path)?;
            }
            flow.read = Flow::of(bytes, request_bytes);
        }
        Work::ReadCold {
            bytes,
            request_bytes,
            ..
        }
        | Work::ReadWarm {
            bytes,
            request_bytes,
        } => {
            let mut file = File::open(&path).at(&path)?;
            let mut buffer = vec![0; request_bytes as usize];
            let mut left = bytes;
            while left > 0 {
                let now = left.min(request_bytes) as usize;
                file.read_exact(&mut buffer[..now]).at(&path)?;
                left -= now as u64;
            }
            flow.read = Flow::of(bytes, request_bytes);
        }
        Work::Direct {
            bytes,
            request_bytes,
            read_percent,
            ..
        } => {
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            options.custom_flags(OFlags::DIRECT.bits().cast_signed());
            let file = options.open(&path).at(&path)?;
            let mut buffer = content(request_bytes as usize);
            for (offset, is_read) in places(bytes, request_bytes, read_percent) {
                let way = if is_read {
                    &mut flow.read
                } else {
                    &mut flow.write
                };
                way.bytes += request_bytes as f64;
                way.operations += 1.0;
                match is_read {
                    true => file.read_exact_at(&mut buffer, offset).at(&path)?,
                    false => file.write_all_at(&buffer, offset).at(&path)?,
                }
            }
            watch.returned();
            file.sync_all().at(&path)?;
        }
        Work::Apart { bytes } => {
            let mut file = File::open(&path).at(&path)?;
            let mut buffer = vec![0; APART_BYTES];
            let mut left = bytes;
            while left > 0 {
                let now = left.min(APART_BYTES as u64) as usize;
                file.read_exact(&mut buffer[..now]).at(&path)?;
                left -= now as u64;
                for _ in 0..APART_SUMS {
                    let sum = buffer.iter().fold(0_u64, |sum, byte| {
                        std::hint::black_box(sum.wrapping_mul(31) + u64::from(*byte))
                    });
                    std::hint::black_box(sum);
                }
            }
            flow.read = Flow::of(bytes, APART_BYTES as u64);
        }
        Work::Words { .. } => unreachable!("words are counted elsewhere"),
    }
    Ok(flow)
}
