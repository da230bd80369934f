"""Machines to install packages on: this one's files under an overlay that is
thrown away, namespaces of their own, and systemd as process 1.

Nothing that is done in one is seen outside it, but in the folders it is given.
It needs root, and a kernel that lets root mount. Machines have their network at
a bridge that only the program that makes them has; it ends with that program.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from scree_tools.common.process import Failed, check

# The script that starts process 1. None of this machine's services is started: their dependencies
# are removed in the overlay.
BOOT = r"""
set -euo pipefail
name=$1 work=$2 console=$3
shift 3
mount --make-rprivate /
mount -t tmpfs -o mode=755 overlay "$work"
mkdir "$work"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root"
cd "$work/root"
rm -rf var/lib/scree etc/scree
for share; do
  mkdir -p "./${share#*:}"
  mount --bind "${share%%:*}" "./${share#*:}"
done
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 dev dev
for node in null zero full random urandom tty; do touch dev/$node; mount --bind /dev/$node dev/$node; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs shm dev/shm
touch dev/console && mount --bind "$console" dev/console
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=1777 tmp tmp
rm -rf etc/systemd/system/*.wants usr/lib/systemd/system/*.wants
rm -f etc/machine-id usr/sbin/policy-rc.d
# An index of manual pages takes longer than everything else.
rm -f var/lib/man-db/auto-update
# Masked: services that are useless in a sandbox, and services that wait for hardware.
for unit in systemd-networkd-wait-online.service systemd-journal-flush.service tmp.mount; do
  ln -sf /dev/null "etc/systemd/system/$unit"
done
echo "$name" >etc/hostname
cat >etc/systemd/system/machine.target <<'UNIT'
[Unit]
Wants=systemd-journald.service dbus.service
After=systemd-journald.service dbus.service
UNIT
hostname "$name"
export container=machine
# Not only another root: a process in a chroot cannot create user namespaces.
mkdir .outside
pivot_root . .outside
umount --lazy /.outside
rmdir /.outside
cd /
# As on any machine: running services see new mounts.
mount --make-rshared /
exec /lib/systemd/systemd --system --unit=machine.target --show-status=0 --log-level=notice
"""


def as_root():
    """Runs this program again as root, if it is not."""
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            raise Failed("this needs root or sudo: it makes machines out of namespaces")
        # sudo removes PYTHONPATH from the environment.
        path = f"PYTHONPATH={os.environ['PYTHONPATH']}"
        os.execvp("sudo", ["sudo", "-E", "env", path, *sys.orig_argv])


def in_own_network():
    """Runs this program again in a network namespace with a bridge."""
    if os.environ.get("SCREE_OWN_NETWORK") != "yes":
        os.environ["SCREE_OWN_NETWORK"] = "yes"
        os.execvp("unshare", ["unshare", "--net", *sys.orig_argv])
    for words in ("link set lo up", "link add machines type bridge", "link set machines up"):
        subprocess.run(["ip", *words.split()], check=True)


def control_group():
    """The control group of this process in the unified hierarchy."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        ours, _, theirs = line.partition(" - ")
        if theirs.startswith("cgroup2 "):
            top = Path(ours.split()[4])
            own = Path("/proc/self/cgroup").read_text().rsplit("0::", 1)[1].splitlines()[0]
            return top / own.lstrip("/")
    raise Failed("no cgroup2 is mounted; machines need it: mount -t cgroup2 none /sys/fs/cgroup")


class Machine:
    """A machine as in the module's head. `shares` maps folders here to folders there; `hosts`
    are the lines of its /etc/hosts: pairs of an address and names."""

    def __init__(self, name, work, address=None, shares=None, hosts=()):
        self.name = name
        self.work = Path(work)
        self.log = self.work.parent / f"{name}.console"
        self.work.mkdir(parents=True, exist_ok=True)
        self.group = control_group() / f"scree-{name}-{os.getpid()}"
        self.group.mkdir()
        self.log.write_text("")
        shares = [f"{here}:{there}" for here, there in (shares or {}).items()]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    "bash",
                    "-c",
                    'echo $$ >"$1/cgroup.procs"; shift; exec "$@"',
                    "bash",
                    str(self.group),
                    "unshare",
                    "--mount",
                    "--pid",
                    "--uts",
                    "--ipc",
                    "--net",
                    "--cgroup",
                    "--fork",
                    "--kill-child",
                    "bash",
                    "-c",
                    BOOT,
                    "machine",
                    name,
                    str(self.work),
                    str(self.log),
                    *shares,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.first = None
        self.wait_until("it has booted", self._is_up, 60)
        if address:
            self._connect(address)
        known = "\n".join(["127.0.0.1 localhost", *(f"{address} {names}" for address, names in hosts)])
        self.sh(f"printf '%s\\n' '{known}' >/etc/hosts")

    def _is_up(self):
        check(self.process.poll() is None, f"the machine {self.name} has ended:\n{self.console()}")
        if self.first is None:
            one = self.process.pid
            children = Path(f"/proc/{one}/task/{one}/children").read_text().split()
            if not children or Path(f"/proc/{children[0]}/comm").read_text().strip() != "systemd":
                return False
            self.first = children[0]
        return self.try_sh("systemctl is-active --quiet machine.target").returncode == 0

    def _connect(self, address):
        end = f"{self.name}-net"
        for words in (
            f"link add {end} type veth peer name eth0 netns {self.first}",
            f"link set {end} master machines up",
        ):
            subprocess.run(["ip", *words.split()], check=True)
        self.sh(f"ip link set lo up && ip address add {address}/24 dev eth0 && ip link set eth0 up")

    def console(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def command(self, *words):
        """The prefix of a command on the machine."""
        inside = ["--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--root", "--wd"]
        return ["nsenter", "--target", self.first, *inside, "--", *words]

    def try_sh(self, script, **options):
        """Runs a script on the machine, and returns how it ended."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
        return subprocess.run(
            self.command("bash", "-c", script),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            **options,
        )

    def sh(self, script):
        """Runs a script on the machine that must succeed, and returns its output."""
        done = self.try_sh(f"set -euo pipefail\n{script}")
        if done.returncode != 0:
            log = self.try_sh("journalctl --no-pager -n 40 -o cat").stdout
            raise Failed(
                f"on {self.name}, `{script}` ended with {done.returncode}:\n{done.stdout}\nThe journal there:\n{log}"
            )
        return done.stdout

    def wait_until(self, what, holds, timeout_s=30):
        until = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > until:
                log = self.try_sh("journalctl --no-pager -n 40 -o cat").stdout if self.first else ""
                raise Failed(
                    f"on {self.name}, this did not come true in {timeout_s} s: {what}\n{self.console()}\n{log}"
                )
            time.sleep(0.05)

    def end(self):
        """Kills the machine, as a power failure."""
        self.process.kill()
        self.process.wait()
        # All processes end with process 1, and their groups are empty soon.
        until = time.monotonic() + 10
        while (group := next(iter(self._groups()), None)) is not None:
            try:
                group.rmdir()
            except OSError as error:
                check(time.monotonic() < until, f"processes of {self.name} do not end: {error}")
                time.sleep(0.02)
        shutil.rmtree(self.work, ignore_errors=True)

    def _groups(self):
        """Its control groups, the innermost first."""
        if not self.group.exists():
            return []
        below = [path for path in self.group.rglob("*") if path.is_dir()]
        return sorted(below, key=lambda path: -len(path.parts)) + [self.group]
