//! Options of the handshake: a client's bytes become an [`Asked`] once, here,
//! and nothing behind this file sees a length that was not checked.
//!
//! ```text
//!  an option    | IHAVEOPT  8 | option 4 | length 4 | data…
//!  its reply    | magic     8 | option 4 | kind 4   | length 4 | data…
//! ```

use base::codec::{OutOfBytes, Reader, Writer};

use super::wire::{OPTION_MAGIC, OPTION_REPLY_MAGIC, STRING_BYTES_MAX, option};

/// The longest data of an option that are looked at: a name and as many
/// queries as a client can have reason to send.
pub const OPTION_BYTES_MAX: usize = 16 << 10;

/// Something that does not have the form it should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A length points behind the end.
    #[error("the option's data are too short: {0}")]
    Short(#[from] OutOfBytes),
    /// There is more than there should be.
    #[error("the option's data are {0} bytes too long")]
    Long(usize),
    /// A name that is longer than the protocol allows.
    #[error("a string of {0} bytes is longer than {STRING_BYTES_MAX}")]
    LongString(usize),
    /// A name that is no text.
    #[error("a string is not UTF-8")]
    NotText,
}

/// The fixed part of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHeader {
    /// See [`option`].
    pub option: u32,
    /// How many bytes of data follow.
    pub length: u32,
}

/// What arrived where an option should begin is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an option begins with {found:#018x} instead of IHAVEOPT")]
pub struct NotAnOption {
    /// Its first eight bytes.
    pub found: u64,
}

impl OptionHeader {
    /// Length on the wire, in bytes.
    pub const BYTES: usize = 16;

    /// Reads a header.
    ///
    /// # Errors
    /// [`NotAnOption`] if it does not begin with the magic number.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, NotAnOption> {
        let (magic, rest) = bytes.split_at(8);
        let (option, length) = rest.split_at(4);
        let word = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |word, &byte| word << 8 | u64::from(byte))
        };
        if word(magic) != OPTION_MAGIC {
            return Err(NotAnOption { found: word(magic) });
        }
        Ok(Self {
            option: word(option) as u32,
            length: word(length) as u32,
        })
    }

    /// The header as a client sends it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::BYTES);
        bytes.put_bytes(&OPTION_MAGIC.to_be_bytes());
        bytes.put_bytes(&self.option.to_be_bytes());
        bytes.put_bytes(&self.length.to_be_bytes());
        bytes
    }
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Serve this export, in the old way.
    ExportName(String),
    /// Leave.
    Abort,
    /// Name all exports.
    List,
    /// Change to TLS.
    StartTls,
    /// Describe an export.
    Info {
        /// Its name.
        name: String,
        /// The facts the client would like; see [`info`](super::wire::info).
        wants: Vec<u16>,
    },
    /// Describe an export and serve it.
    Go {
        /// Its name.
        name: String,
        /// The facts the client would like.
        wants: Vec<u16>,
    },
    /// Use structured replies.
    StructuredReply,
    /// Name metadata contexts.
    ListMetaContext {
        /// The export they belong to.
        name: String,
        /// Which; all if there is no query.
        queries: Vec<Vec<u8>>,
    },
    /// Use metadata contexts.
    SetMetaContext {
        /// The export they belong to.
        name: String,
        /// Which.
        queries: Vec<Vec<u8>>,
    },
    /// Something else.
    Unknown,
}

fn text(bytes: &[u8]) -> Result<String, Malformed> {
    if bytes.len() > STRING_BYTES_MAX {
        return Err(Malformed::LongString(bytes.len()));
    }
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| Malformed::NotText)
}

fn string<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let length = u32::from_be_bytes(reader.array()?) as usize;
    let bytes = reader.bytes(length)?;
    if length > STRING_BYTES_MAX {
        return Err(Malformed::LongString(length));
    }
    Ok(bytes)
}

fn info_request(reader: &mut Reader<'_>) -> Result<(String, Vec<u16>), Malformed> {
    let name = text(string(reader)?)?;
    let count = u16::from_be_bytes(reader.array()?);
    let wants = (0..count).map(|_| Ok(u16::from_be_bytes(reader.array()?)));
    Ok((name, wants.collect::<Result<_, OutOfBytes>>()?))
}

fn context_request(reader: &mut Reader<'_>) -> Result<(String, Vec<Vec<u8>>), Malformed> {
    let name = text(string(reader)?)?;
    let count = u32::from_be_bytes(reader.array()?);
    let queries = (0..count).map(|_| string(reader).map(<[u8]>::to_vec));
    Ok((name, queries.collect::<Result<_, Malformed>>()?))
}

impl Asked {
    /// Reads an option's data.
    ///
    /// # Errors
    /// [`Malformed`] if they are not what the option has.
    pub fn decode(number: u32, data: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(data);
        let asked = match number {
            option::EXPORT_NAME => return text(data).map(Self::ExportName),
            // Whatever comes with them is of no interest.
            option::ABORT => return Ok(Self::Abort),
            option::LIST => Self::List,
            option::STARTTLS => Self::StartTls,
            option::INFO => {
                let (name, wants) = info_request(&mut reader)?;
                Self::Info { name, wants }
            }
            option::GO => {
                let (name, wants) = info_request(&mut reader)?;
                Self::Go { name, wants }
            }
            option::STRUCTURED_REPLY => Self::StructuredReply,
            option::LIST_META_CONTEXT => {
                let (name, queries) = context_request(&mut reader)?;
                Self::ListMetaContext { name, queries }
            }
            option::SET_META_CONTEXT => {
                let (name, queries) = context_request(&mut reader)?;
                Self::SetMetaContext { name, queries }
            }
            _ => return Ok(Self::Unknown),
        };
        match reader.remaining() {
            0 => Ok(asked),
            more => Err(Malformed::Long(more)),
        }
    }
}

/// Appends a reply to an option.
pub fn put_reply(output: &mut Vec<u8>, number: u32, kind: u32, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    output.put_bytes(&OPTION_REPLY_MAGIC.to_be_bytes());
    output.put_bytes(&number.to_be_bytes());
    output.put_bytes(&kind.to_be_bytes());
    output.put_bytes(&(length as u32).to_be_bytes());
    for part in parts {
        output.put_bytes(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    fn every_option() -> Vec<(u32, Vec<u8>, Asked)> {
        let name = "disk".to_owned();
        let named = |rest: &[u8]| data(&[&4_u32.to_be_bytes(), b"disk", rest]);
        let wants = named(&[0, 2, 0, 1, 0, 3]);
        let queries = named(&data(&[
            &1_u32.to_be_bytes(),
            &5_u32.to_be_bytes(),
            b"base:",
        ]));
        let (two, one) = (vec![1, 3], vec![b"base:".to_vec()]);
        vec![
            (option::LIST, vec![], Asked::List),
            (option::STARTTLS, vec![], Asked::StartTls),
            (option::STRUCTURED_REPLY, vec![], Asked::StructuredReply),
            (
                option::INFO,
                wants.clone(),
                Asked::Info {
                    name: name.clone(),
                    wants: two.clone(),
                },
            ),
            (
                option::GO,
                wants,
                Asked::Go {
                    name: name.clone(),
                    wants: two,
                },
            ),
            (
                option::LIST_META_CONTEXT,
                queries.clone(),
                Asked::ListMetaContext {
                    name: name.clone(),
                    queries: one.clone(),
                },
            ),
            (
                option::SET_META_CONTEXT,
                queries,
                Asked::SetMetaContext { name, queries: one },
            ),
        ]
    }

    #[test]
    fn every_option_is_understood_and_neither_cut_nor_lengthened() {
        for (number, bytes, asked) in every_option() {
            assert_eq!(Asked::decode(number, &bytes), Ok(asked));
            for end in 0..bytes.len() {
                let cut = Asked::decode(number, &bytes[..end]);
                assert!(
                    matches!(cut, Err(Malformed::Short(_))),
                    "{number} cut at {end}: {cut:?}"
                );
            }
            let longer = data(&[&bytes, &[0]]);
            assert_eq!(Asked::decode(number, &longer), Err(Malformed::Long(1)));
        }
    }

    #[test]
    fn a_flipped_bit_gives_another_meaning_or_an_error_and_never_a_panic() {
        for (number, bytes, asked) in every_option() {
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(Asked::decode(number, &flipped), Ok(asked.clone()));
            }
        }
    }

    #[test]
    fn an_option_header_comes_back_as_it_was_sent() {
        let header = OptionHeader {
            option: 0x0102_0304,
            length: 0xa0b0_c0d0,
        };
        let mut bytes: [u8; 16] = header.encode().try_into().expect("16 bytes");
        assert_eq!(OptionHeader::decode(&bytes), Ok(header));
        bytes[7] ^= 1;
        assert!(OptionHeader::decode(&bytes).is_err());
    }
}
