//! [`Exports`]: how the acceptor finds exports.

use std::collections::BTreeMap;

use base::Capabilities;
use parking_lot::Mutex;

use super::export::Export;

/// A client during its handshake.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Client {
    /// The certificate that the client has proved to hold, in DER; `None` without TLS.
    pub certificate: Option<Vec<u8>>,
}

/// An export in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The export's name.
    pub name: String,
    /// A description for people; may be empty.
    pub description: String,
}

/// What a client gets to know about an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// The export's name.
    pub name: String,
    /// A description for people; may be empty.
    pub description: String,
    /// The current size, in bytes.
    pub size_bytes: u64,
    /// The minimal block size, in bytes: offsets and lengths have to be multiples of it.
    pub block_min: u32,
    /// The preferred block size, in bytes.
    pub block_bytes: u32,
    /// The device's capabilities.
    pub capabilities: Capabilities,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// Finds exports by name. The acceptor's thread calls these methods for all handshakes, so they
/// must not block.
pub trait Exports: Send + Sync {
    /// The exports that `client` may list, in any order.
    fn list(&self, client: &Client) -> Vec<Listed>;

    /// The export `name`, if `client` may use it. The name is never empty, since the empty name is
    /// that of the only export in the list.
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

    /// Adds `export` under its name, and replaces an earlier one.
    pub fn add(&self, export: Export) {
        let mut table = self.0.lock();
        table.insert(export.name().to_owned(), export);
    }

    /// Removes the export `name`. Its connections continue.
    pub fn remove(&self, name: &str) -> Option<Export> {
        self.0.lock().remove(name)
    }
}

impl Exports for ExportTable {
    fn list(&self, _: &Client) -> Vec<Listed> {
        let table = self.0.lock();
        let listed = |export: &Export| Listed {
            name: export.name().to_owned(),
            description: export.description().to_owned(),
        };
        table.values().map(listed).collect()
    }

    fn find(&self, _: &Client, name: &str) -> Option<Export> {
        let table = self.0.lock();
        table.get(name).cloned()
    }
}
