//! [`PendingRequests`]: the requests below, by the tokens that the journal chose for them.

use std::collections::HashMap;

use base::Token;

use super::overlay::Patch;
use super::record::LogPosition;

/// What a request below is for.
pub(super) enum PendingRequest {
    /// A read from above.
    Read {
        token: Token,
        offset: u64,
        /// The parts that the journal has.
        patches: Vec<Patch>,
    },
    /// Any other request from above.
    Forwarded(Token),
    /// The change with this sequence is written back.
    WriteBack(u64),
    /// Covers everything before this position.
    Flush(LogPosition),
}

#[derive(Default)]
pub(super) struct PendingRequests {
    requests: HashMap<Token, PendingRequest>,
    last: Token,
}

impl PendingRequests {
    pub fn next_token(&mut self) -> Token {
        self.last += 1;
        self.last
    }

    pub fn insert(&mut self, token: Token, request: PendingRequest) {
        self.requests.insert(token, request);
    }

    pub fn take(&mut self, token: Token) -> Option<PendingRequest> {
        self.requests.remove(&token)
    }
}
