//! Measurements of what encryption costs on this machine (docs/explanation/cost-model.md).
//!
//! ```text
//!  cipher ──────────────┐
//!  place: plain ┐       ├─▶ Calibration ─▶ crate::cost::predict ─┐
//!  place: sealed┴ work ─┘    (a file)                            ├─▶ Comparison
//!  place: plain and sealed, other work ──────────────────────────┘
//! ```
//!
//! A *place* is where encryption could run. The same work is run in it with and without encryption;
//! the difference of their CPU times is the cost of encryption.
//!
//! Must not know: the terminal, units, segments. It measures only real machines: time, files and
//! programs are not those of `world`.

#![expect(
    clippy::disallowed_methods,
    reason = "it measures the machine itself: its clocks, files and programs"
)]

mod accounts;
mod calibration;
mod cases;
mod chance;
mod cipher;
mod error;
mod exports;
mod files;
mod layers;
mod machine;
pub mod place;
mod rounds;
mod stop;
mod target;
mod words;
mod work;

pub use accounts::{Account, Meter};
pub use calibration::{Calibration, CalibrationError, MeasuredPlace, VERSION};
pub use cases::{Comparison, compare};
pub use cipher::{Cipher, CipherSpeed};
pub use error::MeasureError;
pub use layers::{Effort, calibrate, now};
pub use machine::Machine;
pub use place::{PlaceKind, Settings};
pub use stop::{Stop, Waiting};
pub use work::{Run, Surface, Work, median};
