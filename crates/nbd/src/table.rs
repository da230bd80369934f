//! Which exports there are: what the acceptor asks of the rest of the program.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use base::Capabilities;

use super::export::Export;

/// What is known of a client during its handshake.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Client {
    /// The certificate that it proved to hold, in DER, if TLS is on.
    pub certificate: Option<Vec<u8>>,
}

/// An export's line in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name to ask for it by.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
}

/// What a client is told of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its name.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
    /// Size, now, in bytes.
    pub size_bytes: u64,
    /// It takes multiples of this only, in bytes; 1: anything.
    pub block_min: u32,
    /// The request size it likes best, in bytes.
    pub block_bytes: u32,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Writes are refused.
    pub read_only: bool,
}

/// Finds exports by name. Called on the acceptor's thread, which all
/// handshakes share: an answer must not wait for anything.
pub trait Exports: Send + Sync {
    /// What `client` may see, in any order.
    fn list(&self, client: &Client) -> Vec<Listed>;

    /// The export that `client` may use under `name`. Never called with the
    /// empty name: that means the only one listed, if there is only one.
    fn find(&self, client: &Client, name: &str) -> Option<Export>;
}

/// Exports that every client may use.
#[derive(Debug, Default)]
pub struct ExportTable(Mutex<BTreeMap<String, Export>>);

impl ExportTable {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Offers `export` under its name, in place of what had that name.
    pub fn add(&self, export: Export) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.insert(export.name().to_owned(), export);
    }

    /// No longer offers `name`. Connections that have it go on.
    pub fn remove(&self, name: &str) -> Option<Export> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(name)
    }
}

impl Exports for ExportTable {
    fn list(&self, _: &Client) -> Vec<Listed> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |export: &Export| Listed {
            name: export.name().to_owned(),
            description: export.description().to_owned(),
        };
        table.values().map(line).collect()
    }

    fn find(&self, _: &Client, name: &str) -> Option<Export> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.get(name).cloned()
    }
}
