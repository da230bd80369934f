//! Floor 2: what is told to those who watch a process: whether it is alive,
//! whether it can do its work, and how it is doing, in numbers.
//!
//! ```text
//!   GET /healthz   200: the process is alive and its runtime turns
//!   GET /readyz    200, or 503 and the reasons, one a line: part: reason
//!   GET /metrics   OpenMetrics, Prometheus' text format
//! ```
//!
//! * [`Part`]: what can be asked of a controller, or of an agent
//! * [`Monitor`]: the parts of this process, asked together
//! * [`Measures`]: numbers, and their text
//! * [`MonitorListener`]: all of it over plain HTTP, for a loopback address or a
//!   management network
//!
//! It must not know: what is measured, who may ask.
//!
//! Invariants: an answer takes at most [`ANSWER_WITHIN`], whatever parts wait
//! for, and says which parts said nothing; nobody who asks for numbers often has
//! a part count them more than once at a time; no text has a secret in it, nor
//! anybody's names.

mod listener;
mod measures;
mod part;

pub use listener::MonitorListener;
pub use measures::{CONTENT_TYPE, Histogram, Labels, Measures};
pub use part::{ANSWER_WITHIN, Answer, Monitor, Part, healthz, readyz};
