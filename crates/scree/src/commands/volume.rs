//! `scree volume`.

use api::types::{
    CreateVolume, Export, ExportVolume, GrowVolume, ListedVolume, RestoreVolume, SetTags, Snapshot,
    TransferVolume, Version, Volume,
};
use base::size::about_bytes as bytes;

use super::{Failure, Session, or_dash, qualified, query, segment, tags};
use crate::args::{CreateVolumeArguments, ListVolumesArguments, VolumeCommand};
use crate::client::ClientError;
use crate::output::{Table, print, time};
use crate::progress::Progress;
use crate::times::RestoreTarget;
use crate::volume_settings;

/// The longest wait of a clone for its snapshot, and of a delete for its end, in seconds.
const WAIT_SECONDS: u64 = 300;

/// The state of a deleted volume; the server has no such state.
const DELETED: &str = "deleted";

pub(super) async fn run(session: &Session, command: VolumeCommand) -> Result<(), Failure> {
    match command {
        VolumeCommand::Create(arguments) => create_volume(session, arguments).await,
        VolumeCommand::List(filter) => list_volumes(session, &filter).await,
        VolumeCommand::Show { name } => {
            let path = path_of(&name)?;
            print_volume(session, &session.client.get(&path).await?)
        }
        VolumeCommand::Tag {
            name, tags: words, ..
        } => {
            let path = format!("{}/tags", path_of(&name)?);
            let tags = tags(&words)?;
            print_volume(
                session,
                &session.client.put(&path, &SetTags { tags }).await?,
            )
        }
        VolumeCommand::Set { name, settings, .. } => {
            let path = format!("{}/settings", path_of(&name)?);
            print_volume(session, &session.client.put(&path, &settings.set()).await?)
        }
        VolumeCommand::Transfer {
            name,
            user,
            project,
            ..
        } => {
            let path = format!("{}/transfer", path_of(&name)?);
            let transfer = TransferVolume { user, project };
            print_volume(session, &session.client.post(&path, &transfer).await?)
        }
        VolumeCommand::Grow { name, size, .. } => {
            let path = format!("{}/grow", path_of(&name)?);
            print_volume(
                session,
                &session.client.post(&path, &GrowVolume { size }).await?,
            )
        }
        VolumeCommand::Delete { name, wait, .. } => delete_volume(session, &name, wait).await,
        VolumeCommand::Restore { name, at, .. } => restore(session, &name, at).await,
        VolumeCommand::Versions { name } => {
            let path = format!("{}/versions", path_of(&name)?);
            let versions: Vec<Version> = session.client.get(&path).await?;
            Ok(print(session.format, &versions, |versions| {
                version_list(versions)
            })?)
        }
        VolumeCommand::Export {
            name,
            host,
            read_only,
            ..
        } => export(session, &name, ExportVolume { host, read_only }).await,
        VolumeCommand::Unexport { name, .. } => unexport(session, &name).await,
    }
}

async fn create_volume(session: &Session, arguments: CreateVolumeArguments) -> Result<(), Failure> {
    if let Some(from) = &arguments.from {
        let progress = Progress::start(format!("waiting for snapshot {from}"));
        let path = format!("/v1/snapshots/{}?wait={WAIT_SECONDS}", segment(from)?);
        let _: Snapshot = session.client.get(&path).await?;
        drop(progress);
    }
    let new = arguments.settings.create(CreateVolume {
        name: arguments.name,
        project: arguments.project,
        tags: tags(&arguments.tag)?,
        size: arguments.size,
        from: arguments.from,
        block_size: arguments.block_size,
        encryption: arguments.encryption,
        replicas: arguments.replicas,
        strict_zones: arguments.strict_zones,
        erasure: arguments.erasure,
        ..CreateVolume::default()
    });
    print_volume(session, &session.client.post("/v1/volumes", &new).await?)
}

async fn list_volumes(session: &Session, filter: &ListVolumesArguments) -> Result<(), Failure> {
    let parameters = [
        ("name", filter.name.as_deref()),
        ("owner", filter.owner.as_deref()),
        ("project", filter.project.as_deref()),
        ("state", filter.state.as_deref()),
    ];
    let path = query("/v1/volumes", &parameters, &filter.tag)?;
    let mut volumes: Vec<ListedVolume> = session.client.all(&path).await?;
    volumes.sort_by(|one, other| key(one).cmp(&key(other)));
    let owners = volumes.iter().map(|one| match one {
        ListedVolume::Readable(volume) => volume.owner.as_ref(),
        ListedVolume::Damaged(_) => None,
    });
    let is_own = session.are_own(owners).await?;
    Ok(print(session.format, &volumes, |volumes| {
        list(volumes, is_own)
    })?)
}

async fn export(session: &Session, name: &str, options: ExportVolume) -> Result<(), Failure> {
    let path = format!("{}/export", path_of(name)?);
    let progress = Progress::start(format!("opening {name}"));
    let export: Export = session.client.put(&path, &options).await?;
    drop(progress);
    Ok(print(session.format, &export, |export| {
        let uris = std::iter::once(&export.uri).chain(&export.tcp_uri);
        uris.map(|uri| format!("{uri}\n")).collect()
    })?)
}

async fn unexport(session: &Session, name: &str) -> Result<(), Failure> {
    let path = format!("{}/export", path_of(name)?);
    let progress = Progress::start(format!("destaging {name}"));
    let volume: Volume = session.client.delete(&path).await?;
    drop(progress);
    print_volume(session, &volume)
}

async fn delete_volume(session: &Session, name: &str, wait: bool) -> Result<(), Failure> {
    let wait_seconds = if wait { WAIT_SECONDS } else { 0 };
    let path = format!("{}?wait={wait_seconds}", path_of(name)?);
    let progress = Progress::start(format!("deleting {name}"));
    let mut volume: Volume = session.client.delete(&path).await?;
    let wait = wait && !session.is_dry_run;
    if wait {
        // The answer has the state from before the wait.
        match session.client.get::<Volume>(&path_of(&volume.id)?).await {
            Ok(current) => volume = current,
            Err(ClientError::Refused(problem)) if problem.code == "not_found" => {
                volume.state = DELETED.to_owned();
            }
            Err(error) => return Err(error.into()),
        }
    }
    drop(progress);
    let is_deleted = volume.state == DELETED;
    print(session.format, &volume, |volume| {
        let state = match (session.is_dry_run, is_deleted) {
            (true, _) => "deletable",
            (_, true) => DELETED,
            _ => "being deleted",
        };
        format!("volume {} ({}) is {state}\n", volume.name, volume.id)
    })?;
    if wait && !is_deleted {
        return Err(Failure::new(format!(
            "volume {} is not deleted after {WAIT_SECONDS} s; deletion continues, and `scree \
             volume list` shows the volume until it is done",
            volume.name
        )));
    }
    Ok(())
}

async fn restore(session: &Session, name: &str, at: RestoreTarget) -> Result<(), Failure> {
    let to = match at {
        RestoreTarget::Time(time) => RestoreVolume {
            time: Some(time.to_string()),
            version: None,
        },
        RestoreTarget::Version(version) => RestoreVolume {
            time: None,
            version: Some(version),
        },
    };
    let path = format!("{}/restore", path_of(name)?);
    let progress = Progress::start(format!("restoring {name}"));
    let volume = session.client.post(&path, &to).await?;
    drop(progress);
    print_volume(session, &volume)
}

fn print_volume(session: &Session, volume: &Volume) -> Result<(), Failure> {
    Ok(print(session.format, volume, show)?)
}

/// The path of a volume in the API.
fn path_of(name: &str) -> Result<String, Failure> {
    Ok(format!("/v1/volumes/{}", segment(name)?))
}

/// The key by which a list is sorted.
fn key(volume: &ListedVolume) -> (&str, &str) {
    match volume {
        ListedVolume::Readable(volume) => (&volume.name, &volume.id),
        ListedVolume::Damaged(volume) => (&volume.name, &volume.id),
    }
}

fn list(volumes: &[ListedVolume], is_own: bool) -> String {
    let mut table = Table::new(&[
        "NAME",
        "ID",
        "SIZE",
        "STATE",
        "REPLICAS",
        "ENCRYPTION",
        "CREATED",
    ]);
    for volume in volumes {
        table.row(match volume {
            ListedVolume::Readable(volume) => {
                let erasure = volume.erasure.clone();
                vec![
                    qualified(volume.owner.as_ref(), &volume.name, is_own),
                    volume.id.clone(),
                    bytes(volume.size),
                    volume.state.clone(),
                    erasure.unwrap_or_else(|| volume.replicas.to_string()),
                    volume.encryption.clone(),
                    time(&volume.created),
                ]
            }
            ListedVolume::Damaged(volume) => vec![
                qualified(None, &volume.name, is_own),
                volume.id.clone(),
                or_dash(None::<&str>),
                volume.state.clone(),
                or_dash(None::<&str>),
                or_dash(None::<&str>),
                or_dash(None::<&str>),
            ],
        });
    }
    table.to_string()
}

fn show(volume: &Volume) -> String {
    let mut table = Table::new(&["name", &volume.name]);
    let mut row = |key: &str, value: String| table.row(vec![key.to_owned(), value]);
    row("id", volume.id.clone());
    row(
        "size",
        format!("{} ({} bytes)", bytes(volume.size), volume.size),
    );
    row("state", volume.state.clone());
    row("block size", bytes(volume.block_size));
    row("encryption", volume.encryption.clone());
    match &volume.erasure {
        Some(erasure) => row("erasure", erasure.clone()),
        None => row("replicas", volume.replicas.to_string()),
    }
    for (key, value) in volume_settings::rows(volume) {
        row(key, value);
    }
    if let Some(mark) = &volume.image {
        row("base image", mark.clone());
    }
    row("owner", or_dash(volume.owner.as_ref()));
    row("project", or_dash(volume.project.as_ref()));
    for (key, value) in &volume.tags {
        row("tag", format!("{key}={value}"));
    }
    row("created", time(&volume.created));
    row("cloned from", or_dash(volume.from.as_ref()));
    if let Some(export) = &volume.export {
        let access = if export.read_only { " (read-only)" } else { "" };
        row("export", format!("{}{access}", export.uri));
        if let Some(uri) = &export.tcp_uri {
            row("export (TCP)", uri.clone());
        }
    }
    if let Some(engine) = &volume.engine {
        row("connections", engine.connections.to_string());
        row("version", or_dash(engine.version));
        let (used, all) = (
            bytes(engine.journal_used_bytes),
            bytes(engine.journal_bytes),
        );
        row("journal", format!("{used} of {all}"));
        if let Some(why) = &engine.destage_error {
            row("destage error", why.clone());
        }
        if let Some(why) = &engine.read_error {
            row("read error", why.clone());
        }
    }
    if let Some(message) = &volume.message {
        row("message", message.text.clone());
    }
    table.to_string()
}

fn version_list(versions: &[Version]) -> String {
    let mut table = Table::new(&["VERSION", "CREATED", "HEAD", "SNAPSHOTS"]);
    for version in versions {
        table.row(vec![
            version.version.to_string(),
            version.created.clone(),
            if version.head { "head" } else { "" }.to_owned(),
            version.snapshots.join(", "),
        ]);
    }
    table.to_string()
}
