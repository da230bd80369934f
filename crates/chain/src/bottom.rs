//! The device at the end of a chain, with the generation of filters that uses it.
//!
//! Filters that were swapped, or never came into use, may leave requests behind: a flush that
//! took too long, a read while the filter opened. Their completions come later, under tokens
//! that the filters in use may have chosen too. So a token has the generation of the filters in
//! its upper 8 bits, and completions of another generation are dropped:
//!
//! ```text
//!  63      56 55                                                   0
//!  │generation│ the token of the lowest filter, or of the chain's user │
//! ```
//!
//! Generation 0 marks requests that bypass the chain ([`crate::Chain::bottom`]). A generation is
//! used again after 255 hot swaps.

use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, IoError, Request, Started, TOKEN_MAX,
    Token,
};

const TOKEN_BITS: u32 = 56;

/// The lowest device, as one generation of filters uses it.
pub(crate) struct Bottom<'a, D> {
    pub device: &'a mut D,
    pub generation: u8,
}

impl<D> Bottom<'_, D> {
    fn mark(&self, token: Token) -> Token {
        debug_assert!(token <= TOKEN_MAX, "a token has 56 bits");
        token | Token::from(self.generation) << TOKEN_BITS
    }
}

impl<D: BlockDevice> BlockDevice for Bottom<'_, D> {
    fn geometry(&self) -> DeviceGeometry {
        self.device.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let token = self.mark(request.token);
        self.device.start(request.with_token(token))
    }

    fn end_batch(&mut self) -> Result<(), IoError> {
        self.device.end_batch()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let before = completions.len();
        self.device.poll(completions);
        let mine = Token::from(self.generation);
        let mut at = before;
        while at < completions.len() {
            if completions[at].token >> TOKEN_BITS == mine {
                completions[at].token &= (1 << TOKEN_BITS) - 1;
                at += 1;
            } else {
                completions.remove(at);
            }
        }
    }

    fn stop_waiting(&mut self) {
        self.device.stop_waiting();
    }

    fn next_timer(&self) -> Option<Duration> {
        self.device.next_timer()
    }
}
