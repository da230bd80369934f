//! Floor 5: volumes, units and who serves them; the HTTP edge.
pub mod database;
