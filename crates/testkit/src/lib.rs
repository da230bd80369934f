//! What tests of several crates share: conformance suites for the traits of the lower
//! floors, and implementations of these traits that misbehave on purpose.
//!
//! Only tests, the simulator and fuzz targets depend on this crate. It must not depend on a
//! crate above the traits that it serves, so that every crate may use it in its tests.
//!
//! * [`memory_device`]: a block device.
//! * [`units`]: storage units.
//! * [`damage`]: damaged bytes.

pub mod damage;
pub mod memory_device;
pub mod units;
