//! What is told of what happens, and which rules it breaks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chain_policy::{Action, Glob, MonitorConfig, Operation};
use sha2::{Digest as _, Sha256};

/// What a rate is counted over.
const MINUTE: Duration = Duration::from_secs(60);

/// So many paths are known to have been there before, of all rules together; beyond that all
/// are.
const SEEN_MAX: usize = 1 << 18;

/// So many paths' patterns are remembered, and so many bytes of these paths: one may have
/// 256 KiB.
const MATCHES_MAX: usize = 1 << 14;
const MATCHES_BYTES_MAX: usize = 8 << 20;

/// See the module's head.
pub(super) struct Rules {
    config: MonitorConfig,
    rules: Vec<State>,
    /// What happened for the first time already: of which rule, and to what.
    seen: HashSet<(usize, Operation, Seen)>,
    /// Which patterns a path is of: whether it is told of, and by which rules.
    matches: HashMap<Arc<[u8]>, Matches>,
    matches_bytes: usize,
}

/// SHA-256 of a path: that of a file that lies deep is long, and there may be many.
type Seen = [u8; 32];

struct State {
    name: Arc<str>,
    /// When the minute began that is counted, and how much was in it.
    minute: (Duration, u32),
}

#[derive(Clone)]
struct Matches {
    is_told: bool,
    rules: Arc<[usize]>,
}

/// What is to be done about something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    /// It is told.
    pub is_told: bool,
    /// The rule that it breaks; one that denies, if there is one.
    pub rule: Option<(Arc<str>, Action)>,
}

fn is_of(globs: &[Glob], path: &[u8]) -> bool {
    globs.is_empty() || globs.iter().any(|glob| glob.is_match(path))
}

fn is_one(operations: &[Operation], operation: Operation) -> bool {
    operations.is_empty() || operations.contains(&operation)
}

impl Rules {
    pub fn new(config: MonitorConfig) -> Self {
        let rules = config.rules.iter().map(|rule| State {
            name: rule.name.as_str().into(),
            minute: (Duration::ZERO, 0),
        });
        Self {
            rules: rules.collect(),
            config,
            seen: HashSet::new(),
            matches: HashMap::new(),
            matches_bytes: 0,
        }
    }

    /// How it is to be.
    pub fn config(&self) -> &MonitorConfig {
        &self.config
    }

    /// Whether anything may be denied.
    pub fn may_deny(&self) -> bool {
        let mut rules = self.config.rules.iter();
        rules.any(|rule| rule.action == Action::Deny)
    }

    /// What is to be done about `operation` on the file at `path`, which may have had
    /// another name: `to` is the one that it has then.
    pub fn judge(
        &mut self,
        operation: Operation,
        path: &Arc<[u8]>,
        to: Option<&[u8]>,
        now: Duration,
    ) -> Verdict {
        let mut matches = self.matches(path);
        if let Some(to) = to {
            // A file that is moved into a place is as much there as one that is made there.
            let other = self.look(to);
            matches = Matches {
                is_told: matches.is_told || other.is_told,
                rules: merged(&matches.rules, &other.rules),
            };
        }
        let mut found: Option<(Arc<str>, Action)> = None;
        for at in matches.rules.iter().copied() {
            let (rule, state) = (&self.config.rules[at], &mut self.rules[at]);
            if !is_one(&rule.operations, operation) {
                continue;
            }
            if rule.first_time {
                let seen = (at, operation, seen(to.unwrap_or(path)));
                if self.seen.len() >= SEEN_MAX || !self.seen.insert(seen) {
                    continue;
                }
            }
            if let Some(max) = rule.more_than_a_minute
                && state.count(now) <= max
            {
                continue;
            }
            if found.is_none() || rule.action == Action::Deny {
                found = Some((Arc::clone(&state.name), rule.action));
            }
            if rule.action == Action::Deny {
                break;
            }
        }
        let is_told = matches.is_told && is_one(&self.config.operations, operation);
        Verdict {
            is_told: is_told || found.is_some(),
            rule: found,
        }
    }

    /// Whether a rule would deny `operation` on the file at `path`. Nothing is counted: what is
    /// denied or begins is judged then, once.
    pub fn denies(&mut self, operation: Operation, path: &Arc<[u8]>, now: Duration) -> bool {
        let matches = self.matches(path);
        matches.rules.iter().copied().any(|at| {
            let (rule, state) = (&self.config.rules[at], &self.rules[at]);
            let is_known =
                || self.seen.len() >= SEEN_MAX || self.seen.contains(&(at, operation, seen(path)));
            rule.action == Action::Deny
                && is_one(&rule.operations, operation)
                && !(rule.first_time && is_known())
                && rule
                    .more_than_a_minute
                    .is_none_or(|max| state.counted(now) >= max)
        })
    }

    fn matches(&mut self, path: &Arc<[u8]>) -> Matches {
        if let Some(known) = self.matches.get(path) {
            return known.clone();
        }
        let matches = self.look(path);
        self.matches_bytes += path.len();
        if self.matches.len() == MATCHES_MAX || self.matches_bytes > MATCHES_BYTES_MAX {
            self.matches.clear();
            self.matches_bytes = path.len();
        }
        self.matches.insert(Arc::clone(path), matches.clone());
        matches
    }

    fn look(&self, path: &[u8]) -> Matches {
        let rules = (0..).zip(&self.config.rules);
        let of = rules.filter(|(_, rule)| is_of(&rule.paths, path));
        Matches {
            is_told: is_of(&self.config.paths, path),
            rules: of.map(|(at, _)| at).collect(),
        }
    }
}

fn merged(one: &[usize], other: &[usize]) -> Arc<[usize]> {
    let mut all: Vec<usize> = one.iter().chain(other).copied().collect();
    all.sort_unstable();
    all.dedup();
    all.into()
}

fn seen(path: &[u8]) -> Seen {
    Sha256::digest(path).into()
}

impl State {
    /// How many there were in the minute that is counted at `now`.
    fn counted(&self, now: Duration) -> u32 {
        match now.saturating_sub(self.minute.0) >= MINUTE {
            true => 0,
            false => self.minute.1,
        }
    }

    /// Counts one more; how many there were within a minute.
    fn count(&mut self, now: Duration) -> u32 {
        if now.saturating_sub(self.minute.0) >= MINUTE {
            self.minute = (now, 0);
        }
        self.minute.1 = self.minute.1.saturating_add(1);
        self.minute.1
    }
}

#[cfg(test)]
mod tests {
    use chain_policy::{FilterKind, Policy};

    use super::*;

    fn rules(text: &str) -> Rules {
        let text = format!("volume = 'a'\n[[filter]]\nkind = 'monitor'\n{text}");
        let policy = Policy::parse(&text).expect("a policy");
        match &policy.filters[0].kind {
            FilterKind::Monitor(config) => Rules::new(config.clone()),
            other => panic!("{other:?}"),
        }
    }

    fn judge(rules: &mut Rules, operation: Operation, path: &str) -> Verdict {
        rules.judge(operation, &path.as_bytes().into(), None, Duration::ZERO)
    }

    #[test]
    fn the_rule_that_denies_counts_and_what_breaks_a_rule_is_told() {
        let mut rules = rules(
            "paths = ['/home/**']\noperations = ['write']\n\
             [[filter.rule]]\nname = 'etc'\npaths = ['/etc/**']\naction = 'alert'\n\
             [[filter.rule]]\nname = 'keys'\npaths = ['/etc/ssh/*']\noperations = ['write']\n\
             action = 'deny'\n",
        );
        assert!(rules.may_deny());
        let rule = |verdict: Verdict| {
            verdict
                .rule
                .map(|(name, action)| (name.to_string(), action))
        };
        let verdict = judge(&mut rules, Operation::Write, "/home/a");
        assert!(verdict.is_told && verdict.rule.is_none());
        assert!(!judge(&mut rules, Operation::Read, "/home/a").is_told);
        assert!(!judge(&mut rules, Operation::Write, "/var/a").is_told);
        let verdict = judge(&mut rules, Operation::Read, "/etc/ssh/key");
        assert!(verdict.is_told);
        assert_eq!(rule(verdict), Some(("etc".to_owned(), Action::Alert)));
        let verdict = judge(&mut rules, Operation::Write, "/etc/ssh/key");
        assert_eq!(rule(verdict), Some(("keys".to_owned(), Action::Deny)));
    }

    #[test]
    fn a_file_that_is_moved_in_is_one_that_is_there() {
        let mut rules = rules(
            "paths = ['/bin/*']\n[[filter.rule]]\nname = 'r'\npaths = ['/bin/*']\naction = 'alert'",
        );
        let from: Arc<[u8]> = b"/tmp/x"[..].into();
        let verdict = rules.judge(Operation::Rename, &from, Some(b"/bin/x"), Duration::ZERO);
        assert!(verdict.is_told && verdict.rule.is_some());
    }

    #[test]
    fn the_first_time_and_how_often_are_counted() {
        let mut rules = rules(
            "[[filter.rule]]\nname = 'new'\nfirst_time = true\npaths = ['/a*']\naction = 'alert'\n\
             [[filter.rule]]\nname = 'many'\nmore_than_a_minute = 2\npaths = ['/b*']\naction = 'alert'\n",
        );
        let breaks = |rules: &mut Rules, path: &str, second: u64| {
            let path = path.as_bytes().into();
            let now = Duration::from_secs(second);
            rules
                .judge(Operation::Write, &path, None, now)
                .rule
                .is_some()
        };
        assert!(breaks(&mut rules, "/a", 0) && breaks(&mut rules, "/a2", 0));
        assert!(!breaks(&mut rules, "/a", 1), "that was there before");
        assert!(!breaks(&mut rules, "/b", 0) && !breaks(&mut rules, "/b", 0));
        assert!(breaks(&mut rules, "/b2", 1), "the third one of a minute");
        assert!(!breaks(&mut rules, "/b", 61), "another minute");
    }
}
