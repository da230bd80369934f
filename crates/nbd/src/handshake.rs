//! The handshake of one client: bytes in, replies out, and at the end an
//! export. Knows no socket; TLS is something its caller switches on.
//!
//! ```text
//!  greeting ─▶ client's flags ─▶ option ─▶ option … ─▶ GO or EXPORT_NAME ─▶ Opened
//!                                  └─▶ STARTTLS ─▶ (TLS) ─▶ option …
//! ```
//!
//! What was agreed before TLS is forgotten when TLS begins: it may have been
//! put there by someone else on the wire (CVE-2021-3716).

use std::sync::Arc;

use base::codec::Writer;

use super::connection::Settings;
use super::export::{Export, NotOpen, Seat};
use super::options::{Asked, NotAnOption, OPTION_BYTES_MAX, OptionHeader, put_reply};
use super::table::{Client, ExportInfo, Exports};
use super::wire::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, GREETING_MAGIC, OPTION_MAGIC, PAYLOAD_BYTES_MAX,
    handshake_flags, info, option_reply as reply, string_of, transmission_flags as flags,
};

/// Options in one handshake. `nbdinfo --list` needs a few for each export.
const OPTIONS_MAX: u32 = 4096;

/// Replies that were not read yet, above which no option is looked at.
const UNREAD_BYTES_MAX: usize = 64 << 10;

/// Data that are too long are read and forgotten up to this length.
const DRAIN_BYTES_MAX: u32 = 1 << 20;

/// Whether clients may, or must, use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsPolicy {
    /// There is none.
    #[default]
    Off,
    /// A client may ask for it.
    Allowed,
    /// Nothing is said to a client without it.
    Required,
}

/// What a handshake may offer.
#[derive(Clone)]
pub struct Offer {
    /// The exports.
    pub exports: Arc<dyn Exports>,
    /// Clients may ask for a list of them.
    pub list: bool,
    /// TLS.
    pub tls: TlsPolicy,
}

/// The end of a handshake.
#[derive(Debug)]
pub struct Opened {
    /// What the client will use.
    pub export: Export,
    /// Its place there.
    pub seat: Seat,
    /// What was agreed.
    pub settings: Settings,
}

/// What comes next.
#[derive(Debug)]
pub enum Next {
    /// More bytes, or room for replies.
    Wait,
    /// Send the replies, then change to TLS. No byte that came before may be
    /// kept.
    StartTls,
    /// Serve the export.
    Opened(Box<Opened>),
    /// Send the replies and close.
    Close(Goodbye),
}

/// Why a handshake ends without an export.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Goodbye {
    /// The client wished so.
    #[error("the client left")]
    Left,
    /// The client set flags that this server did not offer.
    #[error("the client answers the greeting with unknown flags {0:#x}")]
    UnknownFlags(u32),
    /// No option where one should be.
    #[error(transparent)]
    Garbage(#[from] NotAnOption),
    /// Data nobody should read.
    #[error("an option announces {0} bytes")]
    EndlessOption(u32),
    /// It goes on and on.
    #[error("more than {OPTIONS_MAX} options")]
    TooManyOptions,
    /// `EXPORT_NAME` has no other way to say no.
    #[error("no export: {0}")]
    NoExport(String),
}

#[derive(Debug)]
enum Stage {
    ClientFlags,
    Option,
    /// So many bytes of an option that was too long follow.
    Drain(usize),
    Over,
}

/// See the module's head.
pub struct Handshake {
    offer: Offer,
    stage: Stage,
    tls: bool,
    no_zeroes: bool,
    structured: bool,
    /// The export for which the client chose `base:allocation`.
    allocation_of: Option<String>,
    options: u32,
    /// Who asks.
    pub client: Client,
}

/// A refusal: the kind of reply and the words that go with it.
struct No(u32, String);

impl Handshake {
    /// The beginning of a handshake.
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

    /// What the server says first.
    pub fn greeting() -> Vec<u8> {
        let mut bytes = Vec::new();
        let flags = handshake_flags::FIXED_NEWSTYLE | handshake_flags::NO_ZEROES;
        bytes.put_bytes(&GREETING_MAGIC.to_be_bytes());
        bytes.put_bytes(&OPTION_MAGIC.to_be_bytes());
        bytes.put_bytes(&flags.to_be_bytes());
        bytes
    }

    /// Looks at what has arrived. Returns how many bytes of it are done with,
    /// and what comes next; replies are appended to `output`.
    pub fn advance(&mut self, input: &[u8], output: &mut Vec<u8>) -> (usize, Next) {
        let mut done = 0;
        loop {
            let input = &input[done..];
            let (used, next) = match self.stage {
                Stage::Over => return (done, Next::Wait),
                Stage::ClientFlags => match input.first_chunk() {
                    Some(flags) => (4, self.client_flags(u32::from_be_bytes(*flags))),
                    None => return (done, Next::Wait),
                },
                Stage::Drain(left) => {
                    let here = input.len().min(left);
                    if here == 0 {
                        return (done, Next::Wait);
                    }
                    self.stage = match left - here {
                        0 => Stage::Option,
                        left => Stage::Drain(left),
                    };
                    (here, Next::Wait)
                }
                Stage::Option if output.len() > UNREAD_BYTES_MAX => return (done, Next::Wait),
                Stage::Option => match self.option(input, output) {
                    Some(step) => step,
                    None => return (done, Next::Wait),
                },
            };
            done += used;
            match next {
                Next::Wait => {}
                Next::StartTls => return (done, next),
                Next::Opened(_) | Next::Close(_) => {
                    self.stage = Stage::Over;
                    return (done, next);
                }
            }
        }
    }

    /// TLS is on: everything said before is void.
    pub fn tls_started(&mut self) {
        self.tls = true;
        self.structured = false;
        self.allocation_of = None;
    }

    fn client_flags(&mut self, client: u32) -> Next {
        let known = u32::from(handshake_flags::FIXED_NEWSTYLE | handshake_flags::NO_ZEROES);
        if client & !known != 0 {
            return Next::Close(Goodbye::UnknownFlags(client & !known));
        }
        self.no_zeroes = client & u32::from(handshake_flags::NO_ZEROES) != 0;
        self.stage = Stage::Option;
        Next::Wait
    }

    /// Handles one option, if it is there.
    fn option(&mut self, input: &[u8], output: &mut Vec<u8>) -> Option<(usize, Next)> {
        let header = match OptionHeader::decode(input.first_chunk()?) {
            Ok(header) => header,
            Err(garbage) => return Some((0, Next::Close(garbage.into()))),
        };
        let number = header.option;
        if header.length as usize > OPTION_BYTES_MAX {
            if header.length > DRAIN_BYTES_MAX {
                return Some((0, Next::Close(Goodbye::EndlessOption(header.length))));
            }
            let message = format!("{} bytes of data are too many", header.length);
            put_reply(output, number, reply::ERR_TOO_BIG, &[message.as_bytes()]);
            self.stage = Stage::Drain(header.length as usize);
            return Some((OptionHeader::BYTES, Next::Wait));
        }
        let end = OptionHeader::BYTES + header.length as usize;
        let data = input.get(OptionHeader::BYTES..end)?;
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Some((end, Next::Close(Goodbye::TooManyOptions)));
        }
        let asked = match Asked::decode(number, data) {
            // Even what is malformed must wait for TLS.
            Ok(asked) if self.may(&asked) => asked,
            Ok(Asked::ExportName(_)) => {
                let goodbye = Goodbye::NoExport("TLS is required".into());
                return Some((end, Next::Close(goodbye)));
            }
            Err(malformed) if self.may(&Asked::Unknown) => {
                put_reply(
                    output,
                    number,
                    reply::ERR_INVALID,
                    &[string_of(&malformed.to_string())],
                );
                return Some((end, Next::Wait));
            }
            Ok(_) | Err(_) => {
                put_reply(
                    output,
                    number,
                    reply::ERR_TLS_REQD,
                    &[b"use STARTTLS first"],
                );
                return Some((end, Next::Wait));
            }
        };
        let next = self
            .answer(number, asked, output)
            .unwrap_or_else(|No(kind, message)| {
                put_reply(output, number, kind, &[string_of(&message)]);
                Next::Wait
            });
        Some((end, next))
    }

    /// Whether this may be asked without TLS, or TLS is on.
    fn may(&self, asked: &Asked) -> bool {
        self.offer.tls != TlsPolicy::Required
            || self.tls
            || matches!(asked, Asked::StartTls | Asked::Abort)
    }

    fn answer(&mut self, number: u32, asked: Asked, output: &mut Vec<u8>) -> Result<Next, No> {
        match asked {
            Asked::Abort => {
                put_reply(output, number, reply::ACK, &[]);
                return Ok(Next::Close(Goodbye::Left));
            }
            Asked::ExportName(name) => return Ok(self.export_name(&name, output)),
            Asked::StartTls => return self.start_tls(number, output),
            Asked::List => self.list(number, output)?,
            Asked::Info { name, wants } => {
                let export = self.find(&name)?;
                put_info(output, number, &export.info(), &wants, self.structured);
            }
            Asked::Go { name, wants } => {
                let export = self.find(&name)?;
                let opened = self.open(export).map_err(|no| match no {
                    NotOpen::Full(_) => No(reply::ERR_POLICY, no.to_string()),
                    NotOpen::Stopping | NotOpen::Failed(_) => {
                        No(reply::ERR_SHUTDOWN, no.to_string())
                    }
                })?;
                put_info(
                    output,
                    number,
                    &opened.export.info(),
                    &wants,
                    self.structured,
                );
                put_reply(output, number, reply::ACK, &[]);
                return Ok(Next::Opened(Box::new(opened)));
            }
            Asked::StructuredReply => self.structured = true,
            Asked::ListMetaContext { name, queries } => {
                let export = self.context_export(&name)?;
                let all = queries.is_empty();
                let wanted = |query: &Vec<u8>| query == b"base:" || query == BASE_ALLOCATION;
                if export.info().capabilities.can_extents && (all || queries.iter().any(wanted)) {
                    // A list has no ids: the field is zero.
                    put_reply(
                        output,
                        number,
                        reply::META_CONTEXT,
                        &[&[0; 4], BASE_ALLOCATION],
                    );
                }
            }
            Asked::SetMetaContext { name, queries } => {
                // Even a failed choice undoes the one before.
                self.allocation_of = None;
                let export = self.context_export(&name)?;
                let wanted = queries.iter().any(|query| query == BASE_ALLOCATION);
                if wanted && export.info().capabilities.can_extents {
                    let id = BASE_ALLOCATION_ID.to_be_bytes();
                    put_reply(output, number, reply::META_CONTEXT, &[&id, BASE_ALLOCATION]);
                    self.allocation_of = Some(export.name().to_owned());
                }
            }
            Asked::Unknown => {
                return Err(No(reply::ERR_UNSUP, format!("option {number} is unknown")));
            }
        }
        put_reply(output, number, reply::ACK, &[]);
        Ok(Next::Wait)
    }

    fn start_tls(&mut self, number: u32, output: &mut Vec<u8>) -> Result<Next, No> {
        if self.tls {
            return Err(No(reply::ERR_INVALID, "TLS is on already".into()));
        }
        if self.offer.tls == TlsPolicy::Off {
            return Err(No(reply::ERR_POLICY, "this server has no TLS".into()));
        }
        put_reply(output, number, reply::ACK, &[]);
        Ok(Next::StartTls)
    }

    fn list(&self, number: u32, output: &mut Vec<u8>) -> Result<(), No> {
        if !self.offer.list {
            return Err(No(
                reply::ERR_POLICY,
                "this server does not list its exports".into(),
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

    /// The export called `name`; the empty name is the only one's.
    fn find(&self, name: &str) -> Result<Export, No> {
        let exports = &self.offer.exports;
        let only;
        let proper = if name.is_empty() {
            let all = exports.list(&self.client);
            let [one] = &all[..] else {
                let message = format!("there are {} exports: ask for one by name", all.len());
                return Err(No(reply::ERR_UNKNOWN, message));
            };
            only = one.name.clone();
            &only
        } else {
            name
        };
        let unknown = || No(reply::ERR_UNKNOWN, format!("there is no export {proper:?}"));
        exports.find(&self.client, proper).ok_or_else(unknown)
    }

    fn context_export(&self, name: &str) -> Result<Export, No> {
        if !self.structured {
            let message = "metadata contexts need structured replies";
            return Err(No(reply::ERR_INVALID, message.into()));
        }
        self.find(name)
    }

    fn open(&self, export: Export) -> Result<Opened, NotOpen> {
        let seat = export.reserve()?;
        let settings = Settings {
            structured: self.structured,
            // A choice made for another export does not count.
            allocation: self.allocation_of.as_deref() == Some(export.name()),
            read_only: export.info().read_only,
        };
        Ok(Opened {
            export,
            seat,
            settings,
        })
    }

    fn export_name(&self, name: &str, output: &mut Vec<u8>) -> Next {
        let found = self.find(name).map_err(|No(_, message)| message);
        let opened = found.and_then(|export| self.open(export).map_err(|no| no.to_string()));
        let opened = match opened {
            Ok(opened) => opened,
            Err(message) => return Next::Close(Goodbye::NoExport(message)),
        };
        let info = opened.export.info();
        output.put_bytes(&info.size_bytes.to_be_bytes());
        output.put_bytes(&transmission_flags(&info, self.structured).to_be_bytes());
        if !self.no_zeroes {
            output.put_bytes(&[0; 124]);
        }
        Next::Opened(Box::new(opened))
    }
}

/// What a client may send to an export.
fn transmission_flags(info: &ExportInfo, structured: bool) -> u16 {
    let can = &info.capabilities;
    let mut set = flags::HAS_FLAGS | flags::SEND_CACHE;
    let mut add = |condition: bool, flag: u16| {
        if condition {
            set |= flag;
        }
    };
    add(info.read_only, flags::READ_ONLY);
    add(can.can_flush, flags::SEND_FLUSH | flags::SEND_FUA);
    add(can.can_trim && !info.read_only, flags::SEND_TRIM);
    // A device that can write zeroes at all never needs longer than a write.
    let zeroes = flags::SEND_WRITE_ZEROES | flags::SEND_FAST_ZERO;
    add(can.can_write_zeroes && !info.read_only, zeroes);
    add(structured, flags::SEND_DF);
    add(can.can_multi_conn, flags::CAN_MULTI_CONN);
    set
}

/// Facts about an export: always the one a client cannot do without, and those
/// that it wants.
fn put_info(
    output: &mut Vec<u8>,
    number: u32,
    about: &ExportInfo,
    wants: &[u16],
    structured: bool,
) {
    let size = about.size_bytes.to_be_bytes();
    let flags = transmission_flags(about, structured).to_be_bytes();
    let mut put = |kind: u16, parts: &[&[u8]]| {
        let fact = [&kind.to_be_bytes()[..], &parts.concat()].concat();
        put_reply(output, number, reply::INFO, &[&fact]);
    };
    put(info::EXPORT, &[&size, &flags]);
    if wants.contains(&info::NAME) {
        put(info::NAME, &[about.name.as_bytes()]);
    }
    if wants.contains(&info::DESCRIPTION) && !about.description.is_empty() {
        put(info::DESCRIPTION, &[about.description.as_bytes()]);
    }
    if wants.contains(&info::BLOCK_SIZE) {
        let preferred = about.block_bytes.max(about.block_min);
        let words = [about.block_min, preferred, PAYLOAD_BYTES_MAX].map(u32::to_be_bytes);
        put(info::BLOCK_SIZE, &[&words.concat()]);
    }
}
