//! Processes of boxes: how they begin and end, and how much of a core they have.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use policy::Limits;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process};
use world::real::{Bell, Poller, Stream};
use world::{Clock, Interest, Pool};

use crate::sockets::SocketFolder;

/// How often it is looked at whether a process has had its share.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A process may use at once what it did not use of so long.
const BURST: Duration = Duration::from_millis(200);

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
    /// Which user it becomes, if this is root.
    pub user: Option<u32>,
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
}

impl Child {
    /// Starts one; what it says on its standard error is returned beside it.
    pub fn start(
        start: Start<'_>,
        pool: &Arc<dyn Pool>,
        clock: &Arc<dyn Clock>,
    ) -> io::Result<(Self, ChildStderr)> {
        let mut command = Command::new(start.program);
        command.arg("box-process");
        command.args(["--memory", &start.limits.memory_bytes.to_string()]);
        if let Some(user) = start.user {
            command.args(["--user", &user.to_string()]);
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
            let folder = self.folder.take();
            // It may take a moment to end, and nobody here may wait.
            self.pool.run(Box::new(move || {
                if let Err(error) = process.wait() {
                    tracing::warn!(%error, "a box's process cannot be waited for");
                }
                drop(folder);
            }));
        }
    }
}

/// Holds a process to its share of a core: stops it when it has had that, and lets it go on.
/// It needs no privilege and no control group.
struct Throttle {
    pid: Pid,
    percent: u32,
    clock: Arc<dyn Clock>,
}

impl Throttle {
    fn start(pid: Pid, percent: u32, clock: Arc<dyn Clock>) -> io::Result<Bell> {
        let (bell, poller) = (Bell::new()?, Poller::new()?);
        poller.add(&bell, 0, Interest::READABLE)?;
        let own = bell.clone();
        let throttle = Self {
            pid,
            percent,
            clock,
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "it lasts as long as the process: no job for a pool"
        )]
        std::thread::Builder::new()
            .name("box-share".to_owned())
            .spawn(move || throttle.hold(&poller, own))?;
        Ok(bell)
    }

    /// Until `bell` is rung, or the process has ended.
    fn hold(&self, poller: &Poller, bell: Bell) {
        let share = |of: Duration| of * self.percent / 100;
        // It has used what it may by then.
        let mut from = (self.clock.monotonic(), Duration::ZERO);
        let mut is_stopped = false;
        let mut rung = Vec::new();
        while rung.is_empty() {
            let Some(used) = cpu_time(self.pid) else {
                return;
            };
            let now = self.clock.monotonic();
            let may = share(now - from.0) + share(BURST);
            let had = used.saturating_sub(from.1);
            if had + share(BURST) < may {
                // What it does not use it does not save.
                from = (now, used);
            }
            let has_too_much = had > may;
            if has_too_much != is_stopped {
                let signal = if has_too_much {
                    Signal::STOP
                } else {
                    Signal::CONT
                };
                is_stopped = has_too_much;
                if kill_process(self.pid, signal).is_err() {
                    return;
                }
            }
            if poller.wait(Some(LOOK_EVERY), &mut rung).is_err() {
                return;
            }
        }
        drop(bell);
    }
}

/// What a process has used of all cores so far.
fn cpu_time(pid: Pid) -> Option<Duration> {
    let mut clock = 0;
    // SAFETY: it writes one number, into a local.
    let found = unsafe { libc::clock_getcpuclockid(pid.as_raw_nonzero().get(), &raw mut clock) };
    if found != 0 {
        return None;
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: it writes one time, into a local.
    let read = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (read == 0).then(|| {
        let seconds = Duration::from_secs(time.tv_sec.cast_unsigned());
        seconds + Duration::from_nanos(time.tv_nsec.cast_unsigned())
    })
}
