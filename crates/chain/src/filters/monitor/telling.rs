//! [`Telling`]: from what was seen to events: with paths, judged by rules, and gathered for
//! a moment, so that what follows each other in a file is one event.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use chain_policy::{Action, MonitorConfig, Operation};

use super::event::{Detail, Event, FileEvent, What};
use super::rules::{Rules, Verdict};
use crate::Surroundings;
use crate::follow::{Disk, Seen};
use extfs::{self, FileKind};

/// What is seen is told within so long.
pub(super) const GATHER_FOR: Duration = Duration::from_millis(5);

/// Or when so many events are there.
const GATHER_MAX: usize = 512;

/// A file that was not read for so long is opened when it is.
const OPEN_AFTER: Duration = Duration::from_secs(10);

/// Of so many files it is known when they were read, and where they are.
const FILES_MAX: usize = 1 << 14;

/// And so many bytes of the latter.
const PATHS_BYTES_MAX: usize = 8 << 20;

/// See the module's head.
pub(super) struct Telling {
    name: Arc<str>,
    surroundings: Surroundings,
    rules: Rules,
    gathered: Vec<Event>,
    due: Option<Duration>,
    /// Where files are, until a name changes.
    paths: HashMap<(usize, u32), Option<Arc<[u8]>>>,
    /// How long those are, and were that went since this was 0.
    paths_bytes: usize,
    /// When they were read last.
    read: HashMap<(usize, u32), Duration>,
}

/// A change of a file, in the words of events.
struct Change {
    operation: Operation,
    inode: u32,
    kind: Option<FileKind>,
    path: Option<Arc<[u8]>>,
    detail: Detail,
}

impl Telling {
    pub fn new(name: &str, config: MonitorConfig, surroundings: Surroundings) -> Self {
        Self {
            name: name.into(),
            surroundings,
            rules: Rules::new(config),
            gathered: Vec::new(),
            due: None,
            paths: HashMap::new(),
            paths_bytes: 0,
            read: HashMap::new(),
        }
    }

    pub fn may_deny(&self) -> bool {
        self.rules.may_deny()
    }

    /// When what is gathered is to be handed over.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Hands over what is due.
    pub fn hand_over(&mut self, now: Duration) {
        if self.due.is_some_and(|due| now >= due) {
            self.end();
        }
    }

    /// Hands over all that there is.
    pub fn end(&mut self) {
        self.due = None;
        if !self.gathered.is_empty() {
            let events = std::mem::take(&mut self.gathered);
            self.surroundings.events.tell(events);
        }
    }

    /// What the monitor says of itself.
    pub fn note(&mut self, note: &str) {
        self.add(None, What::Note(note.to_owned()), None);
    }

    /// It may take so much memory, in bytes: less than its policy gives it, maybe.
    pub fn begins(&mut self, memory_max: u64) {
        let given = self.rules.config().memory_max;
        if memory_max < given {
            self.note(&format!(
                "it may take {memory_max} bytes of memory on this host, and not the {given} \
                 of its policy"
            ));
        }
    }

    /// What was found on the disk.
    pub fn found(&mut self, disk: &Disk) {
        self.paths.clear();
        self.read.clear();
        for area in disk.areas() {
            let note = match &area.found {
                Ok(live) => {
                    let view = live.view();
                    let left_out = match view.damaged() {
                        0 => String::new(),
                        damaged => format!(", of which {damaged} things made no sense"),
                    };
                    let late = match view.superblock().has_fast_commits {
                        true => "; what it commits in short is known with the next full commit",
                        false => "",
                    };
                    format!(
                        "an ext file system of {} files is followed{left_out}{late}",
                        view.inodes().count()
                    )
                }
                Err(error) => {
                    let causes = base::with_causes(&error);
                    format!("the filter reports blocks, not files: {causes}")
                }
            };
            self.add(area.number, What::Note(note), None);
        }
    }

    /// Whether a rule denies a read.
    pub fn denies_read(&mut self, disk: Option<&Disk>, range: &Range<u64>) -> Option<String> {
        let disk = disk?;
        let mut seen = Vec::new();
        disk.was_read(range, &mut seen);
        for seen in seen {
            let Seen::File(area, extfs::Event::Read { inode, .. }) = &seen else {
                continue;
            };
            let Some(path) = self.path(disk, *area, *inode) else {
                continue;
            };
            let now = self.surroundings.clock.monotonic();
            if self.rules.denies(Operation::Read, &path, now) {
                return self.tell(Some(disk), vec![seen]);
            }
        }
        None
    }

    /// Tells of what was seen; why it is to be denied, if a rule says so.
    pub fn tell(&mut self, disk: Option<&Disk>, seen: Vec<Seen>) -> Option<String> {
        let mut why = None;
        for seen in seen {
            match (seen, disk) {
                (Seen::Blocks(partition, operation, range), _) => {
                    let (offset, length) = (range.start, range.end - range.start);
                    let what = What::Blocks {
                        operation,
                        offset,
                        length,
                    };
                    let config = self.rules.config();
                    let operations = &config.operations;
                    if config.paths.is_empty()
                        && (operations.is_empty() || operations.contains(&operation))
                    {
                        self.add(partition, what, None);
                    }
                }
                (Seen::File(area, event), Some(disk)) => {
                    let change = self.change(disk, area, event);
                    let number = disk.areas()[area].number;
                    if change.operation == Operation::Read {
                        let denied = self.opened(disk, area, &change);
                        why = why.or(denied);
                    }
                    let denied = self.judge(number, change);
                    why = why.or(denied);
                }
                (Seen::File(..), None) => {}
            }
        }
        why
    }

    /// A file that is read again after some time was opened, as far as can be seen.
    fn opened(&mut self, disk: &Disk, area: usize, change: &Change) -> Option<String> {
        let now = self.surroundings.clock.monotonic();
        if self.read.len() >= FILES_MAX {
            self.read.clear();
        }
        let last = self.read.insert((area, change.inode), now);
        let is_open = last.is_some_and(|last| now.saturating_sub(last) < OPEN_AFTER);
        if is_open {
            return None;
        }
        let change = Change {
            operation: Operation::Open,
            inode: change.inode,
            kind: change.kind,
            path: change.path.clone(),
            detail: Detail::None,
        };
        self.judge(disk.areas()[area].number, change)
    }

    /// What rules say of a change, which is told if it is to be.
    fn judge(&mut self, partition: Option<u32>, change: Change) -> Option<String> {
        let to = match &change.detail {
            Detail::To(to) => Some(&to[..]),
            _ => None,
        };
        let nowhere: Arc<[u8]> = Arc::default();
        let path = change.path.as_ref().unwrap_or(&nowhere);
        let now = self.surroundings.clock.monotonic();
        let Verdict { is_told, rule } = self.rules.judge(change.operation, path, to, now);
        let why = rule.as_ref().and_then(|(rule, action)| match action {
            Action::Deny => Some(denied(rule)),
            Action::Alert => None,
        });
        if is_told {
            let event = FileEvent {
                operation: change.operation,
                inode: change.inode,
                kind: change.kind,
                path: change.path,
                detail: change.detail,
            };
            self.add(partition, What::File(event), rule);
        }
        why
    }

    fn add(&mut self, partition: Option<u32>, what: What, rule: Option<(Arc<str>, Action)>) {
        if rule.is_none()
            && let Some(last) = self.gathered.last_mut()
            && last.partition == partition
            && last.rule.is_none()
            && follows(&mut last.what, &what)
        {
            return;
        }
        let clock = &self.surroundings.clock;
        self.gathered.push(Event {
            time: clock.wall(),
            whose: Arc::clone(&self.surroundings.whose),
            monitor: Arc::clone(&self.name),
            partition,
            what,
            rule,
        });
        match self.gathered.len() >= GATHER_MAX {
            true => self.end(),
            false => {
                let now = self.surroundings.clock.monotonic();
                self.due.get_or_insert(now + GATHER_FOR);
            }
        }
    }

    fn path(&mut self, disk: &Disk, area: usize, inode: u32) -> Option<Arc<[u8]>> {
        if let Some(known) = self.paths.get(&(area, inode)) {
            return known.clone();
        }
        let path: Option<Arc<[u8]>> = disk.path(area, inode).map(Into::into);
        let length = path.as_ref().map_or(0, |path| path.len());
        self.paths_bytes += length;
        if self.paths.len() >= FILES_MAX || self.paths_bytes > PATHS_BYTES_MAX {
            self.paths.clear();
            self.paths_bytes = length;
        }
        self.paths.insert((area, inode), path.clone());
        path
    }

    fn change(&mut self, disk: &Disk, area: usize, event: extfs::Event) -> Change {
        use extfs::Event as Of;
        let named = matches!(
            event,
            Of::Created { .. }
                | Of::Removed { .. }
                | Of::Renamed { .. }
                | Of::Linked { .. }
                | Of::Unlinked { .. }
        );
        if named {
            // Those below a directory that is elsewhere are elsewhere, too.
            self.paths.clear();
        }
        let (operation, inode, kind, path, detail) = match event {
            Of::Created { inode, kind, path } => {
                let operation = match kind {
                    FileKind::Directory => Operation::Mkdir,
                    _ => Operation::Create,
                };
                (operation, inode, Some(kind), Some(path), Detail::None)
            }
            Of::Removed { inode, kind, path } => {
                (Operation::Delete, inode, kind, Some(path), Detail::None)
            }
            Of::Renamed { inode, from, to } => {
                (Operation::Rename, inode, None, Some(from), Detail::To(to))
            }
            Of::Linked { inode, path } => (Operation::Link, inode, None, Some(path), Detail::None),
            Of::Unlinked { inode, path } => {
                (Operation::Unlink, inode, None, Some(path), Detail::None)
            }
            Of::Written {
                inode,
                offset,
                length,
            } => {
                let detail = range(disk, area, inode, offset, length);
                (Operation::Write, inode, None, None, detail)
            }
            Of::Read {
                inode,
                offset,
                length,
            } => {
                let detail = range(disk, area, inode, offset, length);
                (Operation::Read, inode, None, None, detail)
            }
            Of::Truncated { inode, from, to } => (
                Operation::Truncate,
                inode,
                None,
                None,
                Detail::Size(from, to),
            ),
            Of::Permissions { inode, from, to } => {
                (Operation::Chmod, inode, None, None, Detail::Mode(from, to))
            }
            Of::Ownership { inode, from, to } => {
                (Operation::Chown, inode, None, None, Detail::Owner(from, to))
            }
        };
        let live = disk.areas()[area].found.as_ref().ok();
        let known = live.and_then(|live| live.view().inode(inode));
        Change {
            operation,
            inode,
            kind: kind.or(known.map(|known| known.kind)),
            path: match path {
                Some(path) => Some(path.into()),
                None => self.path(disk, area, inode),
            },
            detail,
        }
    }
}

fn denied(rule: &str) -> String {
    format!("denied by the rule {rule:?} of a monitor")
}

fn range(disk: &Disk, area: usize, inode: u32, offset: u64, length: u64) -> Detail {
    Detail::Range {
        offset,
        length,
        disk: disk.places(area, inode, offset, length),
    }
}

/// Whether `next` goes on where `last` ended, in the same file, and is part of it now.
fn follows(last: &mut What, next: &What) -> bool {
    match (last, next) {
        (What::File(last), What::File(next))
            if (last.operation, last.inode) == (next.operation, next.inode) =>
        {
            let (
                Detail::Range {
                    offset,
                    length,
                    disk,
                },
                Detail::Range {
                    offset: begin,
                    length: more,
                    disk: places,
                },
            ) = (&mut last.detail, &next.detail)
            else {
                return false;
            };
            if *offset + *length != *begin {
                return false;
            }
            *length += more;
            for (at, more) in places {
                match disk.last_mut() {
                    Some((start, length)) if *start + *length == *at => *length += more,
                    _ => disk.push((*at, *more)),
                }
            }
            true
        }
        (
            What::Blocks {
                operation,
                offset,
                length,
            },
            What::Blocks {
                operation: other,
                offset: begin,
                length: more,
            },
        ) if operation == other && *offset + *length == *begin => {
            *length += more;
            true
        }
        _ => false,
    }
}
