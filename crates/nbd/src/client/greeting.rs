//! [`Greeting`]: the client's side of the handshake, over bytes. It knows no socket.
//!
//! ```text
//!  greeting ─▶ flags ─▶ [STARTTLS ─▶ TLS] ─▶ STRUCTURED_REPLY ─▶ [SET_META_CONTEXT] ─▶ GO
//!                                                   an old server ─▶ EXPORT_NAME ◀────┘
//! ```
//!
//! The client does without options that the server does not know. It sends one option at a time
//! and waits for the reply.

use base::codec::{OutOfBytes, Reader, Writer};

use super::super::options::OptionHeader;
use super::super::wire::{
    BASE_ALLOCATION, GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, PAYLOAD_BYTES_MAX,
    handshake_flags, info, option, option_reply as reply,
};
use super::protocol_violation::{ProtocolViolation, refusal};
use super::{ConnectionError, ExportParameters};

/// The maximal length of a reply to an option, in bytes.
const REPLY_BYTES_MAX: u32 = 64 << 10;

/// The maximal number of replies to one option.
const REPLIES_MAX: u32 = 256;

/// The length of the reply to EXPORT_NAME without padding, in bytes.
const EXPORT_NAME_REPLY_BYTES: usize = 10;
/// The length of the padding of that reply, in bytes.
const EXPORT_NAME_PADDING_BYTES: usize = 124;

/// The maximal preferred block size, in bytes; a larger hint of the server is reduced to it.
const BLOCK_BYTES_MAX: u32 = 1 << 20;

/// What the caller does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// It receives more bytes.
    Wait,
    /// It begins TLS and calls [`Greeting::tls_started`].
    StartTls,
    /// The handshake has ended, and requests may follow.
    Done(ExportParameters),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Greeting,
    Tls,
    Structured,
    Context,
    Go,
    ExportName,
}

/// The client's side of a handshake.
#[derive(Debug)]
pub struct Greeting {
    export: String,
    wants_tls: bool,
    stage: Stage,
    no_zeroes: bool,
    replies: u32,
    size: Option<(u64, u16)>,
    parameters: ExportParameters,
}

impl Greeting {
    /// A handshake for the export `export`, over TLS if `wants_tls`.
    #[must_use]
    pub fn new(export: &str, wants_tls: bool) -> Self {
        Self {
            export: export.to_owned(),
            wants_tls,
            stage: Stage::Greeting,
            no_zeroes: false,
            replies: 0,
            size: None,
            parameters: ExportParameters {
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

    /// Handles received bytes. Returns the number of consumed bytes, and appends the bytes to
    /// send to `output`.
    ///
    /// # Errors
    /// The server refused, or violated the protocol.
    pub fn advance(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(usize, Step), ConnectionError> {
        let mut used = 0;
        loop {
            let mut reader = Reader::new(&input[used..]);
            let before = reader.remaining();
            let step = match self.stage {
                Stage::Greeting => self.greeting(&mut reader, output),
                Stage::ExportName => self.export_name_reply(&mut reader),
                _ => self.option_reply(&mut reader, output),
            };
            match step {
                Err(Stop::Short(_)) => return Ok((used, Step::Wait)),
                Err(Stop::Failed(error)) => return Err(error),
                Ok(step) => {
                    used += before - reader.remaining();
                    match step {
                        Step::Wait => {}
                        Step::StartTls if used < input.len() => {
                            return Err(ProtocolViolation::PlainBytes(input.len() - used).into());
                        }
                        step => return Ok((used, step)),
                    }
                }
            }
        }
    }

    /// Continues the handshake after TLS has begun.
    pub fn tls_started(&mut self, output: &mut Vec<u8>) {
        self.send_option(Stage::Structured, output);
    }

    fn greeting(&mut self, reader: &mut Reader<'_>, output: &mut Vec<u8>) -> Result<Step, Stop> {
        let magic = u64::from_be_bytes(reader.array()?);
        if magic != GREETING_MAGIC {
            return Err(ProtocolViolation::Greeting(magic).into());
        }
        if u64::from_be_bytes(reader.array()?) != OPTION_MAGIC {
            return Err(ProtocolViolation::OldStyle.into());
        }
        let flags = u16::from_be_bytes(reader.array()?);
        if flags & handshake_flags::FIXED_NEWSTYLE == 0 {
            return Err(ProtocolViolation::OldStyle.into());
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
        self.send_option(next, output);
        Ok(Step::Wait)
    }

    fn send_option(&mut self, stage: Stage, output: &mut Vec<u8>) {
        self.stage = stage;
        self.replies = 0;
        let name = self.export.as_bytes();
        let name_length = (name.len() as u32).to_be_bytes();
        let data = match stage {
            Stage::Greeting | Stage::Tls | Stage::Structured => Vec::new(),
            Stage::Context => {
                let length = (BASE_ALLOCATION.len() as u32).to_be_bytes();
                let count = 1_u32.to_be_bytes();
                [&name_length, name, &count, &length, BASE_ALLOCATION].concat()
            }
            Stage::Go => {
                let facts = [1_u16.to_be_bytes(), info::BLOCK_SIZE.to_be_bytes()].concat();
                [&name_length, name, &facts].concat()
            }
            Stage::ExportName => name.to_vec(),
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
            return Err(ProtocolViolation::OptionMagic(magic).into());
        }
        let answered = u32::from_be_bytes(reader.array()?);
        let kind = u32::from_be_bytes(reader.array()?);
        let length = u32::from_be_bytes(reader.array()?);
        let requested = option_of(self.stage);
        if answered != requested {
            return Err(ProtocolViolation::OtherOption {
                requested,
                answered,
            }
            .into());
        }
        let violation = ProtocolViolation::OptionReply {
            option: requested,
            kind,
            length,
        };
        if length > REPLY_BYTES_MAX {
            return Err(violation.into());
        }
        let data = reader.bytes(length as usize)?;
        self.replies += 1;
        if self.replies > REPLIES_MAX {
            return Err(ProtocolViolation::OptionReplies(requested).into());
        }
        match (kind, self.stage) {
            (reply::INFO, Stage::Go) => self.info_reply(data, violation)?,
            (reply::META_CONTEXT, Stage::Context) => {
                let mut data = Reader::new(data);
                let id = data.array().map_err(|_| violation)?;
                if data.bytes(data.remaining())? == BASE_ALLOCATION {
                    self.parameters.allocation = Some(u32::from_be_bytes(id));
                }
            }
            (reply::ACK, Stage::Tls) => return Ok(Step::StartTls),
            (reply::ACK, Stage::Structured) => {
                self.parameters.structured = true;
                self.send_option(Stage::Context, output);
            }
            (reply::ACK, Stage::Context) => self.send_option(Stage::Go, output),
            (reply::ACK, Stage::Go) => return self.finish(),
            (kind, stage) if kind & reply::ERROR != 0 => self.refused(stage, kind, data, output)?,
            _ => return Err(violation.into()),
        }
        Ok(Step::Wait)
    }

    /// Handles a refusal of an option: the client does without it, or ends the connection.
    fn refused(
        &mut self,
        stage: Stage,
        kind: u32,
        message: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(), Stop> {
        let is_unsupported = matches!(kind, reply::ERR_UNSUP | reply::ERR_POLICY);
        match stage {
            Stage::Structured if is_unsupported || kind == reply::ERR_INVALID => {
                self.send_option(Stage::Go, output)
            }
            Stage::Context => {
                self.parameters.allocation = None;
                self.send_option(Stage::Go, output);
            }
            Stage::Go if kind == reply::ERR_UNSUP => self.send_option(Stage::ExportName, output),
            _ => {
                return Err(Stop::Failed(ConnectionError::Refused(refusal(
                    kind, message,
                ))));
            }
        }
        Ok(())
    }

    fn info_reply(&mut self, data: &[u8], violation: ProtocolViolation) -> Result<(), Stop> {
        let mut reader = Reader::new(data);
        let mut read = || -> Result<(), OutOfBytes> {
            match u16::from_be_bytes(reader.array()?) {
                info::EXPORT => {
                    let size = u64::from_be_bytes(reader.array()?);
                    self.size = Some((size, u16::from_be_bytes(reader.array()?)));
                }
                info::BLOCK_SIZE => {
                    self.parameters.block_min = u32::from_be_bytes(reader.array()?);
                    self.parameters.block_preferred = u32::from_be_bytes(reader.array()?);
                    self.parameters.payload_max = u32::from_be_bytes(reader.array()?);
                }
                _ => {}
            }
            Ok(())
        };
        read().map_err(|_| violation.into())
    }

    fn export_name_reply(&mut self, reader: &mut Reader<'_>) -> Result<Step, Stop> {
        let mut fixed = Reader::new(reader.bytes(EXPORT_NAME_REPLY_BYTES)?);
        let size = u64::from_be_bytes(fixed.array()?);
        self.size = Some((size, u16::from_be_bytes(fixed.array()?)));
        if !self.no_zeroes {
            reader.bytes(EXPORT_NAME_PADDING_BYTES)?;
        }
        self.finish()
    }

    fn finish(&mut self) -> Result<Step, Stop> {
        let (size_bytes, flags) = self.size.ok_or(ProtocolViolation::NoSize)?;
        let parameters = &mut self.parameters;
        let (minimum, preferred) = (parameters.block_min, parameters.block_preferred);
        let is_invalid = !minimum.is_power_of_two()
            || minimum > 64 << 10
            || !preferred.is_power_of_two()
            || preferred < minimum
            || parameters.payload_max < minimum;
        if is_invalid {
            return Err(ProtocolViolation::BlockSizes {
                minimum,
                preferred,
                maximum: parameters.payload_max,
            }
            .into());
        }
        parameters.size_bytes = size_bytes;
        parameters.flags = flags;
        // Payloads consist of whole blocks.
        let payload_max = parameters.payload_max.min(PAYLOAD_BYTES_MAX);
        parameters.payload_max = payload_max / minimum * minimum;
        parameters.block_preferred = preferred.clamp(512, BLOCK_BYTES_MAX);
        Ok(Step::Done(*parameters))
    }
}

fn option_of(stage: Stage) -> u32 {
    match stage {
        Stage::Greeting => 0,
        Stage::Tls => option::STARTTLS,
        Stage::Structured => option::STRUCTURED_REPLY,
        Stage::Context => option::SET_META_CONTEXT,
        Stage::Go => option::GO,
        Stage::ExportName => option::EXPORT_NAME,
    }
}

/// Why a step does not end.
enum Stop {
    /// Not all of its bytes have arrived.
    Short(#[expect(dead_code, reason = "the missing bytes arrive later")] OutOfBytes),
    Failed(ConnectionError),
}

impl From<OutOfBytes> for Stop {
    fn from(short: OutOfBytes) -> Self {
        Self::Short(short)
    }
}

impl From<ProtocolViolation> for Stop {
    fn from(violation: ProtocolViolation) -> Self {
        Self::Failed(violation.into())
    }
}
