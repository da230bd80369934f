//! A word count as a map-reduce has it (the paper's §V-C, which had Hadoop do it), in one
//! process.
//!
//! ```text
//!  input ─ splits of 32 MiB ─▶ map: words and their counts, by reduce ─▶ map-S-R, a file each
//!                                                                              │
//!                     counts-R, a file each ◀─ reduce: merges its files, sorts ┘
//! ```
//!
//! As Hadoop's own example it counts within a split first. All files are on what is measured,
//! as the paper had its data nodes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use model::cost::{Both, Flow};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::fs::syncfs;

use crate::MeasureError;
use crate::error::At as _;
use crate::work::Stopwatch;

/// One map reads so much.
const SPLIT_BYTES: u64 = 32 << 20;

/// So many reduces.
const REDUCES: usize = 4;

/// Requests are so large: what a program's buffers ask for at once.
const REQUEST_BYTES: usize = 64 << 10;

/// The file that is repeated, as the paper had one.
const TEXT_BYTES: usize = 1 << 20;

/// Different words in it.
const WORDS: u32 = 20_000;

fn input(folder: &Path) -> PathBuf {
    folder.join("words")
}

/// Makes the file with the words.
pub(crate) fn prepare(folder: &Path, bytes: u64) -> Result<(), MeasureError> {
    clear(folder)?;
    let mut random = SmallRng::seed_from_u64(43);
    let mut text = String::new();
    while text.len() < TEXT_BYTES {
        // Few words are frequent, and most are not.
        let word = (f64::from(WORDS) * random.random::<f64>().powi(4)) as u32;
        text.push_str(&format!("w{:x}", word.wrapping_mul(2_654_435_761)));
        text.push(if text.len() % 70 < 8 { '\n' } else { ' ' });
    }
    text.truncate(TEXT_BYTES - 1);
    text.push('\n');
    let path = input(folder);
    let mut file = File::create(&path).at(&path)?;
    let mut left = bytes;
    while left > 0 {
        let now = left.min(TEXT_BYTES as u64) as usize;
        file.write_all(&text.as_bytes()[..now]).at(&path)?;
        left -= now as u64;
    }
    file.sync_all().at(&path)
}

/// Counts what goes through it.
struct Counted<T> {
    inner: T,
    bytes: u64,
    requests: u64,
}

impl<T> Counted<T> {
    fn new(inner: T) -> Self {
        Self {
            inner,
            bytes: 0,
            requests: 0,
        }
    }

    fn add_to(&self, flow: &mut Flow) {
        flow.bytes += self.bytes as f64;
        flow.operations += self.requests as f64;
    }
}

impl<R: std::io::Read> std::io::Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(into)?;
        self.bytes += read as u64;
        self.requests += 1;
        Ok(read)
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes += written as u64;
        self.requests += 1;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

/// Counts them, and says what was asked for.
pub(crate) fn count(
    folder: &Path,
    bytes: u64,
    watch: &mut Stopwatch,
) -> Result<Both<Flow>, MeasureError> {
    let mut flow = Both::default();
    let splits = bytes.div_ceil(SPLIT_BYTES);
    for split in 0..splits {
        let from = split * SPLIT_BYTES;
        map(
            folder,
            split,
            from..(from + SPLIT_BYTES).min(bytes),
            &mut flow,
        )?;
    }
    for reduce in 0..REDUCES {
        merge(folder, reduce, splits, &mut flow)?;
    }
    watch.returned();
    let file = File::open(folder).at(folder)?;
    syncfs(&file).map_err(Into::into).at(folder)?;
    clear(folder)?;
    Ok(flow)
}

/// Which reduce has a word.
fn reduce_of(word: &str) -> usize {
    let hash = word.bytes().fold(5381_u32, |hash, byte| {
        hash.wrapping_mul(33) ^ u32::from(byte)
    });
    hash as usize % REDUCES
}

fn handed(folder: &Path, split: u64, reduce: usize) -> PathBuf {
    folder.join(format!("map-{split}-{reduce}"))
}

fn map(
    folder: &Path,
    split: u64,
    range: std::ops::Range<u64>,
    flow: &mut Both<Flow>,
) -> Result<(), MeasureError> {
    let path = input(folder);
    let mut file = File::open(&path).at(&path)?;
    file.seek(SeekFrom::Start(range.start)).at(&path)?;
    let counted = Counted::new(file.take(range.end - range.start));
    let mut lines = BufReader::with_capacity(REQUEST_BYTES, counted);
    let mut counts: HashMap<String, u64> = HashMap::new();
    let mut line = String::new();
    while lines.read_line(&mut line).at(&path)? > 0 {
        for word in line.split_ascii_whitespace() {
            match counts.get_mut(word) {
                Some(count) => *count += 1,
                None => {
                    counts.insert(word.to_owned(), 1);
                }
            }
        }
        line.clear();
    }
    lines.get_ref().add_to(&mut flow.read);
    let mut parts: [Vec<(String, u64)>; REDUCES] = Default::default();
    for (word, count) in counts {
        parts[reduce_of(&word)].push((word, count));
    }
    for (reduce, part) in parts.into_iter().enumerate() {
        write(&handed(folder, split, reduce), part, flow)?;
    }
    Ok(())
}

fn merge(
    folder: &Path,
    reduce: usize,
    splits: u64,
    flow: &mut Both<Flow>,
) -> Result<(), MeasureError> {
    let mut counts: HashMap<String, u64> = HashMap::new();
    for split in 0..splits {
        let path = handed(folder, split, reduce);
        let file = Counted::new(File::open(&path).at(&path)?);
        let mut lines = BufReader::with_capacity(REQUEST_BYTES, file);
        let mut line = String::new();
        while lines.read_line(&mut line).at(&path)? > 0 {
            if let Some((word, count)) = line.trim_end().split_once(' ') {
                let count: u64 = count.parse().map_err(std::io::Error::other).at(&path)?;
                *counts.entry(word.to_owned()).or_default() += count;
            }
            line.clear();
        }
        lines.get_ref().add_to(&mut flow.read);
    }
    let path = folder.join(format!("counts-{reduce}"));
    write(&path, counts.into_iter().collect(), flow)
}

/// By word, a line each.
fn write(
    path: &Path,
    mut counts: Vec<(String, u64)>,
    flow: &mut Both<Flow>,
) -> Result<(), MeasureError> {
    counts.sort_unstable();
    let file = Counted::new(File::create(path).at(path)?);
    let mut lines = BufWriter::with_capacity(REQUEST_BYTES, file);
    for (word, count) in counts {
        writeln!(lines, "{word} {count}").at(path)?;
    }
    lines.flush().at(path)?;
    lines.get_ref().add_to(&mut flow.write);
    Ok(())
}

/// Removes all files of it.
fn clear(folder: &Path) -> Result<(), MeasureError> {
    for entry in std::fs::read_dir(folder).at(folder)? {
        let entry = entry.at(folder)?;
        let name = entry.file_name();
        let is_ours = ["words", "map-", "counts-"]
            .iter()
            .any(|ours| name.to_string_lossy().starts_with(ours));
        if is_ours {
            std::fs::remove_file(entry.path()).at(&entry.path())?;
        }
    }
    Ok(())
}
