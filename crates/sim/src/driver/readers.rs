//! [`Readers`]: versions that are open for reading while volumes are written and versions
//! are removed.

use base::{BlockDevice, Completion, Outcome, Request, Started};
use catalog::{Catalog, VersionKey};
use volume::ReadOnlyVolume;

use super::context::{Context, trace};
use crate::Check;
use crate::model::{Blocks, Pinned, content};

/// The most versions that are open at once.
const READERS_MAX: usize = 3;
/// Jobs after which a read that should end is stuck.
const TURNS_MAX: usize = 20_000;
/// How often a read waits for unavailable units before it is ended.
const WAITS_MAX: usize = 3;

/// An open version.
struct Reader {
    key: VersionKey,
    volume: ReadOnlyVolume,
    /// Its state, once it has been read.
    state: Option<Pinned>,
    /// Whether its reads no longer wait for unavailable units.
    is_ended: bool,
}

/// The open versions.
#[derive(Default)]
pub(super) struct Readers(Vec<Reader>);

impl Readers {
    /// Forgets all open versions: the process has ended.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Opens a version, or reads an open one.
    pub fn read_version(&mut self, context: &mut Context) -> Check {
        if self.0.len() < READERS_MAX && context.chance(2) {
            self.open(context)?;
        }
        if self.0.is_empty() {
            return Ok(());
        }
        let index = context.random.index(self.0.len());
        let mut reader = self.0.swap_remove(index);
        reader.read_all(context)?;
        if !context.is_off() && !reader.is_ended && !context.chance(4) {
            self.0.push(reader);
        }
        Ok(())
    }

    fn open(&mut self, context: &Context) -> Check {
        let Some(key) = context.any_version() else {
            return Ok(());
        };
        let memory = &context.machine.catalog.memory;
        let Ok(stored) = memory.version(key) else {
            return Ok(());
        };
        let keys = memory.keys(stored.lineage);
        let keys = keys.map_err(|error| error.to_string())?;
        if let Some(network) = &context.machine.network {
            network.capability_cache().request_read(stored.lineage);
        }
        let size_bytes = context.ledger.versions[&key].size_bytes;
        let block_size = context.setup.block_size;
        let opened = context
            .machine
            .open_read_only(Some(stored), &keys, size_bytes, block_size);
        match opened {
            Ok(volume) => self.0.push(Reader {
                key,
                volume,
                state: None,
                is_ended: false,
            }),
            Err(_) if context.may_fail() => {}
            Err(error) => return Err(format!("cannot open {key:?}: {error}")),
        }
        Ok(())
    }
}

impl Reader {
    /// Reads all blocks that the version's volume ever wrote. A removed version may be
    /// unreadable, but every block that can be read must be right.
    fn read_all(&mut self, context: &mut Context) -> Check {
        let key = self.key;
        let is_kept = context.ledger.versions.contains_key(&key);
        let state = self.state.as_ref();
        let state = state.or_else(|| context.ledger.versions.get(&key));
        let Some(state) = state.cloned() else {
            return Ok(());
        };
        trace!(context, "reading {key:?}, kept: {is_kept}");
        let block_bytes = context.setup.block_size.bytes() as u64;
        let mut seen = Blocks::new();
        let mut is_complete = true;
        for block in state.timeline.touched_in(0..u64::MAX) {
            let offset = block * block_bytes;
            if offset >= state.size_bytes {
                continue;
            }
            let length = (state.size_bytes - offset).min(block_bytes) as usize;
            let mut bytes = vec![0; block_bytes as usize];
            match self.read_block(context, offset, &mut bytes[..length]) {
                Ok(()) => {
                    seen.insert(block, content(&bytes));
                }
                Err(_) if context.may_fail() || !is_kept => is_complete = false,
                Err(error) => return Err(format!("{key:?}, block {block}: {error}")),
            }
        }
        let boundaries = state.boundaries.clone();
        let found = state.timeline.boundaries(boundaries, false, &seen);
        let Some(boundary) = found.first() else {
            let differences = state.timeline.explain(&seen);
            return Err(format!(
                "{key:?} was opened and has another state{differences}"
            ));
        };
        if is_complete && is_kept {
            context.ledger.check_content(key, &seen)?;
            self.state = Some(Pinned {
                boundaries: *boundary..=*boundary,
                ..state
            });
        }
        Ok(())
    }

    fn read_block(&mut self, context: &Context, offset: u64, out: &mut [u8]) -> Check {
        match self.volume.start(Request::read(0, offset, out)) {
            Started::Done => return Ok(()),
            Started::Pending => {}
            other => return Err(format!("{other:?}")),
        }
        let simulation = &context.machine.simulation;
        let mut completions: Vec<Completion> = Vec::new();
        let mut waits = 0;
        for _ in 0..TURNS_MAX {
            let is_idle = !simulation.pool.run_one(&context.random);
            self.volume.poll(&mut completions);
            if is_idle && completions.is_empty() && self.volume.status().reads_waiting > 0 {
                let timer = self.volume.next_timer();
                simulation.clock.advance(timer.unwrap_or_default());
                waits += 1;
                if waits == WAITS_MAX {
                    self.volume.stop_waiting();
                    self.is_ended = true;
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
