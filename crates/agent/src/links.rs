//! The ways to unit daemons: one link for each, and who this host is to them.
//!
//! The key is made here and never written down; controllers sign it for a day, again
//! and again: capabilities are for the holder of that key. A
//! link without a certificate fails as one to a daemon that is away: its unit is
//! in the table of units all the same, as nothing may be taken for whole that
//! lacks a copy there.
//!
//! Locks, in this order: the agent's units, these links, the capability cache or one link. Nothing
//! is asked of a link under the lock of these: it may wait for its thread, which asks
//! for detours.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::ClientError;
use auth::{Credentials, KeyRequest, client_config, requested_key};
use base::{ClusterId, UnitId, with_causes};
use rustls::ClientConfig;
use tokio::sync::Notify;
use unit_remote::{LinkConfig, TlsLink};
use unit_wire::ALPN;
use world::{Clock, Endpoint, host};
use zeroize::Zeroizing;

use crate::agent::lock;
use crate::capability_cache::CapabilityCache;
use crate::controller::Controller;

/// Certificates hold for a day, and are renewed so often.
const RENEW_EVERY: Duration = Duration::from_secs(8 * 60 * 60);

/// If there is none to be had, it is tried again after so long.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// Why this host has no certificate for unit daemons.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoCertificate {
    /// The controllers give none.
    #[error(transparent)]
    Controller(#[from] ClientError),
    /// No key could be made.
    #[error(transparent)]
    Key(#[from] auth::AuthorityError),
    /// What they give is of no use.
    #[error(transparent)]
    Tls(#[from] auth::TlsError),
}

#[derive(Default)]
struct State {
    /// PKCS #8 in PEM.
    key: Option<Zeroizing<String>>,
    tls: Option<Arc<ClientConfig>>,
    links: BTreeMap<UnitId, (Endpoint, Arc<TlsLink>)>,
}

/// See the module's head.
pub(crate) struct Links {
    cluster: ClusterId,
    clock: Arc<dyn Clock>,
    cache: Arc<CapabilityCache>,
    state: Arc<Mutex<State>>,
    /// Rung when there is a first link, and no certificate.
    wanted: Notify,
}

impl Links {
    /// None yet.
    pub fn new(cluster: ClusterId, clock: Arc<dyn Clock>, cache: Arc<CapabilityCache>) -> Self {
        Self {
            cluster,
            clock,
            cache,
            state: Arc::default(),
            wanted: Notify::new(),
        }
    }

    /// The link to the daemon of `unit`, which is at `endpoint`.
    ///
    /// # Errors
    /// As [`TlsLink::start`].
    pub fn link(&self, unit: UnitId, endpoint: Endpoint) -> io::Result<Arc<TlsLink>> {
        let (link, is_new) = {
            let mut state = lock(&self.state);
            let (link, is_new) = match state.links.get_mut(&unit) {
                Some((known, link)) => {
                    *known = endpoint;
                    (Arc::clone(link), false)
                }
                None => {
                    let config = self.config(unit, endpoint.clone(), state.tls.clone());
                    let link = Arc::new(TlsLink::start(config, Arc::clone(&self.clock))?);
                    state.links.insert(unit, (endpoint, Arc::clone(&link)));
                    (link, true)
                }
            };
            self.spread(&state);
            if state.tls.is_none() {
                self.wanted.notify_one();
            }
            (link, is_new)
        };
        if is_new {
            self.cache.add(unit, Arc::clone(&link) as _);
        }
        Ok(link)
    }

    /// Tells each link where its daemon is, and who this host is.
    fn spread(&self, state: &State) {
        for (unit, (own, link)) in &state.links {
            link.set_config(self.config(*unit, own.clone(), state.tls.clone()));
        }
    }

    fn config(&self, unit: UnitId, own: Endpoint, tls: Option<Arc<ClientConfig>>) -> LinkConfig {
        // The capability cache has the links.
        let cache = Arc::downgrade(&self.cache);
        let capabilities = move || {
            cache
                .upgrade()
                .map_or_else(Vec::new, |cache| cache.capabilities())
        };
        let state = Arc::downgrade(&self.state);
        let detours = move || {
            state
                .upgrade()
                .map_or_else(Vec::new, |state| detours(&state))
        };
        LinkConfig {
            cluster: self.cluster,
            unit,
            own,
            detours: Arc::new(detours),
            capabilities: Arc::new(capabilities),
            tls,
        }
    }

    /// Whether there are daemons, and no certificate to show to them.
    pub fn wants_certificate(&self) -> bool {
        let state = lock(&self.state);
        state.tls.is_none() && !state.links.is_empty()
    }

    /// The key, PKCS #8 in PEM: made once.
    fn key(&self) -> Result<Zeroizing<String>, NoCertificate> {
        let mut state = lock(&self.state);
        if let Some(key) = &state.key {
            return Ok(key.clone());
        }
        let made = KeyRequest::generate()?;
        self.cache.set_holder(requested_key(&made.request_pem)?.0);
        state.key = Some(made.key_pem.clone());
        Ok(made.key_pem)
    }

    /// Has the key signed, and shows that from the next connections on.
    pub async fn renew_certificate(&self, controller: &Controller) -> Result<(), NoCertificate> {
        let key = KeyRequest::for_key(&self.key()?)?;
        let issued = controller.certificate(&key.request_pem).await?;
        let credentials = Credentials {
            chain_pem: &issued.certificate,
            key_pem: &key.key_pem,
        };
        let mut tls = client_config(&[&issued.authority], Some(credentials))?;
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let mut state = lock(&self.state);
        state.tls = Some(Arc::new(tls));
        self.spread(&state);
        Ok(())
    }

    /// Has certificates as long as there are daemons.
    pub async fn keep_certificate(&self, controller: &Controller) {
        let mut pause = RENEW_EVERY;
        loop {
            tokio::select! {
                () = host::sleep(pause) => {
                    if lock(&self.state).links.is_empty() {
                        continue;
                    }
                }
                () = self.wanted.notified() => {
                    if !self.wants_certificate() {
                        continue;
                    }
                }
            }
            pause = match self.renew_certificate(controller).await {
                Ok(()) => RENEW_EVERY,
                Err(error) => {
                    let why = with_causes(&error);
                    tracing::warn!(why, "no certificate for unit daemons; it is tried again");
                    TRY_AGAIN
                }
            };
        }
    }
}

/// Where daemons listen that may pass connections on: those first that this host
/// has a connection with.
fn detours(state: &Mutex<State>) -> Vec<Endpoint> {
    let state = lock(state);
    let mut all: Vec<(bool, Endpoint)> = state
        .links
        .values()
        .map(|(own, link)| (link.via().as_ref() != Some(own), own.clone()))
        .collect();
    all.sort_by_key(|(is_unknown, _)| *is_unknown);
    all.into_iter().map(|(_, endpoint)| endpoint).collect()
}
