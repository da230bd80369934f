//! Translates requests from above into requests below, and completions below into completions
//! above.

use std::ops::Range;
use std::time::Duration;

use base::{
    BlockDevice, Completion, Durability, Extent, ExtentKind, IoError, Op, Outcome, ReadBuffer,
    Request, Started, Token, WriteBuffer,
};

use super::{Open, Tokens, overlap, unexpected};
use luks::DATA_OFFSET;

/// A larger encryption buffer is freed after its write, in bytes.
const SCRATCH_BYTES_MAX: usize = 1 << 20;

/// A pending request.
pub enum Pending {
    /// A read of these sectors, of which `part` was requested.
    Read {
        token: Token,
        sectors: Range<u64>,
        part: Range<usize>,
    },
    /// A request that changes these sectors, or none, and completes as it does below.
    Pass { token: Token, sectors: Range<u64> },
    /// The write of the changed sectors of a [`Modify`].
    Modified { token: Token, sectors: Range<u64> },
    /// The read of the sectors of a [`Modify`], which `data` changes from byte `at` on.
    Modify {
        modify: Modify,
        at: usize,
        data: Vec<u8>,
    },
}

/// A write of parts of sectors.
pub struct Modify {
    pub token: Token,
    pub sectors: Range<u64>,
    pub durability: Durability,
    /// The content of the sectors below.
    pub content: Vec<u8>,
}

/// The tokens of one request.
#[derive(Clone, Copy)]
struct TokenPair {
    /// The token of the request as it came.
    above: Token,
    /// The token of the request that carries it out below.
    below: Token,
}

impl Pending {
    fn sectors(&self) -> &Range<u64> {
        match self {
            Self::Read { sectors, .. }
            | Self::Pass { sectors, .. }
            | Self::Modified { sectors, .. } => sectors,
            Self::Modify { modify, .. } => &modify.sectors,
        }
    }

    fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. })
    }
}

fn length_of(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}

/// The position of the bytes at `offset` within `sectors`.
fn part_of(sectors: &Range<u64>, offset: u64, length: usize) -> Range<usize> {
    let begin = (offset - sectors.start) as usize;
    begin..begin + length
}

impl Tokens {
    fn pair(&mut self, above: Token) -> TokenPair {
        let below = self.next();
        TokenPair { above, below }
    }
}

impl Open {
    /// Whether a request that touches these sectors is pending.
    pub fn is_used(&self, sectors: &Range<u64>) -> bool {
        let mut pending = self.pending.values();
        pending.any(|request| overlap(request.sectors(), sectors)) || self.is_stalled(sectors)
    }

    fn is_stalled(&self, sectors: &Range<u64>) -> bool {
        let mut stalled = self.stalled.iter();
        stalled.any(|request| overlap(&request.sectors, sectors))
    }

    /// Whether a change of these sectors is pending.
    fn is_changed(&self, sectors: &Range<u64>) -> bool {
        let mut changes = self.pending.values().filter(|request| !request.is_read());
        changes.any(|change| overlap(change.sectors(), sectors)) || self.is_stalled(sectors)
    }

    /// Whether a write of parts of these sectors is pending. It carries the old content of the
    /// other parts, so it would undo any write to them that completes before it.
    fn is_modified(&self, sectors: &Range<u64>) -> bool {
        self.modifying > 0 && self.is_changed(sectors)
    }

    /// Starts a request that touches `sectors`, none of which the filter's own work holds.
    pub fn start(
        &mut self,
        below: &mut dyn BlockDevice,
        tokens: &mut Tokens,
        request: Request<'_>,
        sectors: Range<u64>,
    ) -> Started {
        let Request { token, op } = request;
        let range = op.range();
        match op {
            Op::Read { offset, out } => self.read(below, tokens.pair(token), offset, sectors, out),
            Op::Write {
                offset,
                data,
                durability,
            } => {
                if sectors == (offset..range.end()) {
                    return self.write(below, tokens.pair(token), offset, data, durability);
                }
                let modify = Modify {
                    token,
                    sectors,
                    durability,
                    content: Vec::new(),
                };
                self.modify(below, tokens, modify, offset, data)
            }
            Op::Trim { durability, .. } => {
                let range = range.offset..range.end();
                self.trim(below, tokens.pair(token), sectors, range, durability)
            }
            Op::Extents { length, runs, .. } => {
                runs.push(Extent {
                    length,
                    kind: ExtentKind::Data,
                });
                Started::Done
            }
            Op::Flush => {
                let tokens = tokens.pair(token);
                let started = below.start(Request::flush(tokens.below));
                self.passed(tokens, 0..0, started)
            }
            Op::Prefetch { offset, length } => {
                let tokens = tokens.pair(token);
                let at = offset + DATA_OFFSET;
                let started = below.start(Request::prefetch(tokens.below, at, length));
                self.passed(tokens, 0..0, started)
            }
            Op::WriteZeroes { .. } => Started::Failed(IoError::NotSupported),
        }
    }

    /// Records a request whose completion is forwarded unchanged.
    fn passed(&mut self, tokens: TokenPair, sectors: Range<u64>, started: Started) -> Started {
        if started == Started::Pending {
            let token = tokens.above;
            self.pending
                .insert(tokens.below, Pending::Pass { token, sectors });
        }
        started
    }

    fn read(
        &mut self,
        below: &mut dyn BlockDevice,
        tokens: TokenPair,
        offset: u64,
        sectors: Range<u64>,
        mut out: ReadBuffer<'_>,
    ) -> Started {
        let part = part_of(&sectors, offset, out.len());
        let started = if part == (0..length_of(&sectors)) {
            let read = |out: &mut [u8]| {
                let started = below.start(Request::read(tokens.below, offset + DATA_OFFSET, out));
                if started == Started::Done {
                    self.cipher.decrypt(offset, out);
                }
                started
            };
            out.fill_as_single(read, |started| *started == Started::Done)
        } else {
            let mut whole = vec![0; length_of(&sectors)];
            let at = sectors.start + DATA_OFFSET;
            let started = below.start(Request::read(tokens.below, at, &mut whole));
            if started == Started::Done {
                self.cipher.decrypt(sectors.start, &mut whole);
                out.copy_from(&whole[part.clone()]);
            }
            started
        };
        if started == Started::Pending {
            let read = Pending::Read {
                token: tokens.above,
                sectors,
                part,
            };
            self.pending.insert(tokens.below, read);
        }
        started
    }

    /// Writes whole sectors.
    fn write(
        &mut self,
        below: &mut dyn BlockDevice,
        tokens: TokenPair,
        offset: u64,
        data: WriteBuffer<'_>,
        durability: Durability,
    ) -> Started {
        let sectors = offset..offset + data.len() as u64;
        if self.is_modified(&sectors) {
            return Started::Busy;
        }
        self.scratch.clear();
        data.append_to(&mut self.scratch);
        self.cipher.encrypt(offset, &mut self.scratch);
        let at = offset + DATA_OFFSET;
        let started = below.start(Request::write(tokens.below, at, &self.scratch, durability));
        self.scratch.clear();
        self.scratch.shrink_to(SCRATCH_BYTES_MAX);
        self.passed(tokens, sectors, started)
    }

    /// Trims the sectors that lie completely in `range`. They read as random bytes afterwards, as
    /// with dm-crypt.
    fn trim(
        &mut self,
        below: &mut dyn BlockDevice,
        tokens: TokenPair,
        sectors: Range<u64>,
        range: Range<u64>,
        durability: Durability,
    ) -> Started {
        if self.is_modified(&sectors) {
            return Started::Busy;
        }
        let begin = self.cipher.sectors(&(range.start..range.start)).end;
        let end = self.cipher.sectors(&(range.end..range.end)).start;
        if begin >= end {
            return Started::Done;
        }
        let started = below.start(Request::trim(
            tokens.below,
            begin + DATA_OFFSET,
            end - begin,
            durability,
        ));
        self.passed(tokens, sectors, started)
    }

    /// Writes parts of sectors by reading, changing and writing the whole sectors.
    fn modify(
        &mut self,
        below: &mut dyn BlockDevice,
        tokens: &mut Tokens,
        mut modify: Modify,
        offset: u64,
        data: WriteBuffer<'_>,
    ) -> Started {
        if self.is_changed(&modify.sectors) {
            return Started::Busy;
        }
        let at = part_of(&modify.sectors, offset, data.len()).start;
        modify.content = vec![0; length_of(&modify.sectors)];
        let (own, from) = (tokens.next(), modify.sectors.start + DATA_OFFSET);
        match below.start(Request::read(own, from, &mut modify.content)) {
            Started::Done => {}
            Started::Pending => {
                modify.content = Vec::new();
                let data = data.to_vec();
                self.pending
                    .insert(own, Pending::Modify { modify, at, data });
                self.modifying += 1;
                return Started::Pending;
            }
            other => return other,
        }
        self.put(&mut modify, at, data);
        let own = tokens.next();
        let started = below.start(Request::write(
            own,
            from,
            &modify.content,
            modify.durability,
        ));
        if started == Started::Pending {
            self.modifying += 1;
            let (token, sectors) = (modify.token, modify.sectors);
            self.pending
                .insert(own, Pending::Modified { token, sectors });
        }
        started
    }

    /// Decrypts the sectors that were read, changes a part, and encrypts them again.
    fn put(&self, modify: &mut Modify, at: usize, data: WriteBuffer<'_>) {
        let begin = modify.sectors.start;
        self.cipher.decrypt(begin, &mut modify.content);
        data.copy_to(&mut modify.content[at..at + data.len()]);
        self.cipher.encrypt(begin, &mut modify.content);
    }

    /// Writes the sectors that were read and changed. The user above ends a batch only in loop
    /// turns in which it starts requests, so this ends the batch before it completes the writes.
    pub fn write_modified(
        &mut self,
        below: &mut dyn BlockDevice,
        tokens: &mut Tokens,
        completions: &mut Vec<Completion>,
    ) {
        let mut done = Vec::new();
        let mut has_started = false;
        while let Some(modify) = self.stalled.pop() {
            let (own, to) = (tokens.next(), modify.sectors.start + DATA_OFFSET);
            let token = modify.token;
            match below.start(Request::write(own, to, &modify.content, modify.durability)) {
                Started::Busy => {
                    self.stalled.push(modify);
                    break;
                }
                Started::Pending => {
                    has_started = true;
                    let sectors = modify.sectors;
                    self.pending
                        .insert(own, Pending::Modified { token, sectors });
                }
                Started::Done => {
                    has_started = true;
                    self.modifying -= 1;
                    done.push(token);
                }
                Started::Failed(error) => {
                    self.modifying -= 1;
                    let result = Err(error);
                    completions.push(Completion { token, result });
                }
            }
        }
        if !has_started {
            return;
        }
        let ended = below.end_batch().map(|()| Outcome::Done);
        completions.extend(done.into_iter().map(|token| Completion {
            token,
            result: ended.clone(),
        }));
    }

    /// Handles a completion of the device below.
    pub fn completed(
        &mut self,
        completion: Completion,
        now: Duration,
        completions: &mut Vec<Completion>,
    ) {
        let Completion { token: own, result } = completion;
        let Some(pending) = self.pending.remove(&own) else {
            return self.work.completed(own, result, now);
        };
        let (token, result) = match pending {
            Pending::Pass { token, .. } => (token, result),
            Pending::Modified { token, .. } => {
                self.modifying -= 1;
                (token, result)
            }
            Pending::Read {
                token,
                sectors,
                part,
            } => {
                let read = data_of(result, &sectors).map(|mut data| {
                    self.cipher.decrypt(sectors.start, &mut data);
                    data.truncate(part.end);
                    data.drain(..part.start);
                    Outcome::Data(data)
                });
                (token, read)
            }
            Pending::Modify {
                mut modify,
                at,
                data,
            } => match data_of(result, &modify.sectors) {
                Ok(content) => {
                    modify.content = content;
                    self.put(&mut modify, at, data.as_slice().into());
                    return self.stalled.push(modify);
                }
                Err(error) => {
                    self.modifying -= 1;
                    (modify.token, Err(error))
                }
            },
        };
        completions.push(Completion { token, result });
    }
}

/// The content of `sectors` from the completion of their read.
fn data_of(result: Result<Outcome, IoError>, sectors: &Range<u64>) -> Result<Vec<u8>, IoError> {
    match result? {
        Outcome::Data(data) if data.len() == length_of(sectors) => Ok(data),
        other => Err(unexpected(&other)),
    }
}
