//! librados, loaded when it is first asked for: all the `unsafe` of this crate,
//! behind functions that have none.
//!
//! Nothing links to the library, so the program starts where there is no Ceph.
//! What is asked of a cluster is asked without waiting: librados calls
//! [`completed`] once for each request, on a thread of its own, where nothing may
//! wait.
//!
//! Ownership, on which the safety of all this rests:
//!
//! * A [`Request`] owns what librados writes into. It is leaked when the request is
//!   handed over, and taken back by [`completed`], or at once if librados
//!   refuses it, and by nobody else.
//! * A [`Connection`] outlives its requests: to drop it waits for all of them,
//!   and is never done on a thread of librados.
//! * The library is never unloaded.
//!
//! [`library`] declares and loads it, [`connection`] connects and hands requests over,
//! [`requests`] is what is asked.

mod connection;
mod library;
mod requests;

pub(crate) use connection::{ConnectError, Connection};
