//! [`FilterIdentity`]: the certificate that this host presents to remote filters.

use std::sync::Arc;
use std::time::Duration;

use api::host::calls::SignCertificate;
use auth::KeyRequest;
use base::with_causes;
use parking_lot::Mutex;
use sandbox::HostIdentity;
use zeroize::Zeroizing;

use crate::context::HostContext;
use crate::controller::Controller;

/// How long a certificate is used; it is valid for a day.
const USED_FOR: Duration = Duration::from_secs(8 * 60 * 60);

/// The key of this host for remote filters, and its certificate.
pub(super) struct FilterIdentity {
    context: Arc<HostContext>,
    controller: Controller,
    credentials: Mutex<Option<Credentials>>,
}

struct Credentials {
    chain_pem: String,
    key_pem: Zeroizing<String>,
    made: Duration,
}

impl FilterIdentity {
    pub fn new(context: Arc<HostContext>, controller: Controller) -> Self {
        Self {
            context,
            controller,
            credentials: Mutex::default(),
        }
    }
}

impl HostIdentity for FilterIdentity {
    /// Creates a key, and has the controllers sign it.
    fn credentials(&self) -> Result<(String, Zeroizing<String>), String> {
        let now = self.context.world.clock.monotonic();
        let mut credentials = self.credentials.lock();
        let is_valid = |known: &&Credentials| now < known.made + USED_FOR;
        if let Some(known) = credentials.as_ref().filter(is_valid) {
            return Ok((known.chain_pem.clone(), known.key_pem.clone()));
        }
        let key = KeyRequest::generate().map_err(|error| error.to_string())?;
        let sign = SignCertificate {
            request_pem: key.request_pem.clone(),
        };
        // This runs on a thread of the pool, which may block.
        let runtime = &self.context.runtime;
        let issued = runtime
            .block_on(self.controller.call(&sign))
            .map_err(|error| {
                let why = with_causes(&error);
                format!("no controller signed this host's key: {why}")
            })?;
        *credentials = Some(Credentials {
            chain_pem: issued.certificate.clone(),
            key_pem: key.key_pem.clone(),
            made: now,
        });
        Ok((issued.certificate, key.key_pem))
    }
}
