//! Plugging by QMP.
//!
//! ```text
//!  plug    1. look       a device of that name: done. A node without one: removed
//!          2. choose     a spare port
//!          3. node       blockdev-add: QEMU connects to the server
//!          4. device     device_add; if refused, the node is removed again
//!  unplug  1. look       no device: continue with 4
//!          2. request    device_del
//!          3. await      DEVICE_DELETED, and look each second in case it was
//!                        missed: another client may have requested it
//!          4. node       blockdev-del
//! ```
//!
//! Must not know: libvirt, which owns the monitors of its QEMUs.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use world::host;

use super::qmp::{Event, Monitor, QmpError};
use super::{Disk, DiskName, Found, Plugged, Serial, Unplugged, Vm, VmError};

/// QOM path of devices that have a name.
const PERIPHERAL: &str = "/machine/peripheral";

/// Devices with one PCIe slot below them.
const PORTS: [&str; 3] = [
    "child<pcie-root-port>",
    "child<xio3130-downstream>",
    "child<ioh3420>",
];

/// QEMU's errors for a machine without a free port. All errors of QEMU have one class.
const FULL: [&str; 3] = [
    "does not support hotplugging",
    "no slot/function available",
    "No 'PCI' bus found",
];

/// QEMU's error for a guest that was asked before.
const ASKED_BEFORE: &str = "already in the process of unplug";

/// QEMU's error for a guest that cannot be asked now.
const GUEST_BUSY: &str = "guest is busy";

const REMEDY: &str = "add a port to its command line for each disk \
                      (-device pcie-root-port,id=scree1,chassis=1, the number another each time) \
                      and start it again";

/// The pause between checks whether the device still exists.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A device releases its node a moment after it has disappeared: the node is removed in up to this
/// many attempts, with this pause.
const NODE_TRIES: u32 = 100;
const NODE_PAUSE: Duration = Duration::from_millis(50);

/// The longest time in which a process that closes its connections ends.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// A property below a QOM path.
#[derive(Deserialize)]
struct Property {
    name: String,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct Node {
    #[serde(rename = "node-name", default)]
    name: String,
    ro: bool,
}

#[derive(Deserialize)]
struct Status {
    status: String,
    running: bool,
}

async fn below(monitor: &mut Monitor, path: &str) -> Result<Vec<Property>, QmpError> {
    monitor.execute("qom-list", json!({ "path": path })).await
}

async fn text_of(monitor: &mut Monitor, path: &str, name: &str) -> Result<String, QmpError> {
    let arguments = json!({ "path": path, "property": name });
    let value: Value = monitor.execute("qom-get", arguments).await?;
    Ok(value.as_str().unwrap_or_default().to_owned())
}

async fn has_device(monitor: &mut Monitor, id: &str) -> Result<bool, QmpError> {
    let devices = below(monitor, PERIPHERAL).await?;
    Ok(devices.iter().any(|device| device.name == id))
}

async fn nodes(monitor: &mut Monitor) -> Result<Vec<Node>, QmpError> {
    let flat = json!({ "flat": true });
    monitor.execute("query-named-block-nodes", flat).await
}

/// The disks of Scree.
async fn found(monitor: &mut Monitor) -> Result<Vec<Found>, QmpError> {
    let devices = below(monitor, PERIPHERAL).await?;
    let mut found = Vec::new();
    for node in nodes(monitor).await? {
        if let Some(name) = DiskName::from_qemu(&node.name) {
            found.push(Found {
                name,
                serial: None,
                is_read_only: node.ro,
                is_plugged: false,
            });
        }
    }
    for device in devices {
        let Some(name) = DiskName::from_qemu(&device.name) else {
            continue;
        };
        let path = format!("{PERIPHERAL}/{}", device.name);
        let serial = match text_of(monitor, &path, "serial").await {
            // It was just removed, or is another disk.
            Err(QmpError::Refused { .. }) => continue,
            serial => serial?.parse::<Serial>().ok(),
        };
        match found.iter_mut().find(|disk| disk.name == name) {
            Some(disk) => (disk.serial, disk.is_plugged) = (serial, true),
            // A device of that name on another node.
            None => found.push(Found {
                name,
                serial,
                is_read_only: false,
                is_plugged: true,
            }),
        }
    }
    Ok(found)
}

/// The bus of a free port; `None` if there is none, and for machines without ports, whose root bus
/// accepts devices itself. A port without a name is skipped: its bus may share the name of another
/// one.
async fn spare_port(monitor: &mut Monitor) -> Result<Option<String>, QmpError> {
    let mut ports = below(monitor, PERIPHERAL).await?;
    ports.retain(|port| PORTS.contains(&port.kind.as_str()));
    ports.sort_by(|one, other| one.name.cmp(&other.name));
    for port in ports {
        let port = format!("{PERIPHERAL}/{}", port.name);
        for bus in below(monitor, &port).await? {
            if bus.kind != "child<PCIE>" {
                continue;
            }
            let path = format!("{port}/{}", bus.name);
            let slots = below(monitor, &path).await?;
            let is_taken = slots.iter().any(|slot| slot.name.starts_with("child["));
            // Empty for a port with hotplug=off.
            if !is_taken && !text_of(monitor, &path, "hotplug-handler").await?.is_empty() {
                return Ok(Some(bus.name));
            }
        }
    }
    Ok(None)
}

/// The block node of a disk, as `blockdev-add` creates it.
fn nbd_node(disk: &Disk, id: &str, server: &str) -> Value {
    json!({
        "driver": "nbd",
        "node-name": id,
        "server": { "type": "unix", "path": server },
        "export": disk.export,
        "read-only": disk.is_read_only,
        "reconnect-delay": disk.reconnect_delay_seconds,
        // Otherwise the guest's trims would end here.
        "discard": "unmap",
    })
}

/// Removes a node, if it exists. Returns why if QEMU refuses to.
async fn delete_node(monitor: &mut Monitor, name: &str) -> Result<Option<String>, QmpError> {
    for tried in 1.. {
        let arguments = json!({ "node-name": name });
        let refused = match monitor.execute::<Value>("blockdev-del", arguments).await {
            Err(QmpError::Refused { desc, .. }) => desc,
            done => return done.map(|_| None),
        };
        if nodes(monitor).await?.iter().all(|node| node.name != name) {
            break;
        }
        if tried == NODE_TRIES {
            return Ok(Some(refused));
        }
        host::sleep(NODE_PAUSE).await;
    }
    Ok(None)
}

/// What an event means for the unplugging of a device.
enum UnplugEvent {
    Deleted,
    Refused,
    Unrelated,
}

fn unplug_event(event: &Event, id: &str) -> UnplugEvent {
    let path = format!("{PERIPHERAL}/{id}");
    // A disk has a child device that is deleted before it: the path distinguishes them.
    let is_ours = event.data["path"] == path.as_str() || event.data["device"] == id;
    match event.name.as_str() {
        "DEVICE_DELETED" if is_ours => UnplugEvent::Deleted,
        "DEVICE_UNPLUG_GUEST_ERROR" if is_ours => UnplugEvent::Refused,
        _ => UnplugEvent::Unrelated,
    }
}

/// Asks the guest to release the device, and waits. Returns why if it does not.
async fn delete_device(
    monitor: &mut Monitor,
    id: &str,
    within: Duration,
) -> Result<Option<String>, QmpError> {
    let mut over = pin!(host::sleep(within));
    let arguments = json!({ "id": id });
    match monitor.execute::<Value>("device_del", arguments).await {
        Ok(_) => {}
        Err(QmpError::Refused { desc, .. }) if desc.contains(ASKED_BEFORE) => {}
        Err(QmpError::Refused { desc, .. }) if desc.contains(GUEST_BUSY) => {
            return Ok(Some(format!("{desc}; retry")));
        }
        Err(QmpError::Refused { class, .. }) if class == "DeviceNotFound" => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut ticks = host::ticks(POLL_INTERVAL);
    loop {
        tokio::select! {
            event = monitor.next_event() => match unplug_event(&event?, id) {
                UnplugEvent::Deleted => return Ok(None),
                UnplugEvent::Refused => {
                    return Ok(Some("the guest refuses; stop using the disk in it and retry".into()));
                }
                UnplugEvent::Unrelated => {}
            },
            _ = ticks.tick() => if !has_device(monitor, id).await? {
                return Ok(None);
            },
            () = &mut over => break,
        }
    }
    let Status { status, running } = monitor.execute("query-status", json!({})).await?;
    Ok(Some(if running {
        format!(
            "the guest has not released the disk in {} s; check that it has booted and does not \
             use the disk, and retry",
            within.as_secs_f32()
        )
    } else {
        format!("the VM is not running ({status}), so its guest cannot answer; resume it and retry")
    }))
}

impl Vm {
    fn of_qmp(&self, source: QmpError) -> VmError {
        let vm = self.address.clone();
        match source {
            QmpError::NoListener { .. } => VmError::Ended { vm },
            source => VmError::Qmp { vm, source },
        }
    }

    async fn monitor(&self, socket: &Path) -> Result<Monitor, QmpError> {
        Monitor::connect(socket, self.options.answer_within).await
    }

    pub(super) async fn disks_by_qmp(&self, socket: &Path) -> Result<Vec<Found>, VmError> {
        let listed = async { found(&mut self.monitor(socket).await?).await };
        listed.await.map_err(|error| self.of_qmp(error))
    }

    pub(super) async fn plug_by_qmp(&self, socket: &Path, disk: &Disk) -> Result<Plugged, VmError> {
        let of_qmp = |error| self.of_qmp(error);
        let server = disk.socket_text()?;
        let id = disk.name.in_qemu();
        let mut monitor = self.monitor(socket).await.map_err(of_qmp)?;

        let found = found(&mut monitor).await.map_err(of_qmp)?;
        match found.iter().find(|found| found.name == disk.name) {
            Some(found) if found.is_plugged => {
                self.must_be(disk, found)?;
                return Ok(Plugged {
                    was_there: true,
                    waits_for_server: true,
                });
            }
            // An unfinished plug. A new node certainly has the right properties.
            Some(_) => self.remove_node(&mut monitor, &id).await?,
            None => {}
        }

        let port = spare_port(&mut monitor).await.map_err(of_qmp)?;
        let node = nbd_node(disk, &id, server);
        let _: Value = monitor
            .execute("blockdev-add", node)
            .await
            .map_err(of_qmp)?;

        // QEMU resolves `virtio-blk` to the variant for its machine: -pci, -ccw.
        let serial = disk.serial.to_string();
        let mut device = json!({ "driver": "virtio-blk", "id": id, "drive": id, "serial": serial });
        if let Some(bus) = port {
            device["bus"] = bus.into();
        }
        match monitor.execute::<Value>("device_add", device).await {
            Ok(_) => Ok(Plugged {
                was_there: false,
                waits_for_server: true,
            }),
            Err(QmpError::Refused { desc, .. }) if FULL.iter().any(|full| desc.contains(full)) => {
                self.remove_node(&mut monitor, &id).await?;
                Err(VmError::NoFreePort {
                    vm: self.address.clone(),
                    remedy: REMEDY,
                })
            }
            Err(error @ QmpError::Refused { .. }) => {
                self.remove_node(&mut monitor, &id).await?;
                Err(of_qmp(error))
            }
            Err(error) => Err(of_qmp(error)),
        }
    }

    /// Removes a node that no device of Scree uses.
    async fn remove_node(&self, monitor: &mut Monitor, id: &str) -> Result<(), VmError> {
        let kept = delete_node(monitor, id).await;
        match kept.map_err(|error| self.of_qmp(error))? {
            None => Ok(()),
            Some(desc) => Err(self.of_qmp(QmpError::Refused {
                command: "blockdev-del",
                class: "GenericError".into(),
                desc,
            })),
        }
    }

    pub(super) async fn unplug_by_qmp(
        &self,
        socket: &Path,
        name: &DiskName,
    ) -> Result<Unplugged, VmError> {
        match self.try_unplug(socket, &name.in_qemu()).await {
            Ok(unplugged) => Ok(unplugged),
            Err(error) if error.is_end() && self.has_ended(socket).await => Ok(Unplugged::VmEnded),
            Err(error) => Err(self.of_qmp(error)),
        }
    }

    async fn try_unplug(&self, socket: &Path, id: &str) -> Result<Unplugged, QmpError> {
        let mut monitor = self.monitor(socket).await?;
        if has_device(&mut monitor, id).await? {
            let kept = delete_device(&mut monitor, id, self.options.unplug_within).await?;
            if let Some(reason) = kept {
                return Ok(Unplugged::Busy { reason });
            }
        }
        Ok(match delete_node(&mut monitor, id).await? {
            None => Unplugged::Removed,
            Some(desc) => Unplugged::Busy {
                reason: format!(
                    "the guest has released the disk, but QEMU has not ({desc}); retry"
                ),
            },
        })
    }

    /// Whether no process listens any more. An ending process may close its connections before its
    /// listening socket, so a connection that is closed at once, or has to wait for others, is
    /// retried.
    async fn has_ended(&self, socket: &Path) -> bool {
        let has_ended = async {
            loop {
                match self.monitor(socket).await {
                    Err(QmpError::NoListener { .. }) => return true,
                    Err(QmpError::Closed(_) | QmpError::InUse { .. }) => {
                        host::sleep(NODE_PAUSE).await;
                    }
                    _ => return false,
                }
            }
        };
        tokio::select! {
            has_ended = has_ended => has_ended,
            () = host::sleep(ENDS_WITHIN) => false,
        }
    }
}
