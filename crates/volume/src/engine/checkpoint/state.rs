//! [`CheckpointState`]: what the owner keeps of checkpoints.

use super::job::Merged;
use crate::map::{Entry, Root};
use crate::scatter::Placer;

/// The state of checkpointing.
pub struct CheckpointState {
    /// Places pages; a running job has it.
    pub placer: Option<Placer>,
    /// The merged tree, until a version with it is committed.
    pub merged: Option<Merged>,
    /// Whether the last checkpoint failed: none starts before something was destaged.
    pub has_failed: bool,
    /// Pages that the last checkpoint replaced. A read that was running at that
    /// moment has protected them once more: the next checkpoint releases them again.
    pub replaced: Vec<Entry>,
}

impl CheckpointState {
    pub fn new(placer: Placer) -> Self {
        Self {
            placer: Some(placer),
            merged: None,
            has_failed: false,
            replaced: Vec::new(),
        }
    }

    pub fn is_running(&self) -> bool {
        self.placer.is_none() || self.merged.is_some()
    }

    /// The merged tree, for the version about to be committed.
    pub fn adopt(&mut self) -> Option<Root> {
        let root = self.merged.as_ref()?.root.clone();
        if let Some(placer) = &mut self.placer {
            placer.confirm();
        }
        Some(root)
    }
}
