//! A record: one request that has ended.

use base::codec::{OutOfBytes, Reader, Writer as _};

/// The length of each, in bytes.
pub const RECORD_BYTES: usize = 40;

/// The bit of a request that is durable when it is answered.
const FUA: u8 = 1;

/// The bit of zeroes that may become a hole.
const MAY_PUNCH: u8 = 2;

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Content is read.
    Read,
    /// Content is written.
    Write,
    /// All that was acknowledged becomes durable.
    Flush,
    /// Content is of no use any more.
    Trim,
    /// Content becomes zeroes.
    WriteZeroes,
    /// Content will be read soon.
    Prefetch,
}

impl Verb {
    /// All of them, by their numbers.
    const ALL: [Self; 6] = [
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::Trim,
        Self::WriteZeroes,
        Self::Prefetch,
    ];

    /// As it is printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Trim => "trim",
            Self::WriteZeroes => "write-zeroes",
            Self::Prefetch => "prefetch",
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was done.
    Done,
    /// It failed.
    Failed,
}

impl Outcome {
    /// As it is printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// See the module's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// When it was begun, in nanoseconds since the trace began.
    pub time_ns: u64,
    /// How long it took, in nanoseconds; 0, if that is not known.
    pub latency_ns: u64,
    /// Where, in bytes; 0 of a flush.
    pub offset: u64,
    /// How much, in bytes; 0 of a flush.
    pub length: u64,
    /// What.
    pub verb: Verb,
    /// It was to be durable when it was answered.
    pub is_fua: bool,
    /// Of zeroes: they may become a hole.
    pub may_punch: bool,
    /// What came of it.
    pub outcome: Outcome,
}

impl Record {
    /// A request that was done and of which no more is known: when it was begun, in
    /// nanoseconds, where, and how much, in bytes.
    #[must_use]
    pub const fn plain(verb: Verb, time_ns: u64, (offset, length): (u64, u64)) -> Self {
        Self {
            time_ns,
            latency_ns: 0,
            offset,
            length,
            verb,
            is_fua: false,
            may_punch: false,
            outcome: Outcome::Done,
        }
    }

    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        for word in [self.time_ns, self.latency_ns, self.offset, self.length] {
            into.put_u64(word);
        }
        let verb = Verb::ALL.iter().position(|verb| *verb == self.verb);
        into.put_u8(verb.unwrap_or_default() as u8);
        let fua = u8::from(self.is_fua) * FUA;
        into.put_u8(fua | (u8::from(self.may_punch) * MAY_PUNCH));
        into.put_u8(match self.outcome {
            Outcome::Done => 0,
            Outcome::Failed => 1,
        });
        into.put_bytes(&[0; 5]);
    }

    /// None: nobody writes such a record.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Option<Self>, OutOfBytes> {
        let (time_ns, latency_ns) = (reader.u64()?, reader.u64()?);
        let (offset, length) = (reader.u64()?, reader.u64()?);
        let (verb, flags, outcome) = (reader.u8()?, reader.u8()?, reader.u8()?);
        let rest: [u8; 5] = reader.array()?;
        let outcome = match outcome {
            0 => Outcome::Done,
            1 => Outcome::Failed,
            _ => return Ok(None),
        };
        let Some(verb) = Verb::ALL.get(usize::from(verb)) else {
            return Ok(None);
        };
        let is_known = flags & !(FUA | MAY_PUNCH) == 0 && rest == [0; 5];
        let has_end = offset.checked_add(length).is_some();
        Ok((is_known && has_end).then_some(Self {
            time_ns,
            latency_ns,
            offset,
            length,
            verb: *verb,
            is_fua: flags & FUA != 0,
            may_punch: flags & MAY_PUNCH != 0,
            outcome,
        }))
    }
}
