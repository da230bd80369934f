//! Floor 3: the engine. A [`Volume`] is a disk whose sealed blocks lie
//! scattered over units that nobody has to trust.
pub mod catalog;
pub mod journal;
pub mod map;
pub mod seal;
pub mod version;
