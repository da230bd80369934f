//! `/v1/volumes`.

use std::str::FromStr;

use api::host::Access;
use api::types::{
    CreateVolume, Export, ExportVolume, GrowVolume, ListedVolume, Page, RestoreVolume, SetSettings,
    SetTags, TAGS_MAX, TransferVolume, Version, Volume,
};
use api::words::VolumeState;
use axum::Json;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::principal::Paging;
use super::{ApiError, Body, Name, Query, Wait};
use crate::authorized_request::AuthorizedRequest;
use crate::control::Control;
use crate::database::{Filter, Tags};
use crate::error::ControlError;
use crate::parse;
use crate::timestamp::rfc3339;
use crate::volumes::RestoreTo;

type Answer<T> = Result<Json<T>, ApiError>;

pub(super) fn router() -> OpenApiRouter<Control> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, delete))
        .routes(routes!(grow))
        .routes(routes!(restore))
        .routes(routes!(tag))
        .routes(routes!(set))
        .routes(routes!(give))
        .routes(routes!(versions))
        .routes(routes!(export, unexport))
}

/// A filter for volumes. All conditions must hold.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub(super) struct VolumeFilter {
    /// The name.
    name: Option<String>,
    /// The owner's name.
    owner: Option<String>,
    /// The project's name.
    project: Option<String>,
    /// The state.
    #[param(value_type = Option<VolumeState>)]
    state: Option<String>,
    /// A tag, as `KEY=VALUE`. May be repeated.
    #[param(value_type = Vec<TagFilter>, max_items = 50)]
    tag: Vec<String>,
}

/// A tag in a query parameter.
#[derive(ToSchema)]
#[schema(
    pattern = r"^[^=\u0000-\u001f\u007f-\u009f]{1,128}=[^\u0000-\u001f\u007f-\u009f]{0,256}$",
    example = "tier=gold"
)]
#[expect(dead_code, reason = "only its description is used")]
pub(super) struct TagFilter(String);

/// Parses the tags of a query. A key may have two values, which no object has.
pub(super) fn parse_tags(tags: &[String]) -> Result<Vec<(String, String)>, ControlError> {
    if tags.len() > TAGS_MAX {
        let reason = format!("{} tags; ask for {TAGS_MAX} at most", tags.len());
        return Err(ControlError::invalid("tag", reason));
    }
    let parse = |tag: &String| {
        let (key, value) = tag.split_once('=').ok_or_else(|| {
            ControlError::invalid("tag", format!("{tag:?} is not of the form KEY=VALUE"))
        })?;
        let pair = (key.to_owned(), value.to_owned());
        crate::parse::tags(&Tags::from([pair.clone()]))?;
        Ok(pair)
    };
    tags.iter().map(parse).collect()
}

/// Refuses a state that is not a word of `W`.
pub(super) fn refuse_unknown_state<W: FromStr<Err = String>>(
    state: Option<&str>,
) -> Result<(), ControlError> {
    state.map_or(Ok(()), |state| parse::word::<W>("state", state).map(|_| ()))
}

/// List the volumes that the caller may see
#[utoipa::path(get, path = "/v1/volumes", operation_id = "list_volumes", tag = "volumes",
    params(VolumeFilter, Paging), responses((status = 200, body = Page<ListedVolume>)))]
async fn list(
    authorized: AuthorizedRequest,
    Query(filter): Query<VolumeFilter>,
    Query(paging): Query<Paging>,
) -> Answer<Page<ListedVolume>> {
    let state = filter.state.as_deref();
    refuse_unknown_state::<VolumeState>(state)?;
    let filter = Filter {
        name: filter.name,
        owner: filter.owner,
        project: filter.project,
        state: filter.state,
        volume: None,
        tags: parse_tags(&filter.tag)?,
        is_image: false,
    };
    let list = authorized.volumes().list(&filter, &paging.page()?).await?;
    let known = list.volumes.into_iter().map(ListedVolume::from);
    let damaged = list.damaged.into_iter().map(ListedVolume::from);
    let mut items: Vec<ListedVolume> = known.chain(damaged).collect();
    items.sort_by(|one, other| one.id().cmp(other.id()));
    let next = list.next;
    Ok(Json(Page { items, next }))
}

/// Show a volume
#[utoipa::path(get, path = "/v1/volumes/{volume}", operation_id = "show_volume", tag = "volumes",
    params(("volume" = String, Path, description = "Name or id")),
    responses((status = 200, body = Volume)))]
async fn show(authorized: AuthorizedRequest, Name(volume): Name) -> Answer<Volume> {
    Ok(Json(Volume::from(authorized.volumes().get(&volume).await?)))
}

/// Create a volume, empty or from a snapshot
#[utoipa::path(post, path = "/v1/volumes", operation_id = "create_volume", tag = "volumes",
    request_body = CreateVolume, responses((status = 201, body = Volume)))]
async fn create(
    authorized: AuthorizedRequest,
    Body(new): Body<CreateVolume>,
) -> Result<(StatusCode, Json<Volume>), ApiError> {
    let view = authorized.volumes().create(new).await?;
    Ok((StatusCode::CREATED, Json(view.into())))
}

/// Delete a volume; its snapshots stay
#[utoipa::path(delete, path = "/v1/volumes/{volume}", operation_id = "delete_volume",
    tag = "volumes", params(("volume" = String, Path, description = "Name or id"), Wait),
    responses((status = 202, body = Volume)))]
async fn delete(
    authorized: AuthorizedRequest,
    Name(volume): Name,
    Query(wait): Query<Wait>,
) -> Result<(StatusCode, Json<Volume>), ApiError> {
    let view = authorized.volumes().delete(&volume).await?;
    if !wait.duration().is_zero() && !authorized.is_dry_run() {
        authorized
            .volumes()
            .wait_deleted(view.row.id, wait.duration())
            .await?;
    }
    Ok((StatusCode::ACCEPTED, Json(Volume::from(view))))
}

/// Grow a volume
#[utoipa::path(post, path = "/v1/volumes/{volume}/grow", operation_id = "grow_volume",
    tag = "volumes", params(("volume" = String, Path, description = "Name or id")),
    request_body = GrowVolume, responses((status = 200, body = Volume)))]
async fn grow(
    authorized: AuthorizedRequest,
    Name(volume): Name,
    Body(grow): Body<GrowVolume>,
) -> Answer<Volume> {
    Ok(Json(Volume::from(
        authorized.volumes().grow(&volume, grow.size).await?,
    )))
}

/// Restore an earlier version of a volume
#[utoipa::path(post, path = "/v1/volumes/{volume}/restore", operation_id = "restore_volume",
    tag = "volumes", params(("volume" = String, Path, description = "Name or id")),
    request_body = RestoreVolume, responses((status = 200, body = Volume)))]
async fn restore(
    authorized: AuthorizedRequest,
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
        _ => return Err(invalid("give either `time` or `version`".to_owned()).into()),
    };
    Ok(Json(Volume::from(
        authorized.volumes().restore(&volume, to).await?,
    )))
}

/// Set a volume's tags
#[utoipa::path(put, path = "/v1/volumes/{volume}/tags", operation_id = "tag_volume",
    tag = "volumes", params(("volume" = String, Path, description = "Name or id")),
    request_body = SetTags, responses((status = 200, body = Volume)))]
async fn tag(
    authorized: AuthorizedRequest,
    Name(volume): Name,
    Body(set): Body<SetTags>,
) -> Answer<Volume> {
    Ok(Json(Volume::from(
        authorized.volumes().set_tags(&volume, set.tags).await?,
    )))
}

/// Change the settings of a volume
///
/// Settings that are left out stay. Hosts apply a cache share at once, and a journal length at the
/// next attachment.
#[utoipa::path(put, path = "/v1/volumes/{volume}/settings", operation_id = "set_volume_settings",
    tag = "volumes", params(("volume" = String, Path, description = "Name or id")),
    request_body = SetSettings, responses((status = 200, body = Volume)))]
async fn set(
    authorized: AuthorizedRequest,
    Name(volume): Name,
    Body(set): Body<SetSettings>,
) -> Answer<Volume> {
    Ok(Json(Volume::from(
        authorized.volumes().set_settings(&volume, &set).await?,
    )))
}

/// Transfer a volume and its snapshots to another user
#[utoipa::path(post, path = "/v1/volumes/{volume}/transfer", operation_id = "transfer_volume",
    tag = "volumes", params(("volume" = String, Path, description = "Name or id")),
    request_body = TransferVolume, responses((status = 200, body = Volume)))]
async fn give(
    authorized: AuthorizedRequest,
    Name(volume): Name,
    Body(give): Body<TransferVolume>,
) -> Answer<Volume> {
    let project = give.project.as_deref();
    let view = authorized
        .volumes()
        .transfer(&volume, &give.user, project)
        .await?;
    Ok(Json(Volume::from(view)))
}

/// List the versions of a volume that can be restored
#[utoipa::path(get, path = "/v1/volumes/{volume}/versions", operation_id = "list_versions",
    tag = "volumes", params(("volume" = String, Path, description = "Name or id")),
    responses((status = 200, body = Vec<Version>)))]
async fn versions(authorized: AuthorizedRequest, Name(volume): Name) -> Answer<Vec<Version>> {
    let (row, versions) = authorized.volumes().versions(&volume).await?;
    let shown = versions.into_iter().map(|version| Version {
        version: version.key.number,
        created: rfc3339(version.created),
        head: row.head == Some(version.key),
        snapshots: version.snapshots,
    });
    Ok(Json(shown.collect()))
}

/// Export a volume on a host until it is unexported
#[utoipa::path(put, path = "/v1/volumes/{volume}/export", operation_id = "export_volume",
    tag = "volumes", params(("volume" = String, Path, description = "Name or id")),
    request_body = ExportVolume, responses((status = 200, body = Export)))]
async fn export(
    authorized: AuthorizedRequest,
    Name(volume): Name,
    Body(how): Body<ExportVolume>,
) -> Answer<Export> {
    let access = if how.read_only {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    };
    let host = authorized.host_or_default(how.host.as_deref()).await?;
    let attachment = authorized.volumes().export(&volume, host, access).await?;
    Ok(Json(Export::from(&attachment)))
}

/// End the exports of a volume
#[utoipa::path(delete, path = "/v1/volumes/{volume}/export", operation_id = "unexport_volume",
    tag = "volumes", params(("volume" = String, Path, description = "Name or id")),
    responses((status = 200, body = Volume)))]
async fn unexport(authorized: AuthorizedRequest, Name(volume): Name) -> Answer<Volume> {
    Ok(Json(Volume::from(
        authorized.volumes().unexport(&volume).await?,
    )))
}
