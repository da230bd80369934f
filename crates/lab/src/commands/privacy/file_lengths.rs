//! Lengths of files: from a folder, from a list, or synthetic.

use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use walkdir::WalkDir;
use world::host;

use super::super::Failure;
use super::super::files::failed;
use crate::args::{FileDistribution, FilesArguments};
use crate::commands::Console;
use crate::leakage::FileList;

/// The most files of a list; their lengths take some gigabytes.
const FILES_MAX: usize = 1 << 28;

/// The longest line of a list in bytes; a file with longer lines is not a list.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Names of the column with the lengths.
const COLUMNS: [&str; 3] = ["bytes", "size", "length"];

/// Reads the lengths of the files, and shows notices about them.
pub fn read(console: &dyn Console, arguments: &FilesArguments) -> Result<FileList, Failure> {
    let (files, notices) = match (&arguments.tree, &arguments.list, arguments.distribution) {
        (Some(folder), _, _) => walk(console, folder)?,
        (_, Some(path), _) => (list(console, path)?, Vec::new()),
        (_, _, None | Some(FileDistribution::Documents)) => (FileList::documents(), Vec::new()),
    };
    for notice in notices {
        console.notice(&notice);
    }
    if files.lengths().is_empty() {
        return Err(Failure::new(
            "there are no files, or all are empty: nothing can leak",
        ));
    }
    if u64::try_from(files.bytes()).is_err() {
        return Err(Failure::new(
            "the files have more than 16 EiB together: give lengths in bytes",
        ));
    }
    Ok(files)
}

fn walk(console: &dyn Console, folder: &Path) -> Result<(FileList, Vec<String>), Failure> {
    let _progress = console.progress(&format!("looking for files in {}", folder.display()));
    let (mut lengths, mut unread) = (Vec::new(), 0_u64);
    let mut linked = HashSet::new();
    for entry in WalkDir::new(folder).same_file_system(true) {
        let data = entry.and_then(|entry| match entry.file_type().is_file() {
            true => Ok(Some((entry.metadata()?, entry))),
            false => Ok(None),
        });
        match data {
            Ok(None) => {}
            // A hard link to a file that was counted.
            Ok(Some((data, _))) if data.nlink() > 1 && !linked.insert(data.ino()) => {}
            Ok(Some((data, entry))) => lengths.push(content_of(entry.path(), &data)),
            Err(error) if error.depth() == 0 => return Err(failed(folder, error)),
            Err(_) => unread += 1,
        }
    }
    let mut notices = Vec::new();
    if unread > 0 {
        notices.push(format!("{unread} files or folders could not be read"));
    }
    Ok((lengths.into_iter().collect(), notices))
}

/// Length of a file's content in bytes, without holes and without preallocated space that was never
/// written.
fn content_of(path: &Path, data: &Metadata) -> u64 {
    // For a file without read permission, the allocated size counts.
    let taken = || data.blocks().saturating_mul(512).min(data.len());
    host::content_bytes(path).unwrap_or_else(|_| taken())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a list may be a pipe, which world::Disk does not have"
)]
fn list(console: &dyn Console, path: &Path) -> Result<FileList, Failure> {
    let _progress = console.progress(&format!("reading {}", path.display()));
    let file = File::open(path).map_err(|error| failed(path, error))?;
    lengths(file, FILES_MAX).map_err(|why| failed(path, why))
}

/// A reader that fails at a line that is too long, so that an endless one is not read.
struct Lines<R> {
    inner: R,
    /// Length of the current line so far.
    line: usize,
}

impl<R: Read> Read for Lines<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        let read = &into[..count];
        self.line = match read.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => count - end - 1,
            None => self.line + count,
        };
        match self.line > LINE_BYTES_MAX {
            true => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a line has more than 1 MiB: this is not a list of lengths",
            )),
            false => Ok(count),
        }
    }
}

/// Parses a list of at most `files_max` lengths.
fn lengths(text: impl Read, files_max: usize) -> Result<FileList, String> {
    let text = Lines {
        inner: text,
        line: 0,
    };
    let mut reader = csv::ReaderBuilder::new();
    let mut reader = reader
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(text);
    let (mut column, mut lengths) = (None, Vec::new());
    let mut record = csv::ByteRecord::new();
    while reader
        .read_byte_record(&mut record)
        .map_err(|error| error.to_string())?
    {
        if lengths.len() >= files_max {
            return Err(format!("there are more than {files_max} files in it"));
        }
        let line = record.position().map_or(0, csv::Position::line);
        let cell = |at: usize| std::str::from_utf8(record.get(at).unwrap_or_default());
        let number = |at: usize| cell(at).ok().and_then(|text| text.parse::<u64>().ok());
        let Some(at) = column else {
            let head = |name: &[u8]| {
                COLUMNS
                    .iter()
                    .any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
            };
            let named = record.iter().position(head);
            let is_list = record.len() == 1 && number(0).is_some();
            match (named, is_list) {
                (Some(at), _) => column = Some(at),
                (None, true) => {
                    column = Some(0);
                    lengths.extend(number(0));
                }
                (None, false) => {
                    return Err(
                        "it is not a list of lengths: use a number on each line, or CSV with a column \
                                `bytes`, `size` or `length` that the first line names"
                            .to_owned(),
                    );
                }
            }
            continue;
        };
        match number(at) {
            Some(length) => lengths.push(length),
            None => return Err(format!("line {line}: the length in bytes is missing")),
        }
    }
    Ok(lengths.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<u64>, String> {
        lengths(text.as_bytes(), 4).map(|files| files.lengths().to_vec())
    }

    #[test]
    fn a_list_has_numbers_or_a_csv_column_of_them() {
        assert_eq!(read("10\n7\n0\n"), Ok(vec![7, 10]));
        assert_eq!(read("name,Size\n\"a,b\",5\nc, 6\n"), Ok(vec![5, 6]));
        assert_eq!(read(""), Ok(Vec::new()));
        // The byte order mark and line ends of spreadsheets.
        assert_eq!(read("\u{feff}Bytes\r\n5\r\n\"6\"\r\n"), Ok(vec![5, 6]));
        for (bad, why) in [
            ("name,age\na,1\n", "not a list of lengths"),
            ("size\n1\nx\n", "line 3"),
            ("1\n-2\n", "line 2"),
            ("name,size\na\n", "line 2"),
            ("99999999999999999999999\n", "not a list of lengths"),
            ("\u{0}\u{1}\n", "not a list of lengths"),
            ("100,200\n", "not a list of lengths"),
            ("bytes\n1.5\n", "line 2"),
            ("bytes\nNaN\n", "line 2"),
            ("1\n2\n3\n4\n5\n", "more than 4 files"),
        ] {
            let error = read(bad).expect_err(bad);
            assert!(error.contains(why), "{error}");
        }
    }

    /// Regression: a file without line ends was read until memory was full.
    #[test]
    fn an_endless_line_is_not_read() {
        let error = lengths(io::repeat(b'1'), 4).expect_err("it is not a list");
        assert!(error.contains("more than 1 MiB"), "{error}");
        let lines = [b"1\n".repeat(LINE_BYTES_MAX), b"2\n".to_vec()].concat();
        let files = lengths(&*lines, usize::MAX).expect("short lines are a list");
        assert_eq!(files.lengths().len(), LINE_BYTES_MAX + 1);
    }
}
