//! The protocol between controllers, agents and the command line.
//!
//! * [`types`]: bodies of the public API
//! * [`host`]: the requests of an agent to a controller
//! * [`mod@unit`]: the requests of a unit daemon to a controller
//! * [`words`]: states, kinds and codes, each spelled once
//! * [`client`]: a client of the API
//! * [`profile`]: the file with a party's certificate and its controllers' URLs
//! * [`vm`]: addresses of virtual machines
//!
//! It must not know: SQL, keys, how a request is carried out.

pub mod client;
mod connect;
mod described;
pub mod host;
mod message;
pub mod profile;

pub mod types;
pub mod unit;
pub mod vm;
pub mod words;

pub use client::{Address, Client, ClientError};
pub use profile::{CertificateFiles, Profile, ProfileError};
