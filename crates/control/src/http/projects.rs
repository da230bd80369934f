//! `/v1/projects` and `/v1/grants`.

use api::types::{AddGrant, AddProject, Grant, Page, Project};
use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::principal::{Administrator, Paging, page_of};
use super::{ApiError, Body, Name, Query};
use crate::authorized_request::AuthorizedRequest;
use crate::control::Control;
use crate::database::{GrantRow, Object, ProjectRow, Quota};
use crate::error::ControlError;
use crate::parse;
use crate::projects::{GrantRequest, GrantTarget};
use crate::timestamp::rfc3339;

type Answer<T> = Result<Json<T>, ApiError>;

pub(super) fn router() -> OpenApiRouter<Control> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, delete))
        .routes(routes!(set_quota))
        .routes(routes!(join, leave))
        .routes(routes!(list_grants, create_grant))
        .routes(routes!(delete_grant))
}

/// List the caller's projects; for an administrator, all projects
#[utoipa::path(get, path = "/v1/projects", operation_id = "list_projects", tag = "projects",
    params(Paging), responses((status = 200, body = Page<Project>)))]
async fn list(
    authorized: AuthorizedRequest,
    Query(paging): Query<Paging>,
) -> Answer<Page<Project>> {
    let page = paging.page()?;
    let rows = authorized
        .projects()
        .list(&page.after, page.count_max + 1)
        .await?;
    Ok(Json(page_of(rows, &page, |row| row.id.to_string(), shown)))
}

/// Show a project with its quota and usage
#[utoipa::path(get, path = "/v1/projects/{project}", operation_id = "show_project",
    tag = "projects", params(("project" = String, Path, description = "Name or id")),
    responses((status = 200, body = Project)))]
async fn show(authorized: AuthorizedRequest, Name(project): Name) -> Answer<Project> {
    Ok(Json(shown(authorized.projects().get(&project).await?)))
}

/// Create a project
#[utoipa::path(post, path = "/v1/projects", operation_id = "create_project", tag = "projects",
    request_body = AddProject, responses((status = 201, body = Project)))]
async fn create(
    Administrator(authorized): Administrator,
    Body(new): Body<AddProject>,
) -> Result<(StatusCode, Json<Project>), ApiError> {
    let project = authorized
        .projects()
        .add(&new.name, quota_of(new.quota))
        .await?;
    Ok((StatusCode::CREATED, Json(shown(project))))
}

/// Set the quota of a project
#[utoipa::path(put, path = "/v1/projects/{project}/quota", operation_id = "set_quota",
    tag = "projects", params(("project" = String, Path, description = "Name or id")),
    request_body = api::types::Quota, responses((status = 200, body = Project)))]
async fn set_quota(
    Administrator(authorized): Administrator,
    Name(project): Name,
    Body(quota): Body<api::types::Quota>,
) -> Answer<Project> {
    let project = authorized
        .projects()
        .set_quota(&project, quota_of(quota))
        .await?;
    Ok(Json(shown(project)))
}

/// A project and a user.
struct Member {
    project: String,
    user: String,
}

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for Member {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        state: &S,
    ) -> Result<Self, ApiError> {
        match Path::<(String, String)>::from_request_parts(parts, state).await {
            Ok(Path((project, user))) => Ok(Self { project, user }),
            Err(error) => Err(ApiError::mistake(error.status(), error.body_text())),
        }
    }
}

/// Add a member to a project
#[utoipa::path(put, path = "/v1/projects/{project}/members/{user}", operation_id = "join_project",
    tag = "projects", params(("project" = String, Path, description = "Name or id"),
        ("user" = String, Path, description = "Name", pattern = "^[a-z0-9][a-z0-9._-]{0,62}$")),
    responses((status = 200, body = Project)))]
async fn join(Administrator(authorized): Administrator, member: Member) -> Answer<Project> {
    let project = authorized
        .projects()
        .set_member(&member.project, &member.user, true)
        .await?;
    Ok(Json(shown(project)))
}

/// Remove a member from a project
#[utoipa::path(delete, path = "/v1/projects/{project}/members/{user}",
    operation_id = "leave_project", tag = "projects",
    params(("project" = String, Path, description = "Name or id"),
        ("user" = String, Path, description = "Name", pattern = "^[a-z0-9][a-z0-9._-]{0,62}$")),
    responses((status = 200, body = Project)))]
async fn leave(Administrator(authorized): Administrator, member: Member) -> Answer<Project> {
    let project = authorized
        .projects()
        .set_member(&member.project, &member.user, false)
        .await?;
    Ok(Json(shown(project)))
}

/// Delete an empty project
#[utoipa::path(delete, path = "/v1/projects/{project}", operation_id = "delete_project",
    tag = "projects", params(("project" = String, Path, description = "Name or id")),
    responses((status = 200, body = Project)))]
async fn delete(Administrator(authorized): Administrator, Name(project): Name) -> Answer<Project> {
    Ok(Json(shown(authorized.projects().delete(&project).await?)))
}

/// The object of a grant: at most one of the three.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
struct GrantObject {
    /// This volume (name or id).
    volume: Option<String>,
    /// This snapshot (name or id).
    snapshot: Option<String>,
    /// This host (name or id).
    host: Option<String>,
}

impl GrantObject {
    fn named(self) -> Result<Option<GrantTarget>, ControlError> {
        match (self.volume, self.snapshot, self.host) {
            (None, None, None) => Ok(None),
            (Some(volume), None, None) => Ok(Some(GrantTarget::Volume(volume))),
            (None, Some(snapshot), None) => Ok(Some(GrantTarget::Snapshot(snapshot))),
            (None, None, Some(host)) => Ok(Some(GrantTarget::Host(host))),
            _ => Err(object_required()),
        }
    }
}

fn object_required() -> ControlError {
    ControlError::invalid("volume", "name one of `volume`, `snapshot` and `host`")
}

/// List the rights that the caller has or can revoke
#[utoipa::path(get, path = "/v1/grants", operation_id = "list_grants", tag = "grants",
    params(GrantObject, Paging), responses((status = 200, body = Page<Grant>)))]
async fn list_grants(
    authorized: AuthorizedRequest,
    Query(object): Query<GrantObject>,
    Query(paging): Query<Paging>,
) -> Answer<Page<Grant>> {
    let (page, object) = (paging.page()?, object.named()?);
    let rows = authorized
        .grants()
        .list(object.as_ref(), &page.after, page.count_max + 1)
        .await?;
    Ok(Json(page_of(rows, &page, |row| row.id.to_string(), grant)))
}

/// Grant a right
#[utoipa::path(post, path = "/v1/grants", operation_id = "create_grant", tag = "grants",
    request_body = AddGrant, responses((status = 201, body = Grant)))]
async fn create_grant(
    authorized: AuthorizedRequest,
    Body(new): Body<AddGrant>,
) -> Result<(StatusCode, Json<Grant>), ApiError> {
    let object = GrantObject {
        volume: new.volume,
        snapshot: new.snapshot,
        host: new.host,
    };
    let request = GrantRequest {
        object: object.named()?.ok_or_else(object_required)?,
        user: new.user,
        right: parse::word("right", &new.right)?,
        vm: new.vm,
    };
    let row = authorized.grants().add(request).await?;
    Ok((StatusCode::CREATED, Json(grant(row))))
}

/// Revoke a right; existing attachments stay
#[utoipa::path(delete, path = "/v1/grants/{grant}", operation_id = "delete_grant", tag = "grants",
    params(("grant" = String, Path, description = "Its id")),
    responses((status = 200, body = Grant)))]
async fn delete_grant(authorized: AuthorizedRequest, Name(id): Name) -> Answer<Grant> {
    Ok(Json(grant(authorized.grants().delete(&id).await?)))
}

fn quota_of(quota: api::types::Quota) -> Quota {
    Quota {
        volumes_max: quota.volumes,
        snapshots_max: quota.snapshots,
        bytes_max: quota.bytes,
    }
}

fn shown(row: ProjectRow) -> Project {
    Project {
        id: row.id.to_string(),
        name: row.name,
        quota: api::types::Quota {
            volumes: row.quota.volumes_max,
            snapshots: row.quota.snapshots_max,
            bytes: row.quota.bytes_max,
        },
        volumes: row.volumes,
        snapshots: row.snapshots,
        bytes: row.bytes,
        members: row.members,
        created: rfc3339(row.created),
    }
}

fn grant(row: GrantRow) -> Grant {
    Grant {
        id: row.id.to_string(),
        object: match row.object {
            Object::Volume(id) => id.to_string(),
            Object::Snapshot(id) => id.to_string(),
            Object::Host(id) => id.to_string(),
        },
        name: row.object_name,
        owner: row.object_owner,
        user: row.user,
        right: row.right.to_string(),
        vm: Some(row.vm).filter(|vm| !vm.is_empty()),
        created: rfc3339(row.created),
    }
}
