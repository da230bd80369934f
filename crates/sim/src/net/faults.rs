//! [`LinkFaults`]: the faults of a link, and the choice of one for each exchange.

use unit_wire::Verb;
use world::simulated::SimulatedRandom;

/// The faults of a link. Each rate is one of this many exchanges, none if zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkFaults {
    /// Nothing arrives.
    pub is_partitioned: bool,
    /// The connection breaks before the requests arrive.
    pub before_one_in: u64,
    /// The connection breaks after the requests were carried out.
    pub after_one_in: u64,
    /// The connection breaks within the requests, or within the answers.
    pub within_one_in: u64,
    /// The connection is abandoned, and the requests arrive later.
    pub late_one_in: u64,
    /// The exchange is slow, sometimes slower than its timeout.
    pub slow_one_in: u64,
    /// Whether the first fault is the only one.
    pub is_once: bool,
    /// Only exchanges that begin with such a request have faults.
    pub only: Option<Verb>,
}

/// The fault of one exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkFault {
    /// No fault.
    None,
    /// The connection breaks before the requests arrive.
    Before,
    /// The connection breaks after the requests were carried out.
    After,
    /// The connection breaks within the requests.
    InRequests,
    /// The connection breaks within the answers.
    InAnswers,
    /// The requests arrive later.
    Late {
        /// Whether the host waits for the timeout.
        is_unresponsive: bool,
    },
    /// The exchange takes long.
    Slow,
}

impl LinkFaults {
    /// Chooses the fault of an exchange whose first request has this verb code.
    #[must_use]
    pub fn choose(&self, code: u16, random: &SimulatedRandom) -> LinkFault {
        if self.only.is_some_and(|verb| verb as u16 != code) {
            return LinkFault::None;
        }
        let (is_in_requests, is_unresponsive) = (random.one_in(2), random.one_in(3));
        let possible = [
            (self.before_one_in, LinkFault::Before),
            (self.after_one_in, LinkFault::After),
            (
                self.within_one_in,
                match is_in_requests {
                    true => LinkFault::InRequests,
                    false => LinkFault::InAnswers,
                },
            ),
            (self.late_one_in, LinkFault::Late { is_unresponsive }),
            (self.slow_one_in, LinkFault::Slow),
        ];
        let chosen = possible
            .into_iter()
            .find(|(one_in, _)| random.one_in(*one_in));
        chosen.map_or(LinkFault::None, |(_, fault)| fault)
    }
}
