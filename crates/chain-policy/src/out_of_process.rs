//! Out-of-process filters: filters that do not run in the thread of the disk. This module holds
//! their common parameters: where they run, what they may use, and what happens to the disk when
//! they fail (docs/internals/out-of-process-filters.md).

use serde::Deserialize;

/// The memory of a filter's process unless the policy says otherwise, in bytes.
const MEMORY_BYTES: u64 = 512 << 20;

/// The least memory with which a filter's process starts, in bytes.
const MEMORY_BYTES_MIN: u64 = 64 << 20;
/// The most memory that a policy may ask for, in bytes.
const MEMORY_BYTES_MAX: u64 = 64 << 30;

/// The largest share of CPU that a policy may ask for; 100 is one core.
const CPU_PERCENT_MAX: u32 = 6400;

/// What a disk does while its filter does not work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// The disk answers with errors until the filter works again.
    #[default]
    FailClosed,
    /// The disk works as if the filter were not there.
    Bypass,
}

impl OnFailure {
    /// The rule as a policy spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FailClosed => "fail-closed",
            Self::Bypass => "bypass",
        }
    }
}

/// The resources that a filter's process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// CPU, in percent of one core; `None` is no limit.
    pub cpu_percent: Option<u32>,
}

/// How a filter runs outside the thread of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfProcess {
    /// What the disk does while the filter does not work.
    pub on_failure: OnFailure,
    /// What the filter may use, if it is a process of this host.
    pub limits: Limits,
    /// The policy of a chain that has only this filter, inline: the filter's process builds its
    /// chain from it. It is empty for external and remote filters.
    pub standalone_policy: String,
}

/// The parameters in a policy that say how a filter runs. Every kind may have them.
#[derive(Debug, Default)]
pub(crate) struct RunParameters {
    pub runs: Option<String>,
    pub on_failure: Option<OnFailure>,
    pub memory: Option<u64>,
    pub cpu_percent: Option<u32>,
}

/// Where filters of a kind may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Inline or in a process.
    InlineOrProcess,
    /// Inline or in a process, and never bypassed: the disk has other content without the filter.
    InlineOrProcessRequired,
    /// Only inline: the filter has connections or files of its own, which a process has not.
    Inline,
    /// In a process that runs an external program.
    External,
    /// On another machine.
    Remote,
}

impl RunParameters {
    /// Takes the parameters out of a filter's table.
    pub fn take(table: &mut toml::Table) -> Result<Self, String> {
        let on_failure = table.remove("on_failure").map(|value| {
            value
                .try_into()
                .map_err(|_| "on_failure must be \"fail-closed\" or \"bypass\"".to_owned())
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
                .ok_or(format!("cpu_percent must be 1 to {CPU_PERCENT_MAX}"))
        });
        Ok(Self {
            runs: crate::take_string(table, "runs")?,
            on_failure: on_failure.transpose()?,
            memory: memory.transpose()?,
            cpu_percent: cpu_percent.transpose()?,
        })
    }

    /// Checks the parameters against where filters of the kind may run, and returns how the
    /// filter runs out of process, or `None` if it runs inline.
    pub fn check(&self, placement: Placement) -> Result<Option<OutOfProcess>, String> {
        let is_inline = match (self.runs.as_deref(), placement) {
            (Some(_), Placement::External | Placement::Remote) => {
                return Err("remove runs: the kind says where the filter runs".to_owned());
            }
            (None, Placement::External | Placement::Remote) => false,
            (None | Some("inline"), _) => true,
            (Some("process"), Placement::Inline) => {
                return Err("filters of this kind run only inline".to_owned());
            }
            (Some("process"), _) => false,
            (Some(other), _) => {
                return Err(format!(
                    "runs is {other:?}; it must be \"inline\" or \"process\""
                ));
            }
        };
        let has_limits = self.memory.is_some() || self.cpu_percent.is_some();
        if is_inline && (has_limits || self.on_failure.is_some()) {
            return Err(
                "on_failure, memory and cpu_percent need runs = \"process\"; this filter runs inline"
                    .to_owned(),
            );
        }
        if placement == Placement::Remote && has_limits {
            return Err(
                "remove memory and cpu_percent: the filter's own machine sets its limits"
                    .to_owned(),
            );
        }
        if placement == Placement::InlineOrProcessRequired
            && self.on_failure == Some(OnFailure::Bypass)
        {
            return Err(
                "a filter of this kind cannot be bypassed: the disk has other content without it"
                    .to_owned(),
            );
        }
        let memory_bytes = self.memory.unwrap_or(MEMORY_BYTES);
        if !(MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX).contains(&memory_bytes) {
            return Err("memory must be 64M to 64G".to_owned());
        }
        Ok((!is_inline).then(|| OutOfProcess {
            on_failure: self.on_failure.unwrap_or_default(),
            limits: Limits {
                memory_bytes,
                cpu_percent: self.cpu_percent,
            },
            standalone_policy: String::new(),
        }))
    }
}
