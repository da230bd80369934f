//! `scree snapshot`.

use std::collections::BTreeMap;

use api::size::about_bytes as bytes;
use api::types::{CreateSnapshot, SetTags, Snapshot, Volume};
use serde::Serialize;

use super::{Failure, Session, query, segment, tags};
use crate::args::SnapshotCommand;
use crate::output::{Table, print, time};
use crate::progress::Progress;

/// How long `--wait` waits, in seconds.
const WAIT_SECONDS: u64 = 300;

/// A volume in the tree, with what hangs from it.
#[derive(Serialize)]
struct VolumeNode {
    id: String,
    name: String,
    /// It is gone; only its snapshots are left.
    deleted: bool,
    snapshots: Vec<SnapshotNode>,
}

/// A snapshot in the tree, with the volumes cloned from it.
#[derive(Serialize)]
struct SnapshotNode {
    id: String,
    name: String,
    state: String,
    clones: Vec<VolumeNode>,
}

impl Session {
    pub(super) async fn snapshot(&self, command: SnapshotCommand) -> Result<(), Failure> {
        match command {
            SnapshotCommand::Create {
                volume,
                name,
                tag,
                wait,
            } => {
                let wait_seconds = if wait { WAIT_SECONDS } else { 0 };
                let path = format!("/v1/snapshots?wait={wait_seconds}");
                let progress = Progress::start(format!("taking a snapshot of {volume}"));
                let new = CreateSnapshot {
                    volume,
                    name,
                    tags: tags(&tag)?,
                };
                let snapshot: Snapshot = self.client.post(&path, &new).await?;
                drop(progress);
                print(self.format, &snapshot, |snapshot| {
                    list(std::slice::from_ref(snapshot))
                })?;
                match snapshot.reason {
                    Some(reason) => Err(Failure::new(format!("the snapshot failed: {reason}"))),
                    None if wait && !self.is_dry_run && snapshot.state != "completed" => {
                        Err(Failure::new(format!(
                            "snapshot {} is {} after {WAIT_SECONDS} s; that goes on, and `scree \
                         snapshot list` shows when it is completed",
                            snapshot.name, snapshot.state
                        )))
                    }
                    None => Ok(()),
                }
            }
            SnapshotCommand::List {
                volume,
                owner,
                state,
                tag,
            } => {
                let said = [
                    ("volume", volume.as_deref()),
                    ("owner", owner.as_deref()),
                    ("state", state.as_deref()),
                ];
                let path = query("/v1/snapshots", &said, &tag)?;
                let snapshots = self.snapshots(&path).await?;
                Ok(print(self.format, &snapshots, |snapshots| list(snapshots))?)
            }
            SnapshotCommand::Tree => {
                let volumes = self.client.all("/v1/volumes").await?;
                let snapshots = self.snapshots("/v1/snapshots").await?;
                let tree = tree(volumes, snapshots);
                Ok(print(self.format, &tree, |tree| draw(tree))?)
            }
            SnapshotCommand::Tag { name, tags: words } => {
                let path = format!("/v1/snapshots/{}/tags", segment(&name)?);
                let tags = tags(&words)?;
                let snapshot: Snapshot = self.client.put(&path, &SetTags { tags }).await?;
                Ok(print(self.format, &snapshot, |snapshot| {
                    list(std::slice::from_ref(snapshot))
                })?)
            }
            SnapshotCommand::Delete { name } => {
                let path = format!("/v1/snapshots/{}", segment(&name)?);
                let snapshot: Snapshot = self.client.delete(&path).await?;
                Ok(print(self.format, &snapshot, |snapshot| {
                    format!("snapshot {} ({}) is deleted\n", snapshot.name, snapshot.id)
                })?)
            }
        }
    }
}

impl Session {
    /// Oldest first.
    async fn snapshots(&self, path: &str) -> Result<Vec<Snapshot>, Failure> {
        let mut snapshots: Vec<Snapshot> = self.client.all(path).await?;
        snapshots.sort_by_key(|one| (one.created.parse::<jiff::Timestamp>().ok(), one.id.clone()));
        Ok(snapshots)
    }
}

fn list(snapshots: &[Snapshot]) -> String {
    let mut table = Table::new(&["NAME", "ID", "VOLUME", "SIZE", "STATE", "CREATED"]);
    for snapshot in snapshots {
        table.row(vec![
            snapshot.name.clone(),
            snapshot.id.clone(),
            snapshot.volume.clone(),
            bytes(snapshot.size),
            snapshot.state.clone(),
            time(&snapshot.created),
        ]);
    }
    table.to_string()
}

/// The volumes that descend from no snapshot that is left, and all below.
fn tree(volumes: Vec<Volume>, snapshots: Vec<Snapshot>) -> Vec<VolumeNode> {
    let mut by_volume: BTreeMap<String, Vec<Snapshot>> = BTreeMap::new();
    let mut gone: BTreeMap<String, String> = BTreeMap::new();
    let mut known: Vec<String> = Vec::new();
    for snapshot in snapshots {
        known.push(snapshot.id.clone());
        if volumes.iter().all(|volume| volume.id != snapshot.volume_id) {
            gone.insert(snapshot.volume_id.clone(), snapshot.volume.clone());
        }
        by_volume
            .entry(snapshot.volume_id.clone())
            .or_default()
            .push(snapshot);
    }
    let (clones, roots): (Vec<Volume>, Vec<Volume>) = volumes.into_iter().partition(|volume| {
        volume
            .from
            .as_ref()
            .is_some_and(|from| known.contains(from))
    });
    let mut by_origin: BTreeMap<String, Vec<Volume>> = BTreeMap::new();
    for clone in clones {
        by_origin
            .entry(clone.from.clone().unwrap_or_default())
            .or_default()
            .push(clone);
    }
    let mut nodes: Vec<VolumeNode> = roots
        .into_iter()
        .map(|root| (root.id, root.name, false))
        .chain(gone.into_iter().map(|(id, name)| (id, name, true)))
        .map(|(id, name, deleted)| node(id, name, deleted, &mut by_volume, &mut by_origin))
        .collect();
    nodes.sort_by(|one, other| one.name.cmp(&other.name));
    nodes
}

fn node(
    id: String,
    name: String,
    deleted: bool,
    by_volume: &mut BTreeMap<String, Vec<Snapshot>>,
    by_origin: &mut BTreeMap<String, Vec<Volume>>,
) -> VolumeNode {
    let snapshots = by_volume.remove(&id).unwrap_or_default();
    let snapshots = snapshots
        .into_iter()
        .map(|snapshot| {
            let clones = by_origin.remove(&snapshot.id).unwrap_or_default();
            let clones = clones
                .into_iter()
                .map(|clone| node(clone.id, clone.name, false, by_volume, by_origin))
                .collect();
            SnapshotNode {
                id: snapshot.id,
                name: snapshot.name,
                state: snapshot.state,
                clones,
            }
        })
        .collect();
    VolumeNode {
        id,
        name,
        deleted,
        snapshots,
    }
}

/// A line for each node, with branches drawn before it.
fn draw(tree: &[VolumeNode]) -> String {
    fn volume(node: &VolumeNode, first: &str, rest: &str, text: &mut String) {
        let note = if node.deleted { "  (deleted)" } else { "" };
        *text += &format!("{first}{}  {}{note}\n", node.name, node.id);
        for (index, snapshot) in node.snapshots.iter().enumerate() {
            let last = index + 1 == node.snapshots.len();
            let (branch, below) = if last {
                ("└─ ", "   ")
            } else {
                ("├─ ", "│  ")
            };
            let note = match snapshot.state.as_str() {
                "completed" => String::new(),
                state => format!("  ({state})"),
            };
            *text += &format!("{rest}{branch}@{}  {}{note}\n", snapshot.name, snapshot.id);
            for (index, clone) in snapshot.clones.iter().enumerate() {
                let last = index + 1 == snapshot.clones.len();
                let (branch, under) = if last {
                    ("└─ ", "   ")
                } else {
                    ("├─ ", "│  ")
                };
                let (first, rest) = (
                    format!("{rest}{below}{branch}"),
                    format!("{rest}{below}{under}"),
                );
                volume(clone, &first, &rest, text);
            }
        }
    }
    let mut text = String::new();
    for root in tree {
        volume(root, "", "", &mut text);
    }
    text
}
