//! [`Plugging`]: plugs the disks of attachments into VMs, and unplugs them.
//!
//! ```text
//!  <data>/vm/att-….sock    mode 600, owned by the user who runs the VM
//! ```
//!
//! Requests to one VM are sequential, because its monitor serves one client at a time. Each may be
//! repeated: a plugged disk is recognized.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::host::{Access, Assignment};
use api::vm::VmAddress;
use base::with_causes;
use parking_lot::Mutex;
use world::host;

use super::{
    Disk, DiskName, Plugged, RECONNECT_DELAY_SECONDS, Serial, Unplugged, Vm, VmError, VmOptions,
};

/// Time for which a guest may hold a disk that is unplugged by force.
const FORCED_WITHIN: Duration = Duration::from_secs(5);

/// The note about a disk whose VM's libvirt drops the reconnect delay.
pub(crate) const DOES_NOT_WAIT: &str = "the VM's libvirt does not support a reconnect delay: the guest gets I/O errors when Scree is restarted";

/// A lock for each VM, held during a request.
type VmLocks = Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>;

/// Plugs disks into VMs.
pub(crate) struct Plugging {
    options: VmOptions,
    /// Uid of the user who runs the VMs; `None`: the owner of the monitor's socket.
    user: Option<u32>,
    locks: VmLocks,
}

/// Why a disk is not plugged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlugError {
    /// The name of the VM, or of the disk in it, cannot be parsed.
    #[error("{0}")]
    Name(String),
    /// The VM's user cannot connect.
    #[error(
        "{socket} cannot be given to user {user}, who runs the VM: {source}; run Scree as root or \
         as that user"
    )]
    Socket {
        /// The disk's socket.
        socket: String,
        /// Uid of the user.
        user: u32,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The VM refuses, or does not answer.
    #[error("{}", with_causes(.0))]
    Vm(#[from] VmError),
}

impl PlugError {
    /// Whether the VM is known not to have the disk.
    pub fn is_absent(&self) -> bool {
        matches!(
            self,
            Self::Vm(VmError::Ended { .. } | VmError::NoFreePort { .. })
        )
    }
}

fn named<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, PlugError> {
    text.parse()
        .map_err(|error: T::Err| PlugError::Name(error.to_string()))
}

impl Plugging {
    pub fn new(options: VmOptions, user: Option<u32>) -> Self {
        Self {
            options,
            user,
            locks: Mutex::default(),
        }
    }

    /// The lock of a VM.
    fn lock_of(&self, vm: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock();
        // Drop locks of VMs without a request in progress.
        locks.retain(|name, lock| name == vm || Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(vm.to_owned()).or_default())
    }

    fn vm(&self, address: &str, unplug_within: Duration) -> Result<Vm, PlugError> {
        let options = VmOptions {
            unplug_within,
            ..self.options.clone()
        };
        Ok(Vm::new(named(address)?, options))
    }

    /// Changes the owner of `socket` to the user who runs the VM, so that no other user can
    /// connect.
    fn give(&self, vm: &VmAddress, socket: &Path) -> Result<(), PlugError> {
        let user = self.user.or_else(|| match vm {
            // If the monitor does not exist, or is a link, the next step reports it.
            VmAddress::Qmp(monitor) => {
                let found = host::Unfollowed::find(monitor);
                found.and_then(|found| found.user()).ok()
            }
            VmAddress::Libvirt(_) => None,
        });
        let Some(user) = user else { return Ok(()) };
        let changed = match host::user(socket) {
            Ok(now) if now == user => Ok(()),
            Ok(_) => host::change_owner(socket, user),
            Err(error) => Err(error),
        };
        changed.map_err(|source| PlugError::Socket {
            socket: socket.display().to_string(),
            user,
            source,
        })
    }

    /// Allows the user who runs the VM of an attachment to connect to the disk's socket.
    pub fn allow_vm(&self, assignment: &Assignment, socket: &Path) -> Result<(), PlugError> {
        match &assignment.vm {
            Some(vm) => self.give(&named(vm)?, socket),
            None => Ok(()),
        }
    }

    /// Plugs a served disk into its VM, unless it is plugged.
    pub async fn plug(
        &self,
        assignment: &Assignment,
        vm: &str,
        socket: &Path,
    ) -> Result<Plugged, PlugError> {
        self.allow_vm(assignment, socket)?;
        let disk = Disk {
            name: named(&assignment.id.to_string())?,
            socket: socket.to_owned(),
            export: assignment.id.to_string(),
            is_read_only: assignment.access == Access::ReadOnly,
            serial: serial(assignment)?,
            reconnect_delay_seconds: RECONNECT_DELAY_SECONDS,
        };
        let lock = self.lock_of(vm);
        let _turn = lock.lock().await;
        let vm = self.vm(vm, self.options.unplug_within)?;
        Ok(vm.plug(&disk).await?)
    }

    /// Unplugs a disk from its VM: asks the guest to release it, and waits.
    ///
    /// # Errors
    /// Why the disk is still plugged.
    pub async fn unplug(&self, assignment: &Assignment, vm: &str) -> Result<(), String> {
        let timeout = match assignment.forced {
            true => self.options.unplug_within.min(FORCED_WITHIN),
            false => self.options.unplug_within,
        };
        let unplug = async {
            let name: DiskName = named(&assignment.id.to_string())?;
            let lock = self.lock_of(vm);
            let _turn = lock.lock().await;
            Ok::<_, PlugError>(self.vm(vm, timeout)?.unplug(&name).await?)
        };
        match unplug.await {
            Ok(Unplugged::Removed | Unplugged::VmEnded) => Ok(()),
            Ok(Unplugged::Busy { reason }) => Err(reason),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whether the VM may have the disk; true if that is unknown.
    pub async fn may_be_plugged(&self, assignment: &Assignment, vm: &str) -> bool {
        let listed = async {
            let lock = self.lock_of(vm);
            let _turn = lock.lock().await;
            let vm = self.vm(vm, self.options.unplug_within)?;
            Ok::<_, PlugError>(vm.disks().await?)
        };
        match listed.await {
            Ok(found) => {
                let name = assignment.id.to_string();
                found.iter().any(|disk| disk.name.to_string() == name)
            }
            Err(error) => !error.is_absent(),
        }
    }
}

/// Serial of the disk in the guest.
pub(crate) fn serial(assignment: &Assignment) -> Result<Serial, PlugError> {
    named(&assignment.volume.to_string())
}
