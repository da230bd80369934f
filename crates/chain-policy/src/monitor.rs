//! `monitor`: which events of files are reported, and the rules that raise alerts or deny
//! requests.

use std::hash::{Hash, Hasher};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::{Deserialize, Deserializer, Serialize};

use crate::kind::FilterConfig;
use crate::out_of_process::Placement;

/// The maximal number of rules in a monitor.
const RULES_MAX: usize = 256;

/// The maximal number of path patterns in a rule, a monitor or a replica.
pub(crate) const PATHS_MAX: usize = 256;

/// The maximal length of a pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 1024;

/// The maximal depth of nested alternatives (`{a,b}`). Each level becomes a level of the regular
/// expression that the pattern is compiled to.
const NESTING_MAX: usize = 4;

/// The allowed values of `memory_max`, in bytes.
pub(crate) const MEMORY_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=16 << 30;

/// The value of `memory_max` unless the policy says otherwise, in bytes.
pub(crate) const MEMORY_DEFAULT: u64 = 512 << 20;

/// The parameters of a `monitor` filter.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MonitorConfig {
    /// The files whose events are reported; all files if the list is empty.
    pub paths: Vec<Glob>,
    /// The operations that are reported; all operations if the list is empty.
    pub operations: Vec<Operation>,
    /// The memory that the monitor may use for what it knows of the file systems, in bytes.
    #[serde(deserialize_with = "crate::size::required")]
    pub memory_max: u64,
    /// The rules. Of several matching rules the first that denies counts.
    #[serde(rename = "rule")]
    pub rules: Vec<Rule>,
}

impl Default for MonitorConfig {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            operations: Vec::new(),
            memory_max: MEMORY_DEFAULT,
            rules: Vec::new(),
        }
    }
}

/// A rule: which events it matches, and what is done about them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The rule's name, which its alerts carry.
    pub name: String,
    /// The files that the rule matches; all files if the list is empty.
    #[serde(default)]
    pub paths: Vec<Glob>,
    /// The operations that the rule matches; all operations if the list is empty.
    #[serde(default)]
    pub operations: Vec<Operation>,
    /// The rule matches only when there are more matching events than this within a minute.
    pub more_than_a_minute: Option<u32>,
    /// The rule matches only the first event of a path since the monitor started.
    #[serde(default)]
    pub first_time: bool,
    /// What is done about a matching event.
    pub action: Action,
}

/// What is done about an event that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// The event is reported as an alert.
    Alert,
    /// The request fails with an I/O error, and the denial is reported.
    Deny,
}

/// An operation on a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// A file was created.
    Create,
    /// A directory was created.
    Mkdir,
    /// A file is read after some time without reads.
    Open,
    /// A file's content is read from the disk.
    Read,
    /// A file's content is written to the disk.
    Write,
    /// A file became shorter.
    Truncate,
    /// A file got another name.
    Rename,
    /// A file got an additional name.
    Link,
    /// A file lost one of several names.
    Unlink,
    /// A file lost its last name.
    Delete,
    /// A file's permission bits changed.
    Chmod,
    /// A file's user or group changed.
    Chown,
}

/// A path pattern: `*` and `?` match within a name, `**` matches any number of directories.
#[derive(Debug, Clone)]
pub struct Glob {
    pattern: String,
    /// A set of this pattern alone. Compiling a single glob panics on an invalid regular
    /// expression; compiling a set returns the error.
    matcher: GlobSet,
}

impl Glob {
    /// Whether the pattern matches a path.
    #[must_use]
    pub fn is_match(&self, path: &[u8]) -> bool {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt as _;
        self.matcher.is_match(OsStr::from_bytes(path))
    }

    /// The pattern as the policy spells it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.pattern
    }
}

impl PartialEq for Glob {
    fn eq(&self, other: &Self) -> bool {
        self.pattern == other.pattern
    }
}

impl Eq for Glob {}

impl Hash for Glob {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.pattern.hash(state);
    }
}

impl<'de> Deserialize<'de> for Glob {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        let pattern = String::deserialize(from)?;
        if !pattern.starts_with('/') || pattern.len() > PATTERN_BYTES_MAX {
            return Err(D::Error::custom(format!(
                "{pattern:?} is not a path pattern: it must begin with / and have at most \
                 {PATTERN_BYTES_MAX} bytes"
            )));
        }
        if nesting(&pattern) > NESTING_MAX {
            return Err(D::Error::custom(format!(
                "{pattern:?} nests {{…}} more than {NESTING_MAX} deep"
            )));
        }
        let glob = GlobBuilder::new(&pattern).literal_separator(true).build();
        let matcher = glob.and_then(|glob| GlobSetBuilder::new().add(glob).build());
        let matcher = matcher.map_err(D::Error::custom)?;
        Ok(Self { pattern, matcher })
    }
}

/// The maximal depth of nested alternatives in a pattern.
fn nesting(pattern: &str) -> usize {
    let (mut depth, mut deepest, mut is_escaped) = (0_usize, 0, false);
    for byte in pattern.bytes() {
        match byte {
            _ if is_escaped => {}
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
        is_escaped = byte == b'\\' && !is_escaped;
    }
    deepest
}

impl FilterConfig for MonitorConfig {
    const NAME: &'static str = "monitor";
    const PLACEMENT: Placement = Placement::InlineOrProcess;
    const KEEPS_FILES: bool = false;
    const TRANSFORMS: bool = false;

    /// Checks the names and numbers.
    fn check(&self) -> Result<(), String> {
        if !MEMORY_BYTES.contains(&self.memory_max) {
            return Err("memory_max must be 1M to 16G".to_owned());
        }
        if self.rules.len() > RULES_MAX {
            let count = self.rules.len();
            return Err(format!(
                "the monitor has {count} rules; the maximum is {RULES_MAX}"
            ));
        }
        let mut patterns = vec![&self.paths];
        patterns.extend(self.rules.iter().map(|rule| &rule.paths));
        if patterns.iter().any(|paths| paths.len() > PATHS_MAX) {
            return Err(format!("paths may have at most {PATHS_MAX} patterns"));
        }
        for rule in &self.rules {
            let name = &rule.name;
            let is_name = name.len() <= 64 && !name.is_empty() && !name.contains(char::is_control);
            if !is_name {
                return Err("a rule has a name of 1 to 64 characters".to_owned());
            }
            if rule.more_than_a_minute == Some(0) {
                return Err(format!(
                    "rule {name:?}: more_than_a_minute must be at least 1; remove it to match \
                     every event"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<MonitorConfig, String> {
        let config: MonitorConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check().map(|()| config)
    }

    #[test]
    fn a_pattern_stays_within_a_name_unless_it_says_otherwise() {
        let config = config("paths = ['/etc/*', '/bin/**', '/h?me/[ab]*.txt']").expect("it is one");
        let matches = |path: &[u8]| config.paths.iter().any(|glob| glob.is_match(path));
        for path in [
            &b"/etc/passwd"[..],
            b"/bin/a/b/c",
            b"/home/a.txt",
            b"/bin/\xff\xfe",
        ] {
            assert!(matches(path), "{}", path.escape_ascii());
        }
        for path in [
            &b"/etc/ssh/key"[..],
            b"/binary",
            b"/home/c.txt",
            b"etc/x",
            b"",
        ] {
            assert!(!matches(path), "{}", path.escape_ascii());
        }
    }

    /// Regular expressions may be nested 250 deep. A policy with 300 levels once crashed the
    /// process that read it.
    #[test]
    fn a_pattern_that_is_nested_deep_is_refused() {
        let nested = |depth: usize| {
            let (open, close) = ("{".repeat(depth), "}".repeat(depth));
            config(&format!("paths = ['/{open}a{close}']"))
        };
        for depth in [NESTING_MAX + 1, 100, 249, 300, 511] {
            let refused = nested(depth).expect_err("refused");
            assert!(refused.contains("more than 4 deep"), "{depth}: {refused}");
        }
        assert!(nested(NESTING_MAX).is_ok());
        let flat = config("paths = ['/{a,b}/{c,d}{e,f}{g,h}{i,j}', '/\\{\\{\\{\\{\\{']");
        let flat = flat.expect("side by side, and escaped");
        assert!(flat.paths[0].is_match(b"/b/cfgj"));
        assert!(flat.paths[1].is_match(b"/{{{{{"));
        // The pattern's length bounds what grows without nesting.
        let classes = "[!a-z]".repeat(170);
        assert!(config(&format!("paths = ['/{classes}']")).is_ok());
    }

    #[test]
    fn invalid_rules_are_refused() {
        let rule = |more: &str| format!("[[rule]]\nname = 'r'\naction = 'alert'\n{more}");
        assert!(config(&rule("")).is_ok());
        for (text, expected) in [
            (rule("more_than_a_minute = 0"), "at least 1"),
            (rule("paths = ['etc']"), "not a path pattern"),
            (rule("paths = ['/[']"), "unclosed character class"),
            (rule("operations = ['look']"), "unknown variant `look`"),
            ("[[rule]]\nname = 'r'".to_owned(), "missing field `action`"),
            ("memory_max = 10".to_owned(), "1M to 16G"),
            ("color = 1".to_owned(), "unknown field"),
        ] {
            let refused = config(&text).expect_err("refused");
            assert!(refused.contains(expected), "{text}: {refused}");
        }
    }
}
