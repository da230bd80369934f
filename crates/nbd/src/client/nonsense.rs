//! What a server says that no server may say. It ends the connection: the two sides no
//! longer agree what the bytes mean.

use super::super::wire::option_reply;

/// Why a connection was ended by this side. Each has what was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Nonsense {
    /// Its first bytes are no NBD server's.
    #[error("it begins with {0:#018x}, as no NBD server does")]
    Greeting(u64),
    /// It speaks the protocol as it was before options.
    #[error("it speaks the old protocol, which has no options")]
    OldStyle,
    /// A reply to an option without its magic number.
    #[error("a reply to an option begins with {0:#018x}")]
    OptionMagic(u64),
    /// A reply to another option than was asked.
    #[error("option {asked} is answered as if it were {answered}")]
    OtherOption {
        /// What was asked.
        asked: u32,
        /// What the reply says.
        answered: u32,
    },
    /// A reply to an option that does not fit it, or ends too soon.
    #[error("option {option} is answered by a reply of kind {kind:#x} with {length} bytes")]
    OptionReply {
        /// What was asked.
        option: u32,
        /// The kind of the reply.
        kind: u32,
        /// How many bytes of data it has.
        length: u32,
    },
    /// More replies to an option than one can have.
    #[error("option {0} has too many replies")]
    OptionReplies(u32),
    /// Something the export needs was not said.
    #[error("it began to serve without having told the size")]
    NoSize,
    /// Block sizes that the protocol does not have.
    #[error("block sizes {minimum}, {preferred}, {maximum} make no sense")]
    BlockSizes {
        /// In bytes; so the others.
        minimum: u32,
        /// What is best.
        preferred: u32,
        /// Of a payload.
        maximum: u32,
    },
    /// Something came where only TLS may follow.
    #[error("{0} plain bytes came behind STARTTLS: they may be somebody else's")]
    PlainBytes(usize),
    /// A reply without a magic number.
    #[error("a reply begins with {0:#010x}")]
    ReplyMagic(u32),
    /// Structured replies were not agreed upon; or they were, for a read.
    #[error("request {cookie} is answered in the wrong form")]
    Form {
        /// Which.
        cookie: u64,
    },
    /// A reply to a request that is not under way.
    #[error("it answers request {0}, which nobody has made or which is answered already")]
    Cookie(u64),
    /// A chunk that does not fit the request.
    #[error("request {cookie} is answered by a chunk of kind {kind:#x} with {length} bytes")]
    Chunk {
        /// Which request.
        cookie: u64,
        /// The kind of the chunk.
        kind: u16,
        /// How many bytes it has.
        length: u32,
    },
    /// Data of bytes that nobody asked for, or that came already.
    #[error("{length} bytes at {offset} are not among those that request {cookie} waits for")]
    Range {
        /// Which request.
        cookie: u64,
        /// Where.
        offset: u64,
        /// How many.
        length: u64,
    },
    /// A read is over, and not all of it came.
    #[error("the reply to request {cookie} ends {missing} bytes too soon")]
    Missing {
        /// Which request.
        cookie: u64,
        /// How many did not come.
        missing: u64,
    },
    /// More pieces than any server has reason to cut a read into.
    #[error("the data of request {0} are scattered into too many pieces")]
    Scattered(u64),
    /// Extents of length 0, of none, or of another context.
    #[error("the extents of request {0} make no sense")]
    Extents(u64),
}

/// What a server says when it refuses an option.
#[must_use]
pub fn refusal(kind: u32, message: &[u8]) -> String {
    let words = match kind {
        option_reply::ERR_UNSUP => "it does not know the option",
        option_reply::ERR_POLICY => "it does not allow this",
        option_reply::ERR_INVALID => "it takes the option for malformed",
        option_reply::ERR_TLS_REQD => "it wants TLS",
        option_reply::ERR_UNKNOWN => "it has no such export",
        option_reply::ERR_SHUTDOWN => "it is stopping",
        option_reply::ERR_TOO_BIG => "it takes the option for too long",
        _ => "it refuses",
    };
    match message {
        [] => words.to_owned(),
        // What is logged is short, whatever the server says.
        message => {
            let message = &message[..message.len().min(200)];
            format!(
                "{words}: {}",
                String::from_utf8_lossy(message).escape_debug()
            )
        }
    }
}
