//! Extents: which parts of a volume hold data.

use base::{Completion, Extent, ExtentKind, Outcome};

use super::Reader;
use crate::engine::layers::Source;
use crate::engine::request::PendingRequest;
use crate::map::Lookup;

/// Steps of one answer: bounds how long the owner is busy. A step is a block,
/// or a run of holes as long as a subtree.
const STEPS_MAX: usize = 16 << 10;

impl Reader {
    /// Describes the range from `offset` on, as far as no map page has to be waited
    /// for. Returns `false` if not even its first block is known.
    pub fn extents_now(&mut self, offset: u64, length: u64, runs: &mut Vec<Extent>) -> bool {
        runs.clear();
        let size = self.fetcher.block_size;
        let end = offset + length;
        let mut position = offset;
        for _ in 0..STEPS_MAX {
            if position >= end {
                break;
            }
            let block = size.block_at(position).0;
            let Some((kind, run_end)) = self.kind_of_run(block, self.blocks_of(offset, length).end)
            else {
                break;
            };
            let next = size.start_of(base::BlockIndex(run_end)).min(end);
            let covered = next - position;
            match runs.last_mut() {
                Some(last) if last.kind == kind => last.length += covered,
                _ => runs.push(Extent {
                    length: covered,
                    kind,
                }),
            }
            position = next;
        }
        !runs.is_empty()
    }

    /// What `block` holds, and the end (exclusive, at most `limit`) of the run of
    /// blocks for which that is known.
    fn kind_of_run(&mut self, block: u64, limit: u64) -> Option<(ExtentKind, u64)> {
        if let Some(source) = self.layers.above_tree(block) {
            let kind = match source {
                Source::Zero => ExtentKind::Hole,
                Source::Journal(_) | Source::Slot(_) => ExtentKind::Data,
            };
            return Some((kind, block + 1));
        }
        loop {
            let (lookup, run_end) = self.layers.cache.lookup_run(&self.layers.root, block);
            match lookup {
                Lookup::Known(Some(_)) => return Some((ExtentKind::Data, block + 1)),
                Lookup::Known(None) => {
                    // The layers above may still have something in the run.
                    let quiet = self.layers.is_quiet();
                    let end = if quiet { run_end.min(limit) } else { block + 1 };
                    return Some((ExtentKind::Hole, end));
                }
                Lookup::Missing(position, entry) => {
                    if !self.load_page_now(position, entry) {
                        return None;
                    }
                }
            }
        }
    }

    pub fn finish_extents(&mut self, waiting: PendingRequest) {
        let PendingRequest::Extents {
            token,
            offset,
            length,
        } = waiting
        else {
            return;
        };
        let mut runs: Vec<Extent> = Vec::new();
        if self.extents_now(offset, length, &mut runs) {
            self.ready.push(Completion {
                token,
                result: Ok(Outcome::Extents(runs)),
            });
        } else {
            self.park(PendingRequest::Extents {
                token,
                offset,
                length,
            });
        }
    }
}
