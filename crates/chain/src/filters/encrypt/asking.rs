//! What is asked below for whoever asks above.

use std::ops::Range;
use std::time::Duration;

use base::{BlockDevice, Completion, Durability, IoError, Outcome, Started, Token};

use super::{Open, Tokens, nonsense, overlap};
use luks::DATA_OFFSET;

/// The buffer of a larger write is given back.
const SCRATCH_BYTES_MAX: usize = 1 << 20;

/// A request that was not answered.
pub enum Asked {
    /// Of these sectors, of which a part is handed up.
    Read {
        token: Token,
        sectors: Range<u64>,
        part: Range<usize>,
    },
    /// A change of these sectors, or none: the answer is handed up.
    Pass { token: Token, sectors: Range<u64> },
    /// The sectors of a [`Modify`], changed: as [`Asked::Pass`].
    Modified { token: Token, sectors: Range<u64> },
    /// The sectors of a write that has only a part of them; the bytes that it has, and where
    /// they begin.
    Modify {
        modify: Modify,
        at: usize,
        data: Vec<u8>,
    },
}

/// A write that has not all of its sectors.
pub struct Modify {
    pub token: Token,
    pub sectors: Range<u64>,
    pub durability: Durability,
    /// Of the sectors, as they are to lie below.
    pub content: Vec<u8>,
}

impl Asked {
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

/// Where the bytes at `offset` lie in what was read of `sectors`.
fn part_of(sectors: &Range<u64>, offset: u64, length: usize) -> Range<usize> {
    let begin = (offset - sectors.start) as usize;
    begin..begin + length
}

impl Open {
    /// Whether anything is under way in these sectors.
    pub fn is_used(&self, sectors: &Range<u64>) -> bool {
        let mut asked = self.asked.values();
        asked.any(|one| overlap(one.sectors(), sectors)) || self.is_stalled(sectors)
    }

    fn is_stalled(&self, sectors: &Range<u64>) -> bool {
        let mut stalled = self.stalled.iter();
        stalled.any(|one| overlap(&one.sectors, sectors))
    }

    /// Whether a change of these sectors is under way.
    fn is_changed(&self, sectors: &Range<u64>) -> bool {
        let mut changes = self.asked.values().filter(|one| !one.is_read());
        changes.any(|one| overlap(one.sectors(), sectors)) || self.is_stalled(sectors)
    }

    /// Whether a write of parts of these sectors is under way. It has all of them, as they
    /// were: until it is answered it may come after whatever else is written there.
    fn is_modified(&self, sectors: &Range<u64>) -> bool {
        self.modifying > 0 && self.is_changed(sectors)
    }

    /// What is asked below under the token `own`, and handed up as it is answered.
    pub fn passed(
        &mut self,
        own: Token,
        token: Token,
        sectors: Range<u64>,
        started: Started,
    ) -> Started {
        if started == Started::Pending {
            self.asked.insert(own, Asked::Pass { token, sectors });
        }
        started
    }

    pub fn read(
        &mut self,
        below: &mut dyn BlockDevice,
        own: Token,
        token: Token,
        offset: u64,
        sectors: Range<u64>,
        out: &mut [u8],
    ) -> Started {
        let part = part_of(&sectors, offset, out.len());
        let started = if part == (0..length_of(&sectors)) {
            let started = below.read(own, offset + DATA_OFFSET, out);
            if started == Started::Done {
                self.cipher.decrypt(offset, out);
            }
            started
        } else {
            let mut whole = vec![0; length_of(&sectors)];
            let started = below.read(own, sectors.start + DATA_OFFSET, &mut whole);
            if started == Started::Done {
                self.cipher.decrypt(sectors.start, &mut whole);
                out.copy_from_slice(&whole[part.clone()]);
            }
            started
        };
        if started == Started::Pending {
            let read = Asked::Read {
                token,
                sectors,
                part,
            };
            self.asked.insert(own, read);
        }
        started
    }

    /// Whole sectors.
    pub fn write(
        &mut self,
        below: &mut dyn BlockDevice,
        own: Token,
        token: Token,
        offset: u64,
        data: &[u8],
        durability: Durability,
    ) -> Started {
        let sectors = offset..offset + data.len() as u64;
        if self.is_modified(&sectors) {
            return Started::Busy;
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(data);
        self.cipher.encrypt(offset, &mut self.scratch);
        let started = below.write(own, offset + DATA_OFFSET, &self.scratch, durability);
        self.scratch.clear();
        self.scratch.shrink_to(SCRATCH_BYTES_MAX);
        self.passed(own, token, sectors, started)
    }

    /// Those sectors that lie in `range` as a whole.
    pub fn trim(
        &mut self,
        below: &mut dyn BlockDevice,
        own: Token,
        token: Token,
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
        let started = below.trim(own, begin + DATA_OFFSET, end - begin, durability);
        self.passed(own, token, sectors, started)
    }

    /// Parts of sectors: they are read, changed and written.
    pub fn modify(
        &mut self,
        below: &mut dyn BlockDevice,
        tokens: &mut Tokens,
        mut modify: Modify,
        offset: u64,
        data: &[u8],
    ) -> Started {
        if self.is_changed(&modify.sectors) {
            return Started::Busy;
        }
        let at = part_of(&modify.sectors, offset, data.len()).start;
        modify.content = vec![0; length_of(&modify.sectors)];
        let (own, from) = (tokens.next(), modify.sectors.start + DATA_OFFSET);
        match below.read(own, from, &mut modify.content) {
            Started::Done => {}
            Started::Pending => {
                modify.content = Vec::new();
                let data = data.to_vec();
                self.asked.insert(own, Asked::Modify { modify, at, data });
                self.modifying += 1;
                return Started::Pending;
            }
            other => return other,
        }
        self.put(&mut modify, at, data);
        let own = tokens.next();
        let started = below.write(own, from, &modify.content, modify.durability);
        if started == Started::Pending {
            self.modifying += 1;
            let (token, sectors) = (modify.token, modify.sectors);
            self.asked.insert(own, Asked::Modified { token, sectors });
        }
        started
    }

    /// Changes what was read.
    fn put(&self, modify: &mut Modify, at: usize, data: &[u8]) {
        let begin = modify.sectors.start;
        self.cipher.decrypt(begin, &mut modify.content);
        modify.content[at..at + data.len()].copy_from_slice(data);
        self.cipher.encrypt(begin, &mut modify.content);
    }

    /// Writes the sectors that were read and changed. No verb of anybody above began this,
    /// so nobody commits it, and it is committed here before it is told.
    pub fn write_modified(
        &mut self,
        below: &mut dyn BlockDevice,
        tokens: &mut Tokens,
        completions: &mut Vec<Completion>,
    ) {
        let mut done = Vec::new();
        let mut has_begun = false;
        while let Some(modify) = self.stalled.pop() {
            let (own, to) = (tokens.next(), modify.sectors.start + DATA_OFFSET);
            let token = modify.token;
            match below.write(own, to, &modify.content, modify.durability) {
                Started::Busy => {
                    self.stalled.push(modify);
                    break;
                }
                Started::Pending => {
                    has_begun = true;
                    let sectors = modify.sectors;
                    self.asked.insert(own, Asked::Modified { token, sectors });
                }
                Started::Done => {
                    has_begun = true;
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
        if !has_begun {
            return;
        }
        let committed = below.commit().map(|()| Outcome::Done);
        completions.extend(done.into_iter().map(|token| Completion {
            token,
            result: committed.clone(),
        }));
    }

    /// The device below has answered.
    pub fn answered(
        &mut self,
        completion: Completion,
        now: Duration,
        completions: &mut Vec<Completion>,
    ) {
        let Completion { token: own, result } = completion;
        let Some(asked) = self.asked.remove(&own) else {
            return self.work.answered(own, result, now);
        };
        let (token, result) = match asked {
            Asked::Pass { token, .. } => (token, result),
            Asked::Modified { token, .. } => {
                self.modifying -= 1;
                (token, result)
            }
            Asked::Read {
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
            Asked::Modify {
                mut modify,
                at,
                data,
            } => match data_of(result, &modify.sectors) {
                Ok(content) => {
                    modify.content = content;
                    self.put(&mut modify, at, &data);
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

/// The bytes of these sectors.
fn data_of(result: Result<Outcome, IoError>, sectors: &Range<u64>) -> Result<Vec<u8>, IoError> {
    match result? {
        Outcome::Data(data) if data.len() == length_of(sectors) => Ok(data),
        other => Err(nonsense(&other)),
    }
}
