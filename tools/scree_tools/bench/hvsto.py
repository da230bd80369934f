"""The measurements of HVSTO's authors, with distant units: latency after snapshots (Figure 5),
and bonnie++ in a guest (Figure 6). For tools/run bench."""

import os

from scree_tools.bench.cache import LINK_US, TRIP_MS, Far, at, fill, fio, local
from scree_tools.bench.chains import Part
from scree_tools.bench.guest import boot, given
from scree_tools.bench.report import markdown, median, number
from scree_tools.common.daemons import Delay
from scree_tools.common.process import check, run

MIB = 1 << 20

NO_CACHE, WITH_CACHE = "Scree, no cache", "Scree"


# --------------------------------------------------------------- after snapshots

# As in the paper: 2 MB, read five times.
AGAIN = {"offset": 8 * MIB, "size": 2 * MIB, "norandommap": 0}
PASSES = 5
# Bytes written between two snapshots, half of them in these 2 MB.
SCRIBBLED = {"offset": 8 * MIB, "size": 4 * MIB, "io_size": 128 * 4096}

QCOW2 = "qcow2, backing files"
AGED = (NO_CACHE, WITH_CACHE, QCOW2)


class Layers:
    """A qcow2 file with a growing chain of backing files, on a distant server."""

    def __init__(self, folder, size):
        self.folder, self.size = folder, size
        self.files = folder / "layers"
        self.files.mkdir(parents=True)
        self.top, self.count = None, 0
        self.server = Part(folder, "server", ["nbdkit", "-f", "-U", "SOCKET", "file", f"dir={self.files}"])
        self.link = Delay(self.server.socket, LINK_US, folder / "link.sock")
        self.snapshot()

    def _uri(self, layer):
        return f"nbd+unix:///layer-{layer}?socket={self.link.place}"

    def snapshot(self):
        """Adds a backing file."""
        if self.top:
            self.top.stop()
        path = self.files / f"layer-{self.count}"
        below = ["-F", "qcow2", "-b", self._uri(self.count - 1)] if self.count else []
        run("qemu-img", "create", "-q", "-f", "qcow2", *below, path, self.size)
        # The size that an NBD server exports does not grow.
        os.truncate(path, self.size + 64 * MIB)
        uri = self._uri(self.count)
        self.top = Part(self.folder, f"top-{self.count}", ["qemu-nbd", "-t", "-f", "qcow2", "-k", "SOCKET", uri])
        self.count += 1

    def uri(self):
        return at(self.top)

    def stop(self):
        for part in (self.top, self.link, self.server):
            if part:
                part.stop()


class Aging:
    """A volume of which snapshots are taken."""

    def __init__(self, folder, plan, size, cache_bytes):
        self.far, self.count = Far(folder, plan), 0
        try:
            self.disk = self.far.volume("disk", size)
            if cache_bytes:
                self.far.begin([self.disk], cache_bytes, 64 * MIB)
        except BaseException:
            self.far.stop()
            raise

    def snapshot(self):
        self.count += 1
        self.far.site.operator("snapshot", "create", "disk", "--name", f"s{self.count}", "--wait")

    def uri(self):
        return self.disk

    def stop(self):
        self.far.stop()


def aged(plan, results, folder, say):
    """Fig. 5: the same 2 MiB after more and more snapshots."""
    table = results.setdefault("aged", {})
    size = plan.size // 8 if not plan.quick else 16 * MIB
    starts = {
        NO_CACHE: lambda place: Aging(place, plan, size, 0),
        WITH_CACHE: lambda place: Aging(place, plan, size, 8 * size),
        QCOW2: lambda place: Layers(place, size),
    }
    for number_, (name, start) in enumerate(starts.items()):
        disk = start(folder / f"disk-{number_}")
        try:
            fill(folder, disk.uri(), size)
            for count in range(11 if not plan.quick else 2):
                say(f"  {name}: {count} snapshots")
                if count:
                    disk.snapshot()
                cells = table.setdefault(name, {}).setdefault(count, {})
                # Until everything is destaged.
                if name != QCOW2 and not count:
                    disk.far.site.settle("disk")
                short = {"size": MIB // 8} if plan.quick else {"loops": PASSES}
                read = fio(folder, [disk.uri()], rw="randread", **AGAIN | short)[0]["read"]
                cells["read_us"] = read["lat_ns"]["mean"] / 1000
                write = fio(folder, [disk.uri()], rw="randwrite", **SCRIBBLED)[0]["write"]
                cells["write_us"] = write["lat_ns"]["mean"] / 1000
        finally:
            disk.stop()


# ---------------------------------------------------------------------- bonnie++

LOCAL, REMOTE = "local file", "far file"
BONNIE = (LOCAL, REMOTE, NO_CACHE, WITH_CACHE)
GUEST_MIB = 160
# The columns of its output line; the first three are in KiB/s.
FIELDS = {"write": 11, "rewrite": 13, "read": 17, "seeks": 19}


def bonnie(plan, results, folder, say):
    """Fig. 6: bonnie++ in a guest."""
    table = results.setdefault("bonnie", {})
    table["file"] = file = 32 if plan.quick else 2 * GUEST_MIB
    size = 2 * file * MIB
    initrd = given(folder, "bonnie++", "mke2fs")
    far = Far(folder / "site", plan)
    try:
        # Each one takes a minute.
        for repetition in range(min(plan.repetitions, 2)):
            for way in BONNIE[1::2] if plan.quick else BONNIE[::-1] if repetition % 2 else BONNIE:
                say(f"  {repetition + 1}/{plan.repetitions}  {way}")
                found = bonnie_on(way, far, folder, initrd, size, file)
                for what, value in found.items():
                    table.setdefault(way, {}).setdefault(what, []).append(value)
    finally:
        far.stop()


def bonnie_on(way, far, folder, initrd, size, file):
    parts = []
    try:
        if way in (LOCAL, REMOTE):
            path = folder / "disk"
            run("qemu-img", "create", "-q", "-f", "raw", path, size)
            parts.append(local(folder, "disk", path))
            socket, export = parts[0].socket, ""
            if way == REMOTE:
                parts.append(Delay(socket, LINK_US, folder / "far.sock"))
                socket = parts[1].place
        else:
            uri = far.volume("disk", size)
            far.begin([uri], *((8 * size, 64 * MIB) if way == WITH_CACHE else ()), is_new=True)
            socket, export = far.site.agents[0].folder / "nbd.sock", "disk"
        return bonnie_in_guest(folder, initrd, socket, export, file)
    finally:
        for part in reversed(parts):
            part.stop()
        (folder / "disk").unlink(missing_ok=True)
        (folder / "far.sock").unlink(missing_ok=True)
        if way in (NO_CACHE, WITH_CACHE):
            far.site.operator("volume", "unexport", "disk")
            far.site.operator("volume", "delete", "disk")


def bonnie_in_guest(folder, initrd, socket, export, file):
    guest = boot(folder, initrd, socket, export, GUEST_MIB)
    try:
        guest.sh("mkdir -p /etc /tmp; echo root:x:0:0:root:/:/bin/sh >/etc/passwd; echo root:x:0: >/etc/group")
        guest.sh("with mke2fs -q -t ext4 /dev/vda", 120)
        guest.sh("mount -t ext4 /dev/vda /m")
        said = guest.sh(
            f"with bonnie++ -d /m -s {file}M -r {file // 2} -n 0 -f -q -u root -m guest 2>/tmp/said || cat /tmp/said",
            900,
        )
        guest.power_off()
    finally:
        guest.kill()
    lines = [line.split(",") for line in said.splitlines() if line.count(",") > 20]
    check(lines, f"bonnie++: {said}")
    found = {}
    for what, field in FIELDS.items():
        # bonnie++ prints no number for parts that end too soon.
        value = float(lines[-1][field]) if lines[-1][field].strip("+") else 0.0
        found[what] = value if what == "seeks" else value / 1024
    return found


# ------------------------------------------------------------------- the report


def targets(results):
    if "aged" not in results:
        return []
    cells = results["aged"][WITH_CACHE]
    last = max(cells, key=int)
    after = [cells[count]["read_us"] for count in cells if int(count) > 0]
    return [
        (
            f"read latency with a cache after {last} snapshots / the median of all counts",
            1.2,
            cells[last]["read_us"] / median(after),
            False,
            "×",
        ),
        (
            f"read latency with a cache after {last} snapshots / qcow2 behind as many",
            1.0,
            cells[last]["read_us"] / results["aged"][QCOW2][last]["read_us"],
            False,
            "×",
        ),
    ]


def report_aged(table):
    lines = [
        "## After snapshots",
        "",
        f"HVSTO's Figure 5: mean time in µs of random reads of 4 KiB, one at a time, of the same 2 MiB, which are"
        f" read {PASSES} times after each snapshot, and of 128 writes before the next one, half of them there."
        f" Scree's daemons are distant; qcow2 and its backing files (one for each snapshot) are on"
        f" an NBD server (nbdkit) at the same distance, in place of the paper's NFS. QEMU keeps qcow2's tables in"
        " memory. What Scree acknowledges is in its journal on this host, as there are no flushes.",
        "",
    ]
    for what, title in (("read_us", "reads"), ("write_us", "writes")):
        counts = list(table[WITH_CACHE])
        rows = [[name] + [number(table[name][count][what]) for count in counts] for name in AGED]
        lines += [markdown([title] + [str(count) for count in counts], rows), ""]
    return lines


def report_bonnie(table):
    columns = {"write": "write", "rewrite": "rewrite", "read": "read", "seeks": "seeks a second"}
    rows = [[way] + [number(median(table[way][what])) for what in columns] for way in BONNIE if way in table]
    return [
        "## bonnie++ in a guest",
        "",
        f"HVSTO's Figure 6: bonnie++ with a file of {table['file']} MiB on ext4, in a guest with {GUEST_MIB} MiB of"
        " memory and one emulated core (QEMU without KVM); MiB/s. The far file is a raw one behind a link"
        f" of {TRIP_MS:g} ms there and back, and stands for the paper's NFS. A disk is new each time, and so is"
        " the cache.",
        "",
        markdown(["", *columns.values()], rows),
        "",
    ]


def report(results):
    lines = []
    if "aged" in results:
        lines += report_aged(results["aged"])
    if "bonnie" in results:
        lines += report_bonnie(results["bonnie"])
    return "\n".join(lines)
