//! Floor 5: what encryption costs on this machine, measured (docs/explanation/cost-model.md).
//!
//! ```text
//!  cipher ──────────────┐
//!  place: plain ┐       ├─▶ Calibration ─▶ crate::cost::predict ─┐
//!  place: sealed┴ work ─┘    (a file)                            ├─▶ Comparison
//!  place: plain and sealed, other work ──────────────────────────┘
//! ```
//!
//! A *place* is where encryption could run. It is opened with it and without, the same work is
//! done in both, and the CPU time of one less that of the other is what encryption costs.
//!
//! Must not know: the terminal, units, segments. It asks a real machine only, and measures it:
//! time, files and programs are not those of `world`.

#![expect(
    clippy::disallowed_methods,
    reason = "what is measured is the machine itself: its clocks, files and programs"
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
