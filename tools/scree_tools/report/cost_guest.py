"""A virtual machine in which the cost of encryption is measured. For tools/run report and tests.

QEMU emulates its processor and counts instructions: each takes exactly 4 ns, so that processor time
depends on the programs and not on the load of this machine. Its disk has a limited bandwidth.
"""

import json
import re
import shutil
import subprocess

from scree_tools.common import process
from scree_tools.common.guest import Guest
from scree_tools.common.process import TARGET, check, run

# An instruction takes 2^2 ns: about as long as QEMU needs for it, so that the disk, which runs in
# real time, is as fast as it seems.
INSTRUCTION_SHIFT = 2

DISK_BYTES_PER_S = 60_000_000

# Its scratch disk.
DISK_BYTES = 6 << 30

PROGRAMS = ["cryptsetup", "mke2fs", "gocryptfs", "fusermount", "setpriv"]

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/given/bin:/bin PS1= HOME=/
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
for order in /modules/order /modules/crypt-order /modules/measured-order; do
  while read -r module; do insmod "/modules/$module.ko" 2>/dev/null; done <$order
done
for _ in $(seq 100); do [ -b /dev/vdb ] && break; sleep 0.1; done
mkdir -p /given /run/cryptsetup /etc /tmp /m
mount -t tmpfs tmp /tmp
ln -s /proc/self/mounts /etc/mtab
mount -t ext4 -o ro /dev/vdb /given
# Programs find their libraries at the paths of the machine that they come from.
mkdir -p /lib64 /lib/x86_64-linux-gnu
ln -s /given/lib/ld-linux-x86-64.so.2 /lib64/
ln -s /given/lib/* /lib/x86_64-linux-gnu/
stty -echo
echo "GUEST: up on $(cat /sys/block/vda/size) sectors"
exec setsid cttyhack sh -c 'stty -echo; exec sh'
"""


def given(folder, programs=PROGRAMS):
    """A disk with Scree and the other programs, and an initrd that mounts it."""
    root = folder / "given.d"
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "lib"):
        (root / name).mkdir(parents=True)
    for name in [str(process.BINARY), *programs]:
        found = shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin")
        check(found, f"{name} is missing; `tools/packages reports` installs it")
        shutil.copy(found, root / "bin")
        # ldd fails for a program without libraries.
        libraries = subprocess.run(["ldd", found], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for library in re.findall(r"/\S+\.so\S*", libraries.stdout):
            shutil.copy(library, root / "lib")
    run("strip", "--strip-debug", root / "bin" / process.BINARY.name)
    (root / "bin" / "mke2fs").rename(root / "bin" / "mkfs.ext4")
    image = folder / "given.img"
    image.unlink(missing_ok=True)
    size = sum(file.stat().st_size for file in root.rglob("*") if file.is_file())
    with open(image, "wb") as file:
        file.truncate(size * 5 // 4 + (32 << 20))
    run("mke2fs", "-q", "-t", "ext4", "-d", root, image)
    shutil.rmtree(root)
    start = folder / "start.d"
    shutil.rmtree(start, ignore_errors=True)
    start.mkdir()
    (start / "start").write_text(INIT)
    (start / "start").chmod(0o755)
    packed = subprocess.run(
        "find . | cpio -o -H newc -R 0:0 --quiet | gzip -1", shell=True, cwd=start, stdout=subprocess.PIPE, check=True
    ).stdout
    shutil.rmtree(start)
    initrd = folder / "initrd"
    parts = [(TARGET / "guest" / name).read_bytes() for name in ("initrd", "crypt", "measured")]
    initrd.write_bytes(b"".join(parts) + packed)
    return initrd, image


class CostGuest:
    """A guest with this much memory, and its command line of `scree cost`."""

    def __init__(self, folder, initrd, image, memory_mib):
        self.memory_mib = memory_mib
        self.disk = folder / f"disk-{memory_mib}.img"
        self.disk.unlink(missing_ok=True)
        with open(self.disk, "wb") as file:
            file.truncate(DISK_BYTES)
        limit = f"throttling.bps-total={DISK_BYTES_PER_S}"
        arguments = ["-cpu", "max", "-icount", f"shift={INSTRUCTION_SHIFT}"]
        arguments += ["-kernel", str(TARGET / "guest" / "vmlinuz"), "-initrd", str(initrd)]
        arguments += ["-append", "console=ttyS0 quiet panic=-1 rdinit=/start"]
        arguments += [
            "-drive",
            f"file={self.disk},if=none,id=disk,format=raw,cache=unsafe,discard=unmap,{limit}",
            "-device",
            "virtio-blk-pci,drive=disk",
        ]
        arguments += [
            "-drive",
            f"file={image},if=none,id=given,format=raw,readonly=on",
            "-device",
            "virtio-blk-pci,drive=given",
        ]
        self.guest = Guest(arguments, folder / f"guest-{memory_mib}.log", memory_mib=memory_mib)

    def folder(self):
        """Creates a file system on the scratch disk, for places that need a folder."""
        self.guest.sh("mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda", 120)
        self.guest.sh("mount -t ext4 /dev/vda /m")
        return "/m"

    def put(self, text, path):
        """A file on the scratch disk."""
        for at in range(0, len(text), 2000):
            part = text[at : at + 2000].replace("'", "'\\''")
            self.guest.sh(f"printf %s '{part}' >>{path}")

    def cost(self, *words, timeout_s=1800):
        """The output of `scree cost`."""
        command = " ".join(str(word) for word in words)
        # On a terminal it would print its progress, which costs time.
        self.guest.sh(f"scree cost {command} -o json >/tmp/said 2>/tmp/why || {{ cat /tmp/why; false; }}", timeout_s)
        return json.loads(self.guest.sh("cat /tmp/said"))

    def end(self):
        self.guest.kill()
        self.disk.unlink(missing_ok=True)
