//! The names of a simulated disk: which are live, which are durable, and which of the others
//! survive a crash.
//!
//! ```text
//!  folder   live names     what a process finds
//!           durable names  what a crash leaves
//!  pending  names created, moved and removed and not synced, oldest first
//! ```
//!
//! Any subset of the pending changes survives a crash, each as a whole: a rename never leaves a
//! file under two names, nor under none if it had a durable one.
//!
//! Must not know: faults, processes and operation numbers.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::SimulatedRandom;
use super::content::{FileContent, Survival};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(u64);

const ROOT: NodeId = NodeId(0);

/// A folder and a name in it.
type FolderEntry = (NodeId, String);

#[derive(Debug, Clone, Default)]
struct Folder {
    live: BTreeMap<String, NodeId>,
    durable: BTreeMap<String, NodeId>,
}

#[derive(Debug, Clone)]
enum Kind {
    File(FileContent),
    Folder(Folder),
}

#[derive(Debug, Clone)]
struct Node {
    kind: Kind,
    is_live: bool,
    durable_at: Option<FolderEntry>,
    handles: u32,
}

/// A change of names that was not synced: `node` moved from `from` to `to`.
#[derive(Debug, Clone)]
struct Move {
    node: NodeId,
    from: Option<FolderEntry>,
    to: Option<FolderEntry>,
}

/// Folders and files by name.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    nodes: BTreeMap<NodeId, Node>,
    next: u64,
    pending: Vec<Move>,
}

impl Move {
    fn touches(&self, folder: NodeId) -> bool {
        [&self.from, &self.to]
            .into_iter()
            .flatten()
            .any(|place| place.0 == folder)
    }

    /// Whether this change must be durable before `later` may be.
    fn precedes(&self, later: &Self) -> bool {
        let places = [&self.from, &self.to];
        let made_its_folder =
            later.from.is_some() && later.to.as_ref().is_some_and(|to| to.0 == self.node);
        self.node == later.node
            || made_its_folder
            || [&later.from, &later.to]
                .into_iter()
                .any(|place| place.is_some() && places.contains(&place))
    }
}

impl Tree {
    pub(super) fn new() -> Self {
        let root = Node {
            kind: Kind::Folder(Folder::default()),
            is_live: true,
            durable_at: None,
            handles: 0,
        };
        Self {
            nodes: BTreeMap::from([(ROOT, root)]),
            next: 1,
            pending: Vec::new(),
        }
    }

    fn folder(&self, id: NodeId) -> io::Result<&Folder> {
        match &self.nodes[&id].kind {
            Kind::Folder(folder) => Ok(folder),
            Kind::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn folder_mut(&mut self, id: NodeId) -> &mut Folder {
        match self.nodes.get_mut(&id).map(|node| &mut node.kind) {
            Some(Kind::Folder(folder)) => folder,
            _ => unreachable!("places lie in folders"),
        }
    }

    fn find(&self, path: &Path) -> io::Result<NodeId> {
        let mut at = ROOT;
        for component in path.components() {
            match component {
                Component::RootDir | Component::CurDir => {}
                Component::Normal(name) => {
                    let name = name.to_str().ok_or(io::ErrorKind::InvalidInput)?;
                    let folder = self.folder(at)?;
                    at = *folder.live.get(name).ok_or(io::ErrorKind::NotFound)?;
                }
                _ => return Err(io::ErrorKind::InvalidInput.into()),
            }
        }
        Ok(at)
    }

    fn place_of(&self, path: &Path) -> io::Result<FolderEntry> {
        let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or(io::ErrorKind::InvalidInput)?;
        let folder = self.find(parent)?;
        self.folder(folder)?;
        Ok((folder, name.to_owned()))
    }

    fn at(&self, place: &FolderEntry) -> Option<NodeId> {
        let folder = self.folder(place.0).ok()?;
        folder.live.get(&place.1).copied()
    }

    /// The file at `path`.
    pub(super) fn find_file(&self, path: &Path) -> io::Result<NodeId> {
        let id = self.find(path)?;
        match &self.nodes[&id].kind {
            Kind::File(_) => Ok(id),
            Kind::Folder(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    /// The names in a folder, each with whether it is a folder.
    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<(String, bool)>> {
        let folder = self.folder(self.find(path)?)?;
        let is_folder = |id: &NodeId| matches!(self.nodes[id].kind, Kind::Folder(_));
        Ok(folder
            .live
            .iter()
            .map(|(name, id)| (name.clone(), is_folder(id)))
            .collect())
    }

    /// Every live file under `prefix` with its path, ordered by path.
    pub(super) fn files_under(&self, prefix: &Path) -> Vec<(PathBuf, NodeId)> {
        let mut files = Vec::new();
        let mut waiting: Vec<(PathBuf, NodeId)> = self
            .find(prefix)
            .map(|id| (prefix.to_owned(), id))
            .into_iter()
            .collect();
        while let Some((path, id)) = waiting.pop() {
            match &self.nodes[&id].kind {
                Kind::File(_) => files.push((path, id)),
                Kind::Folder(folder) => {
                    let children = folder.live.iter().rev();
                    waiting.extend(children.map(|(name, id)| (path.join(name), *id)));
                }
            }
        }
        files
    }

    /// The space of files that have no name and are still open, in bytes.
    pub(super) fn nameless_bytes(&self) -> u64 {
        let nameless = self
            .nodes
            .values()
            .filter(|node| !node.is_live && node.handles > 0);
        nameless
            .map(|node| match &node.kind {
                Kind::File(content) => content.live.allocated_bytes(),
                Kind::Folder(_) => 0,
            })
            .sum()
    }

    pub(super) fn file(&self, id: NodeId) -> &FileContent {
        match &self.nodes[&id].kind {
            Kind::File(content) => content,
            Kind::Folder(_) => unreachable!("handles are of files"),
        }
    }

    pub(super) fn file_mut(&mut self, id: NodeId) -> &mut FileContent {
        match self.nodes.get_mut(&id).map(|node| &mut node.kind) {
            Some(Kind::File(content)) => content,
            _ => unreachable!("handles are of files"),
        }
    }

    pub(super) fn create_file(&mut self, path: &Path) -> io::Result<NodeId> {
        let place = self.place_of(path)?;
        if self.at(&place).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(self.create(place, Kind::File(FileContent::default())))
    }

    pub(super) fn create_folder(&mut self, path: &Path) -> io::Result<()> {
        let place = self.place_of(path)?;
        match self.at(&place) {
            None => {
                self.create(place, Kind::Folder(Folder::default()));
                Ok(())
            }
            Some(id) => match self.folder(id) {
                Ok(_) => Ok(()),
                Err(_) => Err(io::ErrorKind::AlreadyExists.into()),
            },
        }
    }

    fn create(&mut self, place: FolderEntry, kind: Kind) -> NodeId {
        let id = NodeId(self.next);
        self.next += 1;
        let node = Node {
            kind,
            is_live: true,
            durable_at: None,
            handles: 0,
        };
        self.nodes.insert(id, node);
        self.move_live(Move {
            node: id,
            from: None,
            to: Some(place),
        });
        id
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (self.place_of(from)?, self.place_of(to)?);
        let node = self.at(&from).ok_or(io::ErrorKind::NotFound)?;
        let replaced = self.at(&to);
        if replaced == Some(node) {
            return Ok(());
        }
        if let Some(replaced) = replaced {
            let is_folder = |id: NodeId| matches!(self.nodes[&id].kind, Kind::Folder(_));
            match (is_folder(node), is_folder(replaced)) {
                (false, false) => {}
                (_, true) => return Err(io::ErrorKind::IsADirectory.into()),
                (true, false) => return Err(io::ErrorKind::NotADirectory.into()),
            }
        }
        self.move_live(Move {
            node,
            from: Some(from),
            to: Some(to),
        });
        Ok(())
    }

    pub(super) fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        let place = self.place_of(path)?;
        let node = self.find_file(path)?;
        self.move_live(Move {
            node,
            from: Some(place),
            to: None,
        });
        Ok(())
    }

    fn move_live(&mut self, change: Move) {
        if let Some((folder, name)) = &change.from {
            self.folder_mut(*folder).live.remove(name);
        }
        let is_live = change.to.is_some();
        let mut replaced = None;
        if let Some((folder, name)) = &change.to {
            replaced = self
                .folder_mut(*folder)
                .live
                .insert(name.clone(), change.node);
        }
        self.node_mut(change.node).is_live = is_live;
        if let Some(replaced) = replaced {
            self.node_mut(replaced).is_live = false;
        }
        self.pending.push(change);
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("names lead to nodes")
    }

    /// Makes every change of names in `path` durable, and every earlier change on which one of
    /// them depends.
    pub(super) fn sync_folder(&mut self, path: &Path) -> io::Result<()> {
        let folder = self.find(path)?;
        self.folder(folder)?;
        let mut chosen: Vec<Move> = Vec::new();
        let mut left = Vec::new();
        for change in std::mem::take(&mut self.pending).into_iter().rev() {
            if change.touches(folder) || chosen.iter().any(|later| change.precedes(later)) {
                chosen.push(change);
            } else {
                left.push(change);
            }
        }
        left.reverse();
        self.pending = left;
        for change in chosen.into_iter().rev() {
            self.move_durable(change);
        }
        Ok(())
    }

    fn move_durable(&mut self, change: Move) {
        if let Some((folder, name)) = self.node_mut(change.node).durable_at.take() {
            self.folder_mut(folder).durable.remove(&name);
        }
        if let Some((folder, name)) = change.to {
            let durable = &mut self.folder_mut(folder).durable;
            if let Some(replaced) = durable.insert(name.clone(), change.node) {
                self.node_mut(replaced).durable_at = None;
                self.forget_if_unused(replaced);
            }
            self.node_mut(change.node).durable_at = Some((folder, name));
        }
        self.forget_if_unused(change.node);
    }

    /// Whether a file would move into a folder that does not survive.
    fn leads_nowhere(&self, change: &Move) -> bool {
        match (&change.from, &change.to) {
            (Some(_), Some((folder, _))) => {
                *folder != ROOT && self.nodes[folder].durable_at.is_none()
            }
            _ => false,
        }
    }

    pub(super) fn add_handle(&mut self, id: NodeId) {
        self.node_mut(id).handles += 1;
    }

    pub(super) fn drop_handle(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.handles = node.handles.saturating_sub(1);
            self.forget_if_unused(id);
        }
    }

    fn forget_if_unused(&mut self, id: NodeId) {
        let node = &self.nodes[&id];
        if !node.is_live
            && node.handles == 0
            && node.durable_at.is_none()
            && matches!(node.kind, Kind::File(_))
            && !self.pending.iter().any(|change| change.node == id)
        {
            self.nodes.remove(&id);
        }
    }

    /// Leaves the durable names and a random part of the pending changes.
    pub(super) fn crash(&mut self, survival: Survival, random: &SimulatedRandom) {
        for change in std::mem::take(&mut self.pending) {
            if survival.survives(random) && !self.leads_nowhere(&change) {
                self.move_durable(change);
            }
        }
        let mut reached = vec![ROOT];
        let mut next = 0;
        while let Some(id) = reached.get(next).copied() {
            next += 1;
            match &mut self.node_mut(id).kind {
                Kind::File(content) => content.crash(survival, random),
                Kind::Folder(folder) => {
                    folder.live.clone_from(&folder.durable);
                    reached.extend(folder.durable.values());
                }
            }
        }
        reached.sort_unstable();
        self.nodes.retain(|id, _| reached.binary_search(id).is_ok());
        for node in self.nodes.values_mut() {
            node.is_live = true;
            node.handles = 0;
        }
    }

    /// Drops every handle, since they belong to another copy of the tree.
    pub(super) fn without_handles(mut self) -> Self {
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in ids {
            self.node_mut(id).handles = 0;
            self.forget_if_unused(id);
        }
        self
    }
}
