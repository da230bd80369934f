//! [`ProtocolViolation`]: bytes of a server that the NBD protocol does not allow. They end the
//! connection, since client and server no longer agree where messages begin.

use super::super::wire::option_reply;

/// How a server violated the NBD protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolViolation {
    /// The first bytes are not those of an NBD server.
    #[error("the greeting begins with {0:#018x}, which is not NBD")]
    Greeting(u64),
    /// The server speaks the oldstyle handshake, which has no options.
    #[error("the server speaks the oldstyle handshake, which has no options")]
    OldStyle,
    /// A reply to an option has the wrong magic number.
    #[error("a reply to an option begins with {0:#018x}")]
    OptionMagic(u64),
    /// A reply is to another option than the one that was sent.
    #[error("the reply to option {requested} is for option {answered}")]
    OtherOption {
        /// The option that was sent.
        requested: u32,
        /// The option in the reply.
        answered: u32,
    },
    /// A reply does not fit its option.
    #[error("option {option} has a reply of kind {kind:#x} with {length} bytes")]
    OptionReply {
        /// The option.
        option: u32,
        /// The kind of the reply.
        kind: u32,
        /// The length of the reply's data, in bytes.
        length: u32,
    },
    /// An option has too many replies.
    #[error("option {0} has too many replies")]
    OptionReplies(u32),
    /// The handshake ended without the size of the export.
    #[error("the handshake ended without the size of the export")]
    NoSize,
    /// The block sizes are not those that the protocol allows.
    #[error("the block sizes {minimum}, {preferred}, {maximum} are invalid")]
    BlockSizes {
        /// The minimal block size, in bytes.
        minimum: u32,
        /// The preferred block size, in bytes.
        preferred: u32,
        /// The maximal payload, in bytes.
        maximum: u32,
    },
    /// Plain bytes arrived where TLS begins.
    #[error("{0} plain bytes followed STARTTLS, and may come from an attacker")]
    PlainBytes(usize),
    /// A reply has the wrong magic number.
    #[error("a reply begins with {0:#010x}")]
    ReplyMagic(u32),
    /// A reply is simple where it has to be structured.
    #[error("the reply to request {cookie} has to be structured")]
    Form {
        /// The request's cookie.
        cookie: u64,
    },
    /// A reply has a cookie without an outstanding request.
    #[error("a reply is for request {0}, which is not outstanding")]
    Cookie(u64),
    /// A chunk does not fit its request.
    #[error("the reply to request {cookie} has a chunk of kind {kind:#x} with {length} bytes")]
    Chunk {
        /// The request's cookie.
        cookie: u64,
        /// The kind of the chunk.
        kind: u16,
        /// The length of the chunk, in bytes.
        length: u32,
    },
    /// Data are outside the request's range, or have arrived already.
    #[error("the reply to request {cookie} has {length} unexpected bytes at offset {offset}")]
    Range {
        /// The request's cookie.
        cookie: u64,
        /// The offset of the data on the disk, in bytes.
        offset: u64,
        /// The length of the data, in bytes.
        length: u64,
    },
    /// The reply to a read ended before all data had arrived.
    #[error("the reply to request {cookie} is missing {missing} bytes")]
    Missing {
        /// The request's cookie.
        cookie: u64,
        /// The number of bytes that did not arrive.
        missing: u64,
    },
    /// The data of a read arrived in more separate ranges than any server has reason to send.
    #[error("the data of request {0} arrive in too many ranges")]
    Scattered(u64),
    /// An extent has length 0 or the wrong context, or there are none.
    #[error("the extents of request {0} are invalid")]
    Extents(u64),
}

/// The message for a server's refusal of an option.
#[must_use]
pub fn refusal(kind: u32, message: &[u8]) -> String {
    let reason = match kind {
        option_reply::ERR_UNSUP => "the option is not supported",
        option_reply::ERR_POLICY => "the option is not allowed",
        option_reply::ERR_INVALID => "the option is invalid",
        option_reply::ERR_TLS_REQD => "TLS is required",
        option_reply::ERR_UNKNOWN => "there is no such export",
        option_reply::ERR_SHUTDOWN => "the server is shutting down",
        option_reply::ERR_TOO_BIG => "the option is too long",
        _ => "no reason was given",
    };
    match message {
        [] => reason.to_owned(),
        message => format!("{reason}: {}", printable(message)),
    }
}

/// The beginning of a server's message, which may have any length, without control characters.
#[must_use]
pub fn printable(message: &[u8]) -> String {
    let message = String::from_utf8_lossy(&message[..message.len().min(200)]);
    let mut plain = String::with_capacity(message.len());
    for character in message.chars() {
        match character {
            // `escape_debug` would escape them, too.
            '\'' | '"' => plain.push(character),
            _ => plain.extend(character.escape_debug()),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Once the quotes of nbdkit's messages had backslashes.
    #[test]
    fn the_message_of_a_server_keeps_its_quotes_and_loses_control_characters() {
        let said = refusal(option_reply::ERR_UNKNOWN, b"export 'nope'\n\x1b[2J");
        assert_eq!(said, "there is no such export: export 'nope'\\n\\u{1b}[2J");
        assert_eq!(printable(&[b'x'; 300]).len(), 200);
    }
}
