//! Predictions of what encryption costs (the CFS cost model of Storch and De Rose;
//! docs/explanation/cost-model.md).
//!
//! ```text
//!  reads and writes of a workload ───┐
//!  the target: TP, F ────────────────┼─▶ Prediction: CPU, time, share ─▶ Priced ─▶ the cheapest
//!  a place's layer: E, D ────────────┘
//! ```
//!
//! Invariants: from valid input all predictions are numbers, and only savings of a layer are
//! negative; if a layer saves nothing, more bytes or requests never cost less.

mod by_size;
mod curve;
mod layer;
mod linear;
mod predict;
mod price;
mod target;
mod workload;

pub use by_size::{BySize, BySizeError};
pub use curve::{Curve, CurveError, CurvePoint};
pub use layer::Layer;
pub use linear::{Both, Flow, Linear};
pub use predict::{Prediction, accuracy, predict};
pub use price::{Offer, Prices, cheapest};
pub use target::Target;
pub use workload::{Caching, Workload};
