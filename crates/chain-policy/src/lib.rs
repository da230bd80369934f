//! Floor 2: a chain as its owner writes it down (docs/chains.md, "Policies").
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
//! Invariant: what is parsed can be built. Whatever is refused is refused here, before
//! anybody's disk depends on it.
//!
//! Must not know: how a filter does its work, nor any key: a policy names keys, and controllers
//! read policies.

mod elsewhere;
mod encrypt;
mod fault;
mod hop;
mod journal;
mod monitor;
mod named;
mod outline;
mod rate;
mod replicate;
mod size;
mod trace;

pub use elsewhere::{MachineConfig, ProgramConfig};
pub use encrypt::{EncryptConfig, Format};
pub use fault::{DELAY_MS_MAX, FaultConfig};
pub use hop::{Hop, Limits, OnFailure};
pub use journal::{FlushRule, JournalConfig};
pub use monitor::{Action, Glob, MonitorConfig, Operation, Rule};
pub use named::volume_of;
pub use outline::{Outline, outline};
pub use rate::RateConfig;
pub use replicate::{Place, Replica, ReplicateConfig, tenants_uri};
pub use trace::TraceConfig;

use std::collections::{BTreeSet, HashSet};

use hop::{Runs, Words};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A longer text is no policy, in bytes.
pub const TEXT_BYTES_MAX: usize = 64 << 10;

/// So many filters a chain has at most: each costs something, and a mistake in what writes
/// policies should not cost everything.
pub const FILTERS_MAX: usize = 16;

/// A name of a filter is as long at most, in bytes.
const NAME_BYTES_MAX: usize = 32;

/// The kinds of filters, as they are written.
const KINDS: [&str; 9] = [
    "monitor",
    "encrypt",
    "replicate",
    "journal",
    "trace",
    "rate",
    "fault",
    "program",
    "machine",
];

/// A chain, for a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Of which volume: its name or id.
    pub volume: String,
    /// Only where this machine has it, by name.
    pub vm: Option<String>,
    /// The uppermost first: the way of a write, from the machine to the volume. At least
    /// one, [`FILTERS_MAX`] at most.
    pub filters: Vec<FilterPolicy>,
}

/// A filter of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterPolicy {
    /// Whose name no other filter of the chain has.
    pub name: String,
    /// What it is, and how.
    pub kind: FilterKind,
    /// How it runs elsewhere; none: inline.
    pub hop: Option<Hop>,
}

/// What a filter is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterKind {
    /// Says what happens to files.
    Monitor(MonitorConfig),
    /// Encrypts what lies below.
    Encrypt(EncryptConfig),
    /// Writes elsewhere as well.
    Replicate(ReplicateConfig),
    /// Acknowledges what is carried out below later.
    Journal(JournalConfig),
    /// Records requests.
    Trace(TraceConfig),
    /// Limits requests and bytes.
    Rate(RateConfig),
    /// Spoils requests.
    Fault(FaultConfig),
    /// A program of the host's operator.
    Program(ProgramConfig),
    /// On another machine.
    Machine(MachineConfig),
}

impl FilterKind {
    /// Whether a filter of this kind keeps something in files beside the disk.
    #[must_use]
    pub const fn keeps_files(&self) -> bool {
        matches!(self, Self::Replicate(_) | Self::Journal(_) | Self::Trace(_))
    }

    /// As it is written.
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
            Self::Program(_) => "program",
            Self::Machine(_) => "machine",
        }
    }

    /// Where filters of this kind run.
    const fn runs(&self) -> Runs {
        match self {
            Self::Monitor(_) | Self::Rate(_) | Self::Fault(_) => Runs::Anywhere,
            Self::Encrypt(_) => Runs::Needed,
            // They have connections or files of their own.
            Self::Replicate(_) | Self::Journal(_) | Self::Trace(_) => Runs::Inline,
            Self::Program(_) => Runs::Program,
            Self::Machine(_) => Runs::Machine,
        }
    }
}

/// Why a text is no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// It is longer than [`TEXT_BYTES_MAX`].
    #[error("it has {0} bytes, and may have {TEXT_BYTES_MAX}")]
    Long(usize),
    /// It is no TOML, or has a word that a policy has not.
    #[error("{0}")]
    Text(String),
    /// A chain of no filters is none.
    #[error("it has no [[filter]]; to be without filters, delete the chain")]
    Empty,
    /// More than [`FILTERS_MAX`].
    #[error("it has {0} filters, and may have {FILTERS_MAX}")]
    Many(usize),
    /// A filter is wrong.
    #[error("filter {number}{}: {reason}", name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default())]
    Filter {
        /// Which one, from 1.
        number: usize,
        /// Its name, if it has one.
        name: Option<String>,
        /// What is wrong.
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
    /// The volumes beside its own that its filters write, as they are named: each once.
    #[must_use]
    pub fn volumes(&self) -> BTreeSet<&str> {
        self.replicas()
            .filter_map(|place| match place {
                Place::Volume(volume) => Some(&**volume),
                Place::Uri(_) => None,
            })
            .collect()
    }

    /// Where in the network its filters have replicas, as `ADDRESS:PORT/EXPORT`: each once. Not
    /// those at sockets, which each host has its own of.
    #[must_use]
    pub fn addresses(&self) -> BTreeSet<String> {
        self.replicas().filter_map(replicate::address).collect()
    }

    fn replicas(&self) -> impl Iterator<Item = &Place> {
        let replicas = self.filters.iter().filter_map(|one| match &one.kind {
            FilterKind::Replicate(config) => Some(&config.replicas),
            _ => None,
        });
        replicas.flatten().map(|replica| &replica.place)
    }

    /// Whether any of its filters keeps something in files beside the disk: that is of one
    /// chain.
    #[must_use]
    pub fn keeps_files(&self) -> bool {
        self.filters.iter().any(|one| one.kind.keeps_files())
    }

    /// Whether what its filters write beside the disk can be reached at all. In a policy of a
    /// tenant of a cluster (`is_tenants`) what is named on a host is in folders of that
    /// tenant's. It is asked when a policy is applied: one that was accepted before goes on, as
    /// well as it can.
    ///
    /// # Errors
    /// [`PolicyError::Filter`].
    pub fn check_places(&self, is_tenants: bool) -> Result<(), PolicyError> {
        for (number, one) in (1..).zip(&self.filters) {
            if let FilterKind::Replicate(config) = &one.kind {
                config
                    .check_places(is_tenants)
                    .map_err(|reason| PolicyError::Filter {
                        number,
                        name: Some(one.name.clone()),
                        reason,
                    })?;
            }
        }
        Ok(())
    }

    /// Reads what somebody wrote.
    ///
    /// # Errors
    /// [`PolicyError`]; of several mistakes the first.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(PolicyError::Long(text.len()));
        }
        let read = toml::from_str(text);
        let written: Written = read.map_err(|error| PolicyError::Text(error.to_string()))?;
        match written.filters.len() {
            0 => return Err(PolicyError::Empty),
            many if many > FILTERS_MAX => return Err(PolicyError::Many(many)),
            _ => {}
        }
        let mut names = HashSet::new();
        let mut filters: Vec<FilterPolicy> = Vec::new();
        for (number, table) in (1..).zip(written.filters) {
            let name = table.get("name").and_then(|name| name.as_str());
            let name = name.map(str::to_owned);
            let read = filter_of(table).and_then(|read| match names.insert(read.name.clone()) {
                true => Ok(read),
                false => Err("another filter of this chain has its name".to_owned()),
            });
            let read = read.and_then(|read| may_follow(&filters, &read).map(|()| read));
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

/// Whether a filter may stand below these.
fn may_follow(above: &[FilterPolicy], one: &FilterPolicy) -> Result<(), String> {
    let journal = above
        .iter()
        .find(|above| matches!(above.kind, FilterKind::Journal(_)));
    let Some(FilterPolicy { name, .. }) = journal else {
        return Ok(());
    };
    let denies = |rule: &Rule| rule.action == Action::Deny;
    match &one.kind {
        FilterKind::Journal(_) => Err(format!(
            "filter {name} acknowledges already, and a chain has one journal at most"
        )),
        FilterKind::Monitor(config) if config.rules.iter().any(denies) => Err(format!(
            "it denies what filter {name} above has acknowledged, and never could carry out; put it \
             above that one"
        )),
        _ => Ok(()),
    }
}

fn filter_of(mut table: toml::Table) -> Result<FilterPolicy, String> {
    let kind = word(&mut table, "kind")?.ok_or_else(|| {
        let kinds = KINDS.join(", ");
        format!("it has no kind, which is one of {kinds}")
    })?;
    let name = word(&mut table, "name")?.unwrap_or_else(|| kind.clone());
    if !is_name(&name) {
        return Err(format!(
            "a name has 1 to {NAME_BYTES_MAX} characters of a-z, 0-9 and -"
        ));
    }
    let words = Words::take(&mut table)?;
    let own = table.clone();
    let kind = match kind.as_str() {
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
        "program" => {
            let config: ProgramConfig = parameters(table)?;
            config.check()?;
            FilterKind::Program(config)
        }
        "machine" => {
            let config: MachineConfig = parameters(table)?;
            config.check()?;
            FilterKind::Machine(config)
        }
        other => {
            let kinds = KINDS.join(", ");
            return Err(format!("there is no kind {other:?}; there are {kinds}"));
        }
    };
    let mut hop = words.hop(kind.runs())?;
    if let Some(hop) = hop.as_mut().filter(|_| words.runs.is_some()) {
        hop.alone = alone(own, &name, kind.as_str());
    }
    Ok(FilterPolicy { name, kind, hop })
}

/// Whether a filter may have this name.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let is_of_it = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_of_it)
}

/// The policy of a chain of one filter, inline.
fn alone(mut own: toml::Table, name: &str, kind: &str) -> String {
    own.insert("name".to_owned(), name.into());
    own.insert("kind".to_owned(), kind.into());
    let mut policy = toml::Table::new();
    policy.insert("volume".to_owned(), "*".into());
    policy.insert("filter".to_owned(), vec![toml::Value::from(own)].into());
    policy.to_string()
}

/// A word that every filter may have.
fn word(table: &mut toml::Table, key: &str) -> Result<Option<String>, String> {
    match table.remove(key) {
        None => Ok(None),
        Some(toml::Value::String(word)) => Ok(Some(word)),
        Some(other) => Err(format!("{key} is {other}, and has to be a string")),
    }
}

/// What is left is the kind's own.
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
                    hop: None,
                },
                FilterPolicy {
                    name: "encrypt".to_owned(),
                    kind: FilterKind::Encrypt(EncryptConfig {
                        key: "web-disk".to_owned(),
                        format: Format::IfEmpty,
                        allow_discard: true,
                        reencrypt: 2,
                    }),
                    hop: None,
                },
                FilterPolicy {
                    name: "fault".to_owned(),
                    kind: FilterKind::Fault(FaultConfig {
                        read_errors_one_in: 1000,
                        ..FaultConfig::default()
                    }),
                    hop: None,
                },
            ],
        };
        assert_eq!(policy, expected);
    }

    #[test]
    fn what_runs_in_a_process_has_a_policy_for_itself() {
        let text = "volume = \"a\"\n[[filter]]\nkind = \"monitor\"\nname = \"watch\"\nruns = \
                    \"process\"\non_failure = \"bypass\"\nmemory = \"1G\"\ncpu_percent = 50\n\
                    operations = [\"create\"]\n[[filter.rule]]\nname = \"r\"\npaths = [\"/etc/**\"]\n\
                    action = \"alert\"\n";
        let policy = Policy::parse(text).expect("it is one");
        let hop = policy.filters[0].hop.clone().expect("it is a hop");
        assert_eq!(hop.on_failure, OnFailure::Bypass);
        let expected = Limits {
            memory_bytes: 1 << 30,
            cpu_percent: Some(50),
        };
        assert_eq!(hop.limits, expected);
        let alone = Policy::parse(&hop.alone).expect("it is one too");
        assert_eq!(alone.filters.len(), 1);
        assert_eq!(alone.filters[0].name, "watch");
        assert_eq!(alone.filters[0].kind, policy.filters[0].kind);
        assert_eq!(alone.filters[0].hop, None, "inline, there");
    }

    #[test]
    fn what_is_wrong_is_said_with_where_it_is() {
        let of_filter = |lines: &str| format!("volume = \"a\"\n[[filter]]\n{lines}");
        for (text, expected) in [
            ("volume = \"a\"".to_owned(), "delete the chain"),
            (of_filter("name = \"x\""), "filter 1 (x): it has no kind"),
            (
                of_filter("kind = \"turbo\""),
                "there is no kind \"turbo\"; there are monitor, encrypt, replicate",
            ),
            (of_filter("kind = 3"), "kind is 3, and has to be a string"),
            (of_filter("kind = \"rate\"\niops = 0"), "iops is at least 1"),
            (of_filter("kind = \"rate\"\niops = -4"), "invalid value"),
            (
                of_filter("kind = \"rate\"\nspeed = 4"),
                "unknown field `speed`",
            ),
            (of_filter("kind = \"rate\""), "it limits nothing"),
            (
                of_filter("kind = \"rate\"\nbytes_per_second = \"fast\""),
                "\"fast\" is not a size",
            ),
            (of_filter("kind = \"encrypt\""), "missing field `key`"),
            (
                of_filter("kind = \"rate\"\niops = 1\nruns = \"there\""),
                "runs is \"inline\" or \"process\"",
            ),
            (
                of_filter("kind = \"rate\"\niops = 1\nmemory = \"1G\""),
                "this one runs inline",
            ),
            (
                of_filter("kind = \"rate\"\niops = 1\nruns = \"process\"\nmemory = \"1M\""),
                "memory is 64M to 64G",
            ),
            (
                of_filter("kind = \"rate\"\niops = 1\nruns = \"process\"\ncpu_percent = 0"),
                "cpu_percent is 1 to",
            ),
            (
                of_filter("kind = \"rate\"\niops = 1\nruns = \"process\"\non_failure = \"x\""),
                "on_failure is",
            ),
            (
                of_filter(
                    "kind = \"encrypt\"\nkey = \"a\"\nruns = \"process\"\non_failure = \"bypass\"",
                ),
                "it cannot be left out",
            ),
            (
                of_filter("kind = \"journal\"\nsize = \"1M\""),
                "size is 4M to 1T",
            ),
            (
                of_filter("kind = \"journal\"\nflush = \"never\""),
                "unknown variant `never`",
            ),
            (
                of_filter("kind = \"journal\"\nruns = \"process\""),
                "run inline only",
            ),
            (
                of_filter("kind = \"journal\"\n[[filter]]\nkind = \"journal\"\nname = \"b\""),
                "filter 2 (b): filter journal acknowledges already",
            ),
            (
                of_filter(
                    "kind = \"journal\"\n[[filter]]\nkind = \"monitor\"\n[[filter.rule]]\nname = \
                     \"r\"\npaths = [\"/etc/**\"]\naction = \"deny\"",
                ),
                "filter 2: it denies what filter journal above has acknowledged",
            ),
            (
                of_filter("kind = \"trace\"\nbytes_max = 5"),
                "bytes_max is 1M to 1T",
            ),
            (
                of_filter("kind = \"program\"\nprogram = \"../x\""),
                "program is a name",
            ),
            (
                of_filter("kind = \"program\"\nprogram = \"x\"\nruns = \"process\""),
                "its kind says already",
            ),
            (
                of_filter("kind = \"machine\"\nat = \"10.0.0.1:1\"\nkey = \"sha256:12\""),
                "key is as",
            ),
            (
                of_filter("kind = \"machine\"\nat = \"host\"\nkey = \"\""),
                "invalid socket address",
            ),
            (
                of_filter("kind = \"encrypt\"\nkey = \"\""),
                "key names a key",
            ),
            (
                of_filter("kind = \"encrypt\"\nkey = \"../x\""),
                "key names a key",
            ),
            (
                of_filter("kind = \"encrypt\"\nkey = \"k\"\nformat = \"always\""),
                "unknown variant `always`",
            ),
            (
                of_filter("kind = \"fault\"\nname = \"A b\""),
                "of a-z, 0-9 and -",
            ),
            (
                of_filter("kind = \"fault\"\n[[filter]]\nkind = \"fault\""),
                "filter 2: another filter of this chain has its name",
            ),
            (
                "[[filter]]\nkind = \"fault\"".to_owned(),
                "missing field `volume`",
            ),
            ("volume = ".to_owned(), "TOML parse error at line 1"),
            (
                "colour = 1\nvolume = \"a\"".to_owned(),
                "unknown field `colour`",
            ),
        ] {
            let said = refused(&text);
            assert!(said.contains(expected), "{text}: {said}");
        }
    }

    #[test]
    fn a_policy_has_its_bounds() {
        let long = format!("volume = \"{}\"", "a".repeat(TEXT_BYTES_MAX));
        assert!(refused(&long).contains("may have 65536"));
        let mut many = "volume = \"a\"".to_owned();
        for number in 0..=FILTERS_MAX {
            many += &format!("\n[[filter]]\nkind = \"fault\"\nname = \"b{number}\"");
        }
        assert!(refused(&many).contains("it has 17 filters, and may have 16"));
    }
}
