//! Floor 3: virtual disks on sockets.
//!
//! A frontend serves any [`base::BlockDevice`] and knows nothing of what is
//! behind it. [`nbd`] is the server; [`memory`] is a device to test a
//! frontend, or anything else above the seam, on its own.

pub mod memory;
pub mod nbd;
