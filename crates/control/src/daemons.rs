//! What unit daemons ask of a controller (docs/units.md, "Daemons").

use std::net::SocketAddr;

use api::host::HostUnit;
use api::unit::{BeginUnit, PublicKey, UnitCluster};
use base::{PartyId, UnitId};

use crate::control::Control;
use crate::database::UnitRow;
use crate::error::ControlError;

/// The unit that a daemon's party keeps: it has the same number.
#[must_use]
pub fn unit_of(party: PartyId) -> UnitId {
    UnitId::from_random(party.as_u128())
}

impl Control {
    /// The daemon of `party` is there, and if it says where it listens, its unit is
    /// one of the cluster's. Answers with what it has to know.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for a URL at which no host could reach it;
    /// [`ControlError::Exists`] if another unit has it.
    pub async fn begin_unit(
        &self,
        party: PartyId,
        begin: &BeginUnit,
    ) -> Result<UnitCluster, ControlError> {
        let inner = &self.inner;
        let unit = unit_of(party);
        if let Some(url) = &begin.url {
            check_url(url)?;
            self.take_unit_in(unit, url).await?;
        }
        let owner = self.owner().await?;
        let units = inner.database.units().await?.into_iter();
        Ok(UnitCluster {
            id: inner.cluster,
            unit,
            takes_over: inner.claim.takes_over,
            authority: inner.parties.authority_pem().to_owned(),
            keys: vec![PublicKey(inner.signing.verifying_key().0)],
            units: units
                .map(|unit| HostUnit {
                    id: unit.id,
                    url: unit.url,
                })
                .collect(),
            now: self.now().await?,
            owner,
        })
    }

    async fn take_unit_in(&self, id: UnitId, url: &str) -> Result<(), ControlError> {
        let known = self.inner.database.units().await?;
        match known.iter().find(|known| known.id == id) {
            Some(known) if known.url == url => Ok(()),
            Some(known) => {
                self.inner.database.move_unit(id, url).await?;
                tracing::warn!(unit = %id, from = known.url, to = url, "a unit has moved");
                Ok(())
            }
            None => {
                let unit = UnitRow {
                    id,
                    url: url.to_owned(),
                    daemon: None,
                    is_draining: false,
                    missing_since: None,
                };
                self.add_units(&[unit]).await
            }
        }
    }
}

/// Refuses what no host could connect to.
fn check_url(url: &str) -> Result<(), ControlError> {
    let invalid = |why: &str| {
        let reason = format!("{url:?} {why}; a daemon is at scree://ADDRESS:PORT");
        Err(ControlError::invalid("url", reason))
    };
    let Some(address) = url.strip_prefix("scree://") else {
        return invalid("is no daemon's");
    };
    match address.parse::<SocketAddr>() {
        Err(_) => invalid("has no IP address with a port"),
        Ok(address) if address.port() == 0 => invalid("has no port"),
        Ok(address) if address.ip().is_unspecified() => invalid("names no machine"),
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_where_hosts_can_reach_it() {
        for good in ["scree://10.1.2.3:7420", "scree://[fd00::7]:7420"] {
            check_url(good).expect(good);
        }
        for bad in [
            "file:///srv/u1",
            "scree://store-1:7420",
            "scree://10.1.2.3",
            "scree://10.1.2.3:0",
            "scree://0.0.0.0:7420",
            "scree://[::]:7420",
            "scree://10.1.2.3:7420/",
            "",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }
}
