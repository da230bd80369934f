//! [`Links`]: one link to each unit daemon, and the certificate that this host presents to them.
//!
//! The key is created here and never stored; controllers sign it for a day, repeatedly.
//! Capabilities are for the holder of that key. A link without a certificate behaves like a link to
//! an unavailable daemon: its unit stays in the table of units, because a copyset with a missing
//! copy must not count as complete.
//!
//! Lock order: `Units`, these links, then the capability cache or one link. No link is called while
//! these links are locked: the call may wait for the link's thread, which asks for detours.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::ClientError;
use api::host::calls::SignCertificate;
use auth::{Credentials, KeyRequest, client_config, requested_key};
use base::{ClusterId, UnitId, with_causes};
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::sync::Notify;
use unit_remote::{LinkConfig, TlsLink};
use unit_wire::ALPN;
use world::{Clock, Endpoint, host};
use zeroize::Zeroizing;

use crate::controller::{CapabilityCache, Controller};

/// How often the certificate is renewed; it is valid for a day.
const RENEW_EVERY: Duration = Duration::from_secs(8 * 60 * 60);

/// The pause after a failed request for a certificate.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// Why this host has no certificate for unit daemons.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateError {
    /// The controllers signed no certificate.
    #[error(transparent)]
    Controller(#[from] ClientError),
    /// No key could be created.
    #[error(transparent)]
    Key(#[from] auth::AuthorityError),
    /// The signed certificate cannot be used.
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

/// The links to unit daemons.
pub(super) struct Links {
    cluster: ClusterId,
    clock: Arc<dyn Clock>,
    cache: Arc<CapabilityCache>,
    state: Arc<Mutex<State>>,
    /// Notified when there is a link but no certificate.
    needed: Notify,
}

impl Links {
    /// Without links.
    pub fn new(cluster: ClusterId, clock: Arc<dyn Clock>, cache: Arc<CapabilityCache>) -> Self {
        Self {
            cluster,
            clock,
            cache,
            state: Arc::default(),
            needed: Notify::new(),
        }
    }

    /// The link to the daemon of `unit` at `endpoint`; starts it if necessary.
    ///
    /// # Errors
    /// Those of [`TlsLink::start`].
    pub fn link(&self, unit: UnitId, endpoint: Endpoint) -> io::Result<Arc<TlsLink>> {
        let (link, is_new) = {
            let mut state = self.state.lock();
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
            self.configure_all(&state);
            if state.tls.is_none() {
                self.needed.notify_one();
            }
            (link, is_new)
        };
        if is_new {
            self.cache.add(unit, Arc::clone(&link) as _);
        }
        Ok(link)
    }

    /// Configures each link with the address of its daemon and the certificate of this host.
    fn configure_all(&self, state: &State) {
        for (unit, (own, link)) in &state.links {
            link.set_config(self.config(*unit, own.clone(), state.tls.clone()));
        }
    }

    fn config(&self, unit: UnitId, own: Endpoint, tls: Option<Arc<ClientConfig>>) -> LinkConfig {
        // A weak reference: the capability cache holds the links.
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

    /// Whether there are daemons but no certificate for them.
    pub fn wants_certificate(&self) -> bool {
        let state = self.state.lock();
        state.tls.is_none() && !state.links.is_empty()
    }

    /// The key, as PKCS #8 in PEM; created on first use.
    fn key(&self) -> Result<Zeroizing<String>, CertificateError> {
        let mut state = self.state.lock();
        if let Some(key) = &state.key {
            return Ok(key.clone());
        }
        let made = KeyRequest::generate()?;
        self.cache.set_holder(requested_key(&made.request_pem)?.0);
        state.key = Some(made.key_pem.clone());
        Ok(made.key_pem)
    }

    /// Has the key signed; new connections present the certificate.
    pub async fn renew_certificate(&self, controller: &Controller) -> Result<(), CertificateError> {
        let key = KeyRequest::for_key(&self.key()?)?;
        let issued = controller
            .call(&SignCertificate {
                request_pem: key.request_pem.clone(),
            })
            .await?;
        let credentials = Credentials {
            chain_pem: &issued.certificate,
            key_pem: &key.key_pem,
        };
        let mut tls = client_config(&[&issued.authority], Some(credentials))?;
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let mut state = self.state.lock();
        state.tls = Some(Arc::new(tls));
        self.configure_all(&state);
        Ok(())
    }

    /// Renews the certificate as long as there are daemons.
    pub async fn keep_certificate(&self, controller: &Controller) {
        let mut pause = RENEW_EVERY;
        loop {
            tokio::select! {
                () = host::sleep(pause) => {
                    if self.state.lock().links.is_empty() {
                        continue;
                    }
                }
                () = self.needed.notified() => {
                    if !self.wants_certificate() {
                        continue;
                    }
                }
            }
            pause = match self.renew_certificate(controller).await {
                Ok(()) => RENEW_EVERY,
                Err(error) => {
                    let why = with_causes(&error);
                    tracing::warn!(
                        error = why,
                        "agent has no certificate for unit daemons and will retry"
                    );
                    TRY_AGAIN
                }
            };
        }
    }
}

/// Addresses of daemons that may relay connections; those to which this host is connected come
/// first.
fn detours(state: &Mutex<State>) -> Vec<Endpoint> {
    let state = state.lock();
    let mut all: Vec<(bool, Endpoint)> = state
        .links
        .values()
        .map(|(own, link)| (link.via().as_ref() != Some(own), own.clone()))
        .collect();
    all.sort_by_key(|(is_unknown, _)| *is_unknown);
    all.into_iter().map(|(_, endpoint)| endpoint).collect()
}
