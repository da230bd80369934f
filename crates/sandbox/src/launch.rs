//! Processes of filters: how they begin and end.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};
use std::sync::Arc;

use chain_policy::Limits;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::Pid;
use world::real::{Bell, Stream};
use world::{Clock, Pool};

use crate::share::Throttle;
use crate::sockets::SocketFolder;
use crate::users::FilterUser;

/// Two sockets, joined to each other; neither blocks.
pub(crate) fn pair() -> io::Result<(Stream, Stream)> {
    let (one, other) = raw_pair()?;
    Ok((one.into(), other.into()))
}

/// The same, of which one end is for a child.
pub(crate) fn raw_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

/// How a process is started.
pub(crate) struct Start<'a> {
    /// The program that confines itself: Scree.
    pub program: &'a Path,
    /// Which user it becomes, if it may.
    pub user: Option<FilterUser>,
    pub limits: Limits,
    /// What else it is told.
    pub arguments: Vec<String>,
    pub stdin: Stdio,
    pub stdout: Stdio,
}

/// A process. Dropping it ends it.
pub(crate) struct Child {
    process: Option<std::process::Child>,
    pool: Arc<dyn Pool>,
    /// Rung when the process is to have no share any more.
    throttle: Option<Bell>,
    /// Its sockets are there.
    folder: Option<SocketFolder>,
    /// Nobody else's while it runs.
    user: Option<FilterUser>,
}

impl Child {
    /// Starts one; what it says on its standard error is returned beside it.
    pub fn start(
        start: Start<'_>,
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
            // Each arena is 64 MiB of addresses.
            .env("MALLOC_ARENA_MAX", "2")
            .current_dir("/")
            .stdin(start.stdin)
            .stdout(start.stdout)
            .stderr(Stdio::piped());
        let mut process = command.spawn()?;
        let said = process.stderr.take();
        let said = said.ok_or_else(|| io::Error::other("it has no standard error"))?;
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
            child.throttle = Some(Throttle::start(pid, percent, Arc::clone(clock))?);
        }
        Ok((child, said))
    }

    /// Keeps the folder of its sockets as long as it runs.
    pub fn keep(&mut self, folder: SocketFolder) {
        self.folder = Some(folder);
    }

    fn pid(&self) -> Option<Pid> {
        let process = self.process.as_ref()?;
        Pid::from_raw(process.id().cast_signed())
    }

    /// How it has ended, if it has.
    pub fn ended(&mut self) -> io::Result<Option<std::process::ExitStatus>> {
        match &mut self.process {
            Some(process) => process.try_wait(),
            None => Ok(None),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(bell) = self.throttle.take() {
            bell.ring();
        }
        if let Some(mut process) = self.process.take() {
            // Whoever has ended already cannot be killed.
            let _ = process.kill();
            let its = (self.folder.take(), self.user.take());
            // It may take a moment to end, and nobody here may wait.
            self.pool.run(Box::new(move || {
                if let Err(error) = process.wait() {
                    tracing::warn!(%error, "a filter's process cannot be waited for");
                }
                drop(its);
            }));
        }
    }
}
