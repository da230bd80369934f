//! [`EventLines`]: writes events as lines of JSON, in a thread of its own, so that a slow reader
//! never delays a disk.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread;

use chain::EventSink;
use chain::filters::{Event, EventKind};

/// The maximal number of batches that wait to be written. Further ones are lost.
const BATCHES_MAX: usize = 256;

/// A sink that writes events as lines of JSON.
pub struct EventLines {
    batches: SyncSender<Vec<Event>>,
    lost: Arc<AtomicU64>,
}

impl EventLines {
    /// A sink that writes to `out` until that fails or the sink is dropped.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let (batches, received) = mpsc::sync_channel::<Vec<Event>>(BATCHES_MAX);
        let lost = Arc::<AtomicU64>::default();
        let missing = Arc::clone(&lost);
        #[expect(
            clippy::disallowed_methods,
            reason = "the thread lives as long as the filters, which is too long for a pool"
        )]
        thread::Builder::new()
            .name("events".to_owned())
            .spawn(move || {
                while let Ok(batch) = received.recv() {
                    let lost = missing.swap(0, Ordering::Relaxed);
                    // The reader has closed its end.
                    if write(&mut out, &batch, lost).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { batches, lost })
    }
}

impl EventSink for EventLines {
    fn report(&self, events: Vec<Event>) {
        let count = events.len() as u64;
        if self.batches.try_send(events).is_err() {
            self.lost.fetch_add(count, Ordering::Relaxed);
        }
    }
}

fn write(out: &mut impl Write, batch: &[Event], lost: u64) -> io::Result<()> {
    let mut text = Vec::new();
    if let (Some(first), 1..) = (batch.first(), lost) {
        let mut note = first.clone();
        note.kind = EventKind::Message(format!(
            "{lost} events were lost: their reader was too slow"
        ));
        note.rule = None;
        add(&mut text, &note)?;
    }
    for event in batch {
        add(&mut text, event)?;
    }
    out.write_all(&text)?;
    out.flush()
}

fn add(text: &mut Vec<u8>, event: &Event) -> io::Result<()> {
    serde_json::to_writer(&mut *text, event)?;
    text.push(b'\n');
    Ok(())
}
