//! Floor 3: what controllers, agents and the command line say to each other.
//!
//! * [`types`]: what people and their programs ask of a controller
//! * [`host`]: what an agent asks of it, and tells it
//! * [`mod@unit`]: what a unit daemon asks of it
//! * [`words`]: states, kinds and codes, each spelt once
//! * [`client`], which asks
//! * [`profile`]: who is asking, and whom
//! * [`vm`]: how a virtual machine is named
//!
//! It must not know: SQL, keys, what a request leads to.

pub mod client;
mod connect;
mod described;
pub mod host;
pub mod profile;

pub mod types;
pub mod unit;
pub mod vm;
pub mod words;

pub use client::{Address, Client, ClientError};
pub use profile::{Profile, ProfileError};
