//! `monitor`: what is told of files, and what is to be done about it.

use std::hash::{Hash, Hasher};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::{Deserialize, Deserializer, Serialize};

/// A monitor has as many rules at most.
const RULES_MAX: usize = 256;

/// And a rule, or the monitor itself, as many patterns of paths.
pub(crate) const PATHS_MAX: usize = 256;

/// A pattern is as long at most, in bytes.
const PATTERN_BYTES_MAX: usize = 1024;

/// Alternatives (`{a,b}`) are within each other as deep at most: each level is one of the
/// regular expression that a pattern becomes.
const NESTING_MAX: usize = 4;

/// What it may take of memory at most, in bytes, and at least.
pub(crate) const MEMORY_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=16 << 30;

/// What it may take if nothing is said.
pub(crate) const MEMORY_DEFAULT: u64 = 512 << 20;

/// How a monitor is to be.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MonitorConfig {
    /// Of which files it tells: of all, if none are named.
    pub paths: Vec<Glob>,
    /// What it tells: everything, if nothing is named.
    pub operations: Vec<Operation>,
    /// How much memory what it knows of the file systems may take, in bytes.
    #[serde(deserialize_with = "crate::size::required")]
    pub memory_max: u64,
    /// What is to be done about some of it; the first one that denies counts.
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

/// What is to be done about some of what happens.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// By which it is told.
    pub name: String,
    /// To which files: to all, if none are named.
    #[serde(default)]
    pub paths: Vec<Glob>,
    /// What: everything, if nothing is named.
    #[serde(default)]
    pub operations: Vec<Operation>,
    /// Only what happens more often than so many times a minute.
    pub more_than_a_minute: Option<u32>,
    /// Only what happens to a path for the first time since the monitor began.
    #[serde(default)]
    pub first_time: bool,
    /// What is done.
    pub action: Action,
}

/// What is done about what happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// It is told as an alert.
    Alert,
    /// The request fails with an I/O error, and that is told.
    Deny,
}

/// What happens to files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// A file is there, and was not.
    Create,
    /// A directory is there, and was not.
    Mkdir,
    /// A file is read that was not read for some time.
    Open,
    /// It is read from the disk.
    Read,
    /// It is written to the disk.
    Write,
    /// It is shorter.
    Truncate,
    /// It has another name.
    Rename,
    /// It has one name more.
    Link,
    /// It has one name less.
    Unlink,
    /// It has no name any more.
    Delete,
    /// Its permission bits are others.
    Chmod,
    /// It is somebody else's.
    Chown,
}

/// A pattern of paths: `*` and `?` are within a name, `**` is any number of directories.
#[derive(Debug, Clone)]
pub struct Glob {
    pattern: String,
    /// Of this one alone. That of a single pattern is made of a regular expression that is
    /// expected to be sound; a set of one says if it is not.
    matcher: GlobSet,
}

impl Glob {
    /// Whether a path is one of those.
    #[must_use]
    pub fn is_match(&self, path: &[u8]) -> bool {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt as _;
        self.matcher.is_match(OsStr::from_bytes(path))
    }

    /// As it was written.
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
                "{pattern:?} is no pattern of paths: it begins with / and has \
                 {PATTERN_BYTES_MAX} bytes at most"
            )));
        }
        if nesting(&pattern) > NESTING_MAX {
            return Err(D::Error::custom(format!(
                "{pattern:?} has {{ within {{ more than {NESTING_MAX} deep"
            )));
        }
        let glob = GlobBuilder::new(&pattern).literal_separator(true).build();
        let matcher = glob.and_then(|glob| GlobSetBuilder::new().add(glob).build());
        let matcher = matcher.map_err(D::Error::custom)?;
        Ok(Self { pattern, matcher })
    }
}

/// How deep its alternatives are within each other, at most.
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

impl MonitorConfig {
    /// Whether its numbers and names make sense.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !MEMORY_BYTES.contains(&self.memory_max) {
            return Err("memory_max is 1M to 16G".to_owned());
        }
        if self.rules.len() > RULES_MAX {
            let count = self.rules.len();
            return Err(format!("it has {count} rules, and may have {RULES_MAX}"));
        }
        let mut patterns = vec![&self.paths];
        patterns.extend(self.rules.iter().map(|rule| &rule.paths));
        if patterns.iter().any(|paths| paths.len() > PATHS_MAX) {
            return Err(format!("there may be {PATHS_MAX} paths in one place"));
        }
        for rule in &self.rules {
            let name = &rule.name;
            let is_name = name.len() <= 64 && !name.is_empty() && !name.contains(char::is_control);
            if !is_name {
                return Err("a rule has a name of 1 to 64 characters".to_owned());
            }
            if rule.more_than_a_minute == Some(0) {
                let hint = "leave it out where each time counts";
                return Err(format!(
                    "rule {name:?}: more_than_a_minute is at least 1; {hint}"
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

    /// A regular expression is nested 250 deep at most, and a policy of 300 levels ended the
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
        // What grows without being nested has its bound in the pattern's length.
        let classes = "[!a-z]".repeat(170);
        assert!(config(&format!("paths = ['/{classes}']")).is_ok());
    }

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        let rule = |more: &str| format!("[[rule]]\nname = 'r'\naction = 'alert'\n{more}");
        assert!(config(&rule("")).is_ok());
        for (text, expected) in [
            (rule("more_than_a_minute = 0"), "at least 1"),
            (rule("paths = ['etc']"), "no pattern of paths"),
            (rule("paths = ['/[']"), "unclosed character class"),
            (rule("operations = ['look']"), "unknown variant `look`"),
            ("[[rule]]\nname = 'r'".to_owned(), "missing field `action`"),
            ("memory_max = 10".to_owned(), "1M to 16G"),
            ("colour = 1".to_owned(), "unknown field"),
        ] {
            let refused = config(&text).expect_err("refused");
            assert!(refused.contains(expected), "{text}: {refused}");
        }
    }
}
