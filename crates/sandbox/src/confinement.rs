//! [`confine`]: takes from the process of a filter everything that a filter does not need.
//!
//! ```text
//!   own, empty network; own IPC    unshare
//!   memory, files, processes       limits
//!   own user, no groups            setresuid
//!   no capabilities                capset
//!   nothing gained by exec         no_new_privs
//!   few system calls               seccomp
//! ```
//!
//! The process confines itself before it reads anything, and cannot undo it. It has a user of its
//! own if the agent that started it is root or may assign users ([`can_assign_users`]). Without
//! root the process loses the network only where the kernel lets users create namespaces.

use std::io;

use crate::seccomp;
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid, UnshareFlags};

/// The maximal number of open files of a process.
const FILES_MAX: u64 = 64;

/// The address space that a process gets in addition to its memory, in bytes. It covers stacks
/// and arenas that are reserved and never touched.
const ADDRESS_BYTES: u64 = 4 << 30;

/// What a confined process keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confinement {
    /// The number of the process's user and group. It is ignored where this process may not
    /// change its user.
    pub user: Option<u32>,
    /// The memory that the process may use, in bytes.
    pub memory_bytes: u64,
}

/// Why a process could not be confined. The process must exit then.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The operating system refused a step.
    #[error("cannot confine the process, at step {step:?}: {source}")]
    Step {
        /// The step's name.
        step: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// The filter of system calls could not be installed.
    #[error("cannot filter system calls: {0}")]
    Seccomp(String),
}

fn step<T>(step: &'static str, done: rustix::io::Result<T>) -> Result<T, ConfineError> {
    done.map_err(|error| ConfineError::Step {
        step,
        source: error.into(),
    })
}

/// Confines this process of Scree. It has to be called before a second thread starts.
///
/// # Errors
/// [`ConfineError`]; the process must exit then.
pub fn confine(with: Confinement) -> Result<(), ConfineError> {
    drop_privileges(with)?;
    seccomp::allow_needed_calls()
}

/// Confines this process, which then executes an external program.
///
/// # Errors
/// [`ConfineError`]; the process must exit then.
pub fn confine_external(with: Confinement) -> Result<(), ConfineError> {
    drop_privileges(with)?;
    seccomp::forbid_dangerous_calls()
}

/// Whether this process may start children with other users, and kill them: it is root, or has
/// the capabilities for it.
pub(crate) fn can_assign_users() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL;
    let has_needed = || {
        let has = rustix::thread::capabilities(None);
        has.is_ok_and(|has| has.effective.contains(needed))
    };
    rustix::process::geteuid().is_root() || has_needed()
}

/// Drops the capabilities that the agent was given for its own work.
fn drop_capabilities() -> rustix::io::Result<()> {
    let had = rustix::thread::capabilities(None)?;
    if had.permitted.is_empty() && had.inheritable.is_empty() {
        return Ok(());
    }
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none)
}

/// The steps that are the same for processes of Scree and external programs.
fn drop_privileges(with: Confinement) -> Result<(), ConfineError> {
    let is_root = rustix::process::geteuid().is_root();
    let own = UnshareFlags::NEWNET | UnshareFlags::NEWIPC;
    // SAFETY: this is the only thread, and the call does not unshare file descriptors.
    let unshare = |what| unsafe { rustix::thread::unshare_unsafe(what) };
    if is_root {
        step("unshare network and IPC", unshare(own))?;
    }
    let limits = [
        (Resource::Core, 0),
        (Resource::Data, with.memory_bytes),
        (Resource::As, with.memory_bytes + ADDRESS_BYTES),
        (Resource::Nofile, FILES_MAX),
        (Resource::Memlock, 0),
    ];
    for (resource, most) in limits {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        step("set limits", rustix::process::setrlimit(resource, limit))?;
    }
    if let Some(user) = with.user.filter(|_| can_assign_users()) {
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
        step("drop groups", rustix::thread::set_thread_groups(&[]))?;
        step(
            "set group",
            rustix::thread::set_thread_res_gid(gid, gid, gid),
        )?;
        step(
            "set user",
            rustix::thread::set_thread_res_uid(uid, uid, uid),
        )?;
    }
    if !is_root {
        // This fails where the kernel does not let users create namespaces. Where it succeeds,
        // the process has all capabilities within them, so they are dropped afterwards.
        let _ = unshare(own | UnshareFlags::NEWUSER);
    }
    step("drop capabilities", drop_capabilities())?;
    step(
        "disable core dumps",
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable),
    )?;
    step(
        "exit with the agent",
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)),
    )?;
    step("no new privileges", rustix::thread::set_no_new_privs(true))
}
