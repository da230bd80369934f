//! The handshake, as a client: bytes in, bytes out, no socket.
//!
//! ```text
//!  greeting ─▶ flags ─▶ [STARTTLS ─▶ TLS] ─▶ STRUCTURED_REPLY ─▶ [SET_META_CONTEXT] ─▶ GO
//!                                                   an old server ─▶ EXPORT_NAME ◀────┘
//! ```
//!
//! What a server does not know is done without. Each step is one question and its answer.

use base::codec::{OutOfBytes, Reader, Writer};

use super::super::options::OptionHeader;
use super::super::wire::{
    BASE_ALLOCATION, GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, PAYLOAD_BYTES_MAX,
    handshake_flags, info, option, option_reply as reply, transmission_flags,
};
use super::Broken;
use super::nonsense::{Nonsense, refusal};

/// The longest reply to an option that is looked at, in bytes.
const REPLY_BYTES_MAX: u32 = 64 << 10;

/// Replies that one option may have: contexts or facts, of which there are few.
const REPLIES_MAX: u32 = 256;

/// What an EXPORT_NAME is answered with, but for zeroes.
const OLD_EXPORT_BYTES: usize = 10;
const OLD_ZEROES: usize = 124;

/// The largest block that is taken for a hint; a larger one would only mislead.
const BLOCK_BYTES_MAX: u32 = 1 << 20;

/// What both sides have agreed upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// The export's size, in bytes.
    pub size_bytes: u64,
    /// See [`transmission_flags`].
    pub flags: u16,
    /// Requests are multiples of this, in bytes.
    pub block_min: u32,
    /// What the server likes best, in bytes.
    pub block_preferred: u32,
    /// The longest payload, in bytes.
    pub payload_max: u32,
    /// Replies are structured.
    pub structured: bool,
    /// The number of `base:allocation`, if the server tells it.
    pub allocation: Option<u32>,
}

impl Agreed {
    /// Whether the server says that it can do this.
    #[must_use]
    pub fn can(&self, flag: u16) -> bool {
        self.flags & transmission_flags::HAS_FLAGS != 0 && self.flags & flag != 0
    }
}

/// What the owner of the bytes is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Receive more.
    Wait,
    /// Begin TLS, and then go on.
    StartTls,
    /// Requests may follow.
    Agreed(Agreed),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Greeting,
    Tls,
    Structured,
    Context,
    Go,
    OldExport,
}

/// A client's side of a handshake.
#[derive(Debug)]
pub struct Greeting {
    export: String,
    wants_tls: bool,
    stage: Stage,
    no_zeroes: bool,
    replies: u32,
    size: Option<(u64, u16)>,
    agreed: Agreed,
}

impl Greeting {
    /// Asks for `export`.
    #[must_use]
    pub fn new(export: &str, wants_tls: bool) -> Self {
        Self {
            export: export.to_owned(),
            wants_tls,
            stage: Stage::Greeting,
            no_zeroes: false,
            replies: 0,
            size: None,
            agreed: Agreed {
                size_bytes: 0,
                flags: 0,
                block_min: 1,
                block_preferred: 4096,
                payload_max: PAYLOAD_BYTES_MAX,
                structured: false,
                allocation: None,
            },
        }
    }

    /// Takes what has come, and says how much of it is done with. What is to be sent goes
    /// to `output`.
    ///
    /// # Errors
    /// [`Broken`]: this server is no use.
    pub fn advance(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<(usize, Step), Broken> {
        let mut used = 0;
        loop {
            let mut reader = Reader::new(&input[used..]);
            let before = reader.remaining();
            let step = match self.stage {
                Stage::Greeting => self.greeting(&mut reader, output),
                Stage::OldExport => self.old_export(&mut reader),
                _ => self.option_reply(&mut reader, output),
            };
            match step {
                Err(Stop::Short(_)) => return Ok((used, Step::Wait)),
                Err(Stop::Broken(broken)) => return Err(broken),
                Ok(step) => {
                    used += before - reader.remaining();
                    match step {
                        Step::Wait => {}
                        Step::StartTls if used < input.len() => {
                            return Err(Nonsense::PlainBytes(input.len() - used).into());
                        }
                        step => return Ok((used, step)),
                    }
                }
            }
        }
    }

    /// TLS has begun: what follows is asked in it.
    pub fn tls_started(&mut self, output: &mut Vec<u8>) {
        self.ask(Stage::Structured, output);
    }

    fn greeting(&mut self, reader: &mut Reader<'_>, output: &mut Vec<u8>) -> Result<Step, Stop> {
        let magic = u64::from_be_bytes(reader.array()?);
        if magic != GREETING_MAGIC {
            return Err(Nonsense::Greeting(magic).into());
        }
        if u64::from_be_bytes(reader.array()?) != OPTION_MAGIC {
            return Err(Nonsense::OldStyle.into());
        }
        let flags = u16::from_be_bytes(reader.array()?);
        if flags & handshake_flags::FIXED_NEWSTYLE == 0 {
            return Err(Nonsense::OldStyle.into());
        }
        self.no_zeroes = flags & handshake_flags::NO_ZEROES != 0;
        let mut own = handshake_flags::FIXED_NEWSTYLE;
        if self.no_zeroes {
            own |= handshake_flags::NO_ZEROES;
        }
        output.put_bytes(&u32::from(own).to_be_bytes());
        let next = if self.wants_tls {
            Stage::Tls
        } else {
            Stage::Structured
        };
        self.ask(next, output);
        Ok(Step::Wait)
    }

    fn ask(&mut self, stage: Stage, output: &mut Vec<u8>) {
        self.stage = stage;
        self.replies = 0;
        let name = self.export.as_bytes();
        let name_length = (name.len() as u32).to_be_bytes();
        let data = match stage {
            Stage::Greeting | Stage::Tls | Stage::Structured => Vec::new(),
            Stage::Context => {
                let length = (BASE_ALLOCATION.len() as u32).to_be_bytes();
                let one = 1_u32.to_be_bytes();
                [&name_length, name, &one, &length, BASE_ALLOCATION].concat()
            }
            Stage::Go => {
                let facts = [1_u16.to_be_bytes(), info::BLOCK_SIZE.to_be_bytes()].concat();
                [&name_length, name, &facts].concat()
            }
            Stage::OldExport => name.to_vec(),
        };
        let header = OptionHeader {
            option: option_of(stage),
            length: data.len() as u32,
        };
        output.put_bytes(&header.encode());
        output.put_bytes(&data);
    }

    fn option_reply(
        &mut self,
        reader: &mut Reader<'_>,
        output: &mut Vec<u8>,
    ) -> Result<Step, Stop> {
        let magic = u64::from_be_bytes(reader.array()?);
        if magic != OPTION_REPLY_MAGIC {
            return Err(Nonsense::OptionMagic(magic).into());
        }
        let answered = u32::from_be_bytes(reader.array()?);
        let kind = u32::from_be_bytes(reader.array()?);
        let length = u32::from_be_bytes(reader.array()?);
        let asked = option_of(self.stage);
        if answered != asked {
            return Err(Nonsense::OtherOption { asked, answered }.into());
        }
        let odd = Nonsense::OptionReply {
            option: asked,
            kind,
            length,
        };
        if length > REPLY_BYTES_MAX {
            return Err(odd.into());
        }
        let data = reader.bytes(length as usize)?;
        self.replies += 1;
        if self.replies > REPLIES_MAX {
            return Err(Nonsense::OptionReplies(asked).into());
        }
        match (kind, self.stage) {
            (reply::INFO, Stage::Go) => self.fact(data, odd)?,
            (reply::META_CONTEXT, Stage::Context) => {
                let mut data = Reader::new(data);
                let id = data.array().map_err(|_| odd)?;
                if data.bytes(data.remaining())? == BASE_ALLOCATION {
                    self.agreed.allocation = Some(u32::from_be_bytes(id));
                }
            }
            (reply::ACK, Stage::Tls) => return Ok(Step::StartTls),
            (reply::ACK, Stage::Structured) => {
                self.agreed.structured = true;
                self.ask(Stage::Context, output);
            }
            (reply::ACK, Stage::Context) => self.ask(Stage::Go, output),
            (reply::ACK, Stage::Go) => return self.agree(),
            (kind, stage) if kind & reply::ERROR != 0 => self.refused(stage, kind, data, output)?,
            _ => return Err(odd.into()),
        }
        Ok(Step::Wait)
    }

    /// The server does not do what was asked.
    fn refused(
        &mut self,
        stage: Stage,
        kind: u32,
        message: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(), Stop> {
        let old = matches!(kind, reply::ERR_UNSUP | reply::ERR_POLICY);
        match stage {
            Stage::Structured if old || kind == reply::ERR_INVALID => self.ask(Stage::Go, output),
            Stage::Context => {
                self.agreed.allocation = None;
                self.ask(Stage::Go, output);
            }
            Stage::Go if kind == reply::ERR_UNSUP => self.ask(Stage::OldExport, output),
            _ => return Err(Stop::Broken(Broken::Refused(refusal(kind, message)))),
        }
        Ok(())
    }

    fn fact(&mut self, data: &[u8], odd: Nonsense) -> Result<(), Stop> {
        let mut reader = Reader::new(data);
        let mut read = || -> Result<(), OutOfBytes> {
            match u16::from_be_bytes(reader.array()?) {
                info::EXPORT => {
                    let size = u64::from_be_bytes(reader.array()?);
                    self.size = Some((size, u16::from_be_bytes(reader.array()?)));
                }
                info::BLOCK_SIZE => {
                    self.agreed.block_min = u32::from_be_bytes(reader.array()?);
                    self.agreed.block_preferred = u32::from_be_bytes(reader.array()?);
                    self.agreed.payload_max = u32::from_be_bytes(reader.array()?);
                }
                _ => {}
            }
            Ok(())
        };
        read().map_err(|_| odd.into())
    }

    fn old_export(&mut self, reader: &mut Reader<'_>) -> Result<Step, Stop> {
        let mut fixed = Reader::new(reader.bytes(OLD_EXPORT_BYTES)?);
        let size = u64::from_be_bytes(fixed.array()?);
        self.size = Some((size, u16::from_be_bytes(fixed.array()?)));
        if !self.no_zeroes {
            reader.bytes(OLD_ZEROES)?;
        }
        self.agree()
    }

    fn agree(&mut self) -> Result<Step, Stop> {
        let (size_bytes, flags) = self.size.ok_or(Nonsense::NoSize)?;
        let agreed = &mut self.agreed;
        let (minimum, preferred) = (agreed.block_min, agreed.block_preferred);
        let is_odd = !minimum.is_power_of_two()
            || minimum > 64 << 10
            || !preferred.is_power_of_two()
            || preferred < minimum
            || agreed.payload_max < minimum;
        if is_odd {
            return Err(Nonsense::BlockSizes {
                minimum,
                preferred,
                maximum: agreed.payload_max,
            }
            .into());
        }
        agreed.size_bytes = size_bytes;
        agreed.flags = flags;
        // Payloads of whole smallest blocks.
        let payload_max = agreed.payload_max.min(PAYLOAD_BYTES_MAX);
        agreed.payload_max = payload_max / minimum * minimum;
        agreed.block_preferred = preferred.clamp(512, BLOCK_BYTES_MAX);
        Ok(Step::Agreed(*agreed))
    }
}

fn option_of(stage: Stage) -> u32 {
    match stage {
        Stage::Greeting => 0,
        Stage::Tls => option::STARTTLS,
        Stage::Structured => option::STRUCTURED_REPLY,
        Stage::Context => option::SET_META_CONTEXT,
        Stage::Go => option::GO,
        Stage::OldExport => option::EXPORT_NAME,
    }
}

/// Why a step goes no further.
enum Stop {
    /// More has to come.
    Short(#[expect(dead_code, reason = "what is missing comes")] OutOfBytes),
    Broken(Broken),
}

impl From<OutOfBytes> for Stop {
    fn from(short: OutOfBytes) -> Self {
        Self::Short(short)
    }
}

impl From<Nonsense> for Stop {
    fn from(nonsense: Nonsense) -> Self {
        Self::Broken(nonsense.into())
    }
}
