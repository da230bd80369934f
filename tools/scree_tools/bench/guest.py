"""Encryption in a filter compared with dm-crypt in the guest, with many small files. For tools/run
bench.

What StorM's authors measured is its Figure 11: PostMark in a virtual machine, encrypted by a
filter or by dm-crypt in the machine.
"""

import json
import re
import shutil
import subprocess

from scree_tools.bench.report import markdown, median, median_ratio, number
from scree_tools.common import process
from scree_tools.common.guest import Guest
from scree_tools.common.process import TARGET, check, run
from scree_tools.common.scree import Scree

MIB = 1 << 20

# The guest's memory in MiB. Its files need more, so that they are read and written.
MEMORY_MIB = 224

# How a guest boots: as with the initrd's own init, except for the disk.
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin PS1= HOME=/
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
while read -r module; do insmod "/modules/$module.ko" 2>/dev/null; done </modules/order
while read -r module; do insmod "/modules/$module.ko" 2>/dev/null; done </modules/crypt-order
for _ in $(seq 100); do [ -b /dev/vda ] && break; sleep 0.1; done
mkdir -p /m /run/cryptsetup
stty -echo
echo "GUEST: up on $(cat /sys/block/vda/size) sectors"
exec setsid cttyhack sh -c 'stty -echo; exec sh'
"""

# Runs a program of this machine in the guest, with its libraries.
WITH = """#!/bin/busybox sh
program=$1; shift; exec /given/ld --library-path /given "/given/$program" "$@"
"""

WAYS = ("no encryption", "a filter encrypts", "a filter in a process encrypts", "dm-crypt in the guest")

ENCRYPT = '[[filter]]\nkind = "encrypt"\nkey = "disk"\nformat = "if-empty"\n'

# The parts that the program reports, by PostMark's names.
PARTS = {
    "create alone": ("create alone", "create"),
    "create": ("with transactions", "create"),
    "read": ("with transactions", "read"),
    "append": ("with transactions", "append"),
    "delete": ("with transactions", "delete"),
    "delete alone": ("delete alone", "delete"),
}


def given(folder, *names):
    """An initrd with programs for the guest, after that of tools/guest and its modules.
    Programs have a path, or are found in this machine's search path."""
    root = folder / "given.d"
    shutil.rmtree(root, ignore_errors=True)
    place = root / "given"
    place.mkdir(parents=True)
    programs = []
    for name in names:
        found = shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin")
        check(found, f"{name} is missing; `tools/packages bench` installs it")
        programs.append(found)
    for program in programs:
        shutil.copy(program, place)
        for library in re.findall(r"/\S+", run("ldd", program)):
            name = library.rsplit("/", 1)[1]
            shutil.copy(library, place / ("ld" if name.startswith("ld-") else name))
    (root / "bin").mkdir()
    for name, script in (("bin/with", WITH), ("start", INIT)):
        (root / name).write_text(script)
        (root / name).chmod(0o755)
    packed = subprocess.run(
        "find . | cpio -o -H newc -R 0:0 --quiet | gzip -1", shell=True, cwd=root, stdout=subprocess.PIPE, check=True
    ).stdout
    guest = TARGET / "guest"
    initrd = folder / "initrd"
    initrd.write_bytes(b"".join((guest / name).read_bytes() for name in ("initrd", "crypt")) + packed)
    shutil.rmtree(root)
    return initrd


def boot(folder, initrd, socket, export, memory_mib=MEMORY_MIB):
    disk = f"driver=nbd,node-name=disk,server.type=unix,server.path={socket},export={export}"
    arguments = ["-cpu", "max", "-kernel", str(TARGET / "guest" / "vmlinuz"), "-initrd", str(initrd)]
    arguments += ["-append", "console=ttyS0 quiet panic=-1 rdinit=/start"]
    arguments += ["-blockdev", disk, "-device", "virtio-blk-pci,drive=disk"]
    return Guest(arguments, folder / "guest.log", memory_mib=memory_mib)


def small_files(guest, plan, is_encrypted):
    """Operations per second, by part."""
    disk = "/dev/vda"
    if is_encrypted:
        guest.sh("head -c 64 /dev/urandom >/key")
        guest.sh(
            "with cryptsetup open --type plain --cipher aes-xts-plain64 --key-size 512 --key-file /key /dev/vda plain",
            120,
        )
        disk = "/dev/mapper/plain"
    guest.sh(f"with mke2fs -q -t ext4 {disk}", 120)
    guest.sh(f"mount -t ext4 {disk} /m")
    files, transactions = (50, 50) if plan.quick else (16_000, 8_000)
    said = guest.sh(f"with small_files --at /m/mail --files {files} --transactions {transactions}", 600)
    phases = json.loads(said.strip().splitlines()[-1])
    return {part: phases[phase].get(kind, 0) / phases[phase]["seconds"] for part, (phase, kind) in PARTS.items()}


def guests(plan, results, folder, say):
    """Fig. 11: the same work with each kind of encryption."""
    table = results.setdefault("guests", {})
    initrd = given(folder, process.BINARY.parent / "examples" / "small_files", "cryptsetup", "mke2fs")
    scree = Scree(folder / "scree", 4, None, ("--overcommit", 100000))
    scree.start()
    try:
        key = folder / "scree" / "filter-keys" / "local" / "disk"
        key.parent.mkdir(parents=True, exist_ok=True)
        key.touch(0o600)
        key.write_text("a passphrase of a benchmark\n")
        for repetition in range(plan.repetitions):
            for number, way in enumerate(WAYS[::-1] if repetition % 2 else WAYS):
                say(f"  {repetition + 1}/{plan.repetitions}  {way}")
                disk = f"disk-{repetition}-{number}"
                scree.cli("volume", "create", disk, "--size", plan.size, "--replicas", 1)
                if way.startswith("a filter"):
                    policy = folder / "policy.toml"
                    where = 'runs = "process"\n' if "process" in way else ""
                    policy.write_text(f'volume = "{disk}"\n{ENCRYPT}{where}')
                    scree.cli("chain", "apply", policy)
                scree.export(disk)
                guest = boot(folder, initrd, scree.socket, disk)
                try:
                    table.setdefault(way, []).append(small_files(guest, plan, way.startswith("dm-crypt")))
                    guest.power_off()
                finally:
                    guest.kill()
                scree.cli("volume", "unexport", disk)
    finally:
        scree.kill()


# ------------------------------------------------------------------- the report


def column(results, way, part):
    return [one[part] for one in results["guests"][way]]


def gain(results, part):
    return median_ratio(column(results, "a filter encrypts", part), column(results, "dm-crypt in the guest", part))


def targets(results):
    if "guests" not in results:
        return []
    return [
        (f"small files in a guest, a filter encrypts / dm-crypt, {part}", 1.34, gain(results, part), True, "×")
        for part in PARTS
    ]


def report(results):
    if "guests" not in results:
        return ""
    rows = []
    for part in PARTS:
        rows.append(
            [part] + [number(median(column(results, way, part))) for way in WAYS] + [f"{gain(results, part):.2f}"]
        )
    return "\n".join(
        [
            "## Small files in a guest",
            "",
            "Operations a second of a guest that makes 16,000 files of 500 to 10,000 bytes, then reads or extends"
            " one and makes or removes one 8,000 times, then removes all; each of the three ends with a sync"
            " (the work of PostMark; its *alone* parts are the first and the last). The guest's memory of"
            f" {MEMORY_MIB} MiB does not hold all. It has one emulated core (QEMU without KVM), which makes"
            " computation slower than on a real one: consider that when reading the ratio. StorM's authors"
            " found 1.23 to 1.34 times. The *delete alone* part works in the guest's memory, so encryption does not"
            " matter.",
            "",
            markdown([""] + list(WAYS) + ["filter / dm-crypt"], rows),
            "",
        ]
    )
