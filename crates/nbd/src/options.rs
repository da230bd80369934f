//! Options of the handshake. Every length of a client's option is checked here, when its bytes
//! become a [`ClientOption`].
//!
//! ```text
//!  an option    | IHAVEOPT  8 | option 4 | length 4 | data…
//!  its reply    | magic     8 | option 4 | kind 4   | length 4 | data…
//! ```

use base::codec::{OutOfBytes, Reader, Writer};

use super::wire::{OPTION_MAGIC, OPTION_REPLY_MAGIC, STRING_BYTES_MAX, option};

/// The maximal length of an option's data, in bytes: a name, and more queries than a client has
/// reason to send.
pub const OPTION_BYTES_MAX: usize = 16 << 10;

/// Why the data of an option are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The data end too early.
    #[error("the option's data are too short: {0}")]
    Short(#[from] OutOfBytes),
    /// Bytes follow the data.
    #[error("the option's data are {0} bytes too long")]
    Long(usize),
    /// A string is longer than the protocol allows.
    #[error("a string of {0} bytes is longer than {STRING_BYTES_MAX}")]
    LongString(usize),
    /// A string is not UTF-8.
    #[error("a string is not UTF-8")]
    NotText,
}

/// The fixed part of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHeader {
    /// The option's number; see [`option`].
    pub option: u32,
    /// The length of the data that follow, in bytes.
    pub length: u32,
}

/// An option with the wrong magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an option begins with {found:#018x} instead of IHAVEOPT")]
pub struct MalformedOption {
    /// The first eight bytes.
    pub found: u64,
}

impl OptionHeader {
    /// Length on the wire, in bytes.
    pub const BYTES: usize = 16;

    /// Decodes a header.
    ///
    /// # Errors
    /// [`MalformedOption`] if it does not begin with the magic number.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, MalformedOption> {
        let (magic, rest) = bytes.split_at(8);
        let (option, length) = rest.split_at(4);
        let word = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |word, &byte| word << 8 | u64::from(byte))
        };
        if word(magic) != OPTION_MAGIC {
            return Err(MalformedOption { found: word(magic) });
        }
        Ok(Self {
            option: word(option) as u32,
            length: word(length) as u32,
        })
    }

    /// Encodes the header, as a client sends it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::BYTES);
        bytes.put_bytes(&OPTION_MAGIC.to_be_bytes());
        bytes.put_bytes(&self.option.to_be_bytes());
        bytes.put_bytes(&self.length.to_be_bytes());
        bytes
    }
}

/// An option of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientOption {
    /// Serve this export, without error replies.
    ExportName(String),
    /// End the handshake.
    Abort,
    /// List the exports.
    List,
    /// Begin TLS.
    StartTls,
    /// Describe an export.
    Info {
        /// Its name.
        name: String,
        /// The further facts that the client requests; see [`info`](super::wire::info).
        info_types: Vec<u16>,
    },
    /// Describe an export and serve it.
    Go {
        /// Its name.
        name: String,
        /// The further facts that the client requests.
        info_types: Vec<u16>,
    },
    /// Use structured replies.
    StructuredReply,
    /// List metadata contexts.
    ListMetaContext {
        /// The export they belong to.
        name: String,
        /// The queries; without one, all contexts are listed.
        queries: Vec<Vec<u8>>,
    },
    /// Select metadata contexts.
    SetMetaContext {
        /// The export they belong to.
        name: String,
        /// The queries.
        queries: Vec<Vec<u8>>,
    },
    /// An option that the server does not know.
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
    let info_types = (0..count).map(|_| Ok(u16::from_be_bytes(reader.array()?)));
    Ok((name, info_types.collect::<Result<_, OutOfBytes>>()?))
}

fn context_request(reader: &mut Reader<'_>) -> Result<(String, Vec<Vec<u8>>), Malformed> {
    let name = text(string(reader)?)?;
    let count = u32::from_be_bytes(reader.array()?);
    let queries = (0..count).map(|_| string(reader).map(<[u8]>::to_vec));
    Ok((name, queries.collect::<Result<_, Malformed>>()?))
}

impl ClientOption {
    /// Decodes an option.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(number: u32, data: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(data);
        let option = match number {
            option::EXPORT_NAME => return text(data).map(Self::ExportName),
            // Their data are ignored.
            option::ABORT => return Ok(Self::Abort),
            option::LIST => Self::List,
            option::STARTTLS => Self::StartTls,
            option::INFO => {
                let (name, info_types) = info_request(&mut reader)?;
                Self::Info { name, info_types }
            }
            option::GO => {
                let (name, info_types) = info_request(&mut reader)?;
                Self::Go { name, info_types }
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
            0 => Ok(option),
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

    fn every_option() -> Vec<(u32, Vec<u8>, ClientOption)> {
        let name = "disk".to_owned();
        let named = |rest: &[u8]| data(&[&4_u32.to_be_bytes(), b"disk", rest]);
        let info_types = named(&[0, 2, 0, 1, 0, 3]);
        let queries = named(&data(&[
            &1_u32.to_be_bytes(),
            &5_u32.to_be_bytes(),
            b"base:",
        ]));
        let (two, one) = (vec![1, 3], vec![b"base:".to_vec()]);
        vec![
            (option::LIST, vec![], ClientOption::List),
            (option::STARTTLS, vec![], ClientOption::StartTls),
            (
                option::STRUCTURED_REPLY,
                vec![],
                ClientOption::StructuredReply,
            ),
            (
                option::INFO,
                info_types.clone(),
                ClientOption::Info {
                    name: name.clone(),
                    info_types: two.clone(),
                },
            ),
            (
                option::GO,
                info_types,
                ClientOption::Go {
                    name: name.clone(),
                    info_types: two,
                },
            ),
            (
                option::LIST_META_CONTEXT,
                queries.clone(),
                ClientOption::ListMetaContext {
                    name: name.clone(),
                    queries: one.clone(),
                },
            ),
            (
                option::SET_META_CONTEXT,
                queries,
                ClientOption::SetMetaContext { name, queries: one },
            ),
        ]
    }

    #[test]
    fn every_option_is_decoded_and_a_shorter_or_longer_one_is_refused() {
        for (number, bytes, option) in every_option() {
            assert_eq!(ClientOption::decode(number, &bytes), Ok(option));
            for end in 0..bytes.len() {
                let cut = ClientOption::decode(number, &bytes[..end]);
                assert!(
                    matches!(cut, Err(Malformed::Short(_))),
                    "{number} cut at {end}: {cut:?}"
                );
            }
            let longer = data(&[&bytes, &[0]]);
            assert_eq!(
                ClientOption::decode(number, &longer),
                Err(Malformed::Long(1))
            );
        }
    }

    #[test]
    fn a_flipped_bit_changes_the_option_or_is_an_error() {
        for (number, bytes, option) in every_option() {
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(ClientOption::decode(number, &flipped), Ok(option.clone()));
            }
        }
    }

    #[test]
    fn an_option_header_survives_a_round_trip() {
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
