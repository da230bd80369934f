//! A QEMU with nodes and devices, which ends or refuses when a test says so.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent::vm::{Disk, Vm, VmAddress, VmOptions};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};

/// What the guest does when it is asked to release a disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Guest {
    /// Releases it at once; QEMU sends the event before it replies.
    Releases,
    /// Releases it, without an event.
    ReleasesSilently,
    Refuses,
    Hangs,
    /// The process ends at that moment.
    Ends,
}

/// When the fake closes a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Close {
    /// At which command, counted from 0 over all connections.
    pub at: usize,
    /// Whether the command is carried out before.
    pub is_done: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Device {
    pub id: String,
    pub drive: String,
    pub serial: String,
    /// Whether the guest was asked to release it.
    pub is_asked: bool,
}

/// The state of the fake, and how it misbehaves.
pub struct State {
    pub nodes: Vec<(String, bool)>,
    pub devices: Vec<Device>,
    pub guest: Guest,
    pub status: &'static str,
    /// Commands that are refused, with the text of the error.
    pub refuses: HashMap<&'static str, &'static str>,
    /// How often a node is still in use after its device was removed.
    pub lingers: u32,
    pub close: Option<Close>,
    /// The commands so far.
    pub asked: Vec<String>,
}

pub struct FakeQemu {
    folder: TempDir,
    state: Arc<Mutex<State>>,
    server: tokio::task::JoinHandle<()>,
}

impl FakeQemu {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("qmp")).expect("bound");
        let state = Arc::new(Mutex::new(State {
            nodes: Vec::new(),
            devices: Vec::new(),
            guest: Guest::Releases,
            status: "running",
            refuses: HashMap::new(),
            lingers: 0,
            close: None,
            asked: Vec::new(),
        }));
        let shared = Arc::clone(&state);
        let server = tokio::spawn(async move {
            // One client at a time, like QEMU.
            while let Ok((stream, _)) = listener.accept().await {
                if serve(stream, &shared).await.is_none() {
                    break;
                }
            }
        });
        Self {
            folder,
            state,
            server,
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("qmp")
    }

    /// The VM with generous timeouts.
    pub fn vm(&self) -> Vm {
        self.with_timeout(Duration::from_secs(20))
    }

    /// The VM with short timeouts, for guests that do not release disks.
    pub fn impatient_vm(&self) -> Vm {
        self.with_timeout(Duration::from_millis(300))
    }

    fn with_timeout(&self, unplug_within: Duration) -> Vm {
        let options = VmOptions {
            answer_within: Duration::from_secs(20),
            unplug_within,
            ..VmOptions::default()
        };
        Vm::new(VmAddress::Qmp(self.socket()), options)
    }

    pub fn has_ended(&self) -> bool {
        self.server.is_finished()
    }
}

/// A disk whose socket no process serves.
pub fn disk(name: &str) -> Disk {
    Disk {
        name: name.parse().expect("a name"),
        socket: "/run/scree/nbd.sock".into(),
        export: "vol-0123456789abcdef0".into(),
        is_read_only: false,
        serial: "vol-0123456789abcdef0".parse().expect("a serial"),
        reconnect_delay_seconds: 30,
    }
}

/// Serves one connection; returns `None` when the process ends, `Some` when only the connection
/// does.
async fn serve(mut stream: UnixStream, shared: &Mutex<State>) -> Option<()> {
    let (read, mut write) = stream.split();
    let mut lines = BufReader::new(read).lines();
    let greeting = b"{\"QMP\": {\"version\": {}, \"capabilities\": [\"oob\"]}}\n";
    if write.write_all(greeting).await.is_err() {
        return Some(());
    }
    while let Ok(Some(line)) = lines.next_line().await {
        let request: Value = serde_json::from_str(&line).expect("JSON");
        let answer = shared.lock().answer(&request);
        match answer {
            Answer::Say(text) if write.write_all(text.as_bytes()).await.is_ok() => {}
            Answer::Say(_) | Answer::Close => return Some(()),
            Answer::End => return None,
        }
    }
    Some(())
}

enum Answer {
    Say(String),
    Close,
    End,
}

impl State {
    fn answer(&mut self, request: &Value) -> Answer {
        let command = request["execute"].as_str().expect("a command");
        let number = self.asked.len();
        self.asked.push(command.into());
        let close = self.close.filter(|close| close.at == number);
        if close.is_some_and(|close| !close.is_done) {
            return Answer::Close;
        }
        let mut said = String::new();
        let arguments = &request["arguments"];
        let reply = if let Some(desc) = self.refuses.get(command) {
            Err(("GenericError", (*desc).to_owned()))
        } else if command == "device_del" && self.guest == Guest::Ends {
            return Answer::End;
        } else {
            self.carry_out(command, arguments, &mut said)
        };
        if close.is_some() {
            return Answer::Close;
        }
        let reply = match reply {
            Ok(value) => json!({ "return": value, "id": request["id"] }),
            Err((class, desc)) => {
                json!({ "error": { "class": class, "desc": desc }, "id": request["id"] })
            }
        };
        Answer::Say(format!("{said}{reply}\n"))
    }

    fn carry_out(
        &mut self,
        command: &str,
        arguments: &Value,
        said: &mut String,
    ) -> Result<Value, (&'static str, String)> {
        let text = |name: &str| arguments[name].as_str().unwrap_or_default().to_owned();
        let generic = |desc: String| Err(("GenericError", desc));
        match command {
            "qmp_capabilities" => Ok(json!({})),
            "query-status" => Ok(
                json!({ "status": self.status, "running": self.status == "running", "singlestep": false }),
            ),
            "qom-list" if text("path") == "/machine/peripheral" => Ok(self
                .devices
                .iter()
                .map(|device| json!({ "name": device.id, "type": "child<virtio-blk-pci>" }))
                .collect()),
            "qom-get" => match self.devices.iter().find(|d| text("path").ends_with(&d.id)) {
                Some(device) => Ok(json!(device.serial)),
                None => Err(("DeviceNotFound", "no such device".into())),
            },
            "query-named-block-nodes" => Ok(self
                .nodes
                .iter()
                .map(|(name, ro)| json!({ "node-name": name, "ro": ro, "drv": "nbd" }))
                .collect()),
            "blockdev-add" => {
                let name = text("node-name");
                if self.nodes.iter().any(|node| node.0 == name) {
                    return generic(format!("Duplicate nodes with node-name='{name}'"));
                }
                self.nodes.push((name, arguments["read-only"] == true));
                Ok(json!({}))
            }
            "blockdev-del" => {
                let name = text("node-name");
                if self.devices.iter().any(|device| device.drive == name) || self.lingers > 0 {
                    self.lingers = self.lingers.saturating_sub(1);
                    return generic(format!("Node {name} is in use"));
                }
                if !self.nodes.iter().any(|node| node.0 == name) {
                    return generic(format!("Failed to find node with node-name='{name}'"));
                }
                self.nodes.retain(|node| node.0 != name);
                Ok(json!({}))
            }
            "device_add" => {
                let device = Device {
                    id: text("id"),
                    drive: text("drive"),
                    serial: text("serial"),
                    is_asked: false,
                };
                if self.devices.iter().any(|other| other.id == device.id) {
                    return generic(format!("Duplicate device ID '{}'", device.id));
                }
                self.devices.push(device);
                Ok(json!({}))
            }
            "device_del" => self.device_del(&text("id"), said),
            _ => Err(("CommandNotFound", format!("no such command: {command}"))),
        }
    }

    fn device_del(&mut self, id: &str, said: &mut String) -> Result<Value, (&'static str, String)> {
        let Some(device) = self.devices.iter_mut().find(|device| device.id == id) else {
            return Err(("DeviceNotFound", format!("Device '{id}' not found")));
        };
        let path = format!("/machine/peripheral/{id}");
        match self.guest {
            Guest::Releases => {
                self.devices.retain(|device| device.id != id);
                for data in [
                    json!({ "path": format!("{path}/virtio-backend") }),
                    json!({ "path": path, "device": id }),
                ] {
                    let event = json!({ "event": "DEVICE_DELETED", "data": data });
                    *said += &format!("{event}\n");
                }
            }
            Guest::ReleasesSilently => self.devices.retain(|device| device.id != id),
            Guest::Refuses => {
                let data = json!({ "path": path, "device": id });
                let event = json!({ "event": "DEVICE_UNPLUG_GUEST_ERROR", "data": data });
                *said += &format!("{event}\n");
            }
            Guest::Hangs if device.is_asked => {
                let desc = format!("Device {id} is already in the process of unplug");
                return Err(("GenericError", desc));
            }
            Guest::Hangs => device.is_asked = true,
            Guest::Ends => unreachable!("it has ended"),
        }
        Ok(json!({}))
    }
}
