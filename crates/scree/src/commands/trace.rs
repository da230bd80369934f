//! `scree trace`: prints requests that a filter recorded in the data directory of the volume's
//! host.

use std::io;
use std::path::{Path, PathBuf};

use api::types::Volume;
use base::VolumeId;
use chain::filters::TRACE_SUFFIX;
use serde_json::json;
use trace::{IOLOG_HEAD, Record, Trace, iolog_file, iolog_line};
use world::{Disk, OpenMode, World};

use super::{Failure, Session, segment};
use crate::args::TraceArguments;
use crate::output::{Format, print_lines, print_notice};

/// The most older files of a trace.
const OLD_FILES: u32 = 7;

/// The largest file in bytes: more than any host allows.
const FILE_BYTES_MAX: u64 = 1 << 37;

/// Number of lines that are printed at once.
const LINES: usize = 4096;

pub(super) async fn run(
    session: &Session,
    folder: Option<&Path>,
    arguments: &TraceArguments,
) -> Result<(), Failure> {
    let Some(folder) = folder else {
        return Err(Failure::new(
            "traces are kept on the volume's host: run this command there, with --dir DIR",
        ));
    };
    if !chain_policy::is_name(&arguments.name) {
        return Err(Failure::new(format!(
            "{:?} is not the name of a filter: see `scree chain show VOLUME`",
            arguments.name
        )));
    }
    let volume = volume_id(session, &arguments.volume).await?;
    let file = format!("{}{TRACE_SUFFIX}", arguments.name);
    let folder = folder.join("chains").join(volume);
    let newest = folder.join(file);
    let disk = World::real(1).disk;
    let files = read(&*disk, &newest)?;
    if files.is_empty() {
        return Err(no_trace(&names(&*disk, &folder)?, &newest));
    }
    let (traces, broken) = Trace::read(files.iter().map(|(_, bytes)| bytes.as_slice()));
    for (number, error) in broken {
        let path = files[number].0.display();
        print_notice(
            session.format,
            &format!("{path}: {error}; only the records before it are read"),
        );
    }
    for incomplete in traces.iter().filter(|trace| trace.missing() > 0) {
        print_notice(session.format, &missing_requests(incomplete));
    }
    match (arguments.format, session.format) {
        (Some(_), _) => print_iolog(&traces, &arguments.device),
        (None, Format::Table) => print_each(&traces, plain),
        (None, Format::Json | Format::Yaml) => print_each(&traces, as_json),
    }
}

/// The id of a volume that is named by its name or id.
async fn volume_id(session: &Session, volume: &str) -> Result<String, Failure> {
    match volume.parse::<VolumeId>() {
        Ok(id) => Ok(id.to_string()),
        Err(_) => {
            let path = format!("/v1/volumes/{}", segment(volume)?);
            let volume: Volume = session.client.get(&path).await?;
            Ok(volume.id)
        }
    }
}

/// The failure for a trace that does not exist, with the names of those that do.
fn no_trace(existing: &[String], newest: &Path) -> Failure {
    let hint = match existing.is_empty() {
        true => "no filter of this volume has recorded anything on this host".to_owned(),
        false => format!("there are traces of: {}", existing.join(", ")),
    };
    Failure::new(format!(
        "there is no {}: {hint} (a filter writes its trace once a second)",
        newest.display()
    ))
}

fn missing_requests(trace: &Trace) -> String {
    let (overwritten, lost) = (trace.removed, trace.lost);
    format!(
        "of the trace that began at {}, {overwritten} requests have been overwritten and {lost} \
         were not recorded",
        time_text(trace, 0)
    )
}

/// The names of the filters that have recorded something.
fn names(disk: &dyn Disk, folder: &Path) -> Result<Vec<String>, Failure> {
    let entries = match disk.list(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        listed => listed.map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?,
    };
    let names = entries.into_iter().map(|entry| entry.name);
    let mut traces: Vec<String> = names
        .filter_map(|name| name.strip_suffix(TRACE_SUFFIX).map(str::to_owned))
        .collect();
    traces.sort();
    Ok(traces)
}

/// The existing files with their paths, newest first.
fn read(disk: &dyn Disk, newest: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>, Failure> {
    let mut files = Vec::new();
    for number in 0..=OLD_FILES {
        let mut path = newest.as_os_str().to_owned();
        if number > 0 {
            path.push(format!(".{number}"));
        }
        let path = PathBuf::from(path);
        let failed = |error: io::Error| Failure::new(format!("{}: {error}", path.display()));
        let file = match disk.open(&path, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened.map_err(failed)?,
        };
        let length = file.length().map_err(failed)?;
        if length > FILE_BYTES_MAX {
            return Err(Failure::new(format!(
                "{} is no trace: it has more than {} bytes",
                path.display(),
                FILE_BYTES_MAX
            )));
        }
        let mut bytes = vec![0; length as usize];
        file.read_at(&mut bytes, 0).map_err(failed)?;
        files.push((path, bytes));
    }
    Ok(files)
}

fn time_text(trace: &Trace, time_ns: u64) -> String {
    let us = trace.began_us.saturating_add(time_ns / 1000);
    let us = i64::try_from(us).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(us).map_or_else(|_| us.to_string(), |time| time.to_string())
}

fn plain(trace: &Trace, record: &Record) -> String {
    let mut line = format!(
        "{:<27}  {:<12}  {:>14}  {:>9}  {:>9} µs",
        time_text(trace, record.time_ns),
        record.kind.name(),
        record.offset,
        record.length,
        record.latency_ns / 1000
    );
    if record.is_fua {
        line += "  durable";
    }
    if record.outcome == trace::Outcome::Failed {
        line += "  failed";
    }
    line
}

fn as_json(trace: &Trace, record: &Record) -> String {
    json!({
        "began": time_text(trace, 0),
        "time_ns": record.time_ns,
        "operation": record.kind.name(),
        "offset": record.offset,
        "length": record.length,
        "latency_ns": record.latency_ns,
        "fua": record.is_fua,
        "may_punch": record.may_punch,
        "outcome": record.outcome.name(),
    })
    .to_string()
}

fn print_each(traces: &[Trace], line: fn(&Trace, &Record) -> String) -> Result<(), Failure> {
    for trace in traces {
        for records in trace.records.chunks(LINES) {
            let lines: Vec<String> = records.iter().map(|record| line(trace, record)).collect();
            if !print_lines(&lines)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Prints all traces as one log from the first request on; gaps between them are pauses.
fn print_iolog(traces: &[Trace], device: &str) -> Result<(), Failure> {
    if device.is_empty() || device.contains(char::is_whitespace) {
        return Err(Failure::new(
            "--device needs a name without blanks: fio splits lines at them",
        ));
    }
    let at_us = |one: &Trace, record: &Record| one.began_us.saturating_add(record.time_ns / 1000);
    let first = traces
        .iter()
        .filter_map(|trace| trace.records.first().map(|record| at_us(trace, record)));
    let first = first.min().unwrap_or(0);
    let mut last_us = 0;
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let begin = iolog_file(0, device, &["add", "open"]);
    if !print_lines(&lines(&format!("{IOLOG_HEAD}\n{begin}")))? {
        return Ok(());
    }
    for trace in traces {
        for records in trace.records.chunks(LINES) {
            let mut lines = Vec::new();
            for record in records {
                // Times do not go back even if the clock did.
                last_us = last_us.max(at_us(trace, record).saturating_sub(first));
                let line = iolog_line(last_us, device, record);
                lines.extend(line.map(|line| line.trim_end().to_owned()));
            }
            if !print_lines(&lines)? {
                return Ok(());
            }
        }
    }
    print_lines(&lines(&iolog_file(last_us, device, &["close"])))?;
    Ok(())
}
