//! What the database, the manager and the API promise.

mod catalog;
mod https;
mod postgres;
