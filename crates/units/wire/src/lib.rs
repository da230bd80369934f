//! What a host and a unit daemon say to each other, as bytes: version 1
//! (docs/internals/unit-protocol.md). No sockets, and no opinion on who may say what.
//!
//! * [`Frames`]: bytes as they come, cut into frames.
//! * [`Request`]: a frame of a host; [`Greeting`] and the like: what answers it.
//! * [`Status`], [`Refusal`]: how an answer that is none is told.
//!
//! Nothing that is read here is trusted: a daemon is fed by hosts that may be
//! compromised, and a host by daemons that may.

mod answer;
mod frame;
mod refusal;
mod request;

pub use answer::{
    Greeting, decode_room, decode_segment_slots, decode_segments, decode_slots, decode_stat,
    encode_room, encode_segment_slots, encode_segments, encode_slots, encode_stat,
};
pub use frame::{BODY_BYTES_MAX, Frame, Frames, HEAD_BYTES, put_frame};
pub use refusal::{Refusal, Status};
pub use request::{Request, Verb};

/// The version of the protocol that this program speaks.
pub const VERSION: u16 = 1;

/// What TLS is told of the protocol (ALPN).
pub const ALPN: &[u8] = b"scree-unit/1";

/// What a daemon says first on a connection that it passes on.
pub const PREFACE: &[u8; 8] = "scree»1".as_bytes().first_chunk().expect("eight bytes");

/// Bytes that are no frame, or a frame that is no request or no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

impl From<base::codec::OutOfBytes> for Malformed {
    fn from(_: base::codec::OutOfBytes) -> Self {
        Self("the body ends before what it should hold")
    }
}
