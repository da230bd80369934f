//! [`Event`]: an event of a filter, and its form as JSON (docs/reference/policies.md).

use std::sync::Arc;

use chain_policy::{Action, Operation};
use serde::ser::{SerializeMap as _, SerializeStruct as _};
use serde::{Serialize, Serializer};
use world::Millis;

use crate::Attribution;
use extfs::FileKind;

/// An event of a disk. Its JSON leaves out fields without a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The time at which the request passed the filter.
    pub time: Millis,
    /// The disk.
    pub attribution: Arc<Attribution>,
    /// The name of the filter that reports the event.
    pub filter: Arc<str>,
    /// The number of the partition, from 1; `None` if the disk has no partition table.
    pub partition: Option<u32>,
    /// What happened.
    pub kind: EventKind,
    /// The rule that the request breaks, and the action of the rule.
    pub rule: Option<(Arc<str>, Action)>,
}

/// The kind of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// An access to a file or a change of it.
    File(FileEvent),
    /// An access to blocks of no file, or of no known file system.
    Blocks {
        /// A read or a write.
        operation: Operation,
        /// The offset on the disk, in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// A message of the filter about itself.
    Message(String),
    /// The JSON fields of an event that an out-of-process filter has reported. Its fields for the
    /// disk and the filter are replaced.
    Forwarded(serde_json::Map<String, serde_json::Value>),
}

/// An access to a file or a change of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEvent {
    /// The operation.
    pub operation: Operation,
    /// The number of the file's inode.
    pub inode: u32,
    /// The kind of file, if it is known.
    pub kind: Option<FileKind>,
    /// The path of the file before the event, in any bytes; `None` if it has no known name.
    pub path: Option<Arc<[u8]>>,
    /// Details that depend on the operation.
    pub detail: Detail,
}

/// The details of an event of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detail {
    /// No details.
    None,
    /// The new path.
    To(Vec<u8>),
    /// A part of the file.
    Range {
        /// The offset in the file, in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// The ranges of the part on the disk: offset and length of each, in bytes.
        disk: Vec<(u64, u64)>,
    },
    /// The length of the file before and after the event, in bytes.
    Size(u64, u64),
    /// The permission bits before and after the event.
    Mode(u16, u16),
    /// User and group before and after the event.
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

/// A time in RFC 3339.
fn rfc3339(time: Millis) -> String {
    jiff::Timestamp::from_millisecond(time.0)
        .map_or_else(|_| format!("{} ms", time.0), |time| time.to_string())
}

impl Event {
    /// Writes the event of an out-of-process filter, which is not trusted to name the disk.
    fn serialize_forwarded<S: Serializer>(
        &self,
        fields: &serde_json::Map<String, serde_json::Value>,
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
        match fields.get("time") {
            Some(time @ serde_json::Value::String(_)) => out.serialize_entry("time", time)?,
            _ => out.serialize_entry("time", &rfc3339(self.time))?,
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
        for (name, value) in fields
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
        if let EventKind::Forwarded(fields) = &self.kind {
            return self.serialize_forwarded(fields, serializer);
        }
        let mut out = serializer.serialize_struct("Event", 16)?;
        out.serialize_field("time", &rfc3339(self.time))?;
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

/// Writes a path as text, and also in hexadecimal if it is no UTF-8 or has a NUL. A guest can write
/// a NUL to the disk, and the receivers of events may not accept it.
fn field<S: serde::ser::SerializeStruct>(
    out: &mut S,
    [text, hex]: [&'static str; 2],
    path: &[u8],
) -> Result<(), S::Error> {
    let shown = String::from_utf8_lossy(path).replace('\0', "\u{fffd}");
    out.serialize_field(text, &shown)?;
    if shown.as_bytes() != path {
        let digits: String = path.iter().map(|byte| format!("{byte:02x}")).collect();
        out.serialize_field(hex, &digits)?;
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
    fn the_json_of_an_event_has_the_fields_with_a_value() {
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

    /// Controllers accept no text with a NUL, so one such name blocked all events of a host.
    #[test]
    fn a_path_with_a_nul_is_written_in_hexadecimal() {
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
