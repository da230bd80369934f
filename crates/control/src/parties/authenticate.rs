//! Who makes a request: from a connection and its certificate to a [`Principal`].

use std::net::SocketAddr;

use auth::{Kind, Peer, SignedBy};

use crate::database::{DatabaseError, Origin, PartyRow, Principal};
use crate::error::ControlError;
use crate::parties::{Parties, local};
use crate::timestamp::rfc3339;

/// The origin of a request.
#[derive(Debug, Clone)]
pub enum Caller {
    /// From the socket in the data directory, which only one user of this machine can open.
    Local,
    /// Over TLS.
    Remote {
        /// The address that it came from.
        address: SocketAddr,
        /// The holder of the certificate that was presented, if one was.
        peer: Option<Peer>,
    },
}

impl Parties {
    /// Authenticates the caller of a request.
    ///
    /// # Errors
    /// [`ControlError::Unauthenticated`].
    pub async fn principal(&self, caller: &Caller) -> Result<Principal, ControlError> {
        let peer = match caller {
            Caller::Local => return self.local_principal().await,
            Caller::Remote { peer, .. } => peer.as_ref(),
        };
        let Some(peer) = peer else {
            return Err(unauthenticated(
                "no certificate was presented; join with `scree login` and a token",
            ));
        };
        // TLS has checked that only when the connection began.
        if self.world.clock.wall() > peer.ends {
            return Err(unauthenticated(&format!(
                "the certificate expired at {}; connect with a newer one, or join with a new token",
                rfc3339(peer.ends)
            )));
        }
        let (found, refusal) = match peer.signed_by {
            SignedBy::OwnAuthority => (
                self.database.parties().of_key(peer.key).await?,
                "this certificate's key belongs to no party; join with a new token".to_owned(),
            ),
            SignedBy::NamedAuthority => self.party_named_by(peer).await?,
        };
        match found {
            Some(party) if party.is_disabled => Err(unauthenticated(
                "this user or host is disabled; an administrator can enable it",
            )),
            Some(party) => {
                let by = self.origin(caller, party.subject.to_string());
                let signed_by = Some(peer.signed_by);
                Ok(principal(party, by, signed_by))
            }
            None => Err(unauthenticated(&refusal)),
        }
    }

    /// The party that a certificate of one of the operator's authorities names, or why there is
    /// none.
    async fn party_named_by(
        &self,
        peer: &Peer,
    ) -> Result<(Option<PartyRow>, String), ControlError> {
        let subject = match peer.subject() {
            Ok(subject) => subject,
            Err(error) => return Ok((None, error.to_string())),
        };
        if !matches!(subject.kind(), Kind::User | Kind::Host) || *subject == local(subject.kind()) {
            let refusal = format!("the certificate names {subject}, which cannot be used over TLS");
            return Ok((None, refusal));
        }
        match self.database.parties().get(subject).await {
            Ok(party) => Ok((Some(party), String::new())),
            Err(DatabaseError::NotFound { .. }) => {
                let (kind, name) = (subject.kind(), subject.name());
                let refusal = format!(
                    "{subject} does not exist; an administrator adds it with \
                     `scree {kind} add {name}`"
                );
                Ok((None, refusal))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The local user: a process that can open the socket in the data directory owns it.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn local_principal(&self) -> Result<Principal, ControlError> {
        let party = self.one(&local(Kind::User)).await?;
        let by = self.origin(&Caller::Local, party.subject.to_string());
        Ok(principal(party, by, None))
    }

    pub(super) fn origin(&self, caller: &Caller, who: String) -> Origin {
        let (key, address) = match caller {
            Caller::Local => (None, None),
            Caller::Remote { address, peer } => {
                (peer.as_ref().map(|peer| peer.key), Some(*address))
            }
        };
        Origin {
            at: self.world.clock.wall(),
            who,
            key,
            address,
        }
    }
}

fn principal(party: PartyRow, by: Origin, signed_by: Option<SignedBy>) -> Principal {
    Principal {
        party,
        by,
        signed_by,
        is_dry_run: false,
        idempotency: None,
    }
}

pub(super) fn unauthenticated(reason: &str) -> ControlError {
    ControlError::Unauthenticated {
        reason: reason.to_owned(),
    }
}
