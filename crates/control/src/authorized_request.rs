//! [`AuthorizedRequest`]: the controller as one authenticated principal may use it. The database
//! checks the rights (`database::tenancy::rights`).
//!
//! Operations are sorted by noun: `request.volumes()`, `request.snapshots()` and so on return a
//! handle. Each noun's module adds its own handle, so this module depends on none of them.

use std::ops::Deref;

use auth::Kind;
use base::{PartyId, VolumeId};

use crate::control::Control;
use crate::database::{HostRow, Need, Principal, Right, VolumeRow};
use crate::error::ControlError;

/// One request of an authenticated principal. Cheap to clone.
#[derive(Clone)]
pub struct AuthorizedRequest {
    control: Control,
    principal: Principal,
}

impl Deref for AuthorizedRequest {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.control
    }
}

impl Control {
    /// A request of `principal`.
    #[must_use]
    pub fn authorized(&self, principal: Principal) -> AuthorizedRequest {
        AuthorizedRequest {
            control: self.clone(),
            principal,
        }
    }

    /// A request of the user who owns the data directory.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn local_request(&self) -> Result<AuthorizedRequest, ControlError> {
        Ok(self.authorized(self.parties().local_principal().await?))
    }
}

impl AuthorizedRequest {
    /// The principal.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Whether it is a dry run: everything is checked, and nothing is changed.
    pub(crate) fn is_dry_run(&self) -> bool {
        self.principal.is_dry_run
    }

    /// As [`Control::to_completion`], for the same principal.
    pub(crate) async fn to_completion<T, F>(
        &self,
        operation: impl FnOnce(Self) -> F,
    ) -> Result<T, ControlError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ControlError>> + Send + 'static,
    {
        let principal = self.principal.clone();
        self.control
            .to_completion(|control| operation(control.authorized(principal)))
            .await
    }

    /// The volume with this name or id, unless it is being deleted.
    pub(crate) async fn living(&self, name: &str, need: Right) -> Result<VolumeRow, ControlError> {
        let need = Need::Have(need);
        let row = self
            .inner
            .database
            .volumes()
            .find(&self.principal, name, need)
            .await?;
        if row.deleting {
            let reason = format!("volume {:?} is being deleted", row.name);
            return Err(ControlError::conflict(reason));
        }
        Ok(row)
    }

    /// The hosts that the principal may see: all, for an administrator.
    pub(crate) async fn hosts(&self) -> Result<Vec<HostRow>, ControlError> {
        let database = &self.inner.database;
        let mut hosts = database.hosts().all().await?;
        if !self.principal.party.is_administrator {
            let granted = database.hosts().granted_to(self.principal.party.id).await?;
            hosts.retain(|host| granted.contains(&host.host));
        }
        Ok(hosts)
    }

    /// The host with this name or id.
    pub(crate) async fn host_named(&self, name: &str) -> Result<PartyId, ControlError> {
        let hosts = self.hosts().await?;
        let id: Option<PartyId> = name.parse().ok();
        let mut hosts = hosts.into_iter();
        let found = hosts.find(|host| host.name == name || Some(host.host) == id);
        found
            .map(|host| host.host)
            .ok_or_else(|| ControlError::NotFound {
                what: format!("host {name:?}"),
                hint: match self.principal.party.is_administrator {
                    true => "`scree host list` lists the hosts",
                    false => "`scree grant list` lists your grants",
                }
                .into(),
            })
    }

    /// The named host, or the default host.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn host_or_default(&self, name: Option<&str>) -> Result<PartyId, ControlError> {
        match name {
            Some(name) => self.host_named(name).await,
            None => self.default_host().await,
        }
    }

    /// The id of a volume that the principal may see.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn volume_id(&self, name: &str) -> Result<VolumeId, ControlError> {
        let database = &self.inner.database;
        let row = database
            .volumes()
            .find(&self.principal, name, Need::See)
            .await?;
        Ok(row.id)
    }

    /// The default host of the principal: the controller's own machine, or else the only responsive
    /// host, among those that the principal may use.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] if there are several, or none.
    pub async fn default_host(&self) -> Result<PartyId, ControlError> {
        let hosts = self.hosts().await?;
        let since = self.unresponsive_before().await?;
        let responsive: Vec<&HostRow> = hosts
            .iter()
            .filter(|host| host.heard.is_some_and(|heard| heard > since))
            .collect();
        // The local host counts if it has an agent, even if that is slow to answer.
        let is_local = |host: &&HostRow| host.host == self.local_host() && host.heard.is_some();
        let local = hosts.iter().find(is_local);
        match (local, responsive.as_slice()) {
            (Some(local), _) => Ok(local.host),
            (None, [one]) => Ok(one.host),
            (None, []) => Err(self.no_host_reports(&hosts)),
            (None, several) => {
                let names: Vec<&str> = several.iter().map(|host| host.name.as_str()).collect();
                let names = names.join(", ");
                let reason = format!("there are several hosts; name one of them: {names}");
                Err(ControlError::invalid("host", reason))
            }
        }
    }

    /// The responsive hosts that the principal may use.
    ///
    /// # Errors
    /// [`ControlError::Forbidden`] if the principal may use no host; [`ControlError::Unavailable`]
    /// if none of them reports.
    pub(crate) async fn responsive_hosts(&self) -> Result<Vec<PartyId>, ControlError> {
        let hosts = self.hosts().await?;
        let since = self.unresponsive_before().await?;
        let is_there = |host: &&HostRow| host.heard.is_some_and(|heard| heard > since);
        let there: Vec<PartyId> = hosts
            .iter()
            .filter(is_there)
            .map(|host| host.host)
            .collect();
        match there.is_empty() {
            false => Ok(there),
            true => Err(self.no_host_reports(&hosts)),
        }
    }

    /// The error if the principal may use no responsive host.
    fn no_host_reports(&self, hosts: &[HostRow]) -> ControlError {
        let party = &self.principal.party;
        if !party.is_administrator && hosts.is_empty() {
            return ControlError::Forbidden {
                reason: format!(
                    "you may not use any host; an administrator can grant you one: `scree grant add {} \
                     use --host HOST`",
                    party.subject.name()
                ),
            };
        }
        ControlError::Unavailable {
            reason: match party.is_administrator {
                true => "no host reports; start `scree agent` on one",
                false => "none of your hosts reports; ask an administrator to start an agent",
            }
            .to_owned(),
        }
    }

    /// Refuses a principal who is not an administrator.
    ///
    /// # Errors
    /// [`ControlError::Forbidden`].
    pub fn must_administer(&self) -> Result<(), ControlError> {
        self.principal.must_administer()
    }

    /// Refuses hosts: these requests are for users.
    ///
    /// # Errors
    /// [`ControlError::Forbidden`].
    pub fn must_be_user(&self) -> Result<(), ControlError> {
        match self.principal.party.subject.kind() {
            Kind::User => Ok(()),
            _ => Err(ControlError::Forbidden {
                reason: "only users may send this request".to_owned(),
            }),
        }
    }
}
