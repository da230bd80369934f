"""Builds the Debian package of the existing release build, and does with it what an
operator does: installs it on a machine of its own (tools/scree_tools/common/machine.py),
configures it, attaches a disk to a VM of another user, upgrades it under that
VM's writes, removes it, and purges it.

  tools/run check package [--keep]      (--keep leaves the machine's folder)
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import socket
import threading
import time

from scree_tools.common.machine import Machine, as_root, in_own_network
from scree_tools.common.process import BINARY, ROOT, TARGET, Failed, check, main, run

FOLDER = TARGET / "package-test"
SERVICES = ("scree-controller", "scree-agent", "scree-up", "scree-unit")
# The highest exposure level (of 10) that `systemd-analyze security` may report.
EXPOSURE_MAX = {
    "scree-controller": 1.5,
    "scree-agent": 2.5,
    "scree-up": 2.5,
    "scree-unit": 1.5,
}
RECONNECT_DELAY_S = 30
VM_USER = 4242


def build(version):
    """Builds the package twice."""
    made = []
    for folder in ("one", "two"):
        said = run(
            ROOT / "packaging" / "build-deb",
            "--binary",
            BINARY,
            "--out",
            FOLDER / folder,
            "--version",
            version,
            "--compression",
            "gzip",
        )
        made.append(said.splitlines()[-1])
    one, two = (hashlib.sha256(open(name, "rb").read()).hexdigest() for name in made)
    check(one == two, f"the same program and sources made two packages: {one} and {two}")
    return made[0]


def the_package_holds_what_it_should(package):
    listed = {}
    for line in run("dpkg-deb", "--contents", package).splitlines():
        mode, owner, size, _, _, name = line.split(maxsplit=5)
        check(owner == "root/root", f"{name} belongs to {owner}")
        check(mode[5] != "w" and mode[8] != "w", f"{name} can be written by others: {mode}")
        listed[name.removeprefix(".")] = int(size)
    wanted = [
        "/usr/bin/scree",
        "/usr/share/man/man1/scree-volume-create.1.gz",
        "/usr/share/bash-completion/completions/scree",
        "/usr/share/zsh/vendor-completions/_scree",
        "/usr/share/fish/vendor_completions.d/scree.fish",
        "/usr/share/doc/scree/copyright",
        "/usr/share/doc/scree/changelog.gz",
        "/usr/share/doc/scree/third-party.gz",
        "/usr/share/doc/scree/docs/README.md",
        "/usr/share/doc/scree/examples/filters.conf",
        "/usr/lib/sysusers.d/scree.conf",
        "/usr/lib/tmpfiles.d/scree.conf",
    ]
    for service in SERVICES:
        wanted.append(f"/usr/lib/systemd/system/{service}.service")
        wanted.append(f"/etc/scree/{service.removeprefix('scree-')}.env")
    for name in wanted:
        check(listed.get(name, 0) > 0, f"the package lacks {name}, or it is empty")
    for name in listed:
        check(
            name.startswith(("/usr/", "/etc/scree/")) or name in ("/", "/usr", "/etc/"),
            f"the package has {name}, where it has no business",
        )
    configured = run("dpkg-deb", "--info", package, "conffiles").split()
    in_etc = sorted(name for name in listed if name.startswith("/etc/") and not name.endswith("/"))
    check(sorted(configured) == in_etc, f"of {in_etc}, only {configured} are configuration files")
    depends = run("dpkg-deb", "--field", package, "Depends")
    check("libc6 (>=" in depends and "systemd" in depends, f"it depends on {depends}")


def status(machine, service):
    """A property of the service's process."""
    pid = machine.sh(f"systemctl show --value -p MainPID {service}").strip()
    lines = machine.sh(f"cat /proc/{pid}/status").splitlines()
    return pid, dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def an_installation_starts_nothing(machine, package):
    said = machine.sh(f"dpkg -i /packages/{package}")
    check("systemctl enable --now scree-up" in said, f"dpkg -i does not print the next command:\n{said}")
    for service in SERVICES:
        is_enabled = machine.try_sh(f"systemctl is-enabled {service}").stdout.strip()
        is_active = machine.try_sh(f"systemctl is-active {service}").stdout.strip()
        check(
            (is_enabled, is_active) == ("disabled", "inactive"),
            f"{service} is {is_enabled} and {is_active} after an installation",
        )
    for service in ("scree-agent", "scree-unit"):
        machine.sh(f"systemctl start {service}")
        check(
            machine.try_sh(f"systemctl is-active {service}").returncode != 0,
            f"{service} was started, but has not joined",
        )
    check(
        machine.try_sh("systemctl start scree-controller").returncode != 0,
        "a controller without options was started",
    )
    show = machine.sh("systemctl show -p ExecMainStatus,NRestarts scree-controller").split()
    check(set(show) == {"ExecMainStatus=2", "NRestarts=0"}, f"it was restarted: {show}")
    log = machine.sh("journalctl -u scree-controller -o cat")
    check("--listen" in log, f"the log does not name the missing option:\n{log}")
    machine.sh("systemctl reset-failed")


def the_units_are_sound_and_closed(machine):
    for service in SERVICES:
        said = machine.sh(f"systemd-analyze verify {service}.service 2>&1")
        check("scree" not in said, f"systemd-analyze verify says:\n{said}")
        said = machine.sh(f"systemd-analyze security --offline=yes --threshold=100 {service}.service")
        found = float(re.search(r"exposure level.*: (\d+\.\d+)", said)[1])
        most = EXPOSURE_MAX[service]
        check(found <= most, f"{service} is open to {found}, and may be to {most}:\n{said}")
        print(f"  {service}: exposure {found} of 10")


def scree(machine, words, folder="controller"):
    return json.loads(machine.sh(f"scree --dir /var/lib/scree/{folder} -o json {words}") or "{}")


def one_machine_serves_from_a_closed_room(machine):
    machine.sh("echo 'SCREE_OPTIONS=--units 3 --journal-size 16M' >/etc/scree/up.env")
    machine.sh("systemctl start scree-up")
    _, found = status(machine, "scree-up")
    user = machine.sh("id -u scree-agent").strip()
    check(found["Uid"].split() == [user] * 4, f"it runs as {found['Uid']}, not {user}")
    # CAP_CHOWN and CAP_DAC_OVERRIDE.
    for kind in ("CapEff", "CapBnd", "CapPrm"):
        check(int(found[kind], 16) == 0b11, f"{kind} is {found[kind]}")
    check((found["NoNewPrivs"], found["Seccomp"]) == ("1", "2"), "it is not confined")

    scree(machine, "volume create disk --size 64M", "up")
    uri = scree(machine, "volume export disk", "up")["uri"]
    machine.sh(f"qemu-io -f raw -c 'write -P 5 0 8M' -c flush '{uri}'")

    # Folders for units, also on file systems that are mounted later.
    machine.sh("mkdir -p /mnt/late && mount -t tmpfs late /mnt/late && mkdir /mnt/late/u")
    scree(machine, "unit add /mnt/late/u", "up")
    machine.sh("mkdir -p /data/u")
    said = machine.try_sh("scree --dir /var/lib/scree/up unit add /data/u")
    check(said.returncode != 0 and "is read-only" in said.stdout, f"/data/u: {said.stdout}")
    machine.sh(
        "mkdir -p /etc/systemd/system/scree-up.service.d && "
        "printf '[Service]\\nReadWritePaths=/data\\n' "
        ">/etc/systemd/system/scree-up.service.d/units.conf && "
        "systemctl daemon-reload && systemctl restart scree-up"
    )
    scree(machine, "unit add /data/u", "up")
    machine.sh(f"qemu-io -f raw -c 'read -P 5 0 8M' '{uri}'")
    units = scree(machine, "unit list", "up")
    check(len(units) == 5 and all(unit["state"] == "healthy" for unit in units), str(units))

    machine.sh("systemctl stop scree-up")
    result = machine.sh("systemctl show --value -p Result,ExecMainStatus scree-up").split()
    check(result == ["success", "0"], f"it was stopped, and ended so: {result}")
    log = machine.sh("journalctl -u scree-up -o cat")
    check("agent destaged all volumes" in log, f"a stop does not destage:\n{log}")
    for word in ("WARN", "ERROR", "panicked"):
        check(word not in log, f"the log of scree-up has {word}:\n{log}")


def filters_have_users_of_their_own_where_the_operator_says_so(machine):
    """Filters out of process: of the service's user, and of users of their own with the drop-in."""
    machine.sh(
        'printf \'volume = "disk"\\n[[filter]]\\nkind = "monitor"\\nruns = "process"\\n\' '
        ">/run/policy.toml && systemctl start scree-up"
    )
    scree(machine, "volume export disk", "up")
    user = machine.sh("id -u scree-agent").strip()

    def users_of_the_filter():
        pid = machine.sh("pgrep -f 'scree filter-process' | head -1").strip()
        lines = machine.sh(f"cat /proc/{pid}/status").splitlines()
        found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        for kind in ("CapEff", "CapPrm"):
            check(int(found[kind], 16) == 0, f"a filter's process has {kind} {found[kind]}")
        return set(found["Uid"].split())

    scree(machine, "chain apply /run/policy.toml", "up")
    users = users_of_the_filter()
    check(users == {user}, f"a filter's process is of {users}, not {user}")
    machine.sh(
        "install -D -m 644 /usr/share/doc/scree/examples/filters.conf "
        "/etc/systemd/system/scree-up.service.d/filters.conf && "
        "systemctl daemon-reload && systemctl restart scree-up"
    )
    machine.wait_until(
        "the filter is there",
        lambda: machine.try_sh("pgrep -f 'scree filter-process'").returncode == 0,
    )
    users = users_of_the_filter()
    check(
        len(users) == 1 and all(uid.startswith("19000") for uid in users),
        f"a filter's process is of {users}, and not of its own",
    )
    scree(machine, "chain delete disk", "up")
    machine.wait_until(
        "the filter's process is ended",
        lambda: machine.try_sh("pgrep -f 'scree filter-process'").returncode != 0,
    )
    machine.sh(
        "rm /etc/systemd/system/scree-up.service.d/filters.conf && systemctl daemon-reload && systemctl stop scree-up"
    )


class Vm:
    """A QEMU of another user, with a monitor of its own for the test."""

    def __init__(self, machine):
        self.machine = machine
        machine.sh(
            f"mkdir -p /run/vm && chown {VM_USER}:{VM_USER} /run/vm && chmod 700 /run/vm &&"
            "systemd-run --quiet --unit=vm --property=StandardOutput=file:/run/vm-said "
            f"setpriv --reuid={VM_USER} --regid={VM_USER} --clear-groups stdbuf --output=L "
            "qemu-system-x86_64 -accel tcg -machine pc -m 64 -nodefaults -display none "
            "-qmp unix:/run/vm/one.qmp,server=on,wait=off "
            "-qmp unix:/run/vm/test.qmp,server=on,wait=off"
        )
        path = f"/proc/{machine.first}/root/run/vm/test.qmp"
        machine.wait_until("QEMU has made its monitors", lambda: os.path.exists(path))
        monitor = socket.socket(socket.AF_UNIX)
        monitor.connect(path)
        self.file = monitor.makefile("rw")
        self.said = open(f"/proc/{machine.first}/root/run/vm-said")
        self.file.readline()
        self.ask("qmp_capabilities")
        self.disk = None

    def ask(self, command, **arguments):
        self.file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.file.flush()
        while True:
            answer = json.loads(self.file.readline())
            if "event" not in answer:
                check("return" in answer, f"QEMU refuses {command}: {answer}")
                return answer["return"]

    def io(self, words):
        """A request of the VM, as its disk's virtio device sends it."""
        if self.disk is None:
            nodes = self.ask("query-named-block-nodes")
            names = [node["node-name"] for node in nodes]
            self.disk = next(name for name in names if name.startswith("scree-att-"))
        path = f"/machine/peripheral/{self.disk}/virtio-backend"
        line = f'qemu-io -d {path} "{words}"'
        refused = self.ask("human-monitor-command", **{"command-line": line})
        # The result is on QEMU's standard output.
        said = self.said.read()
        done = r"(wrote|read) (\d+)/\2 bytes"
        is_done = words == "flush" or re.search(done, said)
        check(not refused and is_done and "failed" not in said, f"the VM's `{words}`: {refused} {said}")


class Writer:
    """Writes from the VM as fast as possible, and records the duration of each write."""

    def __init__(self, vm):
        self.vm = vm
        self.slowest_s = 0.0
        self.count = 0
        self.failed = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._write)
        self.thread.start()

    def _write(self):
        try:
            while not self.stopping.is_set():
                begun = time.monotonic()
                self.vm.io(f"write -P {self.count % 200 + 1} {self.count % 256}M 64k")
                self.vm.io("flush")
                self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
                self.count += 1
        except Exception as error:  # said by stop
            self.failed = error

    def stop(self):
        self.stopping.set()
        self.thread.join()
        if self.failed is not None:
            log = self.vm.machine.sh("journalctl -n 40 -o short-precise --no-pager")
            raise Failed(f"{self.failed}\nThe journal there:\n{log}")

    def check(self):
        """Checks that everything it wrote can be read."""
        for number in range(max(0, self.count - 256), self.count):
            self.vm.io(f"read -P {number % 200 + 1} {number % 256}M 64k")


def a_vm_of_another_user_has_a_disk(machine):
    machine.sh(
        "echo 'SCREE_OPTIONS=--listen 127.0.0.1:8443 --name localhost' >/etc/scree/controller.env;"
        "echo 'SCREE_OPTIONS=--units 3 --journal-size 16M' >/etc/scree/agent.env;"
        "systemctl enable --now scree-controller"
    )
    _, found = status(machine, "scree-controller")
    user = machine.sh("id -u scree-controller").strip()
    check(found["Uid"].split() == [user] * 4, f"it runs as {found['Uid']}, not {user}")
    for kind in ("CapEff", "CapBnd", "CapPrm"):
        check(int(found[kind], 16) == 0, f"a controller has {kind} {found[kind]}")
    invited = scree(machine, "host add h1")
    machine.sh(
        "runuser -u scree-agent -- scree host join https://localhost:8443 "
        f"--token {invited['token']} --authority {invited['authority']} --dir /var/lib/scree/agent"
    )
    machine.sh("systemctl enable --now scree-agent")
    scree(machine, "volume create disk --size 256M")
    vm = Vm(machine)
    scree(machine, "attach disk --vm qmp:/run/vm/one.qmp --host h1")
    sockets = machine.sh("stat -c '%u %a %n' /var/lib/scree/agent/vm/*.sock")
    check(sockets.startswith(f"{VM_USER} 600 "), f"the disk's socket: {sockets}")
    vm.io("write -P 9 0 1M")
    vm.io("read -P 9 0 1M")
    # The check must be able to fail.
    try:
        vm.io("read -P 8 0 1M")
    except Failed:
        return vm
    raise Failed("a VM reads content that was not written, and this test does not notice")


def an_upgrade_keeps_vms_waiting_for_moments(machine, vm, package):
    before = [status(machine, service)[0] for service in SERVICES[:2]]
    machine.sh("echo '# changed by the operator' >>/etc/scree/agent.env")
    writer = Writer(vm)
    machine.wait_until("the VM writes", lambda: writer.count > 20 or writer.failed)
    machine.sh(f"dpkg --force-confold -i /packages/{package}")
    at = writer.count
    machine.wait_until("the VM continues", lambda: writer.count > at + 20 or writer.failed)
    writer.stop()
    writer.check()
    for service, old in zip(SERVICES, before):
        new, _ = status(machine, service)
        check(new != old, f"{service} was not restarted")
        program = machine.sh(f"readlink /proc/{new}/exe").strip()
        check(program == "/usr/bin/scree", f"{service} still runs {program}")
    check(machine.try_sh("systemctl is-active scree-up").returncode != 0, "an upgrade started what was stopped")
    machine.sh("grep -q 'changed by the operator' /etc/scree/agent.env")
    print(f"  {writer.count} writes; the slowest took {writer.slowest_s:.2f} s")
    check(writer.slowest_s < RECONNECT_DELAY_S / 3, "VMs wait too long for an upgrade")
    attachments = scree(machine, "attachment list")
    check(attachments[0]["state"] == "attached", str(attachments))
    log = machine.sh("journalctl -u scree-agent -u scree-controller -o cat")
    check("panicked" not in log, f"the log:\n{log}")


def a_killed_agent_comes_back_by_itself(machine, vm):
    writer = Writer(vm)
    machine.wait_until("the VM writes", lambda: writer.count > 20 or writer.failed)
    machine.sh("systemctl kill -s KILL scree-agent")
    at = writer.count
    machine.wait_until("the VM continues", lambda: writer.count > at + 20 or writer.failed)
    writer.stop()
    writer.check()
    print(f"  the slowest write took {writer.slowest_s:.2f} s")


def what_a_purge_leaves(machine, vm):
    vm.ask("quit")
    scree(machine, "detach disk")
    machine.sh("dpkg -r scree")
    check(
        machine.try_sh("systemctl is-active scree-agent scree-controller").returncode != 0,
        "services outlive the package",
    )
    machine.sh("test -e /etc/scree/agent.env && ! test -e /usr/bin/scree")
    said = machine.sh("dpkg -P scree 2>&1")
    check("/var/lib/scree is kept" in said, f"a purge does not say what it leaves:\n{said}")
    machine.sh(
        "test -s /var/lib/scree/controller/scree.db && test -s /var/lib/scree/agent/keys/master.key"
        " && ! test -e /etc/scree && id scree-agent"
    )
    dangling = machine.sh("find /etc/systemd/system -xtype l -name 'scree*'")
    check(not dangling, f"links are left: {dangling}")

    # A second installation continues.
    machine.sh("dpkg -i /packages/again.deb")
    machine.sh(
        "echo 'SCREE_OPTIONS=--listen 127.0.0.1:8443 --name localhost' >/etc/scree/controller.env;"
        "systemctl start scree-controller scree-agent"
    )
    uri = scree(machine, "volume export disk")["uri"]
    machine.sh(f"qemu-io -f raw -c 'read 0 1M' '{uri}'")
    machine.sh("systemctl stop scree-agent scree-controller")


def work():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--keep", action="store_true", help="leave the machine's folder")
    keep = arguments.parse_args().keep
    as_root()
    in_own_network()
    shutil.rmtree(FOLDER, ignore_errors=True)
    begun = time.monotonic()

    def step(claim, *given):
        print(f"{claim.__name__.replace('_', ' ')} ({time.monotonic() - begun:.0f} s)", flush=True)
        return claim(*given)

    old = step(build, "0.1.0~first-1")
    run(
        ROOT / "packaging" / "build-deb",
        "--binary",
        BINARY,
        "--out",
        FOLDER / "one",
        "--version",
        "0.1.0~second-1",
        "--compression",
        "gzip",
    )
    step(the_package_holds_what_it_should, old)
    old = os.path.basename(old)
    new = old.replace("first", "second")
    shutil.copy(FOLDER / "one" / new, FOLDER / "one" / "again.deb")
    data = FOLDER / "data"
    data.mkdir(parents=True)
    machine = Machine("package", FOLDER / "machine", shares={FOLDER / "one": "packages", data: "var/lib/scree"})
    try:
        step(an_installation_starts_nothing, machine, old)
        step(the_units_are_sound_and_closed, machine)
        step(one_machine_serves_from_a_closed_room, machine)
        step(filters_have_users_of_their_own_where_the_operator_says_so, machine)
        vm = step(a_vm_of_another_user_has_a_disk, machine)
        step(an_upgrade_keeps_vms_waiting_for_moments, machine, vm, new)
        step(a_killed_agent_comes_back_by_itself, machine, vm)
        step(what_a_purge_leaves, machine, vm)
    finally:
        machine.end()
    if not keep:
        shutil.rmtree(FOLDER)
    print(f"The package is sound ({time.monotonic() - begun:.0f} s)")


main(work)
