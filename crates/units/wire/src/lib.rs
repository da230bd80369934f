//! The unit protocol, version 1: the messages between a host and a unit daemon as bytes
//! (docs/internals/unit-protocol.md). Must not know sockets, or what a host may do.
//!
//! * [`Frames`]: splits received bytes into frames.
//! * [`Request`]: a frame of a host; [`Greeting`] and others: the answers.
//! * [`Status`], [`Refusal`]: why a request was refused.
//!
//! No input is trusted: hosts and daemons may be compromised.

mod answer;
mod frame;
mod refusal;
mod request;
mod verb;

pub use answer::{
    Greeting, decode_segment_slots, decode_segments, decode_slots, decode_stat, decode_unit_stat,
    encode_segment_slots, encode_segments, encode_slots, encode_stat, encode_unit_stat,
};
pub use frame::{BODY_BYTES_MAX, Frame, Frames, HEAD_BYTES, put_frame};
pub use refusal::{Refusal, Status};
pub use request::Request;
pub use verb::Verb;

/// The version of the protocol that this program implements.
pub const VERSION: u16 = 1;

/// The protocol's name in TLS (ALPN).
pub const ALPN: &[u8] = b"scree-unit/1";

/// The first bytes of a connection that a daemon relays.
pub const PREFACE: &[u8; 8] = "scree»1".as_bytes().first_chunk().expect("eight bytes");

/// Why bytes are no valid frame, request or answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

impl From<base::codec::OutOfBytes> for Malformed {
    fn from(_: base::codec::OutOfBytes) -> Self {
        Self("the body is too short")
    }
}
