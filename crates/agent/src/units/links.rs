//! [`Links`]: the links to unit daemons, one each, and the certificate that this host shows there.
//!
//! The key is made here and never written down; controllers sign it for a day, again and again.
//! Capabilities are for the holder of that key. A link without a certificate fails like one to an
//! unavailable daemon: its unit stays in the table of units, since a copyset that is missing a copy
//! there must not count as complete.
//!
//! Locks, in this order: `Units`, these links, the capability cache or one link. No request is made
//! of a link under the lock of these: it may wait for the link's thread, which asks for detours.

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

/// After this long a certificate that could not be had is asked for again.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// Why this host has no certificate for unit daemons.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateError {
    /// The controllers signed none.
    #[error(transparent)]
    Controller(#[from] ClientError),
    /// No key could be made.
    #[error(transparent)]
    Key(#[from] auth::AuthorityError),
    /// The one that they signed cannot be used.
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
    /// Notified when there is a link, and no certificate.
    wanted: Notify,
}

impl Links {
    /// No links yet.
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
                self.wanted.notify_one();
            }
            (link, is_new)
        };
        if is_new {
            self.cache.add(unit, Arc::clone(&link) as _);
        }
        Ok(link)
    }

    /// Gives each link the address of its daemon, and the certificate of this host.
    fn configure_all(&self, state: &State) {
        for (unit, (own, link)) in &state.links {
            link.set_config(self.config(*unit, own.clone(), state.tls.clone()));
        }
    }

    fn config(&self, unit: UnitId, own: Endpoint, tls: Option<Arc<ClientConfig>>) -> LinkConfig {
        // The capability cache holds the links.
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
        let state = self.state.lock();
        state.tls.is_none() && !state.links.is_empty()
    }

    /// The key, PKCS #8 in PEM: made once.
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

    /// Gets the key signed; the next connections show the certificate.
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
                    tracing::warn!(
                        why,
                        "host has no certificate for unit daemons; it tries again"
                    );
                    TRY_AGAIN
                }
            };
        }
    }
}

/// The addresses of daemons that may pass connections on; first those that this host is connected
/// with.
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
