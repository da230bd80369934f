//! Filters that do not run in the thread of the disk: where they run, and what happens to the
//! disk when they fail (docs/chains.md, "Where a filter runs").

use serde::Deserialize;

/// A process has so much memory if nothing is said, in bytes.
const MEMORY_BYTES: u64 = 512 << 20;

/// It needs as much to run at all, and no tenant gets more, in bytes.
const MEMORY_BYTES_MIN: u64 = 64 << 20;
const MEMORY_BYTES_MAX: u64 = 64 << 30;

/// A hundred is one core.
const CPU_PERCENT_MAX: u32 = 6400;

/// What a disk does without a filter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// It answers with errors until the filter is back.
    #[default]
    FailClosed,
    /// It goes on as if the filter were not there.
    Bypass,
}

impl OnFailure {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FailClosed => "fail-closed",
            Self::Bypass => "bypass",
        }
    }
}

/// What a process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Of one core, in percent; none: all that there is.
    pub cpu_percent: Option<u32>,
}

/// A filter that runs elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// What the disk does without it.
    pub on_failure: OnFailure,
    /// What it may use, if it is a process of this host.
    pub limits: Limits,
    /// The policy of a chain of nothing but this filter, inline: for the process that it runs
    /// in. Empty, if that is no program of Scree.
    pub alone: String,
}

/// What a policy says of it, beside the kind's own parameters.
#[derive(Debug, Default)]
pub(crate) struct Words {
    pub runs: Option<String>,
    pub on_failure: Option<OnFailure>,
    pub memory: Option<u64>,
    pub cpu_percent: Option<u32>,
}

/// Where filters of a kind run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runs {
    /// Inline or in a process.
    Anywhere,
    /// Inline or in a process, and never left out: the disk is something else without it.
    Needed,
    /// Inline only.
    Inline,
    /// In a process that is no program of Scree.
    Program,
    /// On another machine.
    Machine,
}

impl Words {
    /// Takes them out of what is written of a filter.
    pub fn take(table: &mut toml::Table) -> Result<Self, String> {
        let on_failure = table.remove("on_failure").map(|value| {
            value
                .try_into()
                .map_err(|_| "on_failure is \"fail-closed\" or \"bypass\"".to_owned())
        });
        let memory = table.remove("memory").map(|value| {
            crate::size::required(value).map_err(|error| format!("memory: {}", error.message()))
        });
        let cpu_percent = table.remove("cpu_percent").map(|value| {
            let percent = value
                .as_integer()
                .and_then(|value| u32::try_from(value).ok());
            percent
                .filter(|percent| (1..=CPU_PERCENT_MAX).contains(percent))
                .ok_or(format!("cpu_percent is 1 to {CPU_PERCENT_MAX}"))
        });
        Ok(Self {
            runs: crate::word(table, "runs")?,
            on_failure: on_failure.transpose()?,
            memory: memory.transpose()?,
            cpu_percent: cpu_percent.transpose()?,
        })
    }

    /// What they mean for a filter of a kind that runs there; none: it runs inline.
    pub fn hop(&self, runs: Runs) -> Result<Option<Hop>, String> {
        let is_hop = match (self.runs.as_deref(), runs) {
            (_, Runs::Program | Runs::Machine) if self.runs.is_some() => {
                return Err("where it runs its kind says already".to_owned());
            }
            (_, Runs::Program | Runs::Machine) => true,
            (None | Some("inline"), _) => false,
            (Some("process"), Runs::Inline) => {
                return Err("filters of this kind run inline only".to_owned());
            }
            (Some("process"), _) => true,
            (Some(other), _) => {
                return Err(format!(
                    "runs is \"inline\" or \"process\", and not {other:?}"
                ));
            }
        };
        let has_limits = self.memory.is_some() || self.cpu_percent.is_some();
        if !is_hop && (has_limits || self.on_failure.is_some()) {
            return Err(
                "on_failure, memory and cpu_percent are of filters that run in a process; this one \
                 runs inline"
                    .to_owned(),
            );
        }
        if runs == Runs::Machine && has_limits {
            return Err("what it may use its own machine says".to_owned());
        }
        if runs == Runs::Needed && self.on_failure == Some(OnFailure::Bypass) {
            return Err("it cannot be left out: the disk is another one without it".to_owned());
        }
        let memory_bytes = self.memory.unwrap_or(MEMORY_BYTES);
        if !(MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX).contains(&memory_bytes) {
            return Err("memory is 64M to 64G".to_owned());
        }
        Ok(is_hop.then(|| Hop {
            on_failure: self.on_failure.unwrap_or_default(),
            limits: Limits {
                memory_bytes,
                cpu_percent: self.cpu_percent,
            },
            alone: String::new(),
        }))
    }
}
