//! [`Rules`]: decides which events are reported, and which rules they break.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chain_policy::{Action, Glob, MonitorConfig, Operation};
use sha2::{Digest as _, Sha256};

/// The period over which `more_than_a_minute` counts.
const MINUTE: Duration = Duration::from_secs(60);

/// The largest number of paths that are remembered for `first_time`, over all rules. Beyond it
/// every path counts as seen before.
const SEEN_MAX: usize = 1 << 18;

/// The largest number of paths whose matching patterns are cached.
const MATCHES_MAX: usize = 1 << 14;

/// The largest length of these paths together, in bytes. One path may have 256 KiB.
const MATCHES_BYTES_MAX: usize = 8 << 20;

/// The rules of a policy, with what they remember.
pub(super) struct Rules {
    config: MonitorConfig,
    rules: Vec<State>,
    /// The events that have happened: the rule, the operation and the path.
    seen: HashSet<(usize, Operation, PathHash)>,
    /// The patterns that a path matches.
    matches: HashMap<Arc<[u8]>, Matches>,
    matches_bytes: usize,
}

/// The SHA-256 of a path, since paths may be long and many.
type PathHash = [u8; 32];

struct State {
    name: Arc<str>,
    /// The beginning of the minute that is counted, by the monotonic clock.
    minute_begin: Duration,
    /// The number of events in that minute.
    count: u32,
}

#[derive(Clone)]
struct Matches {
    /// Whether the path matches the patterns of the policy.
    is_reported: bool,
    /// The rules whose patterns it matches.
    rules: Arc<[usize]>,
}

/// The decision about an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Whether the event is reported.
    pub is_reported: bool,
    /// The rule that it breaks, with its action; a rule that denies goes before others.
    pub rule: Option<(Arc<str>, Action)>,
}

fn matches_any(globs: &[Glob], path: &[u8]) -> bool {
    globs.is_empty() || globs.iter().any(|glob| glob.is_match(path))
}

fn includes(operations: &[Operation], operation: Operation) -> bool {
    operations.is_empty() || operations.contains(&operation)
}

impl Rules {
    pub fn new(config: MonitorConfig) -> Self {
        let rules = config.rules.iter().map(|rule| State {
            name: rule.name.as_str().into(),
            minute_begin: Duration::ZERO,
            count: 0,
        });
        Self {
            rules: rules.collect(),
            config,
            seen: HashSet::new(),
            matches: HashMap::new(),
            matches_bytes: 0,
        }
    }

    /// The parameters of the policy.
    pub fn config(&self) -> &MonitorConfig {
        &self.config
    }

    /// Whether a rule may deny requests.
    pub fn may_deny(&self) -> bool {
        let mut rules = self.config.rules.iter();
        rules.any(|rule| rule.action == Action::Deny)
    }

    /// Decides about `operation` on the file at `path`, and counts it. `to` is the new path of a
    /// file that is renamed.
    pub fn judge(
        &mut self,
        operation: Operation,
        path: &Arc<[u8]>,
        to: Option<&[u8]>,
        now: Duration,
    ) -> Verdict {
        let mut matches = self.matches(path);
        if let Some(to) = to {
            // Moving a file into a folder is subject to the same rules as creating it there.
            let other = self.look_up(to);
            matches = Matches {
                is_reported: matches.is_reported || other.is_reported,
                rules: merged(&matches.rules, &other.rules),
            };
        }
        let mut found: Option<(Arc<str>, Action)> = None;
        for at in matches.rules.iter().copied() {
            let (rule, state) = (&self.config.rules[at], &mut self.rules[at]);
            if !includes(&rule.operations, operation) {
                continue;
            }
            if rule.first_time {
                let seen = (at, operation, path_hash(to.unwrap_or(path)));
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
        let is_reported = matches.is_reported && includes(&self.config.operations, operation);
        Verdict {
            is_reported: is_reported || found.is_some(),
            rule: found,
        }
    }

    /// Whether a rule would deny `operation` on the file at `path`. Counts nothing:
    /// [`Rules::judge`] is called once the request starts or is denied.
    pub fn denies(&mut self, operation: Operation, path: &Arc<[u8]>, now: Duration) -> bool {
        let matches = self.matches(path);
        matches.rules.iter().copied().any(|at| {
            let (rule, state) = (&self.config.rules[at], &self.rules[at]);
            let was_seen = || {
                self.seen.len() >= SEEN_MAX || self.seen.contains(&(at, operation, path_hash(path)))
            };
            rule.action == Action::Deny
                && includes(&rule.operations, operation)
                && !(rule.first_time && was_seen())
                && rule
                    .more_than_a_minute
                    .is_none_or(|max| state.counted(now) >= max)
        })
    }

    fn matches(&mut self, path: &Arc<[u8]>) -> Matches {
        if let Some(known) = self.matches.get(path) {
            return known.clone();
        }
        let matches = self.look_up(path);
        self.matches_bytes += path.len();
        if self.matches.len() == MATCHES_MAX || self.matches_bytes > MATCHES_BYTES_MAX {
            self.matches.clear();
            self.matches_bytes = path.len();
        }
        self.matches.insert(Arc::clone(path), matches.clone());
        matches
    }

    fn look_up(&self, path: &[u8]) -> Matches {
        let rules = (0..).zip(&self.config.rules);
        let of = rules.filter(|(_, rule)| matches_any(&rule.paths, path));
        Matches {
            is_reported: matches_any(&self.config.paths, path),
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

fn path_hash(path: &[u8]) -> PathHash {
    Sha256::digest(path).into()
}

impl State {
    /// The number of events in the minute that is counted at `now`.
    fn counted(&self, now: Duration) -> u32 {
        match now.saturating_sub(self.minute_begin) >= MINUTE {
            true => 0,
            false => self.count,
        }
    }

    /// Counts an event, and returns the number of events in its minute.
    fn count(&mut self, now: Duration) -> u32 {
        if now.saturating_sub(self.minute_begin) >= MINUTE {
            (self.minute_begin, self.count) = (now, 0);
        }
        self.count = self.count.saturating_add(1);
        self.count
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
    fn a_rule_that_denies_wins_and_an_event_that_breaks_a_rule_is_reported() {
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
        assert!(verdict.is_reported && verdict.rule.is_none());
        assert!(!judge(&mut rules, Operation::Read, "/home/a").is_reported);
        assert!(!judge(&mut rules, Operation::Write, "/var/a").is_reported);
        let verdict = judge(&mut rules, Operation::Read, "/etc/ssh/key");
        assert!(verdict.is_reported);
        assert_eq!(rule(verdict), Some(("etc".to_owned(), Action::Alert)));
        let verdict = judge(&mut rules, Operation::Write, "/etc/ssh/key");
        assert_eq!(rule(verdict), Some(("keys".to_owned(), Action::Deny)));
    }

    #[test]
    fn a_rename_into_a_folder_is_judged_by_the_rules_of_the_folder() {
        let mut rules = rules(
            "paths = ['/bin/*']\n[[filter.rule]]\nname = 'r'\npaths = ['/bin/*']\naction = 'alert'",
        );
        let from: Arc<[u8]> = b"/tmp/x"[..].into();
        let verdict = rules.judge(Operation::Rename, &from, Some(b"/bin/x"), Duration::ZERO);
        assert!(verdict.is_reported && verdict.rule.is_some());
    }

    #[test]
    fn first_time_and_more_than_a_minute_are_counted() {
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
        assert!(!breaks(&mut rules, "/a", 1), "it was seen before");
        assert!(!breaks(&mut rules, "/b", 0) && !breaks(&mut rules, "/b", 0));
        assert!(breaks(&mut rules, "/b2", 1), "the third one of a minute");
        assert!(!breaks(&mut rules, "/b", 61), "another minute");
    }
}
