//! Versions that are open for reading while volumes go on, and while versions
//! are removed.

use base::{BlockDevice, Completion, Outcome, Request, Started};
use volume::ReadOnlyVolume;
use volume::catalog::{Catalog, VersionKey};

use super::{Run, trace};
use crate::Check;
use crate::model::{Blocks, Pinned, content};

/// Versions that are open at once.
const READERS_MAX: usize = 3;
/// Jobs after which a read that should end is stuck.
const TURNS_MAX: usize = 20_000;
/// How often a version looks again for units that are away before it is given up.
const WAITS_MAX: usize = 3;

/// A version that is open.
pub(super) struct Reader {
    key: VersionKey,
    volume: ReadOnlyVolume,
    /// What it holds; none until it has been read once.
    holds: Option<Pinned>,
    /// It waits for nothing any more.
    is_ended: bool,
}

impl Run {
    /// Opens a version, or reads one that is open.
    pub(super) fn read_version(&mut self) -> Check {
        if self.readers.len() < READERS_MAX && self.chance(2) {
            self.open_reader()?;
        }
        if self.readers.is_empty() {
            return Ok(());
        }
        let index = self.random.index(self.readers.len());
        let mut reader = self.readers.swap_remove(index);
        self.read_through(&mut reader)?;
        if !self.is_off() && !reader.is_ended && !self.chance(4) {
            self.readers.push(reader);
        }
        Ok(())
    }

    fn open_reader(&mut self) -> Check {
        let Some(key) = self.any_version() else {
            return Ok(());
        };
        let memory = &self.machine.catalog.memory;
        let Ok(stored) = memory.version(key) else {
            return Ok(());
        };
        let keys = memory.keys(stored.lineage);
        let keys = keys.map_err(|error| error.to_string())?;
        if let Some(network) = &self.machine.network {
            network.capability_cache().reads(stored.lineage);
        }
        let (size_bytes, block_size) = (self.versions[&key].size_bytes, self.setup.block_size);
        let opened = self
            .machine
            .open_read_only(Some(stored), &keys, size_bytes, block_size);
        match opened {
            Ok(volume) => self.readers.push(Reader {
                key,
                volume,
                holds: None,
                is_ended: false,
            }),
            Err(_) if self.may_fail() => {}
            Err(error) => return Err(format!("{key:?} cannot be opened: {error}")),
        }
        Ok(())
    }

    /// Reads all that the version's volume ever wrote. A version that is gone
    /// may be unreadable; what can be read of it is right.
    fn read_through(&mut self, reader: &mut Reader) -> Check {
        let key = reader.key;
        let is_kept = self.versions.contains_key(&key);
        let holds = reader.holds.as_ref().or_else(|| self.versions.get(&key));
        let Some(holds) = holds.cloned() else {
            return Ok(());
        };
        trace!(self, "{key:?} is read, kept: {is_kept}");
        let block_bytes = self.setup.block_size.bytes() as u64;
        let mut seen = Blocks::new();
        let mut is_whole = true;
        for block in holds.timeline.touched_in(0..u64::MAX) {
            let offset = block * block_bytes;
            if offset >= holds.size_bytes {
                continue;
            }
            let length = (holds.size_bytes - offset).min(block_bytes) as usize;
            let mut bytes = vec![0; block_bytes as usize];
            match self.read_block(reader, offset, &mut bytes[..length]) {
                Ok(()) => {
                    seen.insert(block, content(&bytes));
                }
                Err(_) if self.may_fail() || !is_kept => is_whole = false,
                Err(why) => return Err(format!("{key:?}, block {block}: {why}")),
            }
        }
        let boundaries = holds.boundaries.clone();
        let found = holds.timeline.boundaries(boundaries, false, &seen);
        let Some(boundary) = found.first() else {
            let why = holds.timeline.explain(&seen);
            return Err(format!("{key:?} was opened and holds something else{why}"));
        };
        if is_whole && is_kept {
            self.compare(key, &seen)?;
            reader.holds = Some(Pinned {
                boundaries: *boundary..=*boundary,
                ..holds
            });
        }
        Ok(())
    }

    fn read_block(&self, reader: &mut Reader, offset: u64, out: &mut [u8]) -> Check {
        match reader.volume.start(Request::read(0, offset, out)) {
            Started::Done => return Ok(()),
            Started::Pending => {}
            other => return Err(format!("{other:?}")),
        }
        let mut completions: Vec<Completion> = Vec::new();
        let mut waits = 0;
        for _ in 0..TURNS_MAX {
            let is_idle = !self.machine.simulation.pool.run_one(&self.random);
            reader.volume.poll(&mut completions);
            if is_idle && completions.is_empty() && reader.volume.status().reads_waiting > 0 {
                // Units are away: some wait for them, and some end.
                let timer = reader.volume.next_timer();
                self.machine
                    .simulation
                    .clock
                    .advance(timer.unwrap_or_default());
                waits += 1;
                if waits == WAITS_MAX {
                    reader.volume.stop_waiting();
                    reader.is_ended = true;
                }
            }
            match completions.pop().map(|completion| completion.result) {
                None => {}
                Some(Ok(Outcome::Data(data))) => {
                    out.copy_from_slice(&data);
                    return Ok(());
                }
                Some(other) => return Err(format!("{other:?}")),
            }
        }
        Err("the read does not end".to_owned())
    }
}
