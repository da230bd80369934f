//! The configuration that a controller sends to a daemon, and whether to apply it.
//!
//! A daemon ignores a controller of another cluster or with a stale database. It keeps its
//! last configuration and logs a warning.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::unit::UnitCluster;
use auth::VerifyingKey;
use base::{ClusterId, UnitId};
use tokio::sync::Notify;
use unit::Owner;
use unit_remote::endpoint_of_url;
use world::{Endpoint, Millis};

use crate::{KeeperConfig, UnitEndpoints};

/// Why a daemon rejects the configuration of a controller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigRejected {
    /// The controller belongs to another cluster.
    #[error("a controller of {found} answered, but the unit belongs to {stored}")]
    Cluster {
        /// The cluster of the controller.
        found: ClusterId,
        /// The cluster of the unit.
        stored: ClusterId,
    },
    /// The configuration is for another unit: the party was created again, or the folder
    /// belongs to another daemon.
    #[error("the controller answered for {found}, but this daemon serves {stored}")]
    Unit {
        /// The unit of the configuration.
        found: UnitId,
        /// The unit of this daemon.
        stored: UnitId,
    },
    /// The controller serves a database that has been replaced.
    #[error("the answer is from a database that has been replaced, at {place:?}")]
    Replaced {
        /// Where the database is served.
        place: String,
    },
    /// The controller serves another copy of the database.
    #[error(
        "the answer is from another copy of the database, at {place:?}: stop one of the two, or, \
         if the other is lost for good, start one controller once with `--restored-database`"
    )]
    Copy {
        /// Where the database is served.
        place: String,
    },
}

/// Checks whether a daemon with the configuration `stored` applies `answer`.
///
/// # Errors
/// [`ConfigRejected`].
pub(super) fn check(stored: &UnitCluster, answer: &UnitCluster) -> Result<(), ConfigRejected> {
    if answer.id != stored.id {
        return Err(ConfigRejected::Cluster {
            found: answer.id,
            stored: stored.id,
        });
    }
    if answer.unit != stored.unit {
        return Err(ConfigRejected::Unit {
            found: answer.unit,
            stored: stored.unit,
        });
    }
    let (owner, known) = (&answer.owner, &stored.owner);
    if owner.generation < known.generation {
        let place = owner.location.clone();
        return Err(ConfigRejected::Replaced { place });
    }
    let is_later = owner.generation > known.generation;
    if !is_later && owner.database != known.database && !answer.takes_over {
        let place = owner.location.clone();
        return Err(ConfigRejected::Copy { place });
    }
    Ok(())
}

/// The configuration as it is stored, without what is true only now.
pub(super) fn lasting(answer: &UnitCluster) -> UnitCluster {
    UnitCluster {
        takes_over: false,
        now: Millis(0),
        ..answer.clone()
    }
}

/// The owner to claim the folder for.
pub(super) fn owner(cluster: &UnitCluster) -> Owner {
    Owner {
        database: cluster.owner.database,
        generation: cluster.owner.generation,
        place: cluster.owner.location.clone(),
    }
}

/// The part of the configuration that the keeper needs.
pub(super) fn keeper_config(cluster: &UnitCluster) -> KeeperConfig {
    KeeperConfig {
        cluster: cluster.id,
        keys: cluster.keys.iter().map(|key| VerifyingKey(key.0)).collect(),
        generation: cluster.owner.generation,
    }
}

/// From where a machine with an address is reachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Range {
    /// From any machine.
    Anywhere,
    /// From itself.
    Loopback,
    /// From the same link.
    Link,
    /// No single machine has the address.
    Nothing,
}

impl Range {
    fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            ip if ip.is_loopback() => Self::Loopback,
            ip if ip.is_unspecified() || ip.is_multicast() => Self::Nothing,
            IpAddr::V4(ip) if ip.is_broadcast() => Self::Nothing,
            IpAddr::V4(ip) if ip.is_link_local() => Self::Link,
            IpAddr::V6(ip) if ip.is_unicast_link_local() => Self::Link,
            _ => Self::Anywhere,
        }
    }
}

/// Whether a daemon that hosts reach at `own` relays connections to `there`. A compromised
/// daemon must not make it connect to ports of this machine, or to neighbors that no one else
/// can reach.
fn may_relay_to(there: &Endpoint, own: IpAddr) -> bool {
    let Endpoint::Tcp(address) = there else {
        return false;
    };
    match Range::of(address.ip()) {
        Range::Anywhere => true,
        Range::Nothing => false,
        near => near == Range::of(own),
    }
}

/// The endpoints of the daemons of other units, for a daemon that hosts reach at `own`.
/// `unknown` is notified when a unit is requested that is not known: it may be new.
pub(super) fn others(cluster: &UnitCluster, own: IpAddr, unknown: &Arc<Notify>) -> UnitEndpoints {
    let others = cluster.units.iter().filter(|unit| unit.id != cluster.unit);
    let others: HashMap<UnitId, Endpoint> = others
        .filter_map(|unit| Some((unit.id, endpoint_of_url(&unit.url)?)))
        .filter(|(_, there)| may_relay_to(there, own))
        .collect();
    let unknown = Arc::clone(unknown);
    Arc::new(move |unit| {
        let found = others.get(&unit).cloned();
        if found.is_none() {
            unknown.notify_one();
        }
        found
    })
}

#[cfg(test)]
mod tests {
    use api::host::{self, HostUnit};
    use base::DatabaseId;

    use super::*;

    fn config() -> UnitCluster {
        UnitCluster {
            id: ClusterId::from_u128(1),
            unit: UnitId::from_u128(1),
            owner: host::Owner {
                database: DatabaseId::from_u128(1),
                generation: 7,
                location: "c1".to_owned(),
            },
            takes_over: false,
            authority: String::new(),
            keys: Vec::new(),
            units: Vec::new(),
            now: Millis(5),
        }
    }

    #[test]
    fn a_configuration_is_applied_if_it_is_from_the_same_database_or_its_successor() {
        let stored = config();
        assert_eq!(check(&stored, &config()), Ok(()));
        let with = |change: fn(&mut UnitCluster)| {
            let mut answer = config();
            change(&mut answer);
            check(&stored, &answer)
        };
        let cluster = with(|answer| answer.id = ClusterId::from_u128(2));
        assert!(matches!(cluster, Err(ConfigRejected::Cluster { .. })));
        let unit = with(|answer| answer.unit = UnitId::from_u128(2));
        assert!(matches!(unit, Err(ConfigRejected::Unit { .. })));
        let older = with(|answer| answer.owner.generation = 6);
        assert!(matches!(older, Err(ConfigRejected::Replaced { .. })));
        let copy = with(|answer| answer.owner.database = DatabaseId::from_u128(2));
        assert!(matches!(copy, Err(ConfigRejected::Copy { .. })));
        let taken_over = with(|answer| {
            answer.owner.database = DatabaseId::from_u128(2);
            answer.takes_over = true;
        });
        assert_eq!(taken_over, Ok(()));
        let newer = with(|answer| {
            answer.owner.database = DatabaseId::from_u128(2);
            answer.owner.generation = 8;
        });
        assert_eq!(newer, Ok(()));
    }

    #[test]
    fn connections_are_relayed_to_other_units_that_have_daemons() {
        let mut cluster = config();
        let id = UnitId::from_u128;
        for (number, url) in [
            (1, "scree://10.0.0.1:7070"),
            (2, "scree://10.0.0.2:7070"),
            (3, "file:///srv/u1"),
        ] {
            let url = url.to_owned();
            cluster.units.push(HostUnit {
                id: id(number),
                url,
                is_disabled: false,
            });
        }
        let own = "10.0.0.9".parse().expect("an address");
        let others = others(&cluster, own, &Arc::default());
        let second = Endpoint::Tcp("10.0.0.2:7070".parse().expect("an address"));
        assert_eq!(others(id(2)), Some(second));
        assert!([1, 3, 4].iter().all(|unit| others(id(*unit)).is_none()));
    }

    /// A compromised daemon could make others connect strangers to ports that a machine opens
    /// for itself only.
    #[test]
    fn no_connection_is_relayed_into_this_machine_or_to_its_neighbors() {
        let there = [
            "10.0.0.2",
            "127.0.0.1",
            "[::ffff:127.0.0.1]",
            "[::1]",
            "169.254.169.254",
            "[fe80::1]",
            "224.0.0.1",
            "[ff02::1]",
            "255.255.255.255",
            "[fd00::1]",
        ];
        let relayed = |own: &str| -> Vec<&str> {
            let own = own.parse().expect("an address");
            let is_relayed = |address: &&str| {
                let address = format!("{address}:7070").parse().expect("an address");
                may_relay_to(&Endpoint::Tcp(address), own)
            };
            there.into_iter().filter(is_relayed).collect()
        };
        assert_eq!(relayed("10.0.0.9"), ["10.0.0.2", "[fd00::1]"]);
        let local = relayed("127.0.0.1");
        assert_eq!(
            local,
            [
                "10.0.0.2",
                "127.0.0.1",
                "[::ffff:127.0.0.1]",
                "[::1]",
                "[fd00::1]"
            ]
        );
        let link = relayed("fe80::9");
        assert_eq!(
            link,
            ["10.0.0.2", "169.254.169.254", "[fe80::1]", "[fd00::1]"]
        );
    }
}
