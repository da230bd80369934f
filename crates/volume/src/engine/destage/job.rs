//! The job of a destage: places a consistency point and commits its version. It knows no
//! volume: its result is a [`DestageEnd`].

use std::sync::Arc;

use catalog::{StoredVersion, VersionCommit, VersionKey};
use world::File;

use super::error::DestageError;
use crate::engine::env::Env;
use crate::engine::layers::ConsistencyPoint;
use crate::engine::pages::place_pages;
use crate::journal::JournalSlot;
use crate::map::{Entry, Overlay, Root};
use crate::scatter::{PlaceError, Placer, Source, discard_confirmed, discard_unconfirmed, place};
use crate::seal::Address;
use crate::version::{Record, encode_tail};

/// A consistency point whose blocks have been placed.
pub struct Placement {
    pub point: Arc<ConsistencyPoint>,
    pub delta: Overlay<Entry>,
    pub pages: Vec<Entry>,
    pub commit: VersionCommit,
    pub adopts_checkpoint: bool,
}

/// The result of a destage job.
pub struct DestageEnd {
    pub placer: Placer,
    pub placement: Option<Box<Placement>>,
    pub result: Result<(), DestageError>,
}

/// A destage job: what it needs of the volume.
pub struct Job {
    pub env: Arc<Env>,
    pub journal: Arc<dyn File>,
    pub placer: Placer,
    pub point: Arc<ConsistencyPoint>,
    pub key: VersionKey,
    pub parent: Option<VersionKey>,
    pub root: Root,
    pub tail: Vec<Entry>,
    pub adopts_checkpoint: bool,
}

impl Job {
    /// Places the consistency point and commits its version.
    pub fn run(mut self) -> DestageEnd {
        match self.place() {
            Ok(placement) => {
                let Self { env, placer, .. } = self;
                finish(&env, placer, Box::new(placement))
            }
            Err(error) => {
                discard_unconfirmed(&self.env.store, &mut self.placer);
                DestageEnd {
                    placer: self.placer,
                    placement: None,
                    result: Err(error),
                }
            }
        }
    }

    fn place(&mut self) -> Result<Placement, DestageError> {
        let delta = self.place_blocks()?;
        let pages = self.place_tail(&delta)?;
        let env = &self.env;
        let mut tail = std::mem::take(&mut self.tail);
        tail.extend_from_slice(&pages);
        let record = Record {
            key: self.key,
            block_size: env.block_size,
            size_bytes: self.point.size_bytes,
            last_sequence: self.point.sequence,
            root: self.root.clone(),
            tail,
        };
        let sealed = record.seal(env.keyring.own(), env.sequences.take()?);
        // The next lease sweeps what is confirmed below, unless this commits: no
        // other lease can have been acquired yet.
        env.progress.check_awaited().map_err(PlaceError::from)?;
        self.placer.confirm();
        let ledger = env.ledger.for_commit(&env.serials);
        let joined = ledger.placement.joined_or_max();
        let commit = VersionCommit {
            version: StoredVersion {
                key: self.key,
                parent: self.parent,
                lineage: env.keyring.own().lineage(),
                epoch: env.epoch,
                journal_next: self.point.position,
                created: env.world.clock.wall(),
                record: sealed,
            },
            pins: self.point.pins.clone(),
            open_segments: ledger.open_segments,
            serial_next: ledger.serial_next,
            degraded: ledger.placement.degraded,
            joined: joined.oldest,
            joined_last: joined.newest,
        };
        let adopts_checkpoint = self.adopts_checkpoint;
        Ok(Placement {
            point: Arc::clone(&self.point),
            delta,
            pages,
            commit,
            adopts_checkpoint,
        })
    }

    fn place_blocks(&mut self) -> Result<Overlay<Entry>, DestageError> {
        let mut blocks: Vec<(u64, JournalSlot)> = self.point.writes.blocks().collect();
        blocks.sort_unstable_by_key(|(block, _)| *block);
        let blocks = Arc::new(blocks);
        let source: Source = {
            let (journal, blocks) = (Arc::clone(&self.journal), Arc::clone(&blocks));
            Arc::new(move |index, slot| {
                let (_, placed) = blocks[index];
                journal.read_at(slot, placed.offset)?;
                Ok(placed.tag)
            })
        };
        let random = &*self.env.world.random;
        let locations = place(
            &self.env.store,
            &mut self.placer,
            random,
            blocks.len(),
            &source,
        )?;
        let mut delta = Overlay::default();
        for zero in self.point.writes.zeroes() {
            delta.zero(zero);
        }
        for ((block, placed), location) in blocks.iter().zip(locations) {
            delta.insert(
                *block,
                Entry {
                    location,
                    sequence: placed.sequence,
                },
            );
        }
        Ok(delta)
    }

    fn place_tail(&mut self, delta: &Overlay<Entry>) -> Result<Vec<Entry>, DestageError> {
        let pages = encode_tail(delta, self.env.block_size);
        let pages = pages.into_iter().map(|page| (Address::TAIL, page));
        place_pages(&self.env, &mut self.placer, pages)
    }
}

/// Commits a placement; frees it if it can never be committed.
pub fn finish(env: &Env, mut placer: Placer, placement: Box<Placement>) -> DestageEnd {
    let result = env
        .catalog
        .commit(&placement.commit)
        .map_err(DestageError::from);
    if let Err(error) = &result
        && error.have_members_changed()
    {
        discard_confirmed(&env.store, &env.ledger);
        placer.close_segments();
    }
    DestageEnd {
        placer,
        placement: Some(placement),
        result,
    }
}
