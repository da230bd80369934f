//! Users, hosts and unit daemons: how they join and are authenticated (docs/internals/identity.md).
//!
//! Every request is authenticated against the current database: a party that was just disabled is
//! refused.

mod authenticate;

use std::sync::Arc;
use std::time::Duration;

use api::words::PartyKind;
use auth::{
    Authority, Credentials, JoinToken, KeyFingerprint, KeyRequest, Kind, Lifetime, ServerTls,
    SignedBy, Subject, certificate_end, certificate_fingerprint, requested_key,
};
use base::{PartyId, ProjectId, UnitId};
use world::{Millis, World};
use zeroize::Zeroizing;

use crate::database::{AuditRow, Database, DatabaseError, Membership, Origin, PartyRow, Principal};
use crate::error::ControlError;
use crate::parse;

use authenticate::unauthenticated;

pub use authenticate::Caller;

/// How long a token may be used.
pub const TOKEN_TERM: Duration = Duration::from_secs(60 * 60);

/// Authenticates callers, and signs certificates.
#[derive(Clone)]
pub struct Parties {
    world: World,
    database: Database,
    authority: Arc<Authority>,
}

/// How the API is served over TLS.
#[derive(Default)]
pub struct ServerOptions {
    /// DNS names and addresses of the server, for the certificate that is created for it.
    pub names: Vec<String>,
    /// The operator's own authorities (PEM). Parties with a certificate that they signed are known
    /// by its subject.
    pub client_authorities: Vec<String>,
    /// A certificate chain and its key (PEM) to serve with, instead of a certificate that is
    /// created.
    pub credentials: Option<(String, Zeroizing<String>)>,
}

/// A certificate, fresh from the authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// The party.
    pub subject: Subject,
    /// The certificate in PEM.
    pub certificate_pem: String,
    /// When the certificate expires.
    pub ends: Millis,
}

impl Parties {
    /// The parties in `database`, certified by `authority`.
    #[must_use]
    pub fn new(world: World, database: Database, authority: Arc<Authority>) -> Self {
        Self {
            world,
            database,
            authority,
        }
    }

    /// The user or host of this machine, created if it does not exist.
    pub(crate) async fn make_local(&self, kind: Kind) -> Result<PartyId, DatabaseError> {
        let id = PartyId::from_u128(self.world.random.u128());
        let now = self.world.clock.wall();
        self.database.parties().local(kind, id, now).await
    }

    /// The authority's certificate.
    #[must_use]
    pub fn authority_pem(&self) -> &str {
        self.authority.certificate_pem()
    }

    /// Its fingerprint.
    ///
    /// # Errors
    /// [`ControlError::Internal`].
    pub fn authority_fingerprint(&self) -> Result<String, ControlError> {
        certificate_fingerprint(self.authority.certificate_pem()).map_err(|error| {
            ControlError::Internal {
                reason: error.to_string(),
            }
        })
    }

    /// TLS for a server, with a new key and certificate unless the options have some; also returns
    /// when the certificate expires.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn server_tls(
        &self,
        options: &ServerOptions,
    ) -> Result<(Arc<ServerTls>, Millis), ControlError> {
        let named: Vec<&str> = options
            .client_authorities
            .iter()
            .map(String::as_str)
            .collect();
        if let Some((chain_pem, key_pem)) = &options.credentials {
            let credentials = Credentials { chain_pem, key_pem };
            let tls = ServerTls::new(self.authority_pem(), &named, credentials);
            let ends = certificate_end(chain_pem).map_err(|error| internal(&error))?;
            return Ok((Arc::new(tls.map_err(|error| internal(&error))?), ends));
        }
        let key = KeyRequest::generate().map_err(|error| internal(&error))?;
        let subject = Subject::new(Kind::Controller, "local")?;
        let lifetime = Lifetime::day(self.world.clock.wall());
        let random = &*self.world.random;
        let signed =
            self.authority
                .sign(&key.request_pem, &subject, &options.names, lifetime, random);
        let credentials = Credentials {
            chain_pem: &signed.map_err(not_signed)?,
            key_pem: &key.key_pem,
        };
        let tls = ServerTls::new(self.authority_pem(), &named, credentials);
        let tls = tls.map_err(|error| internal(&error))?;
        Ok((Arc::new(tls), lifetime.ends()))
    }

    /// The audit log, newest first: at most `count_max` entries with numbers below `before`.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn audit(&self, before: i64, count_max: u32) -> Result<Vec<AuditRow>, ControlError> {
        Ok(self.database.parties().audit_log(before, count_max).await?)
    }

    /// Creates a party without a key. A user becomes a member of `project`, or of a new project of
    /// the same name.
    ///
    /// # Errors
    /// [`ControlError::Exists`]; [`ControlError::Invalid`] if its name looks like an id.
    pub async fn add(
        &self,
        principal: &Principal,
        subject: Subject,
        is_administrator: bool,
        project: Option<String>,
    ) -> Result<PartyRow, ControlError> {
        if is_administrator && subject.kind() != Kind::User {
            return Err(ControlError::invalid(
                "administrator",
                "only a user can be an administrator",
            ));
        }
        parse::refuse_id(subject.name())?;
        let random = &self.world.random;
        let membership = match (subject.kind(), project) {
            (Kind::User, None) => Membership::Own(ProjectId::from_u128(random.u128())),
            (Kind::User, Some(project)) => Membership::Of(project),
            (_, None) => Membership::None,
            (_, Some(_)) => {
                return Err(ControlError::invalid(
                    "project",
                    "only users are in projects",
                ));
            }
        };
        let new = PartyRow {
            id: PartyId::from_u128(random.u128()),
            subject,
            is_administrator,
            is_disabled: false,
            created: self.world.clock.wall(),
        };
        Ok(self
            .database
            .parties()
            .insert(principal, &new, &membership)
            .await?)
    }

    /// The users, or the hosts: after the id `after`, at most `count_max`.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn all(
        &self,
        kind: Kind,
        after: &str,
        count_max: u32,
    ) -> Result<Vec<PartyRow>, ControlError> {
        Ok(self.database.parties().all(kind, after, count_max).await?)
    }

    /// The user or host of this name.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn one(&self, subject: &Subject) -> Result<PartyRow, ControlError> {
        Ok(self.database.parties().get(subject).await?)
    }

    /// Creates a token with which a party can join; also returns when it expires.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn invite(
        &self,
        principal: &Principal,
        subject: &Subject,
    ) -> Result<(JoinToken, Millis), ControlError> {
        let token = JoinToken::generate(&*self.world.random);
        let term_ms = i64::try_from(TOKEN_TERM.as_millis()).expect("an hour");
        let expires = Millis(self.world.clock.wall().0.saturating_add(term_ms));
        self.database
            .parties()
            .insert_join_token(principal, subject, token.hash(), expires)
            .await?;
        Ok((token, expires))
    }

    /// Signs the key of a caller with a valid token, and records it as a key of the token's party.
    /// A token is not used up if its party is not of this `kind`.
    ///
    /// # Errors
    /// [`ControlError::Unauthenticated`] for an invalid or expired token;
    /// [`ControlError::Conflict`] for a token of another kind;
    /// [`ControlError::Invalid`] for a request that cannot be signed.
    pub async fn join(
        &self,
        caller: &Caller,
        token: &str,
        request_pem: &str,
        kind: Option<PartyKind>,
    ) -> Result<Issued, ControlError> {
        let refused = || {
            unauthenticated(
                "the token is not valid: a token can be used once, within an hour; ask an \
                 administrator for a new one",
            )
        };
        let token: JoinToken = token.parse().map_err(|_| refused())?;
        let key = key_of(request_pem)?;
        let by = Origin {
            key: Some(key),
            ..self.origin(caller, "a token".to_owned())
        };
        let parties = self.database.parties();
        let party = parties.join(token.hash(), key, kind, &by).await?;
        self.sign(&party.ok_or_else(refused)?, request_pem)
    }

    /// Signs a new certificate for a party that has one, for the same key or for an additional one.
    ///
    /// # Errors
    /// As [`Parties::join`].
    pub async fn renew(
        &self,
        principal: &Principal,
        request_pem: &str,
    ) -> Result<Issued, ControlError> {
        if principal.signed_by == Some(SignedBy::NamedAuthority) {
            let reason = "another authority issued this certificate: renew it there";
            return Err(ControlError::conflict(reason));
        }
        let key = key_of(request_pem)?;
        self.database
            .parties()
            .insert_key(&principal.party, key, &principal.by)
            .await?;
        self.sign(&principal.party, request_pem)
    }

    /// Refuses a party's requests from now on, or no longer.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Conflict`] for the controller's
    /// own machine.
    pub async fn set_disabled(
        &self,
        principal: &Principal,
        subject: &Subject,
        is_disabled: bool,
    ) -> Result<PartyRow, ControlError> {
        if is_disabled && *subject == local(subject.kind()) {
            return Err(ControlError::conflict(format!(
                "{subject} is the controller's own machine and cannot be disabled; restrict the \
                 access to the controller's folder instead"
            )));
        }
        self.database
            .parties()
            .set_disabled(principal, subject, is_disabled)
            .await?;
        self.one(subject).await
    }

    /// Deletes the keys and tokens of a party whose keys may be compromised.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn forget_keys(
        &self,
        principal: &Principal,
        subject: &Subject,
    ) -> Result<PartyRow, ControlError> {
        self.database
            .parties()
            .forget_keys(principal, subject)
            .await?;
        self.one(subject).await
    }

    /// Signs a key with which a host authenticates to unit daemons only. Controllers do not accept
    /// it.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for a request that cannot be signed.
    pub async fn sign_for_daemons(
        &self,
        host: PartyId,
        request_pem: &str,
    ) -> Result<Issued, ControlError> {
        key_of(request_pem)?;
        let host = self.database.parties().find(host).await?;
        self.sign(&host, request_pem)
    }

    fn sign(&self, party: &PartyRow, request_pem: &str) -> Result<Issued, ControlError> {
        let lifetime = Lifetime::day(self.world.clock.wall());
        let random = &*self.world.random;
        // A daemon serves its unit, and by that name.
        let names: Vec<String> = match party.subject.kind() {
            Kind::Unit => vec![unit_of(party.id).to_string()],
            _ => Vec::new(),
        };
        let signed = self
            .authority
            .sign(request_pem, &party.subject, &names, lifetime, random);
        Ok(Issued {
            subject: party.subject.clone(),
            certificate_pem: signed.map_err(not_signed)?,
            ends: lifetime.ends(),
        })
    }
}

/// The unit that a daemon's party keeps: it has the same number.
#[must_use]
pub fn unit_of(party: PartyId) -> UnitId {
    UnitId::from_u128(party.as_u128())
}

/// The user and the host that are the controller's own machine.
///
/// # Panics
/// Never: it is a name.
#[must_use]
pub fn local(kind: Kind) -> Subject {
    Subject::new(kind, "local").expect("a name")
}

fn internal(error: &dyn std::error::Error) -> ControlError {
    ControlError::Internal {
        reason: base::with_causes(error),
    }
}

fn not_signed(error: auth::AuthorityError) -> ControlError {
    let reason = base::with_causes(&error);
    match error {
        auth::AuthorityError::Request(_) => ControlError::invalid("signing_request", reason),
        _ => ControlError::Internal { reason },
    }
}

fn key_of(request_pem: &str) -> Result<KeyFingerprint, ControlError> {
    requested_key(request_pem).map_err(not_signed)
}

impl From<auth::BadSubject> for ControlError {
    fn from(error: auth::BadSubject) -> Self {
        Self::invalid("name", error.to_string())
    }
}
