//! [`FilterProcess`]: starts and ends the process of a filter.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};
use std::sync::Arc;

use chain_policy::Limits;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::Pid;
use world::real::{Stream, Waker};
use world::{Clock, Pool};

use crate::cpu_limit::CpuThrottle;
use crate::socket_folder::SocketFolder;
use crate::users::FilterUser;

/// Two non-blocking sockets that are connected to each other.
pub(crate) fn socket_pair() -> io::Result<(Stream, Stream)> {
    let (one, other) = raw_socket_pair()?;
    Ok((one.into(), other.into()))
}

/// As [`socket_pair`], for a pair of which one end goes to a child.
pub(crate) fn raw_socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

/// How a process is started.
pub(crate) struct ProcessOptions<'a> {
    /// The path of Scree's program, which confines itself.
    pub program: &'a Path,
    /// The user of the process; `None` for the agent's own.
    pub user: Option<FilterUser>,
    pub limits: Limits,
    /// Further arguments of the program.
    pub arguments: Vec<String>,
    pub stdin: Stdio,
    pub stdout: Stdio,
}

/// The process of a filter. Dropping it kills the process.
pub(crate) struct FilterProcess {
    process: Option<std::process::Child>,
    pool: Arc<dyn Pool>,
    /// Ends the limit on CPU when used.
    throttle: Option<Waker>,
    /// The folder of the process's sockets.
    folder: Option<SocketFolder>,
    /// The user, which no other filter has while the process runs.
    user: Option<FilterUser>,
}

impl FilterProcess {
    /// Starts a process, and returns it with its standard error.
    pub fn start(
        start: ProcessOptions<'_>,
        pool: &Arc<dyn Pool>,
        clock: &Arc<dyn Clock>,
    ) -> io::Result<(Self, ChildStderr)> {
        let mut command = Command::new(start.program);
        command.arg("filter-process");
        command.args(["--memory", &start.limits.memory_bytes.to_string()]);
        if let Some(user) = &start.user {
            command.args(["--user", &user.number().to_string()]);
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        command
            .args(start.arguments)
            .env_clear()
            .env("PATH", path)
            // Each arena takes 64 MiB of address space, which is limited.
            .env("MALLOC_ARENA_MAX", "2")
            .current_dir("/")
            .stdin(start.stdin)
            .stdout(start.stdout)
            .stderr(Stdio::piped());
        let mut process = command.spawn()?;
        let stderr = process.stderr.take();
        let stderr = stderr.ok_or_else(|| io::Error::other("the process has no standard error"))?;
        let mut child = Self {
            process: Some(process),
            pool: Arc::clone(pool),
            throttle: None,
            folder: None,
            user: start.user,
        };
        if let Some(percent) = start.limits.cpu_percent
            && let Some(pid) = child.pid()
        {
            child.throttle = Some(CpuThrottle::start(pid, percent, Arc::clone(clock))?);
        }
        Ok((child, stderr))
    }

    /// Keeps the folder of the process's sockets until the process has ended.
    pub fn keep_sockets(&mut self, folder: SocketFolder) {
        self.folder = Some(folder);
    }

    fn pid(&self) -> Option<Pid> {
        let process = self.process.as_ref()?;
        Pid::from_raw(process.id().cast_signed())
    }

    /// The exit status; `None` while the process runs.
    pub fn exit_status(&mut self) -> io::Result<Option<std::process::ExitStatus>> {
        match &mut self.process {
            Some(process) => process.try_wait(),
            None => Ok(None),
        }
    }
}

impl Drop for FilterProcess {
    fn drop(&mut self) {
        if let Some(waker) = self.throttle.take() {
            waker.wake();
        }
        if let Some(mut process) = self.process.take() {
            // This fails if the process has exited already.
            let _ = process.kill();
            let resources = (self.folder.take(), self.user.take());
            // The process may take a moment to end, and this thread must not wait.
            self.pool.run(Box::new(move || {
                if let Err(error) = process.wait() {
                    tracing::warn!(%error, "agent cannot wait for filter process");
                }
                drop(resources);
            }));
        }
    }
}
