//! `scree monitor`.

use api::types::{Attachment, Events};
use serde_json::Value;

use super::{Failure, Session, query};
use crate::args::MonitorArguments;
use crate::output::{Format, print_lines, print_notice, time};

/// How long the server may hold back an answer, in seconds.
const WAIT_SECONDS: u64 = 10;

pub(super) async fn run(session: &Session, arguments: &MonitorArguments) -> Result<(), Failure> {
    let attachment = watched(session, arguments).await?;
    let id = &attachment.id;
    // Past events, or those from now on.
    let mut after = (!arguments.follow).then_some(0);
    loop {
        let wait = if arguments.follow { WAIT_SECONDS } else { 0 };
        let mut path = format!("/v1/attachments/{id}/events?wait={wait}");
        if let Some(after) = after {
            path += &format!("&after={after}");
        }
        let events: Events = session.client.get(&path).await?;
        if events.missed {
            let notice = "too many events came: some are only in the host's files (DIR/events)";
            print_notice(session.format, notice);
        }
        let lines = events.items.iter().map(|event| match session.format {
            Format::Table => plain(event),
            Format::Json | Format::Yaml => event.to_string(),
        });
        let lines: Vec<String> = lines.collect();
        if !print_lines(&lines)? {
            return Ok(());
        }
        if !arguments.follow && lines.is_empty() {
            return Ok(());
        }
        after = Some(events.next);
    }
}

/// The attachment that the arguments select.
async fn watched(session: &Session, arguments: &MonitorArguments) -> Result<Attachment, Failure> {
    let volume = &arguments.volume;
    let path = query("/v1/attachments", &[("volume", Some(volume))], &[])?;
    let mut all: Vec<Attachment> = session.client.all(&path).await?;
    if arguments.vm.is_some() {
        all.retain(|one| one.vm == arguments.vm);
    }
    match all.pop() {
        Some(one) if all.is_empty() => Ok(one),
        Some(_) => Err(Failure::new(format!(
            "volume {volume:?} is attached several times: add --vm, as `scree attachment list \
             --volume {volume}` shows it"
        ))),
        None => Err(Failure::new(match &arguments.vm {
            Some(vm) => format!(
                "volume {volume:?} is not attached to {vm}: see `scree attachment list --volume \
                 {volume}`"
            ),
            None => format!(
                "volume {volume:?} is not attached: its filters report events only while it is in \
                 use; attach or export it"
            ),
        })),
    }
}

/// An event as a line of text.
fn plain(event: &Value) -> String {
    let text = |field: &str| event[field].as_str().unwrap_or_default();
    let mut line = time(text("time"));
    if let Some(action) = event["action"].as_str() {
        line += &format!("  {} ({})", action.to_uppercase(), text("rule"));
    }
    if let Some(message) = event["message"].as_str() {
        return format!("{line}  {message}");
    }
    line += &format!("  {:<8}", text("operation"));
    match event["path"].as_str() {
        Some(path) => line += &format!("  {path}"),
        None if event["inode"].is_u64() => line += &format!("  inode {}", event["inode"]),
        None => {}
    }
    if let Some(to) = event["to"].as_str() {
        line += &format!(" → {to}");
    }
    let pairs = [
        ("offset", "at"),
        ("length", "bytes"),
        ("size", "new size"),
        ("mode", "mode"),
        ("owner", "owner"),
    ];
    for (field, word) in pairs {
        match &event[field] {
            Value::Null => {}
            Value::String(value) => line += &format!("  {word} {value}"),
            value => line += &format!("  {word} {value}"),
        }
    }
    if event["inode"].is_null() {
        line += &format!("  on disk {}", event["disk"]);
    }
    line
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let event = json!({"time": "2026-01-02T03:04:05.678Z", "operation": "rename", "inode": 12,
            "path": "/tmp/x", "to": "/bin/ls", "rule": "binaries", "action": "alert"});
        assert_eq!(
            plain(&event),
            "2026-01-02T03:04:05Z  ALERT (binaries)  rename    /tmp/x → /bin/ls"
        );
        let event = json!({"time": "2026-01-02T03:04:05Z", "operation": "write",
            "disk": [[4096, 512]]});
        assert!(plain(&event).ends_with("write     on disk [[4096,512]]"));
    }
}
