//! Frames: the unit of transmission, with a head of 16 bytes.

use base::codec::{Reader, Writer};

use super::Malformed;

/// Length of a frame's head, in bytes.
pub const HEAD_BYTES: usize = 16;

/// Maximum length of a body, in bytes: a put of 2 MiB and its tags.
pub const BODY_BYTES_MAX: usize = (2 << 20) + (64 << 10);

/// A frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The verb of a request or the status of an answer.
    pub code: u16,
    /// Identifies the request; never 0 in a request.
    pub tag: u64,
    /// The body.
    pub body: &'a [u8],
}

/// Appends a frame. `write` appends its body.
///
/// # Panics
/// If the body is longer than [`BODY_BYTES_MAX`].
pub fn put_frame(to: &mut Vec<u8>, code: u16, tag: u64, write: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.put_u32(0);
    to.put_u16(code);
    to.put_u16(0);
    to.put_u64(tag);
    write(to);
    let length = to.len() - start - HEAD_BYTES;
    assert!(length <= BODY_BYTES_MAX, "a body of {length} bytes");
    to[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
}

/// Splits received bytes into frames.
///
/// Buffers at most one frame and the bytes that were received with its end.
#[derive(Debug)]
pub struct Frames {
    bytes: Vec<u8>,
    /// Offset of the next frame.
    start: usize,
    body_bytes_max: usize,
}

impl Frames {
    /// Accepts frames with bodies of at most `body_bytes_max`.
    #[must_use]
    pub fn new(body_bytes_max: usize) -> Self {
        Self {
            bytes: Vec::new(),
            start: 0,
            body_bytes_max,
        }
    }

    /// Adds bytes that were received.
    pub fn extend(&mut self, bytes: &[u8]) {
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        } else if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Number of bytes in the buffer.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Length of the next frame with its head, in bytes; `None` until its head was received.
    ///
    /// # Errors
    /// [`Malformed`] if the next bytes are no frame or one that is too long. Nothing behind it
    /// can be parsed then.
    pub fn next_bytes(&self) -> Result<Option<usize>, Malformed> {
        let rest = &self.bytes[self.start..];
        if rest.len() < HEAD_BYTES {
            return Ok(None);
        }
        let mut reader = Reader::new(rest);
        let length = reader.u32()? as usize;
        let (_code, zero) = (reader.u16()?, reader.u16()?);
        if length > self.body_bytes_max {
            return Err(Malformed("the frame is longer than allowed"));
        }
        if zero != 0 {
            return Err(Malformed(
                "a reserved field of the frame's head is not zero",
            ));
        }
        Ok(Some(HEAD_BYTES + length))
    }

    /// The next frame, without removing it; `None` until all of it was received.
    ///
    /// # Errors
    /// As [`Frames::next_bytes`].
    pub fn peek(&self) -> Result<Option<Frame<'_>>, Malformed> {
        let Some(length) = self.next_bytes()? else {
            return Ok(None);
        };
        let Some(frame) = self.bytes[self.start..].get(..length) else {
            return Ok(None);
        };
        frame_of(frame).map(Some)
    }

    /// Removes and returns the next frame; `None` until all of it was received.
    ///
    /// # Errors
    /// As [`Frames::next_bytes`].
    pub fn pop(&mut self) -> Result<Option<Frame<'_>>, Malformed> {
        let before = self.start;
        let Some(length) = self.peek()?.map(|frame| HEAD_BYTES + frame.body.len()) else {
            return Ok(None);
        };
        self.skip(length);
        frame_of(&self.bytes[before..self.start]).map(Some)
    }

    /// Removes the next frame, whose length with its head is `length` bytes.
    pub fn skip(&mut self, length: usize) {
        self.start += length;
    }

    /// Frees the buffer, if it is empty.
    pub fn shrink(&mut self) {
        if self.start == self.bytes.len() {
            self.bytes = Vec::new();
            self.start = 0;
        }
    }
}

/// Parses a complete frame.
fn frame_of(bytes: &[u8]) -> Result<Frame<'_>, Malformed> {
    let mut reader = Reader::new(bytes);
    let (_length, code, _zero) = (reader.u32()?, reader.u16()?, reader.u16()?);
    Ok(Frame {
        code,
        tag: reader.u64()?,
        body: &bytes[HEAD_BYTES..],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_split_however_they_are_received() {
        let mut sent = Vec::new();
        for tag in 1..50_u64 {
            put_frame(&mut sent, 7, tag, |body| {
                body.resize(body.len() + tag as usize * 3 % 40, tag as u8);
            });
        }
        for piece in [1, 2, 15, 16, 17, 100, sent.len()] {
            let mut frames = Frames::new(100);
            let mut seen = 0;
            for bytes in sent.chunks(piece) {
                frames.extend(bytes);
                while let Some(frame) = frames.pop().expect("frames") {
                    seen += 1;
                    assert_eq!((frame.code, frame.tag), (7, seen));
                    assert_eq!(frame.body, vec![seen as u8; seen as usize * 3 % 40]);
                }
                assert!(frames.buffered_bytes() < HEAD_BYTES + 40);
                assert!(
                    frames.bytes.capacity() < 4 * (piece + 100),
                    "the buffer stays small"
                );
            }
            assert_eq!((seen, frames.buffered_bytes()), (49, 0));
        }
    }

    #[test]
    fn an_invalid_frame_is_refused_before_its_body_was_received() {
        let head = |length: u32, zero: u16| {
            let mut bytes = Vec::new();
            bytes.put_u32(length);
            bytes.put_u16(1);
            bytes.put_u16(zero);
            bytes.put_u64(1);
            let mut frames = Frames::new(100);
            frames.extend(&bytes);
            frames.pop().map(|frame| frame.is_some())
        };
        assert_eq!(head(100, 0), Ok(false));
        assert_eq!(head(0, 0), Ok(true));
        assert!(head(101, 0).is_err());
        assert!(head(u32::MAX, 0).is_err());
        assert!(head(0, 1).is_err());
    }
}
