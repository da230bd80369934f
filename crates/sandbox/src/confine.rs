//! What a filter's process may not do: the rest of the machine is not its own.
//!
//! ```text
//!   own network (none), own IPC    unshare
//!   memory, files, processes       limits
//!   own user, no groups            setresuid
//!   no capabilities                capset
//!   nothing gained by exec         no_new_privs
//!   few system calls               seccomp
//! ```
//!
//! It is the process itself that does it, before it reads anything; the last step cannot be
//! undone by any other. It has a user of its own if whoever starts it is root, or may give
//! others away ([`gives_users`]). Without root it has no network only where the kernel lets
//! users have namespaces; the rest is the same.

use std::collections::BTreeMap;
use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid, UnshareFlags};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// Files that a process has open at most.
const FILES_MAX: u64 = 64;

/// Address space beside its memory: stacks and arenas that are never touched, in bytes.
const ADDRESS_BYTES: u64 = 4 << 30;

/// What a process is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confinement {
    /// Its user and group, if they may be given to it (where the agent may make processes of other users).
    pub user: Option<u32>,
    /// Memory of its own, in bytes.
    pub memory_bytes: u64,
}

/// Why a process cannot be confined; it must not go on.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// A step that the operating system refuses.
    #[error("{step}: {source}")]
    Step {
        /// Which.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The filter of system calls.
    #[error("system calls cannot be filtered: {0}")]
    Filter(String),
}

fn step<T>(step: &'static str, done: rustix::io::Result<T>) -> Result<T, ConfineError> {
    done.map_err(|error| ConfineError::Step {
        step,
        source: error.into(),
    })
}

/// What a program of Scree needs once its sockets are open: nothing that names a file, a
/// user, another process or an address.
const NEEDED: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_close,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getpeername,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_gettid,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_prctl,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_set_robust_list,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_write,
    libc::SYS_writev,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// What no program in the place of a filter needs, and much harm was done with.
const FORBIDDEN: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// Confines a program of Scree, this one: to be called before any other thread begins.
///
/// # Errors
/// [`ConfineError`]; the process must end then.
pub fn confine(with: Confinement) -> Result<(), ConfineError> {
    leave_the_rest(with)?;
    filter(
        NEEDED,
        SeccompAction::Errno(libc::EPERM as u32),
        SeccompAction::Allow,
    )
}

/// Confines this process, to become a program that is not Scree's.
///
/// # Errors
/// [`ConfineError`]; the process must end then.
pub fn confine_foreign(with: Confinement) -> Result<(), ConfineError> {
    leave_the_rest(with)?;
    filter(
        FORBIDDEN,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
    )
}

/// Whether this process may give its children users of their own, and end them all the same:
/// it is root, or its operator has given it what that takes.
pub(crate) fn gives_users() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL;
    let has_needed = || {
        let has = rustix::thread::capabilities(None);
        has.is_ok_and(|has| has.effective.contains(needed))
    };
    rustix::process::geteuid().is_root() || has_needed()
}

/// What it was given for the agent's own tasks is not the process's.
fn give_up_capabilities() -> rustix::io::Result<()> {
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

fn leave_the_rest(with: Confinement) -> Result<(), ConfineError> {
    let is_root = rustix::process::geteuid().is_root();
    let own = UnshareFlags::NEWNET | UnshareFlags::NEWIPC;
    // SAFETY: no thread but this one is there, and descriptors stay shared with nobody.
    let unshare = |what| unsafe { rustix::thread::unshare_unsafe(what) };
    if is_root {
        step("a network of its own", unshare(own))?;
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
        step("limits", rustix::process::setrlimit(resource, limit))?;
    }
    if let Some(user) = with.user.filter(|_| gives_users()) {
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
        step("no groups", rustix::thread::set_thread_groups(&[]))?;
        step(
            "a group of its own",
            rustix::thread::set_thread_res_gid(gid, gid, gid),
        )?;
        step(
            "a user of its own",
            rustix::thread::set_thread_res_uid(uid, uid, uid),
        )?;
    }
    if !is_root {
        // Only where the kernel lets users have them. Whoever has namespaces of their own has
        // all capabilities there.
        let _ = unshare(own | UnshareFlags::NEWUSER);
    }
    step("no capabilities", give_up_capabilities())?;
    step(
        "no memory images",
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable),
    )?;
    step(
        "an end with the agent",
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)),
    )?;
    step("no new privileges", rustix::thread::set_no_new_privs(true))
}

fn filter(
    calls: &[libc::c_long],
    otherwise: SeccompAction,
    these: SeccompAction,
) -> Result<(), ConfineError> {
    let failed = |error: &dyn std::fmt::Display| ConfineError::Filter(error.to_string());
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| failed(&error))?;
    let rules: BTreeMap<_, _> = calls.iter().map(|call| (*call, Vec::new())).collect();
    let filter =
        SeccompFilter::new(rules, otherwise, these, arch).map_err(|error| failed(&error))?;
    let program = BpfProgram::try_from(filter).map_err(|error| failed(&error))?;
    seccompiler::apply_filter(&program).map_err(|error| failed(&error))
}
