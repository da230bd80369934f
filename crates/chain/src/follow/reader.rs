//! [`Reader`]: reads the partition table and the file systems of a disk in a thread. The thread
//! requests ranges from the filter, since only the filter may make requests below.
//!
//! ```text
//!  reader's thread ── offset, length ──▶ filter ── read ──▶ below
//!                  ◀────── bytes ────────
//!                  ────── areas ────────▶
//! ```

use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;

use base::IoError;
use world::Wake;

use extfs::partition::{Partition, partitions};
use extfs::{FormatError, Live, ScanError, Source};

/// A part of a disk with its file system.
pub struct Area {
    /// The number of the partition, from 1; `None` if the disk has no partition table.
    pub number: Option<u32>,
    pub place: Partition,
    /// The file system, or why there is none that can be followed.
    pub found: Result<Live, ScanError>,
}

impl Area {
    /// The memory of the file system's state, in bytes.
    pub fn bytes(&self) -> u64 {
        self.found.as_ref().map_or(0, Live::bytes)
    }
}

/// A range that the reader requests from the filter.
pub struct ReaderRequest {
    pub offset: u64,
    pub length: usize,
    pub answer: Sender<Result<Vec<u8>, IoError>>,
}

/// A read of a disk in a thread. After it is dropped, its thread ends with the next request.
pub struct Reader {
    requests: Receiver<ReaderRequest>,
    found: Receiver<Result<Vec<Area>, IoError>>,
}

/// A part of the disk, as the reader's thread reads it.
struct PartSource {
    requests: Sender<ReaderRequest>,
    wake: Wake,
    place: Partition,
}

impl Source for PartSource {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
        let offset = self.place.on_disk(offset, out.len() as u64)?;
        let gone = || IoError::Stopped("the filter does not need the result any more".to_owned());
        let (answer, result) = mpsc::channel();
        let request = ReaderRequest {
            offset,
            length: out.len(),
            answer,
        };
        self.requests.send(request).map_err(|_| gone())?;
        self.wake.wake();
        let content = result.recv().map_err(|_| gone())??;
        out.copy_from_slice(&content);
        Ok(())
    }
}

impl Reader {
    /// Begins to read a disk of `disk_bytes`, with at most `bytes_max` bytes of memory for all file
    /// systems together.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(disk_bytes: u64, bytes_max: u64, wake: &Wake) -> std::io::Result<Self> {
        let (requests, receiver) = mpsc::channel();
        let (tell, found) = mpsc::channel();
        let wake = wake.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "it waits for the disk, which itself may wait for threads of the pool"
        )]
        thread::Builder::new()
            .name("follow".to_owned())
            .spawn(move || {
                let disk = PartSource {
                    requests,
                    wake: wake.clone(),
                    place: whole(disk_bytes),
                };
                // The follower may have dropped the reader.
                let _ = tell.send(read(disk, disk_bytes, bytes_max));
                wake.wake();
            })?;
        Ok(Self {
            requests: receiver,
            found,
        })
    }

    /// The next range that the thread requests, if any.
    pub fn next(&self) -> Option<ReaderRequest> {
        self.requests.try_recv().ok()
    }

    /// The areas that were found, when the thread has ended.
    pub fn found(&self) -> Option<Result<Vec<Area>, IoError>> {
        match self.found.try_recv() {
            Ok(found) => Some(found),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                let why = "the thread that reads the disk has panicked".to_owned();
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

/// Reads the areas of a disk. An area that cannot be read does not affect the others.
fn read(mut disk: PartSource, disk_bytes: u64, bytes_max: u64) -> Result<Vec<Area>, IoError> {
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
            // The disk or the follower has ended.
            Err(ScanError::Io(error @ IoError::Stopped(_))) => return Err(error),
            Err(ScanError::Io(IoError::OutOfRange { .. })) => {
                let what = "it extends beyond the end of its partition";
                Err(FormatError::Invalid(what).into())
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
