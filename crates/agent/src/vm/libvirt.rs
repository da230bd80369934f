//! Plugging by libvirt, through its program `virsh`: the monitor of a QEMU that libvirt started
//! belongs to libvirt.
//!
//! ```text
//!  plug    1. look     dumpxml: a disk with our alias: done
//!          2. choose   the first free target (vda, vdb, ...); libvirt chooses the port
//!          3. attach   attach-device --live; libvirt rolls back failures
//!          4. look     whether libvirt has stored the reconnect delay
//!  unplug  1. look     no disk with our alias: done
//!          2. request  detach-device-alias --live
//!          3. await    look repeatedly until it is removed
//! ```
//!
//! Only `--live`: a plugged disk disappears when the VM ends, and is absent when the VM is started
//! again.
//!
//! Must not know: QMP.

use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use world::host;

use super::domain::{Domain, alias, write_disk};
use super::{Disk, DiskName, Found, Plugged, Unplugged, Vm, VmError};

/// The pause between checks whether the disk is still plugged; each starts a process.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// libvirt's error for a domain that is not running.
const ENDED: &str = "domain is not running";

/// `virsh`'s errors for a missing domain, and for a connection that breaks during the search.
const UNKNOWN: &str = "failed to get domain";

/// libvirt's errors for a domain without a free port.
const FULL: [&str; 2] = ["No more available PCI", "no more available PCI"];

/// libvirt's or QEMU's errors for a disk that is being removed, or was.
const REMOVING: [&str; 3] = [
    "already in the process of unplug",
    "no device found with alias",
    "device not found",
];

const REMEDY: &str = "add a port to its definition for each disk \
                      (<controller type='pci' model='pcie-root-port'/>), and start it again";

impl Vm {
    /// Runs `virsh COMMAND ARGUMENTS`, without a shell.
    async fn virsh(
        &self,
        command: &'static str,
        arguments: &[&str],
        input: &str,
    ) -> Result<String, VmError> {
        let program = &self.options.virsh;
        let no_virsh = |source| VmError::NoVirsh {
            program: program.clone(),
            source,
        };
        let mut child = Command::new(program)
            .args(["--quiet", "--connect", &self.options.libvirt_uri])
            .arg(command)
            .args(arguments)
            // The output is parsed, so it must not be translated.
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(no_virsh)?;
        let mut stdin = child.stdin.take();
        let done = host::timeout(self.options.answer_within, async {
            if let Some(mut stdin) = stdin.take() {
                // If `virsh` ends without reading its input, its output says why.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
            child.wait_with_output().await
        });
        let vm = self.address.clone();
        let output = match done.await {
            Some(output) => output.map_err(no_virsh)?,
            None => {
                return Err(VmError::VirshHangs {
                    vm,
                    command,
                    waited: self.options.answer_within,
                });
            }
        };
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let message = String::from_utf8_lossy(&output.stderr);
        let message: Vec<&str> = message.lines().filter(|line| !line.is_empty()).collect();
        let message = message.join("; ");
        Err(if message.contains(ENDED) {
            VmError::Ended { vm }
        } else if FULL.iter().any(|words| message.contains(words)) {
            VmError::NoFreePort { vm, remedy: REMEDY }
        } else {
            VmError::VirshFailed {
                vm,
                command,
                message,
            }
        })
    }

    /// Whether libvirt has such a domain, running or not.
    async fn has(&self, domain: &str) -> Result<bool, VmError> {
        for what in ["--name", "--uuid"] {
            let listed = self.virsh("list", &["--all", what], "").await?;
            let mut listed = listed.lines().map(str::trim);
            if listed.any(|one| one.eq_ignore_ascii_case(domain)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The domain, if it is running.
    async fn domain(&self, domain: &str) -> Result<Domain, VmError> {
        let vm = self.address.clone();
        let xml = match self.virsh("dumpxml", &["--domain", domain], "").await {
            Err(VmError::VirshFailed { message, .. })
                if message.contains(UNKNOWN) && !self.has(domain).await? =>
            {
                return Err(VmError::Ended { vm });
            }
            xml => xml?,
        };
        let found = match Domain::read(&xml) {
            Ok(Some(found)) => found,
            Ok(None) => return Err(VmError::BadDescription { vm, source: None }),
            Err(error) => {
                let source = Some(error);
                return Err(VmError::BadDescription { vm, source });
            }
        };
        // `virsh` prefers to take a name of digits as the number of a domain.
        if found.name != domain && !found.uuid.eq_ignore_ascii_case(domain) {
            let found = found.name;
            return Err(VmError::OtherDomain { vm, found });
        }
        if !found.is_running {
            return Err(VmError::Ended { vm });
        }
        Ok(found)
    }

    pub(super) async fn disks_by_libvirt(&self, domain: &str) -> Result<Vec<Found>, VmError> {
        let found = self.domain(domain).await?;
        Ok(found.disks.into_iter().map(|disk| disk.found).collect())
    }

    pub(super) async fn plug_by_libvirt(
        &self,
        domain: &str,
        disk: &Disk,
    ) -> Result<Plugged, VmError> {
        let socket = disk.socket_text()?;
        let before = self.domain(domain).await?;
        if let Some(found) = before.disk(&disk.name) {
            self.must_be(disk, &found.found)?;
            return Ok(Plugged {
                was_there: true,
                waits_for_server: found.waits_for_server,
            });
        }
        let xml = write_disk(disk, socket, &before.free_target());
        // `virsh` reads only files, and this one is its standard input.
        let arguments = ["--domain", domain, "--file", "/dev/stdin", "--live"];
        self.virsh("attach-device", &arguments, &xml).await?;
        let after = self.domain(domain).await?;
        Ok(Plugged {
            was_there: false,
            waits_for_server: after
                .disk(&disk.name)
                .is_some_and(|found| found.waits_for_server),
        })
    }

    pub(super) async fn unplug_by_libvirt(
        &self,
        domain: &str,
        name: &DiskName,
    ) -> Result<Unplugged, VmError> {
        match self.try_unplug_by_libvirt(domain, name).await {
            Err(VmError::Ended { .. }) => Ok(Unplugged::VmEnded),
            tried => tried,
        }
    }

    async fn try_unplug_by_libvirt(
        &self,
        domain: &str,
        name: &DiskName,
    ) -> Result<Unplugged, VmError> {
        let within = self.options.unplug_within;
        let mut over = pin!(host::sleep(within));
        if self.domain(domain).await?.disk(name).is_none() {
            return Ok(Unplugged::Removed);
        }
        let arguments = ["--domain", domain, "--alias", &alias(name), "--live"];
        match self.virsh("detach-device-alias", &arguments, "").await {
            Ok(_) => {}
            Err(VmError::VirshFailed { message, .. })
                if REMOVING.iter().any(|words| message.contains(words)) => {}
            Err(error) => return Err(error),
        }
        let mut ticks = host::ticks(POLL_INTERVAL);
        loop {
            tokio::select! {
                _ = ticks.tick() => if self.domain(domain).await?.disk(name).is_none() {
                    return Ok(Unplugged::Removed);
                },
                () = &mut over => break,
            }
        }
        let state = self.virsh("domstate", &["--domain", domain], "").await?;
        let reason = match state.trim() {
            "shut off" => return Ok(Unplugged::VmEnded),
            "running" => format!(
                "the guest has not released the disk in {} s; check that it has booted and does \
                 not use the disk, and retry",
                within.as_secs_f32()
            ),
            state => {
                format!("the VM is {state}, so its guest cannot answer; resume it and retry")
            }
        };
        Ok(Unplugged::Busy { reason })
    }
}
