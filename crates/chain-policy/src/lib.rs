//! Chain policies, the TOML texts in which the owners of volumes describe chains of
//! filters (docs/reference/policies.md).
//!
//! ```toml
//! volume = "web-1"
//!
//! [[filter]]
//! kind = "rate"
//! name = "limits"
//! iops = 2000
//! bytes_per_second = "100M"
//! ```
//!
//! Invariant: a chain can be built from every policy that parses. A mistake is reported here,
//! before a disk depends on the policy.
//!
//! Must not know: how a filter does its work, nor any key. Controllers read policies, so a policy
//! only names keys.

mod encrypt;
mod external;
mod fault;
mod journal;
mod kind;
mod monitor;
mod out_of_process;
mod outline;
mod rate;
mod remote;
mod replicate;
mod size;
mod trace;
mod volume_name;

pub use encrypt::Format;
pub use fault::DELAY_MS_MAX;
pub use journal::FlushRule;
pub use monitor::{Action, Glob, Operation, Rule};
pub use out_of_process::{Limits, OnFailure, OutOfProcess};
pub use outline::{Outline, outline};
pub use replicate::{Replica, ReplicaLocation, parse_tenant_uri};
pub use volume_name::volume_of;

use std::collections::{BTreeSet, HashSet};

use kind::{FilterConfig, kinds};
use out_of_process::{Placement, RunParameters};
use serde::Deserialize;

/// The maximal length of a policy, in bytes.
pub const TEXT_BYTES_MAX: usize = 64 << 10;

/// The maximal number of filters in a chain. Each filter costs memory and time, so a faulty
/// generator of policies must not be able to ask for thousands.
pub const FILTERS_MAX: usize = 16;

/// The maximal length of a filter's name, in bytes.
const NAME_BYTES_MAX: usize = 32;

/// The chain of one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The name or id of the volume.
    pub volume: String,
    /// The name of the VM for which the chain is used; without one, it is used for every VM.
    pub vm: Option<String>,
    /// The filters in the order in which a write passes them, from the VM to the volume. There
    /// are 1 to [`FILTERS_MAX`].
    pub filters: Vec<FilterPolicy>,
}

/// One filter of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterPolicy {
    /// The filter's name, unique in the chain.
    pub name: String,
    /// The kind of the filter, with its parameters.
    pub kind: FilterKind,
    /// How the filter runs outside the thread of the disk; `None` if it runs inline.
    pub out_of_process: Option<OutOfProcess>,
}

kinds! {
    /// Reports what happens to files.
    Monitor(monitor::MonitorConfig),
    /// Encrypts the disk below.
    Encrypt(encrypt::EncryptConfig),
    /// Writes to other disks as well.
    Replicate(replicate::ReplicateConfig),
    /// Acknowledges writes before they are carried out below.
    Journal(journal::JournalConfig),
    /// Records requests.
    Trace(trace::TraceConfig),
    /// Limits requests and bytes per second.
    Rate(rate::RateConfig),
    /// Injects errors and delays.
    Fault(fault::FaultConfig),
    /// Runs a program of the host's operator.
    External(external::ExternalConfig),
    /// Runs on another machine.
    Remote(remote::RemoteConfig),
}

/// Why a text is not a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The text is longer than [`TEXT_BYTES_MAX`].
    #[error("the policy has {0} bytes; the maximum is {TEXT_BYTES_MAX}")]
    TooLong(usize),
    /// The text is not TOML, or has a field that no policy has.
    #[error("{0}")]
    Toml(String),
    /// The policy has no filters.
    #[error("the policy has no [[filter]]; to use no filters, delete the chain")]
    Empty,
    /// The policy has more than [`FILTERS_MAX`] filters.
    #[error("the policy has {0} filters; the maximum is {FILTERS_MAX}")]
    TooManyFilters(usize),
    /// A filter is described wrongly.
    #[error("filter {number}{}: {reason}", name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default())]
    Filter {
        /// The position of the filter in the policy, from 1.
        number: usize,
        /// The filter's name, or its kind if it has none.
        name: Option<String>,
        /// What is wrong, and what is right.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    volume: String,
    vm: Option<String>,
    #[serde(rename = "filter", default)]
    filters: Vec<toml::Table>,
}

impl Policy {
    /// The names or ids of the other volumes that the filters write.
    #[must_use]
    pub fn volumes(&self) -> BTreeSet<&str> {
        self.replicas()
            .filter_map(|location| match location {
                ReplicaLocation::Volume(volume) => Some(&**volume),
                ReplicaLocation::Uri(_) => None,
            })
            .collect()
    }

    /// The network addresses of the filters' replicas, as `ADDRESS:PORT/EXPORT`. Replicas behind
    /// Unix sockets are not among them: each host has sockets of its own.
    #[must_use]
    pub fn addresses(&self) -> BTreeSet<String> {
        self.replicas().filter_map(replicate::address).collect()
    }

    fn replicas(&self) -> impl Iterator<Item = &ReplicaLocation> {
        let replicas = self.filters.iter().filter_map(|filter| match &filter.kind {
            FilterKind::Replicate(config) => Some(&config.replicas),
            _ => None,
        });
        replicas.flatten().map(|replica| &replica.location)
    }

    /// Whether any of the filters keeps files beside the disk. Such files belong to one chain.
    #[must_use]
    pub fn keeps_files(&self) -> bool {
        self.filters.iter().any(|filter| filter.kind.keeps_files())
    }

    /// Checks that the replicas of the filters can be reached. In the policy of a tenant
    /// (`is_tenants`), sockets and certificates have to be names in that tenant's folders.
    ///
    /// This is checked when a policy is applied and not when it is parsed, so that a policy that
    /// was accepted earlier still opens.
    ///
    /// # Errors
    /// [`PolicyError::Filter`] for the first replica that is wrong.
    pub fn check_locations(&self, is_tenants: bool) -> Result<(), PolicyError> {
        for (number, one) in (1..).zip(&self.filters) {
            if let FilterKind::Replicate(config) = &one.kind {
                config
                    .check_locations(is_tenants)
                    .map_err(|reason| PolicyError::Filter {
                        number,
                        name: Some(one.name.clone()),
                        reason,
                    })?;
            }
        }
        Ok(())
    }

    /// Parses and checks a policy.
    ///
    /// # Errors
    /// [`PolicyError`] for the first mistake.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(PolicyError::TooLong(text.len()));
        }
        let read = toml::from_str(text);
        let written: Written = read.map_err(|error| PolicyError::Toml(toml_problem(&error)))?;
        match written.filters.len() {
            0 => return Err(PolicyError::Empty),
            many if many > FILTERS_MAX => return Err(PolicyError::TooManyFilters(many)),
            _ => {}
        }
        let mut names = HashSet::new();
        let mut filters: Vec<FilterPolicy> = Vec::new();
        for (number, table) in (1..).zip(written.filters) {
            let name = table.get("name").or_else(|| table.get("kind"));
            let name = name.and_then(|name| name.as_str()).map(str::to_owned);
            let read = parse_filter(table).and_then(|read| match names.insert(read.name.clone()) {
                true => Ok(read),
                false => Err("another filter of this chain has the same name".to_owned()),
            });
            let read = read.and_then(|read| check_order(&filters, &read).map(|()| read));
            filters.push(read.map_err(|reason| PolicyError::Filter {
                number,
                name,
                reason,
            })?);
        }
        Ok(Self {
            volume: written.volume,
            vm: written.vm,
            filters,
        })
    }
}

/// The error of a text that is not a policy, with the remedy of the two most common mistakes.
fn toml_problem(error: &toml::de::Error) -> String {
    let message = error.message();
    let remedy = if message.contains("missing field `volume`") {
        "write volume = \"NAME\" above the first [[filter]]"
    } else if message.contains("invalid type: map, expected a sequence") {
        "write [[filter]] with two pairs of brackets"
    } else {
        ""
    };
    format!("{error}{remedy}").trim_end().to_owned()
}

/// Checks that a filter may stand below `above`.
fn check_order(above: &[FilterPolicy], filter: &FilterPolicy) -> Result<(), String> {
    let journal = above
        .iter()
        .find(|above| matches!(above.kind, FilterKind::Journal(_)));
    let Some(FilterPolicy { name, .. }) = journal else {
        return Ok(());
    };
    let denies = |rule: &Rule| rule.action == Action::Deny;
    match &filter.kind {
        FilterKind::Journal(_) => Err(format!(
            "a chain has at most one journal, and filter {name} is one"
        )),
        FilterKind::Monitor(config) if config.rules.iter().any(denies) => Err(format!(
            "a monitor with a deny rule must be above the journal {name}, which acknowledges \
             writes before this filter sees them"
        )),
        _ => Ok(()),
    }
}

fn parse_filter(mut table: toml::Table) -> Result<FilterPolicy, String> {
    let kind = take_string(&mut table, "kind")?.ok_or_else(|| {
        let kinds = KINDS.join(", ");
        format!("kind is missing; use one of {kinds}")
    })?;
    let name = take_string(&mut table, "name")?.unwrap_or_else(|| kind.clone());
    if !is_name(&name) {
        return Err(format!(
            "{name:?} is not a name: use 1 to {NAME_BYTES_MAX} lowercase letters, digits and hyphens"
        ));
    }
    let run = RunParameters::take(&mut table)?;
    let own = table.clone();
    let kind = FilterKind::parse(&kind, table)?;
    let mut out_of_process = run.check(kind.placement())?;
    if let Some(settings) = out_of_process.as_mut().filter(|_| run.runs.is_some()) {
        settings.standalone_policy = standalone_policy(own, &name, kind.as_str());
    }
    Ok(FilterPolicy {
        name,
        kind,
        out_of_process,
    })
}

/// Whether a filter may have this name: 1 to 32 characters of a-z, 0-9 and `-`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// The policy of a chain that has only this filter, inline.
fn standalone_policy(mut own: toml::Table, name: &str, kind: &str) -> String {
    own.insert("name".to_owned(), name.into());
    own.insert("kind".to_owned(), kind.into());
    let mut policy = toml::Table::new();
    policy.insert("volume".to_owned(), "*".into());
    policy.insert("filter".to_owned(), vec![toml::Value::from(own)].into());
    policy.to_string()
}

/// Takes a string parameter that every filter may have out of its table.
fn take_string(table: &mut toml::Table, key: &str) -> Result<Option<String>, String> {
    match table.remove(key) {
        None => Ok(None),
        Some(toml::Value::String(word)) => Ok(Some(word)),
        Some(other) => Err(format!("{key} is {other}; it must be a string")),
    }
}

#[cfg(test)]
mod tests;
