//! Parked requests: those that wait for map pages or blocks from units. When their content
//! has come they are completed, or resumed if their blocks were moved meanwhile.

use std::sync::Arc;
use std::time::Duration;

use base::{BlockIndex, Completion, IoError, Outcome, Token};

use super::Reader;
use crate::engine::event::{Fetched, ReadFailure};
use crate::engine::layers::Source;
use crate::engine::request::{Change, FetchTarget, FetchedEdges, ParkedRequest, PendingRequest};
use crate::map::{Entry, Page, Position};
use crate::scatter::data_piece;

/// How often a read is repeated because its block was moved by a write and a
/// destage. The bound is never met in practice.
const ATTEMPTS_MAX: u32 = 16;

impl Reader {
    /// Parks a request and starts to read what it needs: first map pages, then blocks.
    pub fn park(&mut self, waiting: PendingRequest) {
        self.resume(waiting, 0, None);
    }

    /// Continues a parked request: finds what it still needs. The request gets a new
    /// number, so that results of earlier reads are ignored.
    pub fn resume(
        &mut self,
        waiting: PendingRequest,
        attempts: u32,
        unavailable_since: Option<Duration>,
    ) {
        let blocks = self.blocks_wanted(&waiting);
        let mut pages: Vec<(Position, Entry)> = Vec::new();
        let mut wanted = Vec::with_capacity(blocks.len());
        for block in blocks {
            match self.layers.resolve(block) {
                Ok(source) => wanted.push((BlockIndex(block), source)),
                Err(page) if pages.contains(&page) => {}
                Err(page) => pages.push(page),
            }
        }
        let wanted = if !pages.is_empty() {
            FetchTarget::Pages(pages)
        } else {
            match waiting {
                PendingRequest::Extents { .. } => return self.finish_extents(waiting),
                PendingRequest::Readahead { piece, .. } => {
                    let wanted = self.worth_reading_ahead(wanted);
                    if wanted.is_empty() {
                        return self.end_ahead(piece);
                    }
                    FetchTarget::Readahead(wanted.into())
                }
                _ => FetchTarget::Blocks(wanted.into()),
            }
        };
        let id = self.parked_next;
        self.parked_next += 1;
        let is_ahead = matches!(waiting, PendingRequest::Readahead { .. });
        let targets = self.start_fetch(id, &wanted, is_ahead);
        let parked = ParkedRequest {
            waiting,
            attempts,
            unavailable_since,
            wanted,
            targets,
            under_way: 1,
        };
        if unavailable_since.is_some() {
            self.unavailable.retry_started();
        }
        self.parked.insert(id, parked);
    }

    /// The blocks of a readahead that are only on units.
    fn worth_reading_ahead(&self, blocks: Vec<(BlockIndex, Source)>) -> Vec<(BlockIndex, Source)> {
        let is_elsewhere = |(block, source): &(BlockIndex, Source)| match source {
            Source::Slot(entry) => {
                let piece = data_piece(*block, *entry);
                let view = self.fetcher.view.as_ref();
                view.is_some_and(|view| !view.may_have(&piece))
            }
            Source::Zero | Source::Journal(_) => false,
        };
        blocks.into_iter().filter(is_elsewhere).collect()
    }

    /// A read of request `id` has ended. Returns the request, unless it was completed
    /// before, or this read has failed and another one is running.
    fn unpark(&mut self, id: u64, has_failed: bool) -> Option<ParkedRequest> {
        let mut parked = self.parked.remove(&id)?;
        if has_failed && parked.under_way > 1 {
            parked.under_way -= 1;
            self.parked.insert(id, parked);
            return None;
        }
        if parked.unavailable_since.is_some() {
            self.unavailable.retry_ended(has_failed);
        }
        Some(parked)
    }

    /// Blocks were read. Returns a change that may be admitted now, with its edges.
    pub fn on_fetched(&mut self, id: u64, fetched: Fetched) -> Option<(Change, FetchedEdges)> {
        let read = match fetched {
            Fetched::All(content) => Ok(content),
            Fetched::Each(each) => joined(each),
        };
        let parked = self.unpark(id, read.is_err())?;
        let (FetchTarget::Blocks(wanted) | FetchTarget::Readahead(wanted)) = &parked.wanted else {
            unreachable!("blocks are read only for requests that need blocks");
        };
        let wanted = Arc::clone(wanted);
        let content = match read {
            Ok(content) => content,
            Err((index, unread)) => {
                let (block, source) = wanted[index];
                // The block may have been overwritten, destaged and freed meanwhile;
                // then it is read at its new location.
                let moved = self.layers.resolve(block.0) != Ok(source);
                if moved && parked.attempts < ATTEMPTS_MAX {
                    self.resume(
                        parked.waiting,
                        parked.attempts + 1,
                        parked.unavailable_since,
                    );
                } else {
                    self.wait_or_fail(parked, unread);
                }
                return None;
            }
        };
        match parked.waiting {
            PendingRequest::Read {
                token,
                offset,
                length,
            } => {
                let data = self.requested_part(offset, length, content);
                self.complete(token, Outcome::Data(data));
            }
            PendingRequest::Prefetch { token, .. } => self.complete(token, Outcome::Done),
            PendingRequest::Change(change) => {
                let blocks = content.chunks_exact(self.fetcher.block_size.bytes());
                let edges = wanted.iter().zip(blocks);
                let edges = edges.map(|((block, source), plain)| (*block, *source, plain.to_vec()));
                return Some((change, edges.collect()));
            }
            PendingRequest::Extents { .. } => self.finish_extents(parked.waiting),
            PendingRequest::Readahead { piece, .. } => self.end_ahead(piece),
        }
        None
    }

    fn complete(&mut self, token: Token, outcome: Outcome) {
        self.ready.push(Completion {
            token,
            result: Ok(outcome),
        });
    }

    /// The requested bytes of consecutive blocks.
    fn requested_part(&self, offset: u64, length: usize, content: Vec<u8>) -> Vec<u8> {
        if content.len() == length {
            return content;
        }
        let block_bytes = self.fetcher.block_size.bytes() as u64;
        let within = (offset % block_bytes) as usize;
        content[within..within + length].to_vec()
    }

    /// Map pages were read, or could not be.
    pub fn on_pages(&mut self, id: u64, pages: Result<Vec<(Entry, Arc<Page>)>, ReadFailure>) {
        let Some(parked) = self.unpark(id, pages.is_err()) else {
            return;
        };
        match pages {
            Ok(pages) => {
                for (entry, page) in pages {
                    self.layers.cache.insert(entry, page);
                }
                self.resume(parked.waiting, parked.attempts, parked.unavailable_since);
            }
            // A checkpoint may have replaced the page meanwhile.
            Err(unread) if parked.attempts < 2 && !self.can_wait(&parked, &unread) => {
                self.resume(
                    parked.waiting,
                    parked.attempts + 1,
                    parked.unavailable_since,
                );
            }
            Err(unread) => self.wait_or_fail(parked, unread),
        }
    }

    /// Fails a request.
    pub fn fail(&mut self, waiting: &PendingRequest, error: IoError) {
        if let PendingRequest::Readahead { piece, .. } = waiting {
            return self.end_ahead(*piece);
        }
        self.ready.extend(waiting.token().map(|token| Completion {
            token,
            result: Err(error),
        }));
    }
}

/// Concatenates blocks, or returns the index and failure of one: a permanent failure,
/// if there is one.
fn joined(blocks: Vec<Result<Vec<u8>, ReadFailure>>) -> Result<Vec<u8>, (usize, ReadFailure)> {
    let mut content = Vec::with_capacity(blocks.iter().flatten().map(Vec::len).sum());
    let mut failure: Option<(usize, ReadFailure)> = None;
    for (index, block) in blocks.into_iter().enumerate() {
        match block {
            Ok(block) => content.extend(block),
            Err(unread) if failure.is_none() || !unread.is_transient => {
                let is_last = !unread.is_transient;
                failure = Some((index, unread));
                if is_last {
                    break;
                }
            }
            Err(_) => {}
        }
    }
    match failure {
        Some(failure) => Err(failure),
        None => Ok(content),
    }
}
