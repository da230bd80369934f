//! Plugs disks into running virtual machines, and unplugs them.
//!
//! A disk is served over NBD on a unix socket of this host. A text names the VM:
//!
//! | text | VM | how |
//! |---|---|---|
//! | `qmp:/run/vm/one.qmp` | the QEMU whose monitor is that socket | QMP |
//! | `libvirt:one` | libvirt's domain of that name or UUID | `virsh` |
//!
//! The name of a plugged disk, in the VM itself, is made from the attachment's id:
//!
//! ```text
//!  attachment            att-0123456789abcdef0
//!  QEMU: node, device    scree-att-0123456789abcdef0
//!  libvirt: alias        ua-scree-att-0123456789abcdef0
//! ```
//!
//! So nothing has to be remembered here. Each operation first looks at the state of the VM and
//! continues from there: it may be repeated after a crash of either side at any step. Operations on
//! one VM should be sequential, because a monitor serves one client at a time.
//!
//! Unplugging cannot be **forced**: QEMU frees no node that a device uses, and only the guest can
//! release a device. Only the server can be forced: it stops, requests of the guest wait for the
//! reconnect delay, and then they and all later ones get I/O errors. The device stays until the
//! guest releases it.
//!
//! Must not know: volumes, keys, the controller, what serves the socket.
//!
//! Invariants: a disk is never reported as unplugged while a VM that is available has its device. A
//! refused plug leaves nothing behind.

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

/// The default time in seconds for which requests wait for an unavailable server: longer than an
/// agent takes to start and open a volume.
pub const RECONNECT_DELAY_SECONDS: u32 = 30;

/// Name of a plugged disk: an attachment's id. 1 to 25 letters, digits, `.`, `_` and `-`: QEMU's
/// limit is 31 with the prefix `scree-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskName(String);

/// A text that is not a disk name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a disk name: it must have 1 to 25 letters, digits, '.', '_' and '-'")]
pub struct BadDiskName(String);

impl DiskName {
    /// The name of the node and the device in QEMU.
    fn in_qemu(&self) -> String {
        format!("scree-{}", self.0)
    }

    /// The inverse; `None` for names that are not Scree's.
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

/// Serial of the disk in the guest: 1 to 20 letters, digits, `.` and `_`, the limit of virtio-blk.
///
/// Dashes are removed, so that a volume's id of 21 characters fits, as on EC2:
/// `vol-0123456789abcdef0` has the serial `vol0123456789abcdef0` and is
/// `/dev/disk/by-id/virtio-vol0123456789abcdef0` in a Linux guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serial(String);

/// A text that is not a serial.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a serial: it must have 1 to 20 letters, digits, '.' and '_', besides dashes")]
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
    /// Its name in the VM. A name always has the same socket, export and serial.
    pub name: DiskName,
    /// The socket that serves it; the VM's user must be allowed to connect.
    pub socket: PathBuf,
    /// Name of the export on that socket.
    pub export: String,
    /// Whether the disk is write-protected for the guest.
    pub is_read_only: bool,
    /// Its serial in the guest.
    pub serial: Serial,
    /// Time in seconds for which requests wait for an unavailable server before they get I/O
    /// errors. Usually [`RECONNECT_DELAY_SECONDS`].
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

/// The outcome of plugging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plugged {
    /// Whether the disk was plugged already.
    pub was_there: bool,
    /// Whether requests wait for an unavailable server. A libvirt that does not support `<reconnect
    /// delay='...'/>` drops it (9.0 does): then the guest gets I/O errors as soon as the server
    /// stops.
    pub waits_for_server: bool,
}

/// The outcome of unplugging.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unplugged {
    /// The VM does not have the disk any more.
    Removed,
    /// The VM is not running, and so has no disk.
    VmEnded,
    /// The guest has not released the disk, but still may; it is still plugged. Unplug it again.
    Busy {
        /// Why, and what the operator can do.
        reason: String,
    },
}

/// A disk of Scree that a VM has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub name: DiskName,
    /// Its serial in the guest; `None` if it is not plugged, or has another kind of serial.
    pub serial: Option<Serial>,
    /// Whether it is write-protected for the guest.
    pub is_read_only: bool,
    /// False if plugging or unplugging stopped half-way: QEMU has the connection, but no device.
    /// Repeat either.
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
    /// The VM has no free port or slot.
    #[error("{vm} has no free port to plug a disk into; {remedy}, or unplug another disk")]
    NoFreePort {
        /// The VM.
        vm: VmAddress,
        /// What to add to its definition.
        remedy: &'static str,
    },
    /// Another disk is plugged under that name.
    #[error("{vm} has another disk as {name} ({found}); unplug that one first")]
    Conflict {
        /// The VM.
        vm: VmAddress,
        /// The name of both disks.
        name: DiskName,
        /// The plugged disk: its serial and whether it is read-only.
        found: String,
    },
    /// The socket's path or the export's name cannot be passed on.
    #[error(
        "the socket `{}` or the export `{export}` has characters that cannot be passed to QEMU; choose other names",
        socket.display()
    )]
    BadSource {
        /// The socket.
        socket: PathBuf,
        /// The export.
        export: String,
    },
    /// The monitor did not answer, or QEMU refused.
    #[error("{vm} does not answer, or refuses")]
    Qmp {
        /// The VM.
        vm: VmAddress,
        /// The cause.
        source: QmpError,
    },
    /// `virsh` could not be run.
    #[error("cannot run `{}`; install libvirt's clients", program.display())]
    NoVirsh {
        /// The program.
        program: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// `virsh` did not end in time. Its command may still take effect.
    #[error("`virsh {command}` for {vm} did not end within {} s; check whether libvirt hangs", waited.as_secs_f32())]
    VirshHangs {
        /// The VM.
        vm: VmAddress,
        /// The command.
        command: &'static str,
        /// The timeout.
        waited: Duration,
    },
    /// `virsh` refused.
    #[error("`virsh {command}` for {vm} failed: {message}")]
    VirshFailed {
        /// The VM.
        vm: VmAddress,
        /// The command.
        command: &'static str,
        /// Its output.
        message: String,
    },
    /// libvirt found another domain than the requested one.
    #[error(
        "libvirt takes {vm} for the number of the domain `{found}`; use the UUID of the domain"
    )]
    OtherDomain {
        /// The requested domain.
        vm: VmAddress,
        /// The domain that libvirt found.
        found: String,
    },
    /// libvirt's description of the domain cannot be parsed.
    #[error("cannot read libvirt's description of {vm}")]
    BadDescription {
        /// The VM.
        vm: VmAddress,
        /// The parse error; `None` if it is XML, but does not describe a domain.
        source: Option<roxmltree::Error>,
    },
}

/// Timeouts, and how to call libvirt.
#[derive(Debug, Clone)]
pub struct VmOptions {
    /// Timeout of one answer of a monitor or `virsh`; 10 s by default.
    pub answer_within: Duration,
    /// Time for which a guest may hold a disk before it is reported as busy; 30 s by default.
    pub unplug_within: Duration,
    /// The connection URI of libvirt; `qemu:///system` by default.
    pub libvirt_uri: String,
    /// libvirt's client program; by default `virsh`, found in the path.
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

/// A virtual machine, by its address. It holds no connection.
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

    /// Lists the disks of Scree in it, sorted by name.
    ///
    /// # Errors
    /// [`VmError::Ended`] if it is not running; other errors if it does not answer.
    pub async fn disks(&self) -> Result<Vec<Found>, VmError> {
        let mut found = match &self.address {
            VmAddress::Qmp(socket) => self.disks_by_qmp(socket).await,
            VmAddress::Libvirt(domain) => self.disks_by_libvirt(domain).await,
        }?;
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    /// Plugs a disk, unless it is plugged already. Its server must be serving: QEMU connects before
    /// it answers.
    ///
    /// A disk that its guest was asked to release counts as plugged until it is released.
    ///
    /// # Errors
    /// The variants of [`VmError`]. After a timeout the disk may or may not be plugged: look, or
    /// plug again.
    pub async fn plug(&self, disk: &Disk) -> Result<Plugged, VmError> {
        match &self.address {
            VmAddress::Qmp(socket) => self.plug_by_qmp(socket, disk).await,
            VmAddress::Libvirt(domain) => self.plug_by_libvirt(domain, disk).await,
        }
    }

    /// Asks the guest to release a disk, and waits until it has, or until the timeout.
    ///
    /// # Errors
    /// If the VM does not answer, and it is unknown whether it runs.
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
            None => "an unknown serial".into(),
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
    fn a_volume_id_without_its_dash_is_a_valid_virtio_serial() {
        let serial: Serial = "vol-0123456789abcdef0".parse().expect("a serial");
        assert_eq!(serial.to_string(), "vol0123456789abcdef0");
        for text in ["", "-", "vol-0123456789abcdef01", "a b", "é"] {
            assert!(text.parse::<Serial>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_disk_name_fits_into_a_qemu_node_name() {
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
