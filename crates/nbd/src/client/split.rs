//! [`SplitRequests`]: requests of the caller that are split into several NBD requests.

use base::{Completion, IoError, Outcome, Token};

use super::super::slab::{Key, Slab};

/// A request of the caller that was split.
struct SplitRequest {
    token: Token,
    /// The number of parts without a result.
    parts_left: usize,
    /// The data of a read; empty for other requests.
    data: Vec<u8>,
    error: Option<IoError>,
}

/// The requests whose parts are outstanding.
#[derive(Default)]
pub(super) struct SplitRequests(Slab<SplitRequest>);

impl SplitRequests {
    /// Adds a request of `parts` parts; `read_bytes` is the length of a read, and otherwise 0.
    pub fn add(&mut self, token: Token, parts: usize, read_bytes: usize) -> Key {
        self.0.insert(SplitRequest {
            token,
            parts_left: parts,
            data: vec![0; read_bytes],
            error: None,
        })
    }

    /// Records the result of the part at `offset` within the request `key`. Returns the
    /// completion of the request with the last part. The request fails if any part failed.
    pub fn complete_part(
        &mut self,
        key: Key,
        offset: u64,
        result: Result<Outcome, IoError>,
    ) -> Option<Completion> {
        let request = self.0.get_mut(key)?;
        request.parts_left -= 1;
        match result {
            Ok(Outcome::Data(data)) => {
                request.data[offset as usize..][..data.len()].copy_from_slice(&data);
            }
            Ok(_) => {}
            Err(error) => request.error = Some(error),
        }
        if request.parts_left > 0 {
            return None;
        }
        let request = self.0.remove(key)?;
        let result = match (request.error, request.data) {
            (Some(error), _) => Err(error),
            (None, data) if data.is_empty() => Ok(Outcome::Done),
            (None, data) => Ok(Outcome::Data(data)),
        };
        Some(Completion {
            token: request.token,
            result,
        })
    }
}
