//! Reads: at one source, and at another one if that fails.

use base::{BlockDevice, ByteRange, IoError, Op, ReadBuffer, Started, Token};

use super::member::PartOf;
use super::replica_set::ReplicaSet;
use super::requests::RequestKind;

impl ReplicaSet {
    /// Starts a read at a source. `None` if no source can take it now.
    pub fn read_from_source(
        &mut self,
        below: &mut dyn BlockDevice,
        id: Token,
        offset: u64,
        out: &mut ReadBuffer<'_>,
    ) -> Option<Started> {
        let (now, length) = (self.now(), out.len() as u64);
        self.members.next_turn();
        let mut tried = 0;
        while let Some(at) = self.members.choose_source(tried) {
            tried |= 1 << at;
            let op = Op::Read {
                offset,
                out: out.reborrow(),
            };
            match self.members[at].start(below, PartOf { request: id, now }, op) {
                Started::Busy => {}
                Started::Failed(error) => {
                    self.read_failed(at, ByteRange::new(offset, length), &error)
                }
                started => return Some(started),
            }
        }
        None
    }

    /// A member could not be read: it is excluded, and what it could not read is written to it
    /// again.
    fn read_failed(&mut self, at: usize, range: ByteRange, error: &IoError) {
        self.add_unreadable(at, range);
        self.exclude(at, &error.to_string());
    }

    /// A member is missing what it could not read, unless it is the only complete one.
    pub fn add_unreadable(&mut self, at: usize, range: ByteRange) {
        if !self.is_only_complete(at) {
            let regions = self.log.map.regions_of(range.offset, range.length);
            self.add_missing(at, regions);
        }
    }

    /// Tries failed reads at another source.
    pub fn retry_reads(&mut self, below: &mut dyn BlockDevice) {
        for id in std::mem::take(&mut self.requests.retries) {
            let request = self.requests.pending.get_mut(id);
            let Some(RequestKind::Read(range)) = request.map(|request| request.kind) else {
                continue;
            };
            let mut out = vec![0; range.length as usize];
            let may_wait = self.members.has_source() || !self.gives_up;
            let buffer = &mut out.as_mut_slice().into();
            let started = self.read_from_source(below, id, range.offset, buffer);
            let Some(request) = self.requests.pending.get_mut(id) else {
                continue;
            };
            match started {
                Some(Started::Done) => {
                    (request.data, request.is_done) = (Some(out), true);
                    self.end(id);
                }
                Some(_) => request.parts += 1,
                None if may_wait => self.requests.retries.push(id),
                None => self.end(id),
            }
        }
    }
}
