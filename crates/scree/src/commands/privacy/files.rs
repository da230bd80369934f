//! Lengths of files: of a folder's, of a list, or made up.

use std::path::Path;

use model::leakage::FileList;
use walkdir::WalkDir;
use world::host;
use world::real::RealDisk;

use super::super::Failure;
use super::super::offline::failed;
use crate::args::{FilesArguments, Made};
use crate::output::{Format, print_notice};
use crate::progress::Progress;

/// No list is longer, in bytes.
const LIST_BYTES_MAX: u64 = 4 << 30;

/// Columns that lengths are looked for in.
const COLUMNS: [&str; 3] = ["bytes", "size", "length"];

/// The files; what else is to be known of them is printed.
pub fn read(format: Format, arguments: &FilesArguments) -> Result<FileList, Failure> {
    let (files, notices) = match (&arguments.tree, &arguments.list, arguments.distribution) {
        (Some(folder), _, _) => walk(folder)?,
        (_, Some(path), _) => (list(path)?, Vec::new()),
        (_, _, None | Some(Made::Documents)) => (FileList::documents(), Vec::new()),
    };
    for notice in notices {
        print_notice(format, &notice);
    }
    match files.lengths().is_empty() {
        true => Err(Failure::new(
            "there is no file that has anything in it: nothing can leak",
        )),
        false => Ok(files),
    }
}

fn walk(folder: &Path) -> Result<(FileList, Vec<String>), Failure> {
    let _progress = Progress::start(format!("looking for files in {}", folder.display()));
    let (mut lengths, mut unread) = (Vec::new(), 0_u64);
    for entry in WalkDir::new(folder).same_file_system(true) {
        let length = entry.and_then(|entry| match entry.file_type().is_file() {
            true => Ok(Some(entry.metadata()?.len())),
            false => Ok(None),
        });
        match length {
            Ok(length) => lengths.extend(length),
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

fn list(path: &Path) -> Result<FileList, Failure> {
    let text = host::read_small(&RealDisk, path, LIST_BYTES_MAX);
    let text = text.map_err(|error| failed(path, error))?;
    lengths(&text).map_err(|why| failed(path, why))
}

/// The lengths in a list.
fn lengths(text: &[u8]) -> Result<FileList, String> {
    let mut reader = csv::ReaderBuilder::new();
    let mut reader = reader
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(text);
    let (mut column, mut lengths) = (None, Vec::new());
    for record in reader.byte_records() {
        let record = record.map_err(|error| error.to_string())?;
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
        lengths(text.as_bytes()).map(|files| files.lengths().to_vec())
    }

    #[test]
    fn a_list_is_numbers_or_csv_with_a_column_of_them() {
        assert_eq!(read("10\n7\n0\n"), Ok(vec![7, 10]));
        assert_eq!(read("name,Size\n\"a,b\",5\nc, 6\n"), Ok(vec![5, 6]));
        assert_eq!(read(""), Ok(Vec::new()));
        for (bad, why) in [
            ("name,age\na,1\n", "no list of lengths"),
            ("size\n1\nx\n", "line 3"),
            ("1\n-2\n", "line 2"),
            ("name,size\na\n", "line 2"),
            ("99999999999999999999999\n", "no list of lengths"),
        ] {
            let error = read(bad).expect_err(bad);
            assert!(error.contains(why), "{error}");
        }
    }
}
