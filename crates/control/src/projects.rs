//! Requests on projects and grants.

use api::vm::VM_LENGTH_MAX;
use auth::{Kind, Subject};
use base::{GrantId, ProjectId};

use crate::authorized_request::AuthorizedRequest;
use crate::database::{GrantRow, Need, NewGrant, NewProject, Object, ProjectRow, Quota, Right};
use crate::error::ControlError;
use crate::parse;
use crate::parties::local;

/// The object of a grant, by name or id.
#[derive(Debug, Clone)]
pub enum GrantTarget {
    /// A volume.
    Volume(String),
    /// A snapshot.
    Snapshot(String),
    /// A host.
    Host(String),
}

/// A request to grant a right.
#[derive(Debug, Clone)]
pub struct GrantRequest {
    /// The object.
    pub object: GrantTarget,
    /// The name of the user who gets the right.
    pub user: String,
    /// The right.
    pub right: Right,
    /// On a host: for VMs whose address starts with this.
    pub vm: Option<String>,
}

/// Projects, as one authorized request may use them.
#[derive(Clone, Copy)]
pub struct Projects<'a> {
    pub(crate) request: &'a AuthorizedRequest,
}

impl AuthorizedRequest {
    /// Projects and their quotas.
    #[must_use]
    pub fn projects(&self) -> Projects<'_> {
        Projects { request: self }
    }
}

impl Projects<'_> {
    /// Creates a project.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn add(self, name: &str, quota: Quota) -> Result<ProjectRow, ControlError> {
        self.request.must_administer()?;
        let new = NewProject {
            id: ProjectId::from_u128(self.request.inner.world.random.u128()),
            name: parse::name(name)?.to_owned(),
            quota: parse::quota(quota)?,
        };
        let database = &self.request.inner.database;
        Ok(database
            .projects()
            .insert(self.request.principal(), &new)
            .await?)
    }

    /// The principal's projects; for an administrator, all projects.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn list(self, after: &str, count_max: u32) -> Result<Vec<ProjectRow>, ControlError> {
        let database = &self.request.inner.database;
        Ok(database
            .projects()
            .all(self.request.principal(), after, count_max)
            .await?)
    }

    /// The project with this name or id.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn get(self, name: &str) -> Result<ProjectRow, ControlError> {
        Ok(self
            .request
            .inner
            .database
            .projects()
            .get(self.request.principal(), name)
            .await?)
    }

    /// Sets the quota of a project.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn set_quota(self, name: &str, quota: Quota) -> Result<ProjectRow, ControlError> {
        self.request.must_administer()?;
        let quota = parse::quota(quota)?;
        let database = &self.request.inner.database;
        Ok(database
            .projects()
            .set_quota(self.request.principal(), name, quota)
            .await?)
    }

    /// Adds or removes a member of a project.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn set_member(
        self,
        name: &str,
        user: &str,
        is_member: bool,
    ) -> Result<ProjectRow, ControlError> {
        self.request.must_administer()?;
        let user = user_named(user)?;
        if !is_member && user == local(Kind::User) {
            self.refuse_if_local(name).await?;
        }
        let database = &self.request.inner.database;
        Ok(database
            .projects()
            .set_member(self.request.principal(), name, &user, is_member)
            .await?)
    }

    /// Deletes an empty project.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn delete(self, name: &str) -> Result<ProjectRow, ControlError> {
        self.request.must_administer()?;
        self.refuse_if_local(name).await?;
        Ok(self
            .request
            .inner
            .database
            .projects()
            .delete(self.request.principal(), name)
            .await?)
    }

    /// Refuses to delete the project of the controller's own machine: nothing would create it
    /// again, and commands on the machine use it without naming it.
    async fn refuse_if_local(self, name: &str) -> Result<(), ControlError> {
        let project = self.get(name).await?;
        match project.name == local(Kind::User).name() {
            false => Ok(()),
            true => Err(ControlError::conflict(
                "project \"local\" belongs to the controller's own machine, whose volumes are charged to \
                 it; set its quota to 0 if it should have none",
            )),
        }
    }
}

/// Grants, as one authorized request may use them.
#[derive(Clone, Copy)]
pub struct Grants<'a> {
    pub(crate) request: &'a AuthorizedRequest,
}

impl AuthorizedRequest {
    /// Grants of rights to other users.
    #[must_use]
    pub fn grants(&self) -> Grants<'_> {
        Grants { request: self }
    }
}

impl Grants<'_> {
    /// Grants a right.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn add(self, request: GrantRequest) -> Result<GrantRow, ControlError> {
        let need = Need::Have(Right::Administer);
        let object = self.object(&request.object, need).await?;
        let is_host = matches!(object, Object::Host(_));
        if is_host && request.right != Right::Use {
            let reason = "the only right on a host is `use`";
            return Err(ControlError::invalid("right", reason));
        }
        if matches!(object, Object::Snapshot(_)) && request.right != Right::Read {
            let reason = "the only right on a snapshot is `read`";
            return Err(ControlError::invalid("right", reason));
        }
        if request.vm.is_some() && !is_host {
            let reason = "`vm` is allowed only with a host";
            return Err(ControlError::invalid("vm", reason));
        }
        let vm = request.vm.unwrap_or_default();
        if vm.chars().count() > VM_LENGTH_MAX || vm.chars().any(char::is_control) {
            let reason =
                format!("a VM's address has up to {VM_LENGTH_MAX} characters of plain text");
            return Err(ControlError::invalid("vm", reason));
        }
        let new = NewGrant {
            id: GrantId::from_u128(self.request.inner.world.random.u128()),
            object,
            user: user_named(&request.user)?,
            right: request.right,
            vm,
        };
        Ok(self
            .request
            .inner
            .database
            .grants()
            .insert(self.request.principal(), &new)
            .await?)
    }

    /// The rights that the principal has or can revoke: on one object, or on all.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn list(
        self,
        on: Option<&GrantTarget>,
        after: &str,
        count_max: u32,
    ) -> Result<Vec<GrantRow>, ControlError> {
        let object = match on {
            Some(on) => Some(self.object(on, Need::See).await?),
            None => None,
        };
        let database = &self.request.inner.database;
        Ok(database
            .grants()
            .list(self.request.principal(), object, after, count_max)
            .await?)
    }

    /// Revokes a right. Existing attachments stay.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn delete(self, id: &str) -> Result<GrantRow, ControlError> {
        Ok(self
            .request
            .inner
            .database
            .grants()
            .delete(self.request.principal(), id)
            .await?)
    }

    async fn object(self, named: &GrantTarget, need: Need) -> Result<Object, ControlError> {
        let database = &self.request.inner.database;
        Ok(match named {
            GrantTarget::Volume(name) => {
                let row = database
                    .volumes()
                    .find(self.request.principal(), name, need)
                    .await?;
                Object::Volume(row.id)
            }
            GrantTarget::Snapshot(name) => {
                let row = database
                    .snapshots()
                    .find(self.request.principal(), name, need)
                    .await?;
                Object::Snapshot(row.id)
            }
            GrantTarget::Host(name) => Object::Host(self.request.host_named(name).await?),
        })
    }
}

fn user_named(name: &str) -> Result<Subject, ControlError> {
    Subject::new(Kind::User, name).map_err(|error| ControlError::invalid("user", error.to_string()))
}
