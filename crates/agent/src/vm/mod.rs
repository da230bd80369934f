//! Plugs a disk into a running virtual machine, and takes it out again.
//!
//! The disk is served as NBD on a unix socket of this host. Which VM is a text:
//!
//! | text | VM | how |
//! |---|---|---|
//! | `qmp:/run/vm/one.qmp` | the QEMU whose monitor is that socket | QMP |
//! | `libvirt:one` | libvirt's domain of that name or UUID | `virsh` |
//!
//! A plugged disk has a name, made from the attachment's id, in the VM itself:
//!
//! ```text
//!  attachment            att-0123456789abcdef0
//!  QEMU: node, device    scree-att-0123456789abcdef0
//!  libvirt: alias        ua-scree-att-0123456789abcdef0
//! ```
//!
//! So nothing has to be remembered here. Each verb looks first at the state of
//! the VM and continues from it: any of them may be repeated, after a crash of
//! either side and at any step. Verbs on one VM are best called one after the
//! other, since a monitor serves one client at a time.
//!
//! **By force** there is no unplugging: QEMU frees no node that a device uses,
//! and only the guest can release a device. What can be forced is the server:
//! it stops, requests of the guest wait for the reconnect delay, and then they
//! and all later ones are I/O errors. The device stays until the guest releases it.
//!
//! Must not know: volumes, keys, the controller, what serves the socket.
//!
//! Invariants: a disk is never reported as unplugged while a VM that can be
//! reached has its device. A refused plug leaves nothing behind.

mod domain;
mod libvirt;
mod plugging;
mod qemu;
pub mod qmp;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

pub use api::vm::{BadVmAddress, VmAddress};
use qmp::QmpError;

pub(crate) use plugging::{DOES_NOT_WAIT, Plugging, serial};

/// How long requests wait for an unavailable server, by default: longer than an
/// agent takes to start and open a volume.
pub const RECONNECT_DELAY_SECONDS: u32 = 30;

/// A plugged disk's name: an attachment's id. 1 to 25 letters, digits, `.`, `_`
/// and `-`: with `scree-` before it QEMU has room for 31.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskName(String);

/// A text that names no disk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no disk: 1 to 25 letters, digits, '.', '_' and '-'")]
pub struct BadDiskName(String);

impl DiskName {
    /// The name QEMU knows it by.
    fn in_qemu(&self) -> String {
        format!("scree-{}", self.0)
    }

    /// The inverse; `None` for a name that is not ours.
    fn from_qemu(name: &str) -> Option<Self> {
        name.strip_prefix("scree-")?.parse().ok()
    }
}

impl FromStr for DiskName {
    type Err = BadDiskName;

    fn from_str(text: &str) -> Result<Self, BadDiskName> {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if (1..=25).contains(&text.len()) && text.bytes().all(is_known) {
            Ok(Self(text.into()))
        } else {
            Err(BadDiskName(text.into()))
        }
    }
}

impl fmt::Display for DiskName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The serial by which the guest knows the disk: 1 to 20 letters, digits, `.`
/// and `_`, as virtio-blk has room for 20.
///
/// Dashes are left out, so a volume's id of 21 characters fits whole, as it
/// does on EC2: `vol-0123456789abcdef0` has the serial `vol0123456789abcdef0`
/// and is `/dev/disk/by-id/virtio-vol0123456789abcdef0` in a Linux guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serial(String);

/// A text that is no serial.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no serial: 1 to 20 letters, digits, '.' and '_', besides dashes")]
pub struct BadSerial(String);

impl FromStr for Serial {
    type Err = BadSerial;

    fn from_str(text: &str) -> Result<Self, BadSerial> {
        let serial = text.replace('-', "");
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._".contains(&byte);
        if (1..=20).contains(&serial.len()) && serial.bytes().all(is_known) {
            Ok(Self(serial))
        } else {
            Err(BadSerial(text.into()))
        }
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A disk to plug.
#[derive(Debug, Clone)]
pub struct Disk {
    /// Its name in the VM. One name is always one socket, export and serial.
    pub name: DiskName,
    /// Where it is served; the VM's user must be allowed to connect.
    pub socket: PathBuf,
    /// The export's name on that socket.
    pub export: String,
    /// Whether the guest sees a write-protected disk.
    pub is_read_only: bool,
    /// The serial that the guest sees.
    pub serial: Serial,
    /// How long requests wait for an unavailable server, in seconds; then
    /// they are I/O errors. Usually [`RECONNECT_DELAY_SECONDS`].
    pub reconnect_delay_seconds: u32,
}

impl Disk {
    /// The socket's path as text, for JSON and XML.
    fn socket_text(&self) -> Result<&str, VmError> {
        let plain = |text: &str| !text.contains(char::is_control);
        match self.socket.to_str() {
            Some(text) if plain(text) && plain(&self.export) => Ok(text),
            _ => Err(VmError::BadSource {
                socket: self.socket.clone(),
                export: self.export.clone(),
            }),
        }
    }
}

/// A disk was plugged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plugged {
    /// Whether it was plugged before.
    pub was_there: bool,
    /// Whether requests wait for an unavailable server. A libvirt that does
    /// not know `<reconnect delay='...'/>` leaves it out (9.0 does): then the
    /// guest gets I/O errors as soon as the server stops.
    pub waits_for_server: bool,
}

/// The outcome of unplugging.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unplugged {
    /// The VM has no such disk, or none any more.
    Gone,
    /// The VM does not run, and so has no disk.
    VmEnded,
    /// The guest has not released it, but may yet; it is still plugged. Unplug it
    /// again.
    Busy {
        /// Why, and what to do about it.
        reason: String,
    },
}

/// A disk of ours that a VM has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub name: DiskName,
    /// The serial that the guest sees. `None` if it is not plugged, or has no
    /// serial of ours.
    pub serial: Option<Serial>,
    /// Whether the guest sees it write-protected.
    pub is_read_only: bool,
    /// False if a plug or unplug stopped half-way: QEMU has the connection, but
    /// no device. Do either again.
    pub is_plugged: bool,
}

/// Why a request to a VM failed.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// No such VM runs on this host.
    #[error("{vm} does not run on this host; start it, or correct its name")]
    Ended {
        /// The VM.
        vm: VmAddress,
    },
    /// No port or slot is left that a disk can be plugged into.
    #[error("{vm} has no free port to plug a disk into; {remedy}, or unplug another disk")]
    NoFreePort {
        /// The VM.
        vm: VmAddress,
        /// What to add to its definition.
        remedy: &'static str,
    },
    /// A disk of that name is plugged, but another one.
    #[error("{vm} has another disk as {name} ({found}); unplug that one first")]
    Conflict {
        /// The VM.
        vm: VmAddress,
        /// The name of both.
        name: DiskName,
        /// What is there: its serial and whether it is read-only.
        found: String,
    },
    /// The socket's path or the export's name cannot be handed on.
    #[error(
        "the socket `{}` or the export `{export}` is no plain text; choose other names",
        socket.display()
    )]
    BadSource {
        /// The socket.
        socket: PathBuf,
        /// The export.
        export: String,
    },
    /// The monitor could not be talked to, or QEMU refused.
    #[error("{vm} cannot be asked, or refuses")]
    Qmp {
        /// The VM.
        vm: VmAddress,
        /// Why.
        source: QmpError,
    },
    /// `virsh` could not be run.
    #[error("cannot run `{}`; install libvirt's clients", program.display())]
    NoVirsh {
        /// What was to be run.
        program: PathBuf,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// `virsh` did not end in time. What it was to do may still happen.
    #[error("`virsh {command}` for {vm} did not end within {} s; see whether libvirt hangs", waited.as_secs_f32())]
    VirshHangs {
        /// The VM.
        vm: VmAddress,
        /// What it was to do.
        command: &'static str,
        /// How long it had.
        waited: Duration,
    },
    /// `virsh` refused.
    #[error("`virsh {command}` for {vm} failed: {said}")]
    VirshFailed {
        /// The VM.
        vm: VmAddress,
        /// What it was to do.
        command: &'static str,
        /// Its output.
        said: String,
    },
    /// libvirt found another domain than the one meant.
    #[error(
        "libvirt takes {vm} for the number of the domain `{found}`; use the UUID of the one meant"
    )]
    OtherDomain {
        /// Which was meant.
        vm: VmAddress,
        /// The one it found.
        found: String,
    },
    /// libvirt's description of the domain is not what it should be.
    #[error("cannot read libvirt's description of {vm}")]
    BadDescription {
        /// The VM.
        vm: VmAddress,
        /// What is wrong with it; `None` if it is XML, but of no domain.
        source: Option<roxmltree::Error>,
    },
}

/// How long to wait, and how to find libvirt.
#[derive(Debug, Clone)]
pub struct VmOptions {
    /// How long a monitor or `virsh` may take for one answer. 10 s.
    pub answer_within: Duration,
    /// How long a guest may take to release a disk, before it is reported as busy.
    /// 30 s.
    pub unplug_within: Duration,
    /// The connection URI of libvirt. `qemu:///system`.
    pub libvirt_uri: String,
    /// The program that talks to it. `virsh`, from the path.
    pub virsh: PathBuf,
}

impl Default for VmOptions {
    fn default() -> Self {
        Self {
            answer_within: Duration::from_secs(10),
            unplug_within: Duration::from_secs(30),
            libvirt_uri: "qemu:///system".into(),
            virsh: "virsh".into(),
        }
    }
}

/// A virtual machine, by its address. Holds no connection.
#[derive(Debug, Clone)]
pub struct Vm {
    address: VmAddress,
    options: VmOptions,
}

impl Vm {
    /// Makes no request yet.
    #[must_use]
    pub fn new(address: VmAddress, options: VmOptions) -> Self {
        Self { address, options }
    }

    /// Lists our disks in it, in the order of their names.
    ///
    /// # Errors
    /// [`VmError::Ended`] if it does not run; others if it cannot be reached.
    pub async fn look(&self) -> Result<Vec<Found>, VmError> {
        let mut found = match &self.address {
            VmAddress::Qmp(socket) => self.look_by_qmp(socket).await,
            VmAddress::Libvirt(domain) => self.look_by_libvirt(domain).await,
        }?;
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    /// Plugs a disk, unless it is plugged already. Its server must be serving:
    /// QEMU connects before it answers.
    ///
    /// A disk that its guest was asked to release counts as plugged until it is
    /// released.
    ///
    /// # Errors
    /// As the variants of [`VmError`] say. When one says that no answer came,
    /// the disk may be plugged or not: look, or plug again.
    pub async fn plug(&self, disk: &Disk) -> Result<Plugged, VmError> {
        match &self.address {
            VmAddress::Qmp(socket) => self.plug_by_qmp(socket, disk).await,
            VmAddress::Libvirt(domain) => self.plug_by_libvirt(domain, disk).await,
        }
    }

    /// Asks the guest to release a disk and waits until it has, or until the
    /// timeout.
    ///
    /// # Errors
    /// If the VM cannot be reached, and it is not known whether it runs.
    pub async fn unplug(&self, name: &DiskName) -> Result<Unplugged, VmError> {
        match &self.address {
            VmAddress::Qmp(socket) => self.unplug_by_qmp(socket, name).await,
            VmAddress::Libvirt(domain) => self.unplug_by_libvirt(domain, name).await,
        }
    }

    /// An error if the plugged disk is another one.
    fn must_be(&self, disk: &Disk, found: &Found) -> Result<(), VmError> {
        if found.serial.as_ref() == Some(&disk.serial) && found.is_read_only == disk.is_read_only {
            return Ok(());
        }
        let serial = match &found.serial {
            Some(serial) => format!("serial {serial}"),
            None => "no serial of ours".into(),
        };
        let mode = if found.is_read_only {
            "read-only"
        } else {
            "writable"
        };
        Err(VmError::Conflict {
            vm: self.address.clone(),
            name: disk.name.clone(),
            found: format!("{serial}, {mode}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volumes_id_without_its_dash_is_a_serial_that_virtio_has_room_for() {
        let serial: Serial = "vol-0123456789abcdef0".parse().expect("a serial");
        assert_eq!(serial.to_string(), "vol0123456789abcdef0");
        for text in ["", "-", "vol-0123456789abcdef01", "a b", "é"] {
            assert!(text.parse::<Serial>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_name_fits_into_a_node_of_qemus() {
        let name: DiskName = "att-0123456789abcdef0".parse().expect("a name");
        assert_eq!(DiskName::from_qemu(&name.in_qemu()), Some(name));
        let longest: DiskName = "a".repeat(25).parse().expect("a name");
        assert_eq!(longest.in_qemu().len(), 31);
        for text in ["", "a,b", "a/b", &"a".repeat(26)] {
            assert!(text.parse::<DiskName>().is_err(), "{text}");
        }
        assert_eq!(DiskName::from_qemu("drive0"), None);
    }
}
