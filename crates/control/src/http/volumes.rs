//! `/v1/volumes`.

use api::host::Access;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::{ApiError, Body, Name, Query, Wait};
use crate::control::Control;
use crate::database::{AttachmentRow, DamagedVolume};
use crate::error::ControlError;
use crate::volumes::{RestoreTo, VolumeRequest, VolumeView, spell_time};
use api::types::{CreateVolume, Export, ExportVolume, GrowVolume, RestoreVolume, Version, Volume};

type Answer<T> = Result<Json<T>, ApiError>;

pub(super) async fn list(State(control): State<Control>) -> Answer<Vec<Volume>> {
    let list = control.volumes().await?;
    let known = list.volumes.into_iter().map(shown);
    let mut volumes: Vec<Volume> = known
        .chain(list.damaged.into_iter().map(shown_damaged))
        .collect();
    volumes.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
    Ok(Json(volumes))
}

pub(super) async fn show(State(control): State<Control>, Name(volume): Name) -> Answer<Volume> {
    let view = control.volume(&volume).await?;
    Ok(Json(shown(view)))
}

pub(super) async fn create(
    State(control): State<Control>,
    Body(new): Body<CreateVolume>,
) -> Result<(StatusCode, Json<Volume>), ApiError> {
    let seal = new
        .seal
        .map(|seal| {
            seal.parse().map_err(|reason| ControlError::Invalid {
                field: "seal",
                reason,
            })
        })
        .transpose()?;
    let view = control
        .create_volume(VolumeRequest {
            name: new.name,
            size_bytes: new.size,
            from: new.from,
            block_bytes: new.block_size,
            seal,
            replicas: new.replicas,
        })
        .await?;
    Ok((StatusCode::CREATED, Json(shown(view))))
}

pub(super) async fn delete(
    State(control): State<Control>,
    Name(volume): Name,
    Query(wait): Query<Wait>,
) -> Result<(StatusCode, Json<Volume>), ApiError> {
    let view = control.delete_volume(&volume).await?;
    if !wait.duration().is_zero() {
        control.volume_gone(view.row.id, wait.duration()).await?;
    }
    Ok((StatusCode::ACCEPTED, Json(shown(view))))
}

pub(super) async fn grow(
    State(control): State<Control>,
    Name(volume): Name,
    Body(grow): Body<GrowVolume>,
) -> Answer<Volume> {
    let view = control.grow_volume(&volume, grow.size).await?;
    Ok(Json(shown(view)))
}

pub(super) async fn restore(
    State(control): State<Control>,
    Name(volume): Name,
    Body(restore): Body<RestoreVolume>,
) -> Answer<Volume> {
    let invalid = |reason: String| ControlError::Invalid {
        field: "time",
        reason,
    };
    let to = match (restore.time, restore.version) {
        (Some(time), None) => {
            let time: jiff::Timestamp = time
                .parse()
                .map_err(|error| invalid(format!("{time:?} is not an RFC 3339 time: {error}")))?;
            RestoreTo::Time(world::Millis(time.as_millisecond()))
        }
        (None, Some(version)) => RestoreTo::Version(version),
        _ => return Err(invalid("say either `time` or `version`".to_owned()).into()),
    };
    let view = control.restore_volume(&volume, to).await?;
    Ok(Json(shown(view)))
}

pub(super) async fn versions(
    State(control): State<Control>,
    Name(volume): Name,
) -> Answer<Vec<Version>> {
    let (row, versions) = control.versions(&volume).await?;
    let shown = versions.into_iter().map(|version| Version {
        version: version.key.number,
        created: spell_time(version.created),
        head: row.head == Some(version.key),
        snapshots: version.snapshots,
    });
    Ok(Json(shown.collect()))
}

pub(super) async fn export(
    State(control): State<Control>,
    Name(volume): Name,
    Body(how): Body<ExportVolume>,
) -> Answer<Export> {
    let access = if how.read_only {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    };
    let host = control.default_host().await?;
    let attachment = control.export_volume(&volume, host, access).await?;
    Ok(Json(export_of(&attachment)))
}

pub(super) async fn unexport(State(control): State<Control>, Name(volume): Name) -> Answer<Volume> {
    let view = control.unexport_volume(&volume).await?;
    Ok(Json(shown(view)))
}

/// As far as it is known.
fn shown_damaged(volume: DamagedVolume) -> Volume {
    Volume {
        id: volume.id,
        name: volume.name,
        size: 0,
        state: "error".to_owned(),
        block_size: 0,
        seal: String::new(),
        replicas: 0,
        created: String::new(),
        from: None,
        export: None,
        reason: Some(volume.reason),
        notice: None,
        engine: None,
    }
}

fn export_of(attachment: &AttachmentRow) -> Export {
    Export {
        uri: attachment.uri.clone().unwrap_or_default(),
        tcp_uri: attachment.tcp_uri.clone(),
        read_only: attachment.access == Access::ReadOnly,
    }
}

fn shown(view: VolumeView) -> Volume {
    let state = view.state();
    let export = view.served().filter(|one| one.vm.is_none()).map(export_of);
    let reason = view.reason().map(str::to_owned);
    let row = view.row;
    Volume {
        state: state.to_owned(),
        id: row.id.to_string(),
        size: row.size_bytes,
        block_size: row.block_size.bytes() as u64,
        seal: row.seal.to_string(),
        replicas: row.replicas,
        created: spell_time(row.created),
        from: row.origin.map(|origin| origin.to_string()),
        export,
        reason,
        notice: view.notice,
        engine: view.engine,
        name: row.name,
    }
}
