//! [`Handshake`]: the server's side of the handshake with one client, over bytes. It ends when the
//! client has chosen an export. It knows no socket, and its caller begins TLS.
//!
//! ```text
//!  greeting ─▶ client's flags ─▶ option ─▶ option … ─▶ GO or EXPORT_NAME ─▶ Opened
//!                                  └─▶ STARTTLS ─▶ (TLS) ─▶ option …
//! ```
//!
//! What was negotiated before TLS is discarded when TLS begins, since an attacker on the network
//! may have negotiated it (CVE-2021-3716).

use std::sync::Arc;

use base::codec::Writer;

use super::connection::Settings;
use super::export::{ConnectionPermit, Export, OpenRefusal};
use super::export_reply::{put_info, transmission_flags};
use super::options::{ClientOption, MalformedOption, OPTION_BYTES_MAX, OptionHeader, put_reply};
use super::table::{Client, Exports};
use super::wire::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, GREETING_MAGIC, OPTION_MAGIC, handshake_flags,
    option_reply as reply, string_of,
};

/// The maximal number of options in one handshake. `nbdinfo --list` sends a few for each export.
const OPTIONS_MAX: u32 = 4096;

/// The bytes of unsent replies above which no option is handled.
const UNREAD_BYTES_MAX: usize = 64 << 10;

/// The maximal length of option data that are too long and discarded, in bytes.
const DRAIN_BYTES_MAX: u32 = 1 << 20;

/// Whether clients may, or must, use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsPolicy {
    /// The server has no TLS.
    #[default]
    Off,
    /// A client may use TLS.
    Allowed,
    /// A client has to use TLS before any other option.
    Required,
}

/// What a listener offers to clients.
#[derive(Clone)]
pub struct Offer {
    /// The exports.
    pub exports: Arc<dyn Exports>,
    /// Whether clients may list them.
    pub list: bool,
    /// Whether clients may, or must, use TLS.
    pub tls: TlsPolicy,
}

/// The result of a handshake.
#[derive(Debug)]
pub struct Opened {
    /// The export that the client has chosen.
    pub export: Export,
    /// The permit for the connection.
    pub permit: ConnectionPermit,
    /// The negotiated settings.
    pub settings: Settings,
}

/// What the caller does next.
#[derive(Debug)]
pub enum HandshakeStep {
    /// Receive more bytes, or send replies.
    Wait,
    /// Send the replies, then begin TLS. Bytes that were received before are invalid.
    StartTls,
    /// Serve the export.
    Opened(Box<Opened>),
    /// Send the replies and close the connection.
    Close(CloseReason),
}

/// Why a handshake ends without an export.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The client aborted the handshake.
    #[error("the client aborted the handshake")]
    Aborted,
    /// The client set flags that the server did not offer.
    #[error("the client set unknown flags {0:#x}")]
    UnknownFlags(u32),
    /// An option has the wrong magic number.
    #[error(transparent)]
    Malformed(#[from] MalformedOption),
    /// An option is too long to be discarded.
    #[error("an option has {0} bytes")]
    LongOption(u32),
    /// The client sent too many options.
    #[error("the client sent more than {OPTIONS_MAX} options")]
    TooManyOptions,
    /// `EXPORT_NAME` failed, which has no error reply.
    #[error("no export: {0}")]
    NoExport(String),
}

#[derive(Debug)]
enum Stage {
    ClientFlags,
    Option,
    /// This number of bytes of an option that is too long is discarded.
    Drain(usize),
    Over,
}

/// The server's side of a handshake.
pub struct Handshake {
    offer: Offer,
    stage: Stage,
    tls: bool,
    no_zeroes: bool,
    structured: bool,
    /// The export for which the client selected `base:allocation`.
    allocation_of: Option<String>,
    options: u32,
    /// The client, for the list of exports.
    pub client: Client,
}

/// An error reply to an option.
struct OptionRefusal {
    kind: u32,
    message: String,
}

impl OptionRefusal {
    fn new(kind: u32, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}

impl Handshake {
    /// A handshake that begins.
    pub fn new(offer: Offer) -> Self {
        Self {
            offer,
            stage: Stage::ClientFlags,
            tls: false,
            no_zeroes: false,
            structured: false,
            allocation_of: None,
            options: 0,
            client: Client::default(),
        }
    }

    /// The first bytes of the server.
    pub fn greeting() -> Vec<u8> {
        let mut bytes = Vec::new();
        let flags = handshake_flags::FIXED_NEWSTYLE | handshake_flags::NO_ZEROES;
        bytes.put_bytes(&GREETING_MAGIC.to_be_bytes());
        bytes.put_bytes(&OPTION_MAGIC.to_be_bytes());
        bytes.put_bytes(&flags.to_be_bytes());
        bytes
    }

    /// Handles received bytes. Returns how many were consumed, and what the caller does next.
    /// Appends replies to `output`.
    pub fn advance(&mut self, input: &[u8], output: &mut Vec<u8>) -> (usize, HandshakeStep) {
        let mut done = 0;
        loop {
            let input = &input[done..];
            let (used, next) = match self.stage {
                Stage::Over => return (done, HandshakeStep::Wait),
                Stage::ClientFlags => match input.first_chunk() {
                    Some(flags) => (4, self.client_flags(u32::from_be_bytes(*flags))),
                    None => return (done, HandshakeStep::Wait),
                },
                Stage::Drain(left) => {
                    let here = input.len().min(left);
                    if here == 0 {
                        return (done, HandshakeStep::Wait);
                    }
                    self.stage = match left - here {
                        0 => Stage::Option,
                        left => Stage::Drain(left),
                    };
                    (here, HandshakeStep::Wait)
                }
                Stage::Option if output.len() > UNREAD_BYTES_MAX => {
                    return (done, HandshakeStep::Wait);
                }
                Stage::Option => match self.option(input, output) {
                    Some(step) => step,
                    None => return (done, HandshakeStep::Wait),
                },
            };
            done += used;
            match next {
                HandshakeStep::Wait => {}
                HandshakeStep::StartTls => return (done, next),
                HandshakeStep::Opened(_) | HandshakeStep::Close(_) => {
                    self.stage = Stage::Over;
                    return (done, next);
                }
            }
        }
    }

    /// Continues after TLS has begun, and discards what was negotiated before.
    pub fn tls_started(&mut self) {
        self.tls = true;
        self.structured = false;
        self.allocation_of = None;
    }

    fn client_flags(&mut self, client: u32) -> HandshakeStep {
        let known = u32::from(handshake_flags::FIXED_NEWSTYLE | handshake_flags::NO_ZEROES);
        if client & !known != 0 {
            return HandshakeStep::Close(CloseReason::UnknownFlags(client & !known));
        }
        self.no_zeroes = client & u32::from(handshake_flags::NO_ZEROES) != 0;
        self.stage = Stage::Option;
        HandshakeStep::Wait
    }

    /// Handles the next option; `None` if it has not arrived whole.
    fn option(&mut self, input: &[u8], output: &mut Vec<u8>) -> Option<(usize, HandshakeStep)> {
        let header = match OptionHeader::decode(input.first_chunk()?) {
            Ok(header) => header,
            Err(malformed) => return Some((0, HandshakeStep::Close(malformed.into()))),
        };
        let number = header.option;
        if header.length as usize > OPTION_BYTES_MAX {
            if header.length > DRAIN_BYTES_MAX {
                return Some((
                    0,
                    HandshakeStep::Close(CloseReason::LongOption(header.length)),
                ));
            }
            let message = format!("{} bytes of data are too long", header.length);
            put_reply(output, number, reply::ERR_TOO_BIG, &[message.as_bytes()]);
            self.stage = Stage::Drain(header.length as usize);
            return Some((OptionHeader::BYTES, HandshakeStep::Wait));
        }
        let end = OptionHeader::BYTES + header.length as usize;
        let data = input.get(OptionHeader::BYTES..end)?;
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Some((end, HandshakeStep::Close(CloseReason::TooManyOptions)));
        }
        let option = match ClientOption::decode(number, data) {
            // Without TLS, not even a malformed option gets its own error.
            Ok(option) if self.is_allowed(&option) => option,
            Ok(ClientOption::ExportName(_)) => {
                let reason = CloseReason::NoExport("TLS is required".into());
                return Some((end, HandshakeStep::Close(reason)));
            }
            Err(malformed) if self.is_allowed(&ClientOption::Unknown) => {
                put_reply(
                    output,
                    number,
                    reply::ERR_INVALID,
                    &[string_of(&malformed.to_string())],
                );
                return Some((end, HandshakeStep::Wait));
            }
            Ok(_) | Err(_) => {
                put_reply(
                    output,
                    number,
                    reply::ERR_TLS_REQD,
                    &[b"use STARTTLS first"],
                );
                return Some((end, HandshakeStep::Wait));
            }
        };
        let next = self.answer(number, option, output).unwrap_or_else(
            |OptionRefusal { kind, message }| {
                put_reply(output, number, kind, &[string_of(&message)]);
                HandshakeStep::Wait
            },
        );
        Some((end, next))
    }

    /// Whether TLS is on, or the option needs no TLS.
    fn is_allowed(&self, option: &ClientOption) -> bool {
        self.offer.tls != TlsPolicy::Required
            || self.tls
            || matches!(option, ClientOption::StartTls | ClientOption::Abort)
    }

    fn answer(
        &mut self,
        number: u32,
        option: ClientOption,
        output: &mut Vec<u8>,
    ) -> Result<HandshakeStep, OptionRefusal> {
        match option {
            ClientOption::Abort => {
                put_reply(output, number, reply::ACK, &[]);
                return Ok(HandshakeStep::Close(CloseReason::Aborted));
            }
            ClientOption::ExportName(name) => return Ok(self.export_name(&name, output)),
            ClientOption::StartTls => return self.start_tls(number, output),
            ClientOption::List => self.list(number, output)?,
            ClientOption::Info { name, info_types } => {
                let export = self.find(&name)?;
                put_info(output, number, &export.info(), &info_types, self.structured);
            }
            ClientOption::Go { name, info_types } => {
                return self.go(number, &name, &info_types, output);
            }
            ClientOption::StructuredReply => self.structured = true,
            ClientOption::ListMetaContext { name, queries } => {
                self.list_contexts(number, &name, &queries, output)?;
            }
            ClientOption::SetMetaContext { name, queries } => {
                self.select_contexts(number, &name, &queries, output)?;
            }
            ClientOption::Unknown => {
                return Err(OptionRefusal::new(
                    reply::ERR_UNSUP,
                    format!("option {number} is unknown"),
                ));
            }
        }
        put_reply(output, number, reply::ACK, &[]);
        Ok(HandshakeStep::Wait)
    }

    /// Describes an export and opens it.
    fn go(
        &mut self,
        number: u32,
        name: &str,
        info_types: &[u16],
        output: &mut Vec<u8>,
    ) -> Result<HandshakeStep, OptionRefusal> {
        let export = self.find(name)?;
        let opened = self.open(export).map_err(|refusal| {
            let kind = match refusal {
                OpenRefusal::Full(_) => reply::ERR_POLICY,
                OpenRefusal::Stopping | OpenRefusal::Failed(_) => reply::ERR_SHUTDOWN,
            };
            OptionRefusal::new(kind, refusal.to_string())
        })?;
        let info = opened.export.info();
        put_info(output, number, &info, info_types, self.structured);
        put_reply(output, number, reply::ACK, &[]);
        Ok(HandshakeStep::Opened(Box::new(opened)))
    }

    fn list_contexts(
        &self,
        number: u32,
        name: &str,
        queries: &[Vec<u8>],
        output: &mut Vec<u8>,
    ) -> Result<(), OptionRefusal> {
        let export = self.context_export(name)?;
        let is_matching = |query: &Vec<u8>| query == b"base:" || query == BASE_ALLOCATION;
        let is_listed = queries.is_empty() || queries.iter().any(is_matching);
        if export.info().capabilities.can_extents && is_listed {
            // The replies to a list have the id 0.
            let parts: [&[u8]; 2] = [&[0; 4], BASE_ALLOCATION];
            put_reply(output, number, reply::META_CONTEXT, &parts);
        }
        Ok(())
    }

    fn select_contexts(
        &mut self,
        number: u32,
        name: &str,
        queries: &[Vec<u8>],
        output: &mut Vec<u8>,
    ) -> Result<(), OptionRefusal> {
        // A selection that fails replaces the earlier one as well.
        self.allocation_of = None;
        let export = self.context_export(name)?;
        let is_selected = queries.iter().any(|query| query == BASE_ALLOCATION);
        if is_selected && export.info().capabilities.can_extents {
            let id = BASE_ALLOCATION_ID.to_be_bytes();
            put_reply(output, number, reply::META_CONTEXT, &[&id, BASE_ALLOCATION]);
            self.allocation_of = Some(export.name().to_owned());
        }
        Ok(())
    }

    fn start_tls(
        &mut self,
        number: u32,
        output: &mut Vec<u8>,
    ) -> Result<HandshakeStep, OptionRefusal> {
        if self.tls {
            return Err(OptionRefusal::new(reply::ERR_INVALID, "TLS is on already"));
        }
        if self.offer.tls == TlsPolicy::Off {
            return Err(OptionRefusal::new(
                reply::ERR_POLICY,
                "this server has no TLS",
            ));
        }
        put_reply(output, number, reply::ACK, &[]);
        Ok(HandshakeStep::StartTls)
    }

    fn list(&self, number: u32, output: &mut Vec<u8>) -> Result<(), OptionRefusal> {
        if !self.offer.list {
            return Err(OptionRefusal::new(
                reply::ERR_POLICY,
                "this server does not list its exports",
            ));
        }
        for line in self.offer.exports.list(&self.client) {
            let length = (line.name.len() as u32).to_be_bytes();
            let parts = [
                &length[..],
                line.name.as_bytes(),
                line.description.as_bytes(),
            ];
            put_reply(output, number, reply::SERVER, &parts);
        }
        Ok(())
    }

    /// The export `name`. The empty name is that of the only export.
    fn find(&self, name: &str) -> Result<Export, OptionRefusal> {
        let exports = &self.offer.exports;
        let only;
        let proper = if name.is_empty() {
            let all = exports.list(&self.client);
            let [one] = &all[..] else {
                let message = format!("there are {} exports: name one of them", all.len());
                return Err(OptionRefusal::new(reply::ERR_UNKNOWN, message));
            };
            only = one.name.clone();
            &only
        } else {
            name
        };
        let unknown =
            || OptionRefusal::new(reply::ERR_UNKNOWN, format!("there is no export {proper:?}"));
        exports.find(&self.client, proper).ok_or_else(unknown)
    }

    fn context_export(&self, name: &str) -> Result<Export, OptionRefusal> {
        if !self.structured {
            let message = "metadata contexts need structured replies";
            return Err(OptionRefusal::new(reply::ERR_INVALID, message));
        }
        self.find(name)
    }

    fn open(&self, export: Export) -> Result<Opened, OpenRefusal> {
        let permit = export.reserve()?;
        let settings = Settings {
            structured: self.structured,
            // A selection for another export does not count.
            allocation: self.allocation_of.as_deref() == Some(export.name()),
            read_only: export.info().read_only,
        };
        Ok(Opened {
            export,
            permit,
            settings,
        })
    }

    fn export_name(&self, name: &str, output: &mut Vec<u8>) -> HandshakeStep {
        let found = self.find(name).map_err(|refusal| refusal.message);
        let opened =
            found.and_then(|export| self.open(export).map_err(|refusal| refusal.to_string()));
        let opened = match opened {
            Ok(opened) => opened,
            Err(message) => return HandshakeStep::Close(CloseReason::NoExport(message)),
        };
        let info = opened.export.info();
        output.put_bytes(&info.size_bytes.to_be_bytes());
        output.put_bytes(&transmission_flags(&info, self.structured).to_be_bytes());
        if !self.no_zeroes {
            output.put_bytes(&[0; 124]);
        }
        HandshakeStep::Opened(Box::new(opened))
    }
}
