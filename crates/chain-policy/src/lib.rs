//! Floor 2: chain policies, the TOML texts in which the owners of volumes describe chains of
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
mod monitor;
mod out_of_process;
mod outline;
mod rate;
mod remote;
mod replicate;
mod size;
mod trace;
mod volume_name;

pub use encrypt::{EncryptConfig, Format};
pub use external::ExternalConfig;
pub use fault::{DELAY_MS_MAX, FaultConfig};
pub use journal::{FlushRule, JournalConfig};
pub use monitor::{Action, Glob, MonitorConfig, Operation, Rule};
pub use out_of_process::{Limits, OnFailure, OutOfProcess};
pub use outline::{Outline, outline};
pub use rate::RateConfig;
pub use remote::RemoteConfig;
pub use replicate::{Replica, ReplicaLocation, ReplicateConfig, parse_tenant_uri};
pub use trace::TraceConfig;
pub use volume_name::volume_of;

use std::collections::{BTreeSet, HashSet};

use out_of_process::{Placement, RunParameters};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The maximal length of a policy, in bytes.
pub const TEXT_BYTES_MAX: usize = 64 << 10;

/// The maximal number of filters in a chain. Each filter costs memory and time, so a faulty
/// generator of policies must not be able to ask for thousands.
pub const FILTERS_MAX: usize = 16;

/// The maximal length of a filter's name, in bytes.
const NAME_BYTES_MAX: usize = 32;

/// The kinds of filters, as a policy spells them.
const KINDS: [&str; 9] = [
    "monitor",
    "encrypt",
    "replicate",
    "journal",
    "trace",
    "rate",
    "fault",
    "external",
    "remote",
];

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

/// The kind of a filter, with its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterKind {
    /// Reports what happens to files.
    Monitor(MonitorConfig),
    /// Encrypts the disk below.
    Encrypt(EncryptConfig),
    /// Writes to other disks as well.
    Replicate(ReplicateConfig),
    /// Acknowledges writes before they are carried out below.
    Journal(JournalConfig),
    /// Records requests.
    Trace(TraceConfig),
    /// Limits requests and bytes per second.
    Rate(RateConfig),
    /// Injects errors and delays.
    Fault(FaultConfig),
    /// Runs a program of the host's operator.
    External(ExternalConfig),
    /// Runs on another machine.
    Remote(RemoteConfig),
}

impl FilterKind {
    /// Whether a filter of this kind keeps files beside the disk.
    #[must_use]
    pub const fn keeps_files(&self) -> bool {
        matches!(self, Self::Replicate(_) | Self::Journal(_) | Self::Trace(_))
    }

    /// The kind as a policy spells it.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Monitor(_) => "monitor",
            Self::Encrypt(_) => "encrypt",
            Self::Replicate(_) => "replicate",
            Self::Journal(_) => "journal",
            Self::Trace(_) => "trace",
            Self::Rate(_) => "rate",
            Self::Fault(_) => "fault",
            Self::External(_) => "external",
            Self::Remote(_) => "remote",
        }
    }

    /// Where filters of this kind may run.
    const fn placement(&self) -> Placement {
        match self {
            Self::Monitor(_) | Self::Rate(_) | Self::Fault(_) => Placement::InlineOrProcess,
            Self::Encrypt(_) => Placement::InlineOrProcessRequired,
            // These have connections or files of their own, which a process has not.
            Self::Replicate(_) | Self::Journal(_) | Self::Trace(_) => Placement::Inline,
            Self::External(_) => Placement::External,
            Self::Remote(_) => Placement::Remote,
        }
    }
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
        /// The filter's name, if it has one.
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
        let replicas = self.filters.iter().filter_map(|one| match &one.kind {
            FilterKind::Replicate(config) => Some(&config.replicas),
            _ => None,
        });
        replicas.flatten().map(|replica| &replica.location)
    }

    /// Whether any of the filters keeps files beside the disk. Such files belong to one chain.
    #[must_use]
    pub fn keeps_files(&self) -> bool {
        self.filters.iter().any(|one| one.kind.keeps_files())
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
        let written: Written = read.map_err(|error| PolicyError::Toml(error.to_string()))?;
        match written.filters.len() {
            0 => return Err(PolicyError::Empty),
            many if many > FILTERS_MAX => return Err(PolicyError::TooManyFilters(many)),
            _ => {}
        }
        let mut names = HashSet::new();
        let mut filters: Vec<FilterPolicy> = Vec::new();
        for (number, table) in (1..).zip(written.filters) {
            let name = table.get("name").and_then(|name| name.as_str());
            let name = name.map(str::to_owned);
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

/// Checks that a filter may stand below `above`.
fn check_order(above: &[FilterPolicy], one: &FilterPolicy) -> Result<(), String> {
    let journal = above
        .iter()
        .find(|above| matches!(above.kind, FilterKind::Journal(_)));
    let Some(FilterPolicy { name, .. }) = journal else {
        return Ok(());
    };
    let denies = |rule: &Rule| rule.action == Action::Deny;
    match &one.kind {
        FilterKind::Journal(_) => Err(format!(
            "a chain has at most one journal, and filter {name} is one"
        )),
        FilterKind::Monitor(config) if config.rules.iter().any(denies) => Err(format!(
            "a monitor with a deny rule has to be above the journal {name}, which acknowledges \
             writes before this filter sees them"
        )),
        _ => Ok(()),
    }
}

fn parse_filter(mut table: toml::Table) -> Result<FilterPolicy, String> {
    let kind = take_string(&mut table, "kind")?.ok_or_else(|| {
        let kinds = KINDS.join(", ");
        format!("kind is missing; it is one of {kinds}")
    })?;
    let name = take_string(&mut table, "name")?.unwrap_or_else(|| kind.clone());
    if !is_name(&name) {
        return Err(format!(
            "a name has 1 to {NAME_BYTES_MAX} characters of a-z, 0-9 and -"
        ));
    }
    let run = RunParameters::take(&mut table)?;
    let own = table.clone();
    let kind = parse_kind(&kind, table)?;
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

/// Parses the parameters of a filter of a kind.
fn parse_kind(kind: &str, table: toml::Table) -> Result<FilterKind, String> {
    Ok(match kind {
        "monitor" => {
            let config: MonitorConfig = parameters(table)?;
            config.check()?;
            FilterKind::Monitor(config)
        }
        "encrypt" => {
            let config: EncryptConfig = parameters(table)?;
            config.check()?;
            FilterKind::Encrypt(config)
        }
        "replicate" => {
            let config: ReplicateConfig = parameters(table)?;
            config.check()?;
            FilterKind::Replicate(config)
        }
        "journal" => {
            let config: JournalConfig = parameters(table)?;
            config.check()?;
            FilterKind::Journal(config)
        }
        "trace" => {
            let config: TraceConfig = parameters(table)?;
            config.check()?;
            FilterKind::Trace(config)
        }
        "rate" => {
            let config: RateConfig = parameters(table)?;
            config.check()?;
            FilterKind::Rate(config)
        }
        "fault" => {
            let config: FaultConfig = parameters(table)?;
            config.check()?;
            FilterKind::Fault(config)
        }
        "external" => {
            let config: ExternalConfig = parameters(table)?;
            config.check()?;
            FilterKind::External(config)
        }
        "remote" => {
            let config: RemoteConfig = parameters(table)?;
            config.check()?;
            FilterKind::Remote(config)
        }
        other => {
            let kinds = KINDS.join(", ");
            return Err(format!("unknown kind {other:?}; it is one of {kinds}"));
        }
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
        Some(other) => Err(format!("{key} is {other}, and has to be a string")),
    }
}

/// Parses the parameters that only this kind has.
fn parameters<T: DeserializeOwned>(table: toml::Table) -> Result<T, String> {
    table
        .try_into()
        .map_err(|error: toml::de::Error| error.message().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
        volume = "web-1"
        vm = "web"

        [[filter]]
        kind = "rate"
        name = "limits"
        iops = 2000
        bytes_per_second = "100M"

        [[filter]]
        kind = "encrypt"
        key = "web-disk"
        format = "if-empty"
        allow_discard = true
        reencrypt = 2

        [[filter]]
        kind = "fault"
        read_errors_one_in = 1000
    "#;

    fn refused(text: &str) -> String {
        let error = Policy::parse(text).expect_err("it is refused");
        error.to_string()
    }

    #[test]
    fn a_policy_is_read_as_it_was_written() {
        let policy = Policy::parse(WHOLE).expect("it is one");
        let expected = Policy {
            volume: "web-1".to_owned(),
            vm: Some("web".to_owned()),
            filters: vec![
                FilterPolicy {
                    name: "limits".to_owned(),
                    kind: FilterKind::Rate(RateConfig {
                        iops: Some(2000),
                        bytes_per_second: Some(100 << 20),
                    }),
                    out_of_process: None,
                },
                FilterPolicy {
                    name: "encrypt".to_owned(),
                    kind: FilterKind::Encrypt(EncryptConfig {
                        key: "web-disk".to_owned(),
                        format: Format::IfEmpty,
                        allow_discard: true,
                        reencrypt: 2,
                    }),
                    out_of_process: None,
                },
                FilterPolicy {
                    name: "fault".to_owned(),
                    kind: FilterKind::Fault(FaultConfig {
                        read_errors_one_in: 1000,
                        ..FaultConfig::default()
                    }),
                    out_of_process: None,
                },
            ],
        };
        assert_eq!(policy, expected);
    }

    #[test]
    fn a_filter_in_a_process_has_a_policy_of_its_own() {
        let text = "volume = \"a\"\n[[filter]]\nkind = \"monitor\"\nname = \"watch\"\nruns = \
                    \"process\"\non_failure = \"bypass\"\nmemory = \"1G\"\ncpu_percent = 50\n\
                    operations = [\"create\"]\n[[filter.rule]]\nname = \"r\"\npaths = [\"/etc/**\"]\n\
                    action = \"alert\"\n";
        let policy = Policy::parse(text).expect("it is one");
        let settings = policy.filters[0].out_of_process.clone();
        let settings = settings.expect("it runs in a process");
        assert_eq!(settings.on_failure, OnFailure::Bypass);
        let expected = Limits {
            memory_bytes: 1 << 30,
            cpu_percent: Some(50),
        };
        assert_eq!(settings.limits, expected);
        let alone = Policy::parse(&settings.standalone_policy).expect("it is a policy");
        assert_eq!(alone.filters.len(), 1);
        assert_eq!(alone.filters[0].name, "watch");
        assert_eq!(alone.filters[0].kind, policy.filters[0].kind);
        assert_eq!(alone.filters[0].out_of_process, None, "inline, there");
    }

    /// The lines of a filter, and a part of the error that they cause.
    const INVALID_FILTERS: &[(&str, &str)] = &[
        ("name = 'x'", "filter 1 (x): kind is missing"),
        (
            "kind = 'turbo'",
            "unknown kind \"turbo\"; it is one of monitor, encrypt, replicate",
        ),
        ("kind = 3", "kind is 3, and has to be a string"),
        ("kind = 'rate'\niops = 0", "iops has to be at least 1"),
        ("kind = 'rate'\niops = -4", "invalid value"),
        ("kind = 'rate'\nspeed = 4", "unknown field `speed`"),
        ("kind = 'rate'", "the filter limits nothing"),
        (
            "kind = 'rate'\nbytes_per_second = 'fast'",
            "\"fast\" is not a size",
        ),
        ("kind = 'encrypt'", "missing field `key`"),
        (
            "kind = 'rate'\niops = 1\nruns = 'there'",
            "runs has to be \"inline\" or \"process\"",
        ),
        (
            "kind = 'rate'\niops = 1\nmemory = '1G'",
            "this filter runs inline",
        ),
        (
            "kind = 'rate'\niops = 1\nruns = 'process'\nmemory = '1M'",
            "memory has to be 64M to 64G",
        ),
        (
            "kind = 'rate'\niops = 1\nruns = 'process'\ncpu_percent = 0",
            "cpu_percent has to be 1 to",
        ),
        (
            "kind = 'rate'\niops = 1\nruns = 'process'\non_failure = 'x'",
            "on_failure has to be",
        ),
        (
            "kind = 'encrypt'\nkey = 'a'\nruns = 'process'\non_failure = 'bypass'",
            "cannot be bypassed",
        ),
        ("kind = 'journal'\nsize = '1M'", "size has to be 4M to 1T"),
        (
            "kind = 'journal'\nflush = 'never'",
            "unknown variant `never`",
        ),
        ("kind = 'journal'\nruns = 'process'", "run only inline"),
        (
            "kind = 'journal'\n[[filter]]\nkind = 'journal'\nname = 'b'",
            "filter 2 (b): a chain has at most one journal, and filter journal is one",
        ),
        (
            "kind = 'journal'\n[[filter]]\nkind = 'monitor'\n[[filter.rule]]\nname = 'r'\npaths = ['/etc/**']\naction = 'deny'",
            "filter 2: a monitor with a deny rule has to be above the journal journal",
        ),
        (
            "kind = 'trace'\nbytes_max = 5",
            "bytes_max has to be 1M to 1T",
        ),
        (
            "kind = 'external'\nprogram = '../x'",
            "program has to be a name",
        ),
        (
            "kind = 'external'\nprogram = 'x'\nruns = 'process'",
            "remove runs",
        ),
        (
            "kind = 'remote'\naddress = '10.0.0.1:1'\nkey = 'sha256:12'",
            "key has to be sha256: and 64",
        ),
        (
            "kind = 'remote'\naddress = 'host'\nkey = ''",
            "invalid socket address",
        ),
        ("kind = 'encrypt'\nkey = ''", "key has to be a name"),
        ("kind = 'encrypt'\nkey = '../x'", "key has to be a name"),
        (
            "kind = 'encrypt'\nkey = 'k'\nformat = 'always'",
            "unknown variant `always`",
        ),
        ("kind = 'fault'\nname = 'A b'", "of a-z, 0-9 and -"),
        (
            "kind = 'fault'\n[[filter]]\nkind = 'fault'",
            "filter 2: another filter of this chain has the same name",
        ),
    ];

    /// Policies, and a part of the error that they cause.
    const INVALID_POLICIES: &[(&str, &str)] = &[
        ("volume = 'a'", "delete the chain"),
        ("[[filter]]\nkind = 'fault'", "missing field `volume`"),
        ("volume = ", "TOML parse error at line 1"),
        ("colour = 1\nvolume = 'a'", "unknown field `colour`"),
    ];

    #[test]
    fn a_mistake_is_reported_with_the_filter_that_has_it() {
        let filters = INVALID_FILTERS.iter().map(|(lines, expected)| {
            let text = format!("volume = 'a'\n[[filter]]\n{lines}");
            (text, *expected)
        });
        let policies = INVALID_POLICIES.iter();
        let policies = policies.map(|(text, expected)| ((*text).to_owned(), *expected));
        for (text, expected) in filters.chain(policies) {
            let error = refused(&text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_policy_that_is_too_long_or_has_too_many_filters_is_refused() {
        let long = format!("volume = \"{}\"", "a".repeat(TEXT_BYTES_MAX));
        assert!(refused(&long).contains("the maximum is 65536"));
        let mut many = "volume = \"a\"".to_owned();
        for number in 0..=FILTERS_MAX {
            many += &format!("\n[[filter]]\nkind = \"fault\"\nname = \"b{number}\"");
        }
        assert!(refused(&many).contains("has 17 filters; the maximum is 16"));
    }
}
