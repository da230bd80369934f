//! Reading a disk's partition table and file systems, in a thread that asks the filter for
//! what lies where: the filter alone may ask the disk.
//!
//! ```text
//!  reader's thread ── where, how long ──▶ filter ── read ──▶ below
//!                  ◀─────── bytes ─────────
//!                  ────── what was found ─▶
//! ```

use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;

use base::IoError;
use world::Wake;

use extfs::partition::{Partition, partitions};
use extfs::{FormatError, Live, ScanError, Source};

/// Part of a disk with what is on it.
pub struct Area {
    /// From 1; none, if there is no partition table.
    pub number: Option<u32>,
    pub place: Partition,
    /// The file system; why there is none that can be followed.
    pub found: Result<Live, ScanError>,
}

impl Area {
    /// What is known of it takes so much memory, in bytes.
    pub fn bytes(&self) -> u64 {
        self.found.as_ref().map_or(0, Live::bytes)
    }
}

/// What the reader asks the filter.
pub struct Ask {
    pub offset: u64,
    pub length: usize,
    pub answer: Sender<Result<Vec<u8>, IoError>>,
}

/// A reading that goes on. Dropped, it ends with the next thing that it asks.
pub struct Reader {
    asks: Receiver<Ask>,
    found: Receiver<Result<Vec<Area>, IoError>>,
}

/// A part of the disk, to the reader.
struct Asking {
    asks: Sender<Ask>,
    wake: Wake,
    place: Partition,
}

impl Source for Asking {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
        let offset = self.place.on_disk(offset, out.len() as u64)?;
        let gone = || IoError::Stopped("nobody waits for this any more".to_owned());
        let (answer, answered) = mpsc::channel();
        let ask = Ask {
            offset,
            length: out.len(),
            answer,
        };
        self.asks.send(ask).map_err(|_| gone())?;
        self.wake.wake();
        let content = answered.recv().map_err(|_| gone())??;
        out.copy_from_slice(&content);
        Ok(())
    }
}

impl Reader {
    /// Begins to read a disk of `disk_bytes`; what is known of all file systems together may
    /// take `bytes_max` of memory.
    ///
    /// # Errors
    /// If no thread can be had.
    pub fn start(disk_bytes: u64, bytes_max: u64, wake: &Wake) -> std::io::Result<Self> {
        let (asks, asked) = mpsc::channel();
        let (tell, found) = mpsc::channel();
        let wake = wake.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "it waits for the disk, whose own work would wait for a pool's threads"
        )]
        thread::Builder::new()
            .name("follow".to_owned())
            .spawn(move || {
                let disk = Asking {
                    asks,
                    wake: wake.clone(),
                    place: whole(disk_bytes),
                };
                // Whoever has stopped waiting needs no answer.
                let _ = tell.send(read(disk, disk_bytes, bytes_max));
                wake.wake();
            })?;
        Ok(Self { asks: asked, found })
    }

    /// What it asks next, if anything.
    pub fn next(&self) -> Option<Ask> {
        self.asks.try_recv().ok()
    }

    /// What it has found, if it has ended.
    pub fn found(&self) -> Option<Result<Vec<Area>, IoError>> {
        match self.found.try_recv() {
            Ok(found) => Some(found),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                let why = "what reads the disk ended before its time".to_owned();
                Some(Err(IoError::Stopped(why)))
            }
        }
    }
}

fn whole(disk_bytes: u64) -> Partition {
    Partition {
        offset: 0,
        length: disk_bytes,
    }
}

/// What is on the disk. One area that cannot be read hides none of the others.
fn read(mut disk: Asking, disk_bytes: u64, bytes_max: u64) -> Result<Vec<Area>, IoError> {
    let table = partitions(&disk, disk_bytes)?;
    let mut places: Vec<(Option<u32>, Partition)> = (1..).map(Some).zip(table).collect();
    if places.is_empty() {
        places.push((None, whole(disk_bytes)));
    }
    let mut areas: Vec<Area> = Vec::new();
    for (number, place) in places {
        disk.place = place;
        let known: u64 = areas.iter().map(Area::bytes).sum();
        let left = bytes_max.saturating_sub(known);
        let found = match Live::read(&disk, place.length, left) {
            // The disk, or whoever asked for this, is gone.
            Err(ScanError::Io(error @ IoError::Stopped(_))) => return Err(error),
            Err(ScanError::Io(IoError::OutOfRange { .. })) => {
                let what = "it would lie beyond the end of its place";
                Err(FormatError::Nonsense(what).into())
            }
            found => found,
        };
        areas.push(Area {
            number,
            place,
            found,
        });
    }
    Ok(areas)
}
