//! [`Event`]: what a monitor says, as it is told to people and programs.

use std::sync::Arc;

use chain_policy::{Action, Operation};
use serde::ser::{SerializeMap as _, SerializeStruct as _};
use serde::{Serialize, Serializer};
use world::Millis;

use crate::Attribution;
use extfs::FileKind;

/// Something that happened to a disk. As JSON it has the fields that there is something to
/// say in (docs/reference/policies.md).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When it passed the monitor.
    pub time: Millis,
    /// To whose disk.
    pub attribution: Arc<Attribution>,
    /// Which filter says so.
    pub filter: Arc<str>,
    /// In which partition, from 1; none, if the disk has no partition table.
    pub partition: Option<u32>,
    /// What.
    pub kind: EventKind,
    /// The rule that it breaks, and what was done.
    pub rule: Option<(Arc<str>, Action)>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// Something to a file.
    File(FileEvent),
    /// Blocks that are no file's, or of no file system that is known, were read or written.
    Blocks {
        /// Which of the two.
        operation: Operation,
        /// Where, in bytes from the beginning of the disk.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// What the monitor says of itself.
    Message(String),
    /// What a filter says that runs in a process of its own: as it has said it, but for whose
    /// disk and which filter it is.
    Forwarded(serde_json::Map<String, serde_json::Value>),
}

/// What happened to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEvent {
    /// What.
    pub operation: Operation,
    /// Its number.
    pub inode: u32,
    /// What it is, if that is known.
    pub kind: Option<FileKind>,
    /// Where it is, or was: any bytes. None, if it has no name that is known.
    pub path: Option<Arc<[u8]>>,
    /// The particulars.
    pub detail: Detail,
}

/// Particulars of what happened to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detail {
    /// There are none.
    None,
    /// Where it is now.
    To(Vec<u8>),
    /// Which part of it.
    Range {
        /// From where on, in bytes.
        offset: u64,
        /// How many bytes.
        length: u64,
        /// Where that lies, in bytes from the beginning of the disk, and how long each is.
        disk: Vec<(u64, u64)>,
    },
    /// How long it was and is, in bytes.
    Size(u64, u64),
    /// Its permission bits before and now.
    Mode(u16, u16),
    /// Its user and group before and now.
    Owner((u32, u32), (u32, u32)),
}

const fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Special => "special",
    }
}

/// A time as RFC 3339 writes it.
fn spelt(time: Millis) -> String {
    jiff::Timestamp::from_millisecond(time.0)
        .map_or_else(|_| format!("{} ms", time.0), |time| time.to_string())
}

impl Event {
    /// As a filter has told it that runs elsewhere, and is not believed whose disk it is.
    fn serialize_told<S: Serializer>(
        &self,
        told: &serde_json::Map<String, serde_json::Value>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        const OWN: [&str; 7] = [
            "sequence",
            "time",
            "tenant",
            "vm",
            "volume",
            "volume_id",
            "filter",
        ];
        let mut out = serializer.serialize_map(None)?;
        match told.get("time") {
            Some(time @ serde_json::Value::String(_)) => out.serialize_entry("time", time)?,
            _ => out.serialize_entry("time", &spelt(self.time))?,
        }
        out.serialize_entry("tenant", &self.attribution.tenant)?;
        if let Some(vm) = &self.attribution.vm {
            out.serialize_entry("vm", vm)?;
        }
        out.serialize_entry("volume", &self.attribution.volume)?;
        if let Some(id) = &self.attribution.volume_id {
            out.serialize_entry("volume_id", id)?;
        }
        out.serialize_entry("filter", &*self.filter)?;
        for (name, value) in told
            .iter()
            .filter(|(name, _)| !OWN.contains(&name.as_str()))
        {
            out.serialize_entry(name, value)?;
        }
        out.end()
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let EventKind::Forwarded(told) = &self.kind {
            return self.serialize_told(told, serializer);
        }
        let mut out = serializer.serialize_struct("Event", 16)?;
        out.serialize_field("time", &spelt(self.time))?;
        out.serialize_field("tenant", &self.attribution.tenant)?;
        if let Some(vm) = &self.attribution.vm {
            out.serialize_field("vm", vm)?;
        }
        out.serialize_field("volume", &self.attribution.volume)?;
        if let Some(id) = &self.attribution.volume_id {
            out.serialize_field("volume_id", id)?;
        }
        out.serialize_field("filter", &*self.filter)?;
        if let Some(partition) = self.partition {
            out.serialize_field("partition", &partition)?;
        }
        match &self.kind {
            EventKind::File(file) => {
                out.serialize_field("operation", &file.operation)?;
                if let Some(path) = &file.path {
                    field(&mut out, ["path", "path_hex"], path)?;
                }
                out.serialize_field("inode", &file.inode)?;
                if let Some(of) = file.kind {
                    out.serialize_field("kind", kind(of))?;
                }
                detail(&mut out, &file.detail)?;
            }
            EventKind::Blocks {
                operation,
                offset,
                length,
            } => {
                out.serialize_field("operation", operation)?;
                out.serialize_field("disk", &[[offset, length]])?;
            }
            EventKind::Message(message) => out.serialize_field("message", message)?,
            EventKind::Forwarded(_) => {}
        }
        if let Some((rule, action)) = &self.rule {
            out.serialize_field("rule", &**rule)?;
            out.serialize_field("action", action)?;
        }
        out.end()
    }
}

/// A path: as text, and as it is if that is none. NUL is none: no file of a guest has it in
/// its name, but whoever writes the disk may put it there, and what passes events on need not
/// take it.
fn field<S: serde::ser::SerializeStruct>(
    out: &mut S,
    [text, hex]: [&'static str; 2],
    path: &[u8],
) -> Result<(), S::Error> {
    let shown = String::from_utf8_lossy(path).replace('\0', "\u{fffd}");
    out.serialize_field(text, &shown)?;
    if shown.as_bytes() != path {
        let spelt: String = path.iter().map(|byte| format!("{byte:02x}")).collect();
        out.serialize_field(hex, &spelt)?;
    }
    Ok(())
}

fn detail<S: serde::ser::SerializeStruct>(out: &mut S, detail: &Detail) -> Result<(), S::Error> {
    let octal = |mode: &u16| format!("{mode:04o}");
    match detail {
        Detail::None => Ok(()),
        Detail::To(to) => field(out, ["to", "to_hex"], to),
        Detail::Range {
            offset,
            length,
            disk,
        } => {
            out.serialize_field("offset", offset)?;
            out.serialize_field("length", length)?;
            out.serialize_field("disk", disk)
        }
        Detail::Size(before, now) => {
            out.serialize_field("size_before", before)?;
            out.serialize_field("size", now)
        }
        Detail::Mode(before, now) => {
            out.serialize_field("mode_before", &octal(before))?;
            out.serialize_field("mode", &octal(now))
        }
        Detail::Owner(before, now) => {
            out.serialize_field("owner_before", &[before.0, before.1])?;
            out.serialize_field("owner", &[now.0, now.1])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind) -> Event {
        Event {
            time: Millis(1_700_000_000_123),
            attribution: Arc::new(Attribution {
                tenant: "alice".to_owned(),
                vm: Some("libvirt:web".to_owned()),
                volume: "disk".to_owned(),
                volume_id: None,
            }),
            filter: "watch".into(),
            partition: Some(1),
            kind,
            rule: Some(("binaries".into(), Action::Deny)),
        }
    }

    #[test]
    fn an_event_says_what_there_is_to_say() {
        let file = FileEvent {
            operation: Operation::Rename,
            inode: 12,
            kind: Some(FileKind::File),
            path: Some(b"/bin/l\xff".to_vec().into()),
            detail: Detail::To(b"/bin/ls".to_vec()),
        };
        let json = serde_json::to_string(&event(EventKind::File(file))).expect("written");
        assert_eq!(
            json,
            "{\"time\":\"2023-11-14T22:13:20.123Z\",\"tenant\":\"alice\",\"vm\":\"libvirt:web\",\
             \"volume\":\"disk\",\"filter\":\"watch\",\"partition\":1,\"operation\":\"rename\",\
             \"path\":\"/bin/l\u{fffd}\",\"path_hex\":\"2f62696e2f6cff\",\"inode\":12,\
             \"kind\":\"file\",\"to\":\"/bin/ls\",\"rule\":\"binaries\",\"action\":\"deny\"}"
        );
        let blocks = EventKind::Blocks {
            operation: Operation::Write,
            offset: 4096,
            length: 512,
        };
        let json = serde_json::to_string(&event(blocks)).expect("written");
        assert!(json.contains("\"disk\":[[4096,512]]"), "{json}");
    }

    /// Controllers take no text with a NUL: one such name kept all that a host had to tell.
    #[test]
    fn a_name_with_a_nul_is_spelt() {
        let file = FileEvent {
            operation: Operation::Read,
            inode: 12,
            kind: Some(FileKind::File),
            path: Some(b"/etc/f\x0089".to_vec().into()),
            detail: Detail::None,
        };
        let json = serde_json::to_string(&event(EventKind::File(file))).expect("written");
        assert!(!json.contains("\\u0000"), "{json}");
        assert!(
            json.contains("\"path_hex\":\"2f6574632f66003839\""),
            "{json}"
        );
    }
}
