"""Boots a Linux guest from a Scree disk, breaks things, and checks every byte.

tools/run demo           run it (make demo installs and builds what it needs)
tools/run demo --clean   stop the Scree it left running and delete its folder
"""

import mmap
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

from scree_tools.common.guest import Guest
from scree_tools.common.process import BINARY, ROOT, TARGET, Failed, check, main, run
from scree_tools.common.service import Service, cli, cli_text, free_port

FOLDER = ROOT / "demo-state"
CONTROLLER = FOLDER / "c1"
HOST = FOLDER / "h1"
UNITS = 8
BEGUN = time.monotonic()
DONE = []


# Number of times that the guest writes its secret.
SECRETS = 2000


def say(text):
    print(f"{time.monotonic() - BEGUN:5.0f} s  {text}", flush=True)


def shown(text):
    """Prints a line about what was shown, which the summary repeats."""
    DONE.append(text)
    say("   ✓ " + text)


class Site:
    """A controller, a host's agent, and two tenants: alice, who owns the disks, and bob, who has
    no rights."""

    def __init__(self):
        port = free_port()
        self.url = f"https://localhost:{port}"
        self.controller = Service(CONTROLLER, "controller", "--listen", f"127.0.0.1:{port}")
        self.agent = Service(HOST, "agent", "--units", UNITS, "--allow-unencrypted")
        self.socket = HOST / "nbd.sock"

    def found(self):
        """The setup that an operator does once."""
        self.controller.start()
        words = self._invited("host", "h1")
        cli("host", "join", self.url, *words, SCREE_DIR=str(HOST))
        self.agent.start()
        for user in ["alice", "bob"]:
            words = self._invited("user", user)
            cli("login", self.url, *words, SCREE_CONFIG=str(FOLDER / user))
            self.operator("grant", "add", user, "use", "--host", "h1")
        self.operator("project", "quota", "alice", "--size", "64G", "--volumes", 8)

    def _invited(self, kind, name):
        invitation = self.operator(kind, "add", name)
        return ["--token", invitation["token"], "--authority", invitation["authority"]]

    def start(self):
        """Starts both, and returns the seconds until alice's request is answered."""
        begun = time.monotonic()
        self.controller.start()
        self.agent.start()
        self.cli("volume", "list")
        return time.monotonic() - begun

    def kill(self):
        """Kills both with kill -9."""
        self.agent.kill()
        self.controller.kill()

    def operator(self, *arguments):
        return cli(*arguments, SCREE_DIR=str(CONTROLLER))

    def cli(self, *arguments):
        """Runs a command as alice."""
        return cli(*arguments, SCREE_CONFIG=str(FOLDER / "alice"))

    def text(self, *arguments):
        """The text output of a command as alice."""
        return cli_text(*arguments, SCREE_CONFIG=str(FOLDER / "alice"))

    def refused(self, *arguments):
        """The error of a command as bob."""
        try:
            cli(*arguments, SCREE_CONFIG=str(FOLDER / "bob"))
        except Failed as failure:
            return str(failure)
        raise Failed(f"`scree {' '.join(arguments)}` is not refused to a stranger")

    def export(self, volume):
        return self.cli("volume", "export", volume)["uri"]

    def wait_for_snapshot(self, name, timeout_s=60):
        until = time.monotonic() + timeout_s
        while self.cli("snapshot", "list", "--state", "completed") == []:
            check(time.monotonic() < until, f"snapshot {name} is not completed in {timeout_s} s")
            time.sleep(0.05)


def image_of(scree, volume, name):
    """The content of the volume, as a plain file."""
    path = FOLDER / name
    run("qemu-img", "convert", "-O", "raw", scree.export(volume), path)
    return path


def fsck(image):
    """Replays the file system's journal, then checks the file system."""
    # The exit code is 1 if there was something to replay.
    journal = subprocess.run(
        ["e2fsck", "-E", "journal_only", "-y", str(image)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    check(journal.returncode in (0, 1), "e2fsck cannot replay the journal:\n" + journal.stdout)
    # Only counters that ext4 updates lazily may differ once its journal is replayed.
    lazy = ("Free blocks count wrong", "Free inodes count wrong", "Fix?", "Pass ", "e2fsck ")
    done = subprocess.run(["e2fsck", "-fy", str(image)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wrong = [
        line
        for line in done.stdout.splitlines()
        if line.strip()
        and not line.startswith(lazy)
        and not re.search(r"FILE SYSTEM WAS MODIFIED|\d+/\d+ files|orphan", line)
    ]
    check(done.returncode in (0, 1) and not wrong, "e2fsck finds damage:\n" + done.stdout)
    run("e2fsck", "-fn", image)


def files_in(image):
    """Checksums of the files in /data, by name, read without mounting."""
    out = FOLDER / (image.name + ".data")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    run("debugfs", "-R", f"rdump /data {out}", image)
    lines = run("md5sum", *sorted((out / "data").iterdir())).splitlines()
    shutil.rmtree(out)
    return {line.split("/")[-1]: line.split()[0] for line in lines}


def manifest_in(image):
    """Checks the files that the guest started with; returns their number."""
    out = FOLDER / (image.name + ".files")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    run("debugfs", "-R", f"rdump /files /MANIFEST {out}", image)
    lines = run("md5sum", "-c", "MANIFEST", cwd=out).splitlines()
    shutil.rmtree(out)
    return len(lines)


def flushed_in(lines):
    """The files that the guest reported as written and flushed: name to checksum."""
    found = (re.match(r"FLUSHED (\S+) (\w+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def occurrences(path, needle):
    """How often these bytes occur in a file."""
    if path.stat().st_size == 0:
        return 0
    count = at = 0
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        while (at := content.find(needle, at)) >= 0:
            count, at = count + 1, at + len(needle)
    return count


def clean():
    for name, folder in [("agent", HOST), ("controller", CONTROLLER)]:
        pid = FOLDER / f"{name}.pid"
        if not pid.exists():
            continue
        number = int(pid.read_text())
        try:
            # Only if the process id still belongs to a Scree on this folder.
            if str(folder) in open(f"/proc/{number}/cmdline").read():
                os.kill(number, signal.SIGTERM)
                for _ in range(600):
                    if not os.path.exists(f"/proc/{number}"):
                        break
                    time.sleep(0.1)
        except (FileNotFoundError, ProcessLookupError):
            pass
    shutil.rmtree(FOLDER, ignore_errors=True)


def demo():
    if sys.argv[1:] == ["--clean"]:
        return clean()
    check(BINARY.exists(), "there is no Scree yet; run `make demo`")
    check((TARGET / "guest" / "root.img").exists(), "there is no guest yet; run `make demo`")
    clean()
    FOLDER.mkdir()
    scree = Site()
    guests = []
    try:
        scenes(scree, guests)
    except BaseException:
        for guest in guests:
            guest.kill()
        scree.kill()
        raise
    (FOLDER / "agent.pid").write_text(str(scree.agent.process.pid))
    (FOLDER / "controller.pid").write_text(str(scree.controller.process.pid))
    summary()


def boot(guests, scree, volume):
    log, monitor = FOLDER / f"{volume}.console.log", FOLDER / f"{volume}.qmp"
    # On a host, a volume is named by its owner and its name.
    guests.append(Guest.on_disk(scree.socket, f"alice/{volume}", log, monitor))
    return guests[-1]


def scenes(scree, guests):
    marker = "scree-demo-" + "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=40))
    root = TARGET / "guest" / "root.img"

    say(f"Starting a controller and a host's agent with {UNITS} folder units, as their operator")
    scree.found()
    states_before = scree.operator("unit", "list")[0]["state"]
    say("From now on as alice, a tenant, over TLS with a certificate of her own")
    size = root.stat().st_size
    scree.cli("volume", "create", "disk", "--size", size, "--replicas", 2)
    uri = scree.export("disk")

    say("Copying a Linux file system onto the volume `disk` (2 replicas) with qemu-img, over NBD")
    run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", root, uri)
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", root, uri)
    shown(f"the copy on the volume is identical, all {size >> 20} MiB")

    check("does not exist" in scree.refused("volume", "show", "alice/disk"), "bob sees the volume")
    scree.refused("volume", "export", "alice/disk")
    scree.refused("volume", "delete", "alice/disk")
    shown("for bob, another tenant, it does not exist")

    say("Booting a Linux guest whose root disk is the volume (QEMU, no KVM)")
    guest = boot(guests, scree, "disk")
    files = guest.sh("wc -l </MANIFEST").strip()
    guest.sh("md5sum -c /MANIFEST >/tmp/sums 2>&1 || { grep -v OK$ /tmp/sums; false; }", 120)
    shown(f"the guest booted and read its {files} files; each checksum is right")

    say(f"The guest writes a secret {SECRETS:,} times and other files, and syncs")
    guest.sh(f"yes {marker} | head -{SECRETS} >/data/secret; sync")
    guest.sh("dd if=/dev/urandom of=/data/before bs=1M count=24 conv=fsync 2>/dev/null")
    before = guest.sh("md5sum </data/before").split()[0]

    say("Plugging a second volume into the running guest, by `scree attach`")
    scree.cli("volume", "create", "extra", "--size", "64M", "--replicas", 2)
    begun = time.monotonic()
    vm = f"qmp:{FOLDER / 'disk.qmp'}"
    scree.cli("attach", "extra", "--host", "h1", "--vm", vm)
    guest.sh("until [ -b /dev/vdb ]; do sleep 0.05; done", 30)
    took_ms = (time.monotonic() - begun) * 1000
    guest.sh("echo plugged in | dd of=/dev/vdb bs=4096 conv=sync,fsync 2>/dev/null")
    scree.cli("detach", "extra", "--vm", vm)
    guest.sh("[ ! -e /dev/vdb ]")
    extra = image_of(scree, "extra", "extra.img")
    with open(extra, "rb") as file:
        check(file.read(10) == b"plugged in", "what the guest wrote is not on the volume")
    scree.cli("volume", "unexport", "extra")
    extra.unlink()
    shown(f"{took_ms:.0f} ms until the guest had /dev/vdb; written, unplugged, and read elsewhere")

    say("It writes on while a snapshot is taken")
    guest.send("keep-writing busy &")
    guest.wait_for("FLUSHED", 30)
    begun = time.monotonic()
    scree.cli("snapshot", "create", "disk", "--name", "noon")
    took_ms = (time.monotonic() - begun) * 1000
    guest.sh("touch /tmp/stop; wait; rm /tmp/stop; echo late >/data/after; rm /data/before; sync", 60)
    scree.wait_for_snapshot("noon")
    shown(f"snapshot `noon` of the running guest's disk: {took_ms:.0f} ms, command line included")

    say("Booting a second guest from a clone of that snapshot, beside the first")
    begun = time.monotonic()
    scree.cli("volume", "create", "clone", "--from", "noon")
    took_ms = (time.monotonic() - begun) * 1000
    scree.export("clone")
    second = boot(guests, scree, "clone")
    second.sh("[ ! -e /data/after ]")
    check(second.sh("md5sum </data/before").split()[0] == before, "the clone differs")
    second.sh("echo clone >/data/mine; sync")
    guest.sh("[ ! -e /data/mine ] && [ ! -e /data/before ]")
    second.power_off()
    shown(f"the clone ({took_ms:.0f} ms) booted in the state of the snapshot; the two do not mix")

    say("Putting a monitor before the guest's disk, while it is used; then a trojan comes")
    policy = FOLDER / "policy.toml"
    policy.write_text(POLICY)
    applied = scree.cli("chain", "apply", policy)
    check(applied["attachments"][0]["revision"] == 1, "the monitor is not in use")
    for step in TROJAN:
        guest.sh(step + " && sync", 30)
    steps = named(scree)
    say("      the guest has no software for this; what the monitor says of its files:")
    for step in steps:
        say("        " + step)
    alerts = sum("ALERT" in step for step in steps)
    check(alerts >= 3, f"the monitor has raised {alerts} alerts only")
    scree.cli("chain", "delete", "disk")
    guest.sh("rm -r /sbin/.trojan /etc/startup /bin/.ps; sync")
    shown(f"each step of the trojan was named as it was committed, {alerts} as alerts")

    lost = HOST / "units" / sorted(os.listdir(HOST / "units"))[3]
    say(f"Moving the folder of one unit away: {lost.relative_to(ROOT)}")
    lost.rename(FOLDER / "lost-unit")
    guest.sh("echo 3 >/proc/sys/vm/drop_caches")
    guest.sh("md5sum -c /MANIFEST >/tmp/sums 2>&1 || { grep -v OK$ /tmp/sums; false; }", 120)
    guest.sh("dd if=/dev/urandom of=/data/degraded bs=1M count=8 conv=fsync 2>/dev/null")
    states = [unit["state"] for unit in scree.operator("unit", "list")]
    shown(f"the guest missed nothing, and went on writing; units are now: {', '.join(states)}")

    say("Killing controller and agent with -9 while the guest writes; the third time the guest too")
    said = []
    guest.send("keep-writing log")
    for kill in (1, 2, 3):
        said += [guest.wait_for("FLUSHED", 60)[1].string]
        time.sleep(random.uniform(0.5, 2.5))
        scree.kill()
        if kill == 3:
            guest.kill()
        said += guest.said()
        opened_s = scree.start()
        say(f"      started again and answering after {opened_s:.2f} s")
    flushed = flushed_in(said)

    say("Reading the whole disk back and checking it")
    image = image_of(scree, "disk", "after.img")
    fsck(image)
    shown("e2fsck finds the file system whole")
    found = files_in(image)
    lost_files = [name for name, sum in flushed.items() if found.get(name) != sum]
    check(not lost_files, f"flushed but lost or changed: {', '.join(lost_files)}")
    shown(f"each of the {len(flushed)} files the guest had flushed is there and right; none is lost")
    shown(f"so is each of the {manifest_in(image)} files it started with")

    say("Bringing the unit back")
    (FOLDER / "lost-unit").rename(lost)
    until = time.monotonic() + 30
    while any(unit["state"] != states_before for unit in scree.operator("unit", "list")):
        check(time.monotonic() < until, "the unit is not seen to be back")
        time.sleep(0.2)
    shown(f"all {UNITS} units are {states_before} again")

    say("Searching every file Scree wrote for the guest's secret")
    search(scree, marker, image)


# The tenant's policy.
POLICY = """\
volume = "disk"

[[filter]]
kind = "monitor"
operations = ["create", "mkdir", "rename", "delete", "link", "chmod"]

[[filter.rule]]
name = "programs"
paths = ["/bin/**", "/sbin/**", "/etc/startup"]
operations = ["create", "mkdir", "rename", "link", "chmod"]
action = "alert"
"""

# The steps of its installation.
TROJAN = [
    "mkdir -p /etc /sbin/.trojan",
    "cp /bin/busybox /data/payload",
    "mv /data/payload /sbin/.trojan/sh",
    "chmod 4755 /sbin/.trojan/sh",
    "ln /sbin/.trojan/sh /bin/ps.new",
    "mv /bin/ps.new /bin/.ps",
    "echo /sbin/.trojan/sh >/etc/startup",
]


def named(scree):
    """The output of the monitor, once it has reported the last step."""
    until = time.monotonic() + 30
    while True:
        lines = scree.text("monitor", "disk").splitlines()
        steps = [line.split("  ", 1)[1] for line in lines if "note" not in line and "/" in line]
        if any("/etc/startup" in step for step in steps):
            return steps
        check(time.monotonic() < until, f"the monitor does not name the trojan's last step: {lines}")
        time.sleep(0.2)


def kinds_of():
    folders = [CONTROLLER, HOST]
    files = [path for folder in folders for path in sorted(folder.rglob("*"))]
    files = [path for path in files if path.is_file() and not path.is_symlink()]
    units = [path for path in files if (HOST / "units") in path.parents]
    return {"units": units, "journals, database and keys": sorted(set(files) - set(units))}


def search(scree, marker, image):
    needle = marker.encode()
    kinds = kinds_of()
    whole = run("debugfs", "-R", "cat /data/secret", image).count(marker)
    check(whole == SECRETS, f"the guest's file has the secret {whole} times only")
    # If a file is fragmented, a line may be split.
    blocks = SECRETS * (len(needle) + 1) // 4096
    control = occurrences(image, needle)
    check(control >= SECRETS - blocks, f"the control search finds the secret {control} times only")
    for kind, paths in kinds.items():
        check(paths, f"there are no files for {kind}")
        for path in paths:
            count = occurrences(path, needle)
            check(count == 0, f"{path} holds the guest's secret {count} times")
        size = sum(path.stat().st_blocks * 512 for path in paths)
        shown(f"{kind}: not once in {len(paths)} files, {size >> 20} MiB")
    shown(f"(the same search finds it {control:,} times in the disk as the guest sees it)")
    image.unlink()

    # The search must find data that is on units.
    scree.cli("volume", "create", "unsealed", "--size", "64M", "--encryption", "none", "--replicas", 1)
    secret = FOLDER / "secret"
    secret.write_bytes((needle + b"\n") * 1000)
    run("qemu-io", "-f", "raw", "-c", f"write -s {secret} 0 4096", scree.export("unsealed"))
    scree.cli("volume", "unexport", "unsealed")
    control = sum(occurrences(path, needle) for path in kinds_of()["units"])
    check(control > 0, "the control search finds nothing of a volume that is not sealed")
    shown(f"(and {control} times in the units once a volume with `--encryption none` was given one block)")
    scree.cli("volume", "delete", "unsealed")
    secret.unlink()


def summary():
    print(f"\nAll held, in {time.monotonic() - BEGUN:.0f} s:")
    for text in DONE:
        print(f"  ✓ {text}")
    scree = os.path.relpath(BINARY)
    print(
        f"""
Scree still runs, with alice's volumes `disk`, `clone` and `extra`. Go on by hand, as alice:

  export SCREE_CONFIG={os.path.relpath(FOLDER / "alice")}
  {scree} volume list
  {scree} snapshot tree
  {scree} volume versions disk
  {scree} project show alice
  qemu-img info "$({scree} volume export disk)"

or as the operator:

  export SCREE_DIR={os.path.relpath(CONTROLLER)}
  {scree} status
  {scree} unit list
  {scree} audit
  make clean-demo      # stop it and delete {FOLDER.name}/"""
    )


if __name__ == "__main__":
    main(demo)
