//! Work on files.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::cost::{Both, Flow};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rustix::fs::{Advice, OFlags, fadvise, syncfs};
use world::PageBuffer;

use crate::measure::error::PathContext as _;
use crate::measure::work::Stopwatch;
use crate::measure::{MeasureError, Stop, Work};

/// A program that works between requests reads this many bytes at once, and sums them up this
/// often, which takes about as long as counting words.
const APART_BYTES: usize = 64 << 10;

const APART_SUMS: usize = 4;

/// The seed, so that works are the same each time.
const SEED: u64 = 41;

/// Incompressible content.
pub(crate) fn content(bytes: usize) -> PageBuffer {
    let mut content = PageBuffer::default();
    content.resize(bytes);
    SmallRng::seed_from_u64(SEED).fill_bytes(&mut content);
    content
}

/// The offsets of requests, each once in random order, and whether each is a read.
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

/// Creates the file that a work reads, durably.
pub(crate) fn prepare(work: &Work, folder: &Path, stop: &Stop) -> Result<(), MeasureError> {
    let bytes = match *work {
        Work::Write { .. } | Work::Words { .. } => return clear(folder),
        Work::ReadCold { bytes, .. }
        | Work::ReadWarm { bytes, .. }
        | Work::Apart { bytes }
        | Work::Direct { bytes, .. } => bytes,
    };
    let path = path(folder);
    let mut file = File::create(&path).at(&path)?;
    write_all(&mut file, &path, (bytes, 1 << 20), stop)?;
    file.sync_all().at(&path)
}

fn write_all(
    file: &mut File,
    path: &Path,
    (bytes, request_bytes): (u64, u64),
    stop: &Stop,
) -> Result<(), MeasureError> {
    let content = content(request_bytes as usize);
    let mut left = bytes;
    while left > 0 {
        stop.check()?;
        let now = left.min(request_bytes);
        file.write_all(&content[..now as usize]).at(path)?;
        left -= now;
    }
    Ok(())
}

/// Reads a file sequentially; `each` gets the data.
fn read_all(
    path: &Path,
    (bytes, request_bytes): (u64, u64),
    stop: &Stop,
    mut each: impl FnMut(&[u8]),
) -> Result<Flow, MeasureError> {
    let mut file = File::open(path).at(path)?;
    let mut buffer = vec![0; request_bytes as usize];
    let mut left = bytes;
    while left > 0 {
        stop.check()?;
        let now = left.min(request_bytes) as usize;
        file.read_exact(&mut buffer[..now]).at(path)?;
        each(&buffer[..now]);
        left -= now as u64;
    }
    Ok(Flow::of(bytes, request_bytes))
}

/// Removes the files, durably, so that this costs no later work.
pub(crate) fn clear(folder: &Path) -> Result<(), MeasureError> {
    let path = path(folder);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).at(&path),
        _ => {}
    }
    let folder_file = File::open(folder).at(folder)?;
    syncfs(&folder_file).map_err(Into::into).at(folder)
}

/// Drops read data from the page cache: all of it, if this process may do that, otherwise the files
/// directly in these folders.
pub(crate) fn forget(folders: &[&Path]) -> Result<(), MeasureError> {
    let switch = Path::new("/proc/sys/vm/drop_caches");
    if std::fs::write(switch, "3").is_ok() {
        return Ok(());
    }
    for folder in folders {
        for entry in std::fs::read_dir(folder).at(folder)? {
            let path = entry.at(folder)?.path();
            if path.is_file() {
                let file = File::open(&path).at(&path)?;
                let forgotten = fadvise(&file, 0, None, Advice::DontNeed);
                forgotten.map_err(Into::into).at(&path)?;
            }
        }
    }
    Ok(())
}

/// Bytes that this process has fetched from storage.
pub(crate) fn fetched() -> Result<u64, MeasureError> {
    let path = Path::new("/proc/self/io");
    let text = std::fs::read_to_string(path).at(path)?;
    let mut lines = text.lines();
    let number = lines.find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok());
    let missing = || std::io::Error::other("the kernel does not count what is read");
    number.ok_or_else(missing).at(path)
}

/// Runs a work, and returns its requests.
pub(crate) fn run(
    work: &Work,
    folder: &Path,
    watch: &mut Stopwatch<'_>,
) -> Result<Both<Flow>, MeasureError> {
    let path = path(folder);
    let stop = watch.stop;
    let mut flow = Both::default();
    match *work {
        Work::Write {
            bytes,
            request_bytes,
        } => {
            let mut file = File::create(&path).at(&path)?;
            write_all(&mut file, &path, (bytes, request_bytes), stop)?;
            watch.returned();
            file.sync_all().at(&path)?;
            flow.write = Flow::of(bytes, request_bytes);
        }
        Work::ReadCold {
            bytes,
            request_bytes,
            is_random: true,
        } => flow.read = read_at_random(&path, (bytes, request_bytes), stop)?,
        Work::ReadCold {
            bytes,
            request_bytes,
            ..
        }
        | Work::ReadWarm {
            bytes,
            request_bytes,
        } => flow.read = read_all(&path, (bytes, request_bytes), stop, |_| ())?,
        Work::Direct {
            bytes,
            request_bytes,
            read_percent,
            ..
        } => {
            flow = direct(
                &path,
                &places(bytes, request_bytes, read_percent),
                request_bytes,
                watch,
            )?;
        }
        Work::Apart { bytes } => {
            flow.read = read_all(&path, (bytes, APART_BYTES as u64), stop, sum_up)?;
        }
        Work::Words { .. } => unreachable!("words are counted in `words`"),
    }
    Ok(flow)
}

/// Reads a file in random order, one request at a time.
fn read_at_random(
    path: &Path,
    (bytes, request_bytes): (u64, u64),
    stop: &Stop,
) -> Result<Flow, MeasureError> {
    let file = File::open(path).at(path)?;
    fadvise(&file, 0, None, Advice::Random)
        .map_err(Into::into)
        .at(path)?;
    let mut buffer = vec![0; request_bytes as usize];
    let places = places(bytes, request_bytes, 100);
    for (offset, _) in &places {
        stop.check()?;
        file.read_exact_at(&mut buffer, *offset).at(path)?;
    }
    Ok(Flow::of(places.len() as u64 * request_bytes, request_bytes))
}

/// Direct I/O, one request at a time.
fn direct(
    path: &Path,
    places: &[(u64, bool)],
    request_bytes: u64,
    watch: &mut Stopwatch<'_>,
) -> Result<Both<Flow>, MeasureError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(OFlags::DIRECT.bits().cast_signed());
    let file = options.open(path).at(path)?;
    let mut buffer = content(request_bytes as usize);
    let mut flow: Both<Flow> = Both::default();
    for &(offset, is_read) in places {
        watch.stop.check()?;
        let way = match is_read {
            true => {
                file.read_exact_at(&mut buffer, offset).at(path)?;
                &mut flow.read
            }
            false => {
                file.write_all_at(&buffer, offset).at(path)?;
                &mut flow.write
            }
        };
        way.bytes += request_bytes as f64;
        way.operations += 1.0;
    }
    watch.returned();
    file.sync_all().at(path)?;
    Ok(flow)
}

/// The work of a program on data that it has read.
fn sum_up(bytes: &[u8]) {
    for _ in 0..APART_SUMS {
        let sum = bytes.iter().fold(0_u64, |sum, byte| {
            std::hint::black_box(sum.wrapping_mul(31) + u64::from(*byte))
        });
        std::hint::black_box(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_reports_its_requests_and_ends_when_stopped() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let run_one = |work: &Work, stop: &Stop| {
            prepare(work, folder, &Stop::default())?;
            run(work, folder, &mut Stopwatch::start(stop))
        };
        // Three and a half requests: three at random offsets, and four in order.
        for (is_random, operations) in [(true, 3.0), (false, 4.0)] {
            let work = Work::ReadCold {
                bytes: 14 << 10,
                request_bytes: 4096,
                is_random,
            };
            let flow = run_one(&work, &Stop::default()).expect("read");
            assert_eq!(flow.read.operations, operations);
            let stop = Stop::default();
            stop.stop();
            assert!(matches!(run_one(&work, &stop), Err(MeasureError::Stopped)));
        }
        clear(folder).expect("cleared");
        assert_eq!(std::fs::read_dir(folder).expect("there").count(), 0);
    }

    #[test]
    fn the_kernel_counts_fetched_bytes() {
        fetched().expect("counted by Linux");
    }
}
