//! librados, loaded when it is first needed: all `unsafe` code of this crate, behind safe
//! functions.
//!
//! Nothing links to the library, so the program also starts without Ceph. Requests are
//! asynchronous: librados calls `completed` once for each, on a thread of its own, which must not
//! wait.
//!
//! Ownership, on which safety rests:
//!
//! * A `Request` owns the memory that librados writes to. It is leaked when the request is
//!   submitted, and taken back by `completed` only, or at once if librados rejects it.
//! * A [`Connection`] outlives its requests: dropping it waits for all of them, and never
//!   happens on a thread of librados.
//! * The library is never unloaded.
//!
//! `library` declares and loads it, `connection` connects and submits requests, `requests`
//! implements them.

mod connection;
mod library;
mod requests;

pub(crate) use connection::{ConnectError, Connection};
