//! The requests of unit daemons (docs/internals/unit-daemons.md).

use std::net::SocketAddr;

use api::unit::{BeginUnit, PublicKey, SECOND_PLACE_MS, UnitCluster};
use base::{PartyId, UnitId};

use crate::control::Control;
use crate::database::{Claimed, Heard, UnitRow};
use crate::error::ControlError;
use crate::parties::unit_of;

impl Control {
    /// Records that the daemon of `party` is running. If it reports where it listens, its unit
    /// becomes one of the cluster. Returns the daemon's configuration.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for a URL at which no host could reach it;
    /// [`ControlError::Exists`] if another unit has it; [`ControlError::Conflict`] if
    /// another daemon has this unit.
    pub async fn begin_unit(
        &self,
        party: PartyId,
        begin: &BeginUnit,
    ) -> Result<UnitCluster, ControlError> {
        let inner = &self.inner;
        let unit = unit_of(party);
        if let Some(url) = &begin.url {
            check_url(url)?;
            self.record_daemon(unit, url, begin.folder.as_deref())
                .await?;
        }
        let owner = self.owner().await?;
        let units = inner.database.units().all().await?.into_iter();
        Ok(UnitCluster {
            id: inner.cluster,
            unit,
            takes_over: inner.claim.takes_over,
            authority: inner.parties.authority_pem().to_owned(),
            keys: vec![PublicKey(inner.signing.verifying_key().0)],
            units: units.map(Into::into).collect(),
            now: self.now().await?,
            owner,
        })
    }

    async fn record_daemon(
        &self,
        id: UnitId,
        url: &str,
        folder: Option<&str>,
    ) -> Result<(), ControlError> {
        folder.map_or(Ok(()), check_folder_id)?;
        let claimed = Claimed { url, place: folder };
        let database = &self.inner.database;
        let now = self.now().await?;
        let mut heard = database.units().record_daemon(id, claimed, now).await?;
        if heard == Heard::Unknown {
            self.unit_registry()
                .add(&[UnitRow::new(id, url.to_owned())])
                .await?;
            heard = database.units().record_daemon(id, claimed, now).await?;
        }
        match heard {
            Heard::There => Ok(()),
            Heard::Moved { from } => {
                tracing::warn!(unit = %id, from, to = url, "unit daemon changed its address");
                Ok(())
            }
            Heard::Second { first, ago_ms } => {
                let ago = ago_ms / 1000;
                let minutes = SECOND_PLACE_MS / 60_000;
                tracing::error!(unit = %id, first, second = url, "two daemons claim to be the same unit");
                Err(ControlError::conflict(format!(
                    "another daemon has this unit, at {first}, and reported {ago} s ago: \
                     stop one of the two. If that one was stopped, or has this address now, \
                     wait {minutes} minutes; if this one's identity was copied, give it one of \
                     its own with `scree unit create`"
                )))
            }
            Heard::Unknown => Err(ControlError::Internal {
                reason: "a unit that was just added is missing".to_owned(),
            }),
        }
    }
}

fn check_folder_id(place: &str) -> Result<(), ControlError> {
    match place.len() == 32 && place.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(()),
        false => Err(ControlError::invalid(
            "folder",
            "the id of a folder has 32 hex digits".to_owned(),
        )),
    }
}

/// Refuses a URL that no host could connect to.
fn check_url(url: &str) -> Result<(), ControlError> {
    let invalid = |why: &str| {
        let reason = format!("{url:?} {why}; a daemon is at scree://ADDRESS:PORT");
        Err(ControlError::invalid("url", reason))
    };
    let Some(address) = url.strip_prefix("scree://") else {
        return invalid("is not the URL of a daemon");
    };
    match address.parse::<SocketAddr>() {
        Err(_) => invalid("has no IP address with a port"),
        Ok(address) if address.port() == 0 => invalid("has no port"),
        Ok(address) if address.ip().is_unspecified() => invalid("names no machine"),
        Ok(address) if address.ip().is_multicast() => invalid("names many machines"),
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_has_a_url_that_hosts_can_reach() {
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
            "scree://224.0.0.1:7420",
            "scree://[ff02::1]:7420",
            "scree://10.1.2.3:7420/",
            "",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }
}
