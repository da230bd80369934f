//! What the database, the manager and the API promise.

#![expect(
    clippy::disallowed_methods,
    reason = "these tests are foreign clients on a real machine"
)]

mod attachments;
mod catalog;
mod https;
mod keys;
mod parties;
mod postgres;
mod tls;
