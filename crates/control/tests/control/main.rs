//! The promises of the database, the controller and the API.

#![expect(
    clippy::disallowed_methods,
    reason = "these tests are foreign clients on a real machine"
)]

mod attachments;
mod calls;
mod catalog;
mod catalog_scene;
mod certificates;
mod chains;
mod description;
mod fresh;
mod health;
mod https;
mod images;
mod instances;
mod keys;
mod moves;
mod principals;
mod rejoined;
mod repair;
mod repair_scene;
mod replacement;
#[macro_use]
mod parties;
mod chain_volumes;
mod daemons;
mod postgres;
mod quotas;
mod reach;
mod requests;
mod rights;
mod rights_scene;
mod settings;
mod sharing;
mod tls;
mod volume_audits;
mod volume_lifecycle;
mod zones;
