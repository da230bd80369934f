//! [`Reporter`]: turns accesses into events with paths, applies the rules, and gathers events for a
//! moment, so that adjacent accesses to a file become one event.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use chain_policy::{Action, MonitorConfig, Operation};

use super::event::{Detail, Event, EventKind, FileEvent};
use super::rules::{Rules, Verdict};
use crate::FilterContext;
use crate::follow::{Access, Disk};
use extfs::{self, FileKind};

/// The longest time for which events are gathered.
pub(super) const GATHER_FOR: Duration = Duration::from_millis(5);

/// The largest number of gathered events.
const GATHER_MAX: usize = 512;

/// A read of a file that was not read for this time counts as opening it.
const OPEN_AFTER: Duration = Duration::from_secs(10);

/// The largest number of files whose last read and whose path are remembered.
const FILES_MAX: usize = 1 << 14;

/// The largest length of the remembered paths, in bytes.
const PATHS_BYTES_MAX: usize = 8 << 20;

/// Reports the events of a monitor.
pub(super) struct Reporter {
    name: Arc<str>,
    context: FilterContext,
    rules: Rules,
    gathered: Vec<Event>,
    /// The time at which the gathered events are sent, by the monotonic clock.
    due: Option<Duration>,
    /// The paths of files, until a name changes.
    paths: HashMap<FileId, Option<Arc<[u8]>>>,
    /// The length of all paths that were added since the map was empty, in bytes.
    paths_bytes: usize,
    /// The time of the last read of each file.
    read: HashMap<FileId, Duration>,
}

/// A file: the index of its area, and its inode.
type FileId = (usize, u32);

/// A change of a file before it is judged.
struct Change {
    operation: Operation,
    inode: u32,
    kind: Option<FileKind>,
    path: Option<Arc<[u8]>>,
    detail: Detail,
}

impl Change {
    /// What the event itself says: most do not have a path, or the kind of the file.
    fn of(disk: &Disk, area: usize, event: extfs::Event) -> Self {
        let (operation, inode, kind, path, detail) = match event {
            extfs::Event::Created { inode, kind, path } => {
                let operation = match kind {
                    FileKind::Directory => Operation::Mkdir,
                    _ => Operation::Create,
                };
                (operation, inode, Some(kind), Some(path), Detail::None)
            }
            extfs::Event::Removed { inode, kind, path } => {
                (Operation::Delete, inode, kind, Some(path), Detail::None)
            }
            extfs::Event::Renamed { inode, from, to } => {
                (Operation::Rename, inode, None, Some(from), Detail::To(to))
            }
            extfs::Event::Linked { inode, path } => {
                (Operation::Link, inode, None, Some(path), Detail::None)
            }
            extfs::Event::Unlinked { inode, path } => {
                (Operation::Unlink, inode, None, Some(path), Detail::None)
            }
            extfs::Event::Written {
                inode,
                offset,
                length,
            } => {
                let detail = range(disk, area, inode, offset, length);
                (Operation::Write, inode, None, None, detail)
            }
            extfs::Event::Read {
                inode,
                offset,
                length,
            } => {
                let detail = range(disk, area, inode, offset, length);
                (Operation::Read, inode, None, None, detail)
            }
            extfs::Event::Truncated { inode, from, to } => (
                Operation::Truncate,
                inode,
                None,
                None,
                Detail::Size(from, to),
            ),
            extfs::Event::Permissions { inode, from, to } => {
                (Operation::Chmod, inode, None, None, Detail::Mode(from, to))
            }
            extfs::Event::Ownership { inode, from, to } => {
                (Operation::Chown, inode, None, None, Detail::Owner(from, to))
            }
        };
        Self {
            operation,
            inode,
            kind,
            path: path.map(Into::into),
            detail,
        }
    }
}

impl Reporter {
    pub fn new(name: &str, config: MonitorConfig, context: FilterContext) -> Self {
        Self {
            name: name.into(),
            context,
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

    /// The time at which the gathered events are sent, by the monotonic clock.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Sends the gathered events if they are due.
    pub fn send_due(&mut self, now: Duration) {
        if self.due.is_some_and(|due| now >= due) {
            self.send_all();
        }
    }

    /// Sends all gathered events.
    pub fn send_all(&mut self) {
        self.due = None;
        if !self.gathered.is_empty() {
            let events = std::mem::take(&mut self.gathered);
            self.context.attachment.events.report(events);
        }
    }

    /// Reports a message about the filter.
    pub fn report_message(&mut self, message: &str) {
        self.add(None, EventKind::Message(message.to_owned()), None);
    }

    /// Reports if the filter may take less memory than its policy says.
    pub fn report_memory(&mut self, memory_max: u64) {
        let requested = self.rules.config().memory_max;
        if memory_max < requested {
            self.report_message(&format!(
                "the memory is limited to {memory_max} bytes by this host, not the {requested} of \
                 the policy"
            ));
        }
    }

    /// Reports the file systems that were found on the disk.
    pub fn report_disk(&mut self, disk: &Disk) {
        self.paths.clear();
        self.read.clear();
        for area in disk.areas() {
            let message = match &area.found {
                Ok(live) => {
                    let view = live.view();
                    let left_out = match view.damaged() {
                        0 => String::new(),
                        damaged => format!(", without {damaged} invalid parts"),
                    };
                    let late = match view.superblock().has_fast_commits {
                        true => "; its fast commits are reported with the next full commit",
                        false => "",
                    };
                    format!(
                        "an ext file system of {} files is followed{left_out}{late}",
                        view.inodes().count()
                    )
                }
                Err(error) => {
                    let causes = base::with_causes(&error);
                    format!("events are reported by block: {causes}")
                }
            };
            self.add(area.number, EventKind::Message(message), None);
        }
    }

    /// Returns the reason if a rule denies a read, which is then reported.
    pub fn denies_read(&mut self, disk: Option<&Disk>, range: &Range<u64>) -> Option<String> {
        let disk = disk?;
        let mut seen = Vec::new();
        disk.was_read(range, &mut seen);
        for seen in seen {
            let Access::File(area, extfs::Event::Read { inode, .. }) = &seen else {
                continue;
            };
            let Some(path) = self.path(disk, *area, *inode) else {
                continue;
            };
            let now = self.context.host.clock.monotonic();
            if self.rules.denies(Operation::Read, &path, now) {
                return self.report(Some(disk), vec![seen]);
            }
        }
        None
    }

    /// Reports accesses. Returns the reason if a rule denies them.
    pub fn report(&mut self, disk: Option<&Disk>, seen: Vec<Access>) -> Option<String> {
        let mut why = None;
        for seen in seen {
            match (seen, disk) {
                (Access::Blocks(partition, operation, range), _) => {
                    let (offset, length) = (range.start, range.end - range.start);
                    let kind = EventKind::Blocks {
                        operation,
                        offset,
                        length,
                    };
                    let config = self.rules.config();
                    let operations = &config.operations;
                    if config.paths.is_empty()
                        && (operations.is_empty() || operations.contains(&operation))
                    {
                        self.add(partition, kind, None);
                    }
                }
                (Access::File(area, event), Some(disk)) => {
                    let change = self.change(disk, area, event);
                    let number = disk.areas()[area].number;
                    if change.operation == Operation::Read {
                        let denied = self.report_open(disk, area, &change);
                        why = why.or(denied);
                    }
                    let denied = self.judge(number, change);
                    why = why.or(denied);
                }
                (Access::File(..), None) => {}
            }
        }
        why
    }

    /// Reports that a file was opened if it was not read for some time.
    fn report_open(&mut self, disk: &Disk, area: usize, change: &Change) -> Option<String> {
        let now = self.context.host.clock.monotonic();
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

    /// Judges a change, and reports it if the rules say so. Returns the reason if a rule denies it.
    fn judge(&mut self, partition: Option<u32>, change: Change) -> Option<String> {
        let to = match &change.detail {
            Detail::To(to) => Some(&to[..]),
            _ => None,
        };
        let no_path: Arc<[u8]> = Arc::default();
        let path = change.path.as_ref().unwrap_or(&no_path);
        let now = self.context.host.clock.monotonic();
        let Verdict { is_reported, rule } = self.rules.judge(change.operation, path, to, now);
        let why = rule.as_ref().and_then(|(rule, action)| match action {
            Action::Deny => Some(denied(rule)),
            Action::Alert => None,
        });
        if is_reported {
            let event = FileEvent {
                operation: change.operation,
                inode: change.inode,
                kind: change.kind,
                path: change.path,
                detail: change.detail,
            };
            self.add(partition, EventKind::File(event), rule);
        }
        why
    }

    fn add(&mut self, partition: Option<u32>, kind: EventKind, rule: Option<(Arc<str>, Action)>) {
        if rule.is_none()
            && let Some(last) = self.gathered.last_mut()
            && last.partition == partition
            && last.rule.is_none()
            && merge_adjacent(&mut last.kind, &kind)
        {
            return;
        }
        let clock = &self.context.host.clock;
        self.gathered.push(Event {
            time: clock.wall(),
            attribution: Arc::clone(&self.context.attachment.attribution),
            filter: Arc::clone(&self.name),
            partition,
            kind,
            rule,
        });
        match self.gathered.len() >= GATHER_MAX {
            true => self.send_all(),
            false => {
                let now = self.context.host.clock.monotonic();
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
        if changes_names(&event) {
            // The path of a directory is part of the paths below it.
            self.paths.clear();
        }
        let mut change = Change::of(disk, area, event);
        let live = disk.areas()[area].found.as_ref().ok();
        let known = live.and_then(|live| live.view().inode(change.inode));
        change.kind = change.kind.or(known.map(|known| known.kind));
        if change.path.is_none() {
            change.path = self.path(disk, area, change.inode);
        }
        change
    }
}

fn changes_names(event: &extfs::Event) -> bool {
    matches!(
        event,
        extfs::Event::Created { .. }
            | extfs::Event::Removed { .. }
            | extfs::Event::Renamed { .. }
            | extfs::Event::Linked { .. }
            | extfs::Event::Unlinked { .. }
    )
}

fn denied(rule: &str) -> String {
    format!("denied by the rule {rule:?} of a monitor filter")
}

fn range(disk: &Disk, area: usize, inode: u32, offset: u64, length: u64) -> Detail {
    Detail::Range {
        offset,
        length,
        disk: disk.places(area, inode, offset, length),
    }
}

/// Appends `next` to `last` if both are the same operation on adjacent ranges of a file or of the
/// disk. Returns whether it did.
fn merge_adjacent(last: &mut EventKind, next: &EventKind) -> bool {
    match (last, next) {
        (EventKind::File(last), EventKind::File(next))
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
            EventKind::Blocks {
                operation,
                offset,
                length,
            },
            EventKind::Blocks {
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
