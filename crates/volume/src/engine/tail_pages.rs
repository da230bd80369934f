//! [`TailPages`]: the pages of the tail, divided by whether the running checkpoint replaces
//! them.

use crate::map::Entry;

/// The pages of the tail, as the next version lists them.
#[derive(Default)]
pub struct TailPages {
    /// The pages that the running checkpoint will replace.
    old: Vec<Entry>,
    /// The pages written since it began.
    young: Vec<Entry>,
}

impl TailPages {
    /// The tail of the newest version, oldest page first.
    pub fn new(pages: Vec<Entry>) -> Self {
        Self {
            old: Vec::new(),
            young: pages,
        }
    }

    /// The number of pages.
    pub fn len(&self) -> usize {
        self.old.len() + self.young.len()
    }

    /// The number of pages that no running checkpoint replaces.
    pub fn young_len(&self) -> usize {
        self.young.len()
    }

    /// The pages of a version; without those that a checkpoint has replaced if the version
    /// adopts it.
    pub fn of_version(&self, adopts_checkpoint: bool) -> Vec<Entry> {
        match adopts_checkpoint {
            true => self.young.clone(),
            false => [&self.old[..], &self.young].concat(),
        }
    }

    /// Adds the pages of a destage.
    pub fn extend(&mut self, pages: Vec<Entry>) {
        self.young.extend(pages);
    }

    /// A checkpoint begins: it will replace all pages.
    pub fn begin_checkpoint(&mut self) {
        self.old.append(&mut self.young);
    }

    /// A version with the checkpoint was committed.
    pub fn adopt_checkpoint(&mut self) {
        self.old.clear();
    }
}
