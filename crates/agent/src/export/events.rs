//! [`EventLog`]: the events of a volume's filters, as lines of JSON in the data directory, and in
//! memory for readers that poll a controller.
//!
//! ```text
//!  filters ── batches, no wait ──▶ channel ──▶ writer ──▶ <data>/events/vol-….jsonl
//!   (the disk's thread)                          └──▶ the last lines, by sequence
//! ```
//!
//! Invariants: a disk never waits for its events. Events that do not fit into the channel are lost,
//! and the next line counts them. The length and the number of files are bounded. Sequences grow,
//! also over a restart: they start at the time in microseconds.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::host::EventLines;
use base::VolumeId;
use chain::EventSink;
use chain::filters::Event;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use world::{RollingFile, World, host};

use crate::context::blocking;

/// The most batches that wait to be written.
const BATCHES_MAX: usize = 256;

/// The length of a file, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The number of older files kept for a volume.
const OLD_FILES: u32 = 4;

/// The most bytes of lines in memory.
const RECENT_BYTES_MAX: usize = 8 << 20;

/// The suffix of a file's name after the id of its volume.
const SUFFIX: &str = ".jsonl";

/// The volume of an events file, by its name; the file may be the newest or an older one.
pub(crate) fn volume_of_file(name: &str) -> Option<VolumeId> {
    let (volume, age) = name.split_once(SUFFIX)?;
    let is_one = age.is_empty() || age.strip_prefix('.')?.parse::<u32>().is_ok();
    volume.parse().ok().filter(|_| is_one)
}

/// The events of one volume.
pub(crate) struct EventLog {
    batches: mpsc::Sender<Vec<Event>>,
    lost: Arc<AtomicU64>,
    recent: Arc<Mutex<Recent>>,
    newest: watch::Receiver<u64>,
}

/// The last lines, each with its sequence.
#[derive(Default)]
struct Recent {
    lines: VecDeque<(u64, String)>,
    bytes: usize,
}

impl EventSink for EventLog {
    fn report(&self, events: Vec<Event>) {
        if let Err(error) = self.batches.try_send(events) {
            let events = error.into_inner();
            self.lost.fetch_add(events.len() as u64, Ordering::Relaxed);
        }
    }
}

impl EventLog {
    /// Starts to write the events of a volume below `folder`. Needs a tokio runtime; the log ends
    /// when it is dropped.
    pub fn start(world: &World, folder: &Path, volume: VolumeId) -> Self {
        let (batches, mut received) = mpsc::channel::<Vec<Event>>(BATCHES_MAX);
        let lost = Arc::<AtomicU64>::default();
        let recent = Arc::<Mutex<Recent>>::default();
        let first = world.clock.wall().0.cast_unsigned().saturating_mul(1000);
        let (tell, newest) = watch::channel(first);
        let path = folder.join(format!("{volume}{SUFFIX}"));
        let disk = Arc::clone(&world.disk);
        let mut writer = Writer {
            file: RollingFile::new(disk, path.clone(), FILE_BYTES_MAX, OLD_FILES),
            path,
            sequence: first,
            lost: Arc::clone(&lost),
            is_failing: false,
            recent: Arc::clone(&recent),
        };
        tokio::spawn(async move {
            while let Some(batch) = received.recv().await {
                let written = blocking(move || {
                    writer.write(&batch);
                    writer
                });
                match written.await {
                    Ok(back) => writer = back,
                    Err(error) => {
                        tracing::error!(%volume, %error, "agent could not write event log");
                        return;
                    }
                }
                tell.send_replace(writer.sequence);
            }
        });
        Self {
            batches,
            lost,
            recent,
            newest,
        }
    }

    /// Returns up to `count_max` lines after the sequence `after`, as soon as there is one, or when
    /// `wait` has passed. Without `after`, only future lines count.
    pub async fn after(&self, after: Option<u64>, count_max: usize, wait: Duration) -> EventLines {
        let mut newest = self.newest.clone();
        let after = after.unwrap_or_else(|| *newest.borrow());
        // If the writer ends, there are no more lines.
        let _ = host::timeout(wait, newest.wait_for(|newest| *newest > after)).await;
        self.recent.lock().after(after, count_max)
    }
}

impl Recent {
    fn add(&mut self, sequence: u64, line: String) {
        self.bytes += line.len();
        self.lines.push_back((sequence, line));
        while self.bytes > RECENT_BYTES_MAX {
            let Some((_, line)) = self.lines.pop_front() else {
                break;
            };
            self.bytes -= line.len();
        }
    }

    fn after(&self, after: u64, count_max: usize) -> EventLines {
        let first = self
            .lines
            .partition_point(|(sequence, _)| *sequence <= after);
        let found = self.lines.range(first..).take(count_max);
        let lines: Vec<(u64, String)> = found.cloned().collect();
        let oldest = self.lines.front().map_or(after, |(sequence, _)| *sequence);
        EventLines {
            next: lines.last().map_or(after, |(sequence, _)| *sequence),
            // The lines in between are only in the files.
            missed: first == 0 && oldest > after + 1 && after > 0 && !self.lines.is_empty(),
            lines: lines.into_iter().map(|(_, line)| line).collect(),
        }
    }
}

/// Writes the lines of a log.
struct Writer {
    path: PathBuf,
    file: RollingFile,
    sequence: u64,
    lost: Arc<AtomicU64>,
    is_failing: bool,
    recent: Arc<Mutex<Recent>>,
}

impl Writer {
    fn write(&mut self, batch: &[Event]) {
        let mut text = String::new();
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0
            && let Some(first) = batch.first()
        {
            let mut note = first.clone();
            let why =
                format!("{lost} events are lost: they came faster than they could be written");
            note.kind = chain::filters::EventKind::Message(why);
            note.rule = None;
            self.line(&note, &mut text);
        }
        for event in batch {
            self.line(event, &mut text);
        }
        match self.file.append(text.as_bytes()) {
            Ok(()) => self.is_failing = false,
            Err(error) if !self.is_failing => {
                self.is_failing = true;
                tracing::warn!(path = %self.path.display(), %error, "agent could not write events");
            }
            Err(_) => {}
        }
    }

    fn line(&mut self, event: &Event, text: &mut String) {
        let Ok(json) = serde_json::to_string(event) else {
            return;
        };
        self.sequence += 1;
        let line = format!("{{\"sequence\":{},{}", self.sequence, &json[1..]);
        text.push_str(&line);
        text.push('\n');
        self.recent.lock().add(self.sequence, line);
    }
}

#[cfg(test)]
mod tests {
    use chain::Attribution;
    use chain::filters::EventKind;
    use world::Millis;

    use super::*;

    fn event(note: &str) -> Event {
        Event {
            time: Millis(0),
            attribution: Arc::new(Attribution {
                tenant: "alice".to_owned(),
                vm: None,
                volume: "disk".to_owned(),
                volume_id: None,
            }),
            filter: "watch".into(),
            partition: None,
            kind: EventKind::Message(note.to_owned()),
            rule: None,
        }
    }

    fn notes(lines: &EventLines) -> Vec<String> {
        let parse = |line: &String| {
            let json: serde_json::Value = serde_json::from_str(line).expect("JSON");
            json["message"].as_str().expect("text").to_owned()
        };
        lines.lines.iter().map(parse).collect()
    }

    #[tokio::test]
    async fn events_are_returned_to_a_waiting_reader_and_written_to_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let world = World::real(1);
        let volume = VolumeId::from_u128(1);
        let log = EventLog::start(&world, folder.path(), volume);
        let long = Duration::from_secs(60);
        let waiting = log.after(None, 10, long);
        log.report(vec![event("one"), event("two")]);
        let heard = waiting.await;
        assert_eq!(notes(&heard), ["one", "two"]);
        log.report(vec![event("three")]);
        let next = log.after(Some(heard.next), 10, long).await;
        assert_eq!(
            (notes(&next), next.missed),
            (vec!["three".to_owned()], false)
        );
        let none = log.after(Some(next.next), 10, Duration::ZERO).await;
        assert_eq!((none.lines.len(), none.next), (0, next.next));
        let two = log.after(Some(heard.next - 2), 2, long).await;
        assert_eq!(notes(&two), ["one", "two"]);
        let file = folder.path().join(format!("{volume}.jsonl"));
        let read = host::read_small(&*world.disk, &file, 1 << 20).expect("read");
        assert_eq!(read.iter().filter(|byte| **byte == b'\n').count(), 3);
    }

    #[test]
    fn the_next_event_carries_the_number_of_lost_events() {
        let folder = tempfile::tempdir().expect("a folder");
        let (world, path) = (World::real(1), folder.path().join("a.jsonl"));
        let mut writer = Writer {
            file: RollingFile::new(world.disk, path.clone(), FILE_BYTES_MAX, OLD_FILES),
            path,
            sequence: 0,
            lost: Arc::new(AtomicU64::new(5)),
            is_failing: false,
            recent: Arc::default(),
        };
        writer.write(&[event("first")]);
        let lines = writer.recent.lock().after(0, 10);
        assert!(notes(&lines)[0].contains("5 events are lost"));
        assert_eq!(notes(&lines)[1], "first");
    }
}
