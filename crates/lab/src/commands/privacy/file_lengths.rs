//! Lengths of files: of a folder's, of a list, or made up.

use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use walkdir::WalkDir;
use world::host;

use super::super::Failure;
use super::super::files::failed;
use crate::args::{FilesArguments, Made};
use crate::commands::Console;
use crate::leakage::FileList;

/// No list has more files: their lengths take some gigabytes then.
const FILES_MAX: usize = 1 << 28;

/// No line of a list is longer, in bytes: what has longer ones is something else.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Columns that lengths are looked for in.
const COLUMNS: [&str; 3] = ["bytes", "size", "length"];

/// The files; what else is to be known of them is printed.
pub fn read(console: &dyn Console, arguments: &FilesArguments) -> Result<FileList, Failure> {
    let (files, notices) = match (&arguments.tree, &arguments.list, arguments.distribution) {
        (Some(folder), _, _) => walk(console, folder)?,
        (_, Some(path), _) => (list(console, path)?, Vec::new()),
        (_, _, None | Some(Made::Documents)) => (FileList::documents(), Vec::new()),
    };
    for notice in notices {
        console.notice(&notice);
    }
    if files.lengths().is_empty() {
        return Err(Failure::new(
            "there is no file that has anything in it: nothing can leak",
        ));
    }
    if u64::try_from(files.bytes()).is_err() {
        return Err(Failure::new(
            "the files are longer than 16 EiB together; are these lengths in bytes?",
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
            // One that was there under another name.
            Ok(Some((data, _))) if data.nlink() > 1 && !linked.insert(data.ino()) => {}
            Ok(Some((data, entry))) => lengths.push(content_of(entry.path(), &data)),
            Err(error) if error.depth() == 0 => return Err(failed(folder, error)),
            Err(_) => unread += 1,
        }
    }
    let mut notices = Vec::new();
    if unread > 0 {
        notices.push(format!("{unread} files or folders could not be looked at"));
    }
    Ok((lengths.into_iter().collect(), notices))
}

/// How much there is in a file, in bytes: holes lie nowhere, nor what is reserved for it and was
/// never written.
fn content_of(path: &Path, data: &Metadata) -> u64 {
    // What may not be read has as much as its file system says of all of it.
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

/// Lines that end: of an endless one not all is read.
struct Lines<R> {
    inner: R,
    /// How long the line is so far.
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
                "a line has more than 1 MiB; is it the right file?",
            )),
            false => Ok(count),
        }
    }
}

/// The lengths in a list of no more than `files_max`.
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
                        "it is no list of lengths: a number on each line, or a column \
                                `bytes`, `size` or `length` that the first line names"
                            .to_owned(),
                    );
                }
            }
            continue;
        };
        match number(at) {
            Some(length) => lengths.push(length),
            None => return Err(format!("line {line}: no length in bytes")),
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
    fn a_list_is_numbers_or_csv_with_a_column_of_them() {
        assert_eq!(read("10\n7\n0\n"), Ok(vec![7, 10]));
        assert_eq!(read("name,Size\n\"a,b\",5\nc, 6\n"), Ok(vec![5, 6]));
        assert_eq!(read(""), Ok(Vec::new()));
        // As spreadsheets of other systems write it.
        assert_eq!(read("\u{feff}Bytes\r\n5\r\n\"6\"\r\n"), Ok(vec![5, 6]));
        for (bad, why) in [
            ("name,age\na,1\n", "no list of lengths"),
            ("size\n1\nx\n", "line 3"),
            ("1\n-2\n", "line 2"),
            ("name,size\na\n", "line 2"),
            ("99999999999999999999999\n", "no list of lengths"),
            ("\u{0}\u{1}\n", "no list of lengths"),
            ("100,200\n", "no list of lengths"),
            ("bytes\n1.5\n", "line 2"),
            ("bytes\nNaN\n", "line 2"),
            ("1\n2\n3\n4\n5\n", "more than 4 files"),
        ] {
            let error = read(bad).expect_err(bad);
            assert!(error.contains(why), "{error}");
        }
    }

    /// What has no lines was read until memory was full.
    #[test]
    fn of_an_endless_line_little_is_read() {
        let error = lengths(io::repeat(b'1'), 4).expect_err("it is none");
        assert!(error.contains("more than 1 MiB"), "{error}");
        let lines = [b"1\n".repeat(LINE_BYTES_MAX), b"2\n".to_vec()].concat();
        let files = lengths(&*lines, usize::MAX).expect("short lines are a list");
        assert_eq!(files.lengths().len(), LINE_BYTES_MAX + 1);
    }
}
