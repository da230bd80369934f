//! [`HostRequest`]: the controller as one authenticated host may use it, through the host RPC
//! (`api::host`).
//!
//! It is to hosts what [`AuthorizedRequest`](crate::AuthorizedRequest) is to users. The modules of
//! the nouns add the calls: `hosts`, `capabilities`, `images`, `volume_audits`.

use std::ops::Deref;

use base::PartyId;

use crate::control::Control;

/// The requests of one authenticated host.
#[derive(Clone, Copy)]
pub struct HostRequest<'a> {
    control: &'a Control,
    pub(crate) host: PartyId,
}

impl Deref for HostRequest<'_> {
    type Target = Control;

    fn deref(&self) -> &Control {
        self.control
    }
}

impl Control {
    /// The requests of `host`, which the caller has authenticated.
    #[must_use]
    pub fn host(&self, host: PartyId) -> HostRequest<'_> {
        HostRequest {
            control: self,
            host,
        }
    }
}
