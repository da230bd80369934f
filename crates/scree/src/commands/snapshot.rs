//! `scree snapshot`.

use std::collections::BTreeMap;

use api::types::{CreateSnapshot, ListedVolume, SetTags, Snapshot};
use base::size::about_bytes as bytes;
use serde::Serialize;

use super::{Failure, Session, qualified, query, segment, tags};
use crate::args::SnapshotCommand;
use crate::output::{Table, print, time};
use crate::progress::Progress;

/// The longest wait of `--wait`, in seconds.
const WAIT_SECONDS: u64 = 300;

/// What the tree needs of a volume.
struct TreeVolume {
    id: String,
    name: String,
    owner: Option<String>,
    /// The snapshot that it was cloned from.
    from: Option<String>,
}

impl From<ListedVolume> for TreeVolume {
    fn from(volume: ListedVolume) -> Self {
        match volume {
            ListedVolume::Readable(volume) => Self {
                id: volume.id,
                name: volume.name,
                owner: volume.owner,
                from: volume.from,
            },
            ListedVolume::Damaged(volume) => Self {
                id: volume.id,
                name: volume.name,
                owner: None,
                from: None,
            },
        }
    }
}

/// A volume in the tree, with its snapshots.
#[derive(Serialize)]
struct VolumeNode {
    id: String,
    name: String,
    owner: Option<String>,
    /// The volume is deleted; only its snapshots are left.
    deleted: bool,
    snapshots: Vec<SnapshotNode>,
}

/// A snapshot in the tree, with its clones.
#[derive(Serialize)]
struct SnapshotNode {
    id: String,
    name: String,
    state: String,
    clones: Vec<VolumeNode>,
}

pub(super) async fn run(session: &Session, command: SnapshotCommand) -> Result<(), Failure> {
    match command {
        SnapshotCommand::Create {
            volume,
            name,
            tag,
            wait,
            ..
        } => {
            let tags = tags(&tag)?;
            take_snapshot(session, CreateSnapshot { volume, name, tags }, wait).await
        }
        SnapshotCommand::List {
            volume,
            owner,
            state,
            tag,
        } => {
            let parameters = [
                ("volume", volume.as_deref()),
                ("owner", owner.as_deref()),
                ("state", state.as_deref()),
            ];
            let path = query("/v1/snapshots", &parameters, &tag)?;
            let snapshots = snapshots(session, &path).await?;
            print_snapshots(session, &snapshots, &snapshots).await
        }
        SnapshotCommand::Tree => print_tree(session).await,
        SnapshotCommand::Tag {
            name, tags: words, ..
        } => {
            let path = format!("/v1/snapshots/{}/tags", segment(&name)?);
            let tags = tags(&words)?;
            let snapshot: Snapshot = session.client.put(&path, &SetTags { tags }).await?;
            print_snapshots(session, std::slice::from_ref(&snapshot), &snapshot).await
        }
        SnapshotCommand::Delete { name, .. } => {
            let path = format!("/v1/snapshots/{}", segment(&name)?);
            let snapshot: Snapshot = session.client.delete(&path).await?;
            Ok(print(session.format, &snapshot, |snapshot| {
                format!("snapshot {} ({}) is deleted\n", snapshot.name, snapshot.id)
            })?)
        }
    }
}

async fn take_snapshot(session: &Session, new: CreateSnapshot, wait: bool) -> Result<(), Failure> {
    let wait_seconds = if wait { WAIT_SECONDS } else { 0 };
    let path = format!("/v1/snapshots?wait={wait_seconds}");
    let progress = Progress::start(format!("taking a snapshot of {}", new.volume));
    let snapshot: Snapshot = session.client.post(&path, &new).await?;
    drop(progress);
    print_snapshots(session, std::slice::from_ref(&snapshot), &snapshot).await?;
    match snapshot.message {
        Some(message) => Err(Failure::new(format!("the snapshot failed: {message}"))),
        None if wait && !session.is_dry_run && snapshot.state != "completed" => {
            Err(Failure::new(format!(
                "snapshot {} is {} after {WAIT_SECONDS} s; it continues, and `scree snapshot \
                 list` shows when it is completed",
                snapshot.name, snapshot.state
            )))
        }
        None => Ok(()),
    }
}

async fn print_tree(session: &Session) -> Result<(), Failure> {
    let volumes: Vec<ListedVolume> = session.client.all("/v1/volumes").await?;
    let volumes: Vec<TreeVolume> = volumes.into_iter().map(TreeVolume::from).collect();
    let snapshots = snapshots(session, "/v1/snapshots").await?;
    let owners = volumes.iter().map(|volume| volume.owner.as_ref());
    let owners = owners.chain(snapshots.iter().map(|snapshot| snapshot.owner.as_ref()));
    let is_own = session.are_own(owners).await?;
    let tree = tree(volumes, snapshots);
    Ok(print(session.format, &tree, |tree| draw(tree, is_own))?)
}

/// Prints `what`, in a table as `snapshots`.
async fn print_snapshots(
    session: &Session,
    snapshots: &[Snapshot],
    what: &impl Serialize,
) -> Result<(), Failure> {
    let owners = snapshots.iter().map(|snapshot| snapshot.owner.as_ref());
    let is_own = session.are_own(owners).await?;
    Ok(print(session.format, what, |_| list(snapshots, is_own))?)
}

/// Oldest first.
async fn snapshots(session: &Session, path: &str) -> Result<Vec<Snapshot>, Failure> {
    let mut snapshots: Vec<Snapshot> = session.client.all(path).await?;
    snapshots.sort_by_key(|snapshot| {
        (
            snapshot.created.parse::<jiff::Timestamp>().ok(),
            snapshot.id.clone(),
        )
    });
    Ok(snapshots)
}

fn list(snapshots: &[Snapshot], is_own: bool) -> String {
    let mut table = Table::new(&["NAME", "ID", "VOLUME", "SIZE", "STATE", "CREATED"]);
    for snapshot in snapshots {
        table.row(vec![
            qualified(snapshot.owner.as_ref(), &snapshot.name, is_own),
            snapshot.id.clone(),
            qualified(snapshot.owner.as_ref(), &snapshot.volume, is_own),
            bytes(snapshot.size),
            snapshot.state.clone(),
            time(&snapshot.created),
        ]);
    }
    table.to_string()
}

/// The volumes that are no clones of an existing snapshot, each with its subtree.
fn tree(volumes: Vec<TreeVolume>, snapshots: Vec<Snapshot>) -> Vec<VolumeNode> {
    let mut by_volume: BTreeMap<String, Vec<Snapshot>> = BTreeMap::new();
    let mut deleted = BTreeMap::new();
    let mut known: Vec<String> = Vec::new();
    for snapshot in snapshots {
        known.push(snapshot.id.clone());
        if volumes.iter().all(|volume| volume.id != snapshot.volume_id) {
            let named = (snapshot.volume.clone(), snapshot.owner.clone());
            deleted.insert(snapshot.volume_id.clone(), named);
        }
        by_volume
            .entry(snapshot.volume_id.clone())
            .or_default()
            .push(snapshot);
    }
    let (clones, roots): (Vec<TreeVolume>, Vec<TreeVolume>) =
        volumes.into_iter().partition(|volume| {
            volume
                .from
                .as_ref()
                .is_some_and(|from| known.contains(from))
        });
    let mut by_origin: BTreeMap<String, Vec<TreeVolume>> = BTreeMap::new();
    for clone in clones {
        by_origin
            .entry(clone.from.clone().unwrap_or_default())
            .or_default()
            .push(clone);
    }
    let mut nodes: Vec<VolumeNode> = roots
        .into_iter()
        .map(|root| (root.id, (root.name, root.owner), false))
        .chain(deleted.into_iter().map(|(id, named)| (id, named, true)))
        .map(|(id, named, deleted)| node(id, named, deleted, &mut by_volume, &mut by_origin))
        .collect();
    nodes.sort_by(|one, other| one.name.cmp(&other.name));
    nodes
}

fn node(
    id: String,
    (name, owner): (String, Option<String>),
    deleted: bool,
    by_volume: &mut BTreeMap<String, Vec<Snapshot>>,
    by_origin: &mut BTreeMap<String, Vec<TreeVolume>>,
) -> VolumeNode {
    let snapshots = by_volume.remove(&id).unwrap_or_default();
    let snapshots = snapshots
        .into_iter()
        .map(|snapshot| {
            let clones = by_origin.remove(&snapshot.id).unwrap_or_default();
            let clones = clones
                .into_iter()
                .map(|clone| {
                    let named = (clone.name, clone.owner);
                    node(clone.id, named, false, by_volume, by_origin)
                })
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
        owner,
        deleted,
        snapshots,
    }
}

/// A line for each node, with its branches in front.
fn draw(tree: &[VolumeNode], is_own: bool) -> String {
    fn volume(node: &VolumeNode, is_own: bool, first: &str, rest: &str, text: &mut String) {
        let note = if node.deleted { "  (deleted)" } else { "" };
        let name = qualified(node.owner.as_ref(), &node.name, is_own);
        *text += &format!("{first}{name}  {}{note}\n", node.id);
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
                volume(clone, is_own, &first, &rest, text);
            }
        }
    }
    let mut text = String::new();
    for root in tree {
        volume(root, is_own, "", "", &mut text);
    }
    text
}
