//! Attachments in VMs: what `vm` is asked for them.
//!
//! ```text
//!  D/vm/att-….sock    mode 600, given to the user who runs the VM
//! ```
//!
//! Verbs on one VM come one after the other, for its monitor serves one client
//! at a time. Each may be repeated; what is plugged is found plugged.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::host::{Access, Assignment};
use api::vm::VmAddress;
use base::with_causes;
use world::host;

use crate::agent::{Agent, lock};
use crate::vm::{
    Disk, DiskName, Plugged, RECONNECT_DELAY_SECONDS, Serial, Unplugged, Vm, VmError, VmOptions,
};

/// A guest may take no longer to let go of a disk that is taken from it.
const FORCED_WITHIN: Duration = Duration::from_secs(5);

/// What a guest gets whose VM's monitor or libvirt leaves out the reconnect
/// delay.
pub(crate) const DOES_NOT_WAIT: &str =
    "the VM's libvirt knows no reconnect delay: its guest gets I/O errors when Scree is restarted";

/// Who asks a VM, one at a time.
type Doors = Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>;

/// How VMs are asked.
pub(crate) struct Plugging {
    options: VmOptions,
    /// Who runs the VMs, if their monitors' sockets do not say.
    user: Option<u32>,
    doors: Doors,
}

/// Why a disk is not plugged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlugError {
    /// What names the VM, or the disk in it, is nothing that can.
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
        /// The user's number.
        user: u32,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// The VM says no, or nothing.
    #[error("{}", with_causes(.0))]
    Vm(#[from] VmError),
}

impl PlugError {
    /// Whether it is known that the VM has no such disk.
    pub fn is_gone(&self) -> bool {
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
            doors: Mutex::default(),
        }
    }

    /// Where one waits for one's turn.
    fn door(&self, vm: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut doors = lock(&self.doors);
        // Those whom nobody asks any more need none.
        doors.retain(|name, door| name == vm || Arc::strong_count(door) > 1);
        Arc::clone(doors.entry(vm.to_owned()).or_default())
    }

    fn vm(&self, address: &str, unplug_within: Duration) -> Result<Vm, PlugError> {
        let options = VmOptions {
            unplug_within,
            ..self.options.clone()
        };
        Ok(Vm::new(named(address)?, options))
    }

    /// Lets the VM's user connect to `socket`, and nobody else.
    fn let_in(&self, vm: &VmAddress, socket: &Path) -> Result<(), PlugError> {
        let user = self.user.or_else(|| match vm {
            // Where there is none, or a link, the next step says so.
            VmAddress::Qmp(monitor) => {
                let found = host::Unfollowed::find(monitor);
                found.and_then(|found| found.user()).ok()
            }
            VmAddress::Libvirt(_) => None,
        });
        let Some(user) = user else { return Ok(()) };
        let given = match host::user(socket) {
            Ok(now) if now == user => Ok(()),
            Ok(_) => host::change_owner(socket, user),
            Err(error) => Err(error),
        };
        given.map_err(|source| PlugError::Socket {
            socket: socket.display().to_string(),
            user,
            source,
        })
    }
}

impl Agent {
    /// Lets the VM's user connect to the disk's socket.
    pub(crate) fn let_vm_in(&self, wish: &Assignment) -> Result<(), PlugError> {
        let Some(vm) = &wish.vm else { return Ok(()) };
        let socket = self.inner.folder.vm_socket(wish.id);
        self.inner.plugging.let_in(&named(vm)?, &socket)
    }

    /// Plugs what is served into its VM, unless it is plugged.
    pub(crate) async fn plug(&self, wish: &Assignment, vm: &str) -> Result<Plugged, PlugError> {
        self.let_vm_in(wish)?;
        let disk = Disk {
            name: named(&wish.id.to_string())?,
            socket: self.inner.folder.vm_socket(wish.id),
            export: wish.id.to_string(),
            is_read_only: wish.access == Access::ReadOnly,
            serial: serial(wish)?,
            reconnect_delay_seconds: RECONNECT_DELAY_SECONDS,
        };
        let plugging = &self.inner.plugging;
        let door = plugging.door(vm);
        let _turn = door.lock().await;
        Ok(plugging
            .vm(vm, plugging.options.unplug_within)?
            .plug(&disk)
            .await?)
    }

    /// Takes a disk out of its VM: asks the guest, and waits for it. Why it is
    /// still there, if it is.
    pub(crate) async fn unplug(&self, wish: &Assignment, vm: &str) -> Result<(), String> {
        let plugging = &self.inner.plugging;
        let patience = match wish.forced {
            true => plugging.options.unplug_within.min(FORCED_WITHIN),
            false => plugging.options.unplug_within,
        };
        let asked = async {
            let name: DiskName = named(&wish.id.to_string())?;
            let door = plugging.door(vm);
            let _turn = door.lock().await;
            let asked = plugging.vm(vm, patience)?.unplug(&name).await;
            Ok::<_, PlugError>(asked?)
        };
        match asked.await {
            Ok(Unplugged::Gone | Unplugged::VmEnded) => Ok(()),
            Ok(Unplugged::Busy { reason }) => Err(reason),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whether the VM has the disk, as far as can be known.
    pub(crate) async fn may_be_plugged(&self, wish: &Assignment, vm: &str) -> bool {
        let plugging = &self.inner.plugging;
        let looked = async {
            let door = plugging.door(vm);
            let _turn = door.lock().await;
            let looked = plugging
                .vm(vm, plugging.options.unplug_within)?
                .look()
                .await;
            Ok::<_, PlugError>(looked?)
        };
        match looked.await {
            Ok(found) => {
                let name = wish.id.to_string();
                found.iter().any(|disk| disk.name.to_string() == name)
            }
            Err(error) => !error.is_gone(),
        }
    }
}

/// By what the guest knows the disk.
pub(crate) fn serial(wish: &Assignment) -> Result<Serial, PlugError> {
    named(&wish.volume.to_string())
}
