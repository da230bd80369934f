//! A word count by map-reduce in one process (the paper's §V-C, which used Hadoop).
//!
//! ```text
//!  input ─ splits of 64 MiB ─▶ map: words and their counts, sorted ─▶ map-S, a file each
//!                                       counts ◀─ reduce: merges them ────┘
//! ```
//!
//! As in Hadoop's example, each map counts within a split first, and one reduce does the rest. All
//! files are on the measured place, like the data nodes of the paper.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::cost::{Both, Flow};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::measure::error::PathContext as _;
use crate::measure::work::Stopwatch;
use crate::measure::{MeasureError, Stop};

/// Size of a split, in bytes.
const SPLIT_BYTES: u64 = 64 << 20;

/// Size of a request: that of a program's buffer.
const REQUEST_BYTES: usize = 64 << 10;

/// Length of the text that is repeated, as in the paper; splits end where it ends, with a line.
const TEXT_BYTES: usize = 1 << 20;

/// Number of different words in it.
const WORDS: u32 = 20_000;

fn input(folder: &Path) -> PathBuf {
    folder.join("words")
}

/// Creates the input file.
pub(crate) fn prepare(folder: &Path, bytes: u64, stop: &Stop) -> Result<(), MeasureError> {
    clear(folder)?;
    let mut random = SmallRng::seed_from_u64(43);
    let mut text = String::new();
    while text.len() < TEXT_BYTES {
        // Few words are frequent, most are rare.
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
        stop.check()?;
        let now = left.min(TEXT_BYTES as u64) as usize;
        file.write_all(&text.as_bytes()[..now]).at(&path)?;
        left -= now as u64;
    }
    file.sync_all().at(&path)
}

/// Counts the bytes and requests that pass through.
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

/// Counts the words, and returns the requests.
pub(crate) fn count(
    folder: &Path,
    bytes: u64,
    watch: &mut Stopwatch<'_>,
) -> Result<Both<Flow>, MeasureError> {
    let mut flow = Both::default();
    let splits = bytes.div_ceil(SPLIT_BYTES);
    for split in 0..splits {
        watch.stop.check()?;
        let from = split * SPLIT_BYTES;
        map(
            folder,
            split,
            from..(from + SPLIT_BYTES).min(bytes),
            &mut flow,
        )?;
    }
    reduce(folder, splits, &mut flow)?;
    watch.returned();
    // File by file: a file system in user space has no other way to make everything durable.
    for path in (0..splits)
        .map(|split| handed(folder, split))
        .chain([counted(folder)])
    {
        File::open(&path)
            .and_then(|file| file.sync_all())
            .at(&path)?;
    }
    Ok(flow)
}

fn handed(folder: &Path, split: u64) -> PathBuf {
    folder.join(format!("map-{split}"))
}

fn counted(folder: &Path) -> PathBuf {
    folder.join("counts")
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
    write(&handed(folder, split), counts, flow)
}

fn reduce(folder: &Path, splits: u64, flow: &mut Both<Flow>) -> Result<(), MeasureError> {
    let mut counts: HashMap<String, u64> = HashMap::new();
    for split in 0..splits {
        let path = handed(folder, split);
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
    write(&counted(folder), counts, flow)
}

/// Writes the counts by word, one line each.
fn write(
    path: &Path,
    counts: HashMap<String, u64>,
    flow: &mut Both<Flow>,
) -> Result<(), MeasureError> {
    let mut counts: Vec<(String, u64)> = counts.into_iter().collect();
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

/// Removes all files of the word count.
pub(crate) fn clear(folder: &Path) -> Result<(), MeasureError> {
    for entry in std::fs::read_dir(folder).at(folder)? {
        let entry = entry.at(folder)?;
        let name = entry.file_name();
        let is_ours = ["words", "map-", "counts"]
            .iter()
            .any(|ours| name.to_string_lossy().starts_with(ours));
        if is_ours {
            std::fs::remove_file(entry.path()).at(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_over_splits_and_all_files_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        // Two splits; the second begins within a line.
        let text = "a b\na c\n".repeat(3);
        std::fs::write(input(folder), &text).expect("written");
        let mut flow = Both::default();
        let middle = text.len() as u64 / 2;
        map(folder, 0, 0..middle, &mut flow).expect("mapped");
        map(folder, 1, middle..text.len() as u64, &mut flow).expect("mapped");
        reduce(folder, 2, &mut flow).expect("reduced");
        let counts = std::fs::read_to_string(folder.join("counts")).expect("counted");
        assert_eq!(counts, "a 6\nb 3\nc 3\n");
        assert!(flow.read.bytes > text.len() as f64 && flow.write.operations >= 3.0);
        clear(folder).expect("cleared");
        assert_eq!(std::fs::read_dir(folder).expect("there").count(), 0);
    }

    #[test]
    fn a_word_count_reports_its_requests() {
        let folder = tempfile::tempdir().expect("a folder");
        prepare(folder.path(), 3 << 20, &Stop::default()).expect("prepared");
        let stop = Stop::default();
        let mut watch = Stopwatch::start(&stop);
        let flow = count(folder.path(), 3 << 20, &mut watch).expect("counted");
        assert!(flow.read.bytes >= f64::from(3 << 20), "{flow:?}");
        assert!(flow.write.bytes > 0.0);
    }
}
