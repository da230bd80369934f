//! [`EventLines`]: events as lines of JSON, written in a thread: a disk waits for nobody who
//! reads them.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread;

use chain::EventSink;
use chain::filters::{Event, What};

/// So many batches of events wait for whoever reads them; what is more is lost.
const BATCHES_MAX: usize = 256;

/// See the module's head.
pub struct EventLines {
    batches: SyncSender<Vec<Event>>,
    lost: Arc<AtomicU64>,
}

impl EventLines {
    /// Writes to `out`, as long as it takes anything and this is there.
    ///
    /// # Errors
    /// If no thread can be had.
    pub fn start(mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let (batches, received) = mpsc::sync_channel::<Vec<Event>>(BATCHES_MAX);
        let lost = Arc::<AtomicU64>::default();
        let missing = Arc::clone(&lost);
        #[expect(
            clippy::disallowed_methods,
            reason = "it lasts as long as the filters, and waits for a reader"
        )]
        thread::Builder::new()
            .name("events".to_owned())
            .spawn(move || {
                while let Ok(batch) = received.recv() {
                    let lost = missing.swap(0, Ordering::Relaxed);
                    // Who reads no more wants no more.
                    if write(&mut out, &batch, lost).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { batches, lost })
    }
}

impl EventSink for EventLines {
    fn tell(&self, events: Vec<Event>) {
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
        note.what = What::Note(format!("{lost} events are lost: nobody read them in time"));
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
