//! What the database, the manager and the API promise.

#![expect(
    clippy::disallowed_methods,
    reason = "these tests are foreign clients on a real machine"
)]

mod attachments;
mod calls;
mod catalog;
mod certificates;
mod chains;
mod coming_back;
mod fresh;
mod health;
mod https;
mod images;
mod instances;
mod keys;
mod moves;
mod principals;
mod repair;
mod repair_scene;
#[macro_use]
mod parties;
mod chain_volumes;
mod daemons;
mod postgres;
mod reach;
mod requests;
mod rights;
mod settings;
mod tls;
mod volume_audits;
mod zones;
