"""The host's cache with distant units: working sets, streams, maps, boot storms and restarts. For
tools/run bench.

Daemons are behind links that take 2.5 ms each way, by a program that passes bytes on later.
"""

import json
import lzma
import os
import random
import re
import subprocess
import time
import urllib.request

from scree_tools.bench.chains import Part
from scree_tools.bench.report import markdown, median, median_ratio, number
from scree_tools.common.daemons import Daemons
from scree_tools.common.process import BINARY, ROOT, check, run
from scree_tools.common.service import free_port, until

MIB = 1 << 20
GIB = 1 << 30
BLOCK = 4096

# Latency in each direction of each daemon's link.
LINK_US = 2500
TRIP_MS = 2 * LINK_US / 1000

DAEMONS = 4
JOURNAL = "32M"

# Servers and the client have a core each, where both are busy.
SERVER_CORE, CLIENT_CORE = 0, 1
AT_SERVERS = ("taskset", "-c", str(SERVER_CORE))

BOOTS = ROOT / "crates" / "cache" / "traces" / "boots-in-turn.iolog.xz"


# ------------------------------------------------------------- what is measured


class Far:
    """A site with distant daemons and one host, which is restarted again and again."""

    def __init__(self, folder, plan):
        self.plan = plan
        self.cache = folder / "h1-cache"
        self.metrics = None
        self.site = Daemons(
            folder,
            2 if plan.quick else DAEMONS,
            agent=self.arguments(),
            delay_micros=LINK_US,
            controller=("--overcommit", 100000),
        )

    def arguments(self, cache_bytes=0, memory_bytes=0):
        self.metrics = free_port()
        words = [
            "--journal-size",
            JOURNAL,
            "--listen-metrics",
            f"127.0.0.1:{self.metrics}",
            "--cache-memory",
            memory_bytes,
        ]
        return words + (["--cache", self.cache, "--cache-size", cache_bytes] if cache_bytes else [])

    def volume(self, name, size, *more):
        self.site.operator("volume", "create", name, "--size", size, *(more or ("--replicas", 1)))
        return self.site.export(name)

    def begin(self, uris, cache_bytes=0, memory_bytes=0, is_new=False, prefix=()):
        """Restarts the host with an empty memory, and with an empty cache file if `is_new`."""
        agent = self.site.agents[0]
        self.end()
        if is_new:
            self.cache.unlink(missing_ok=True)
        agent.prefix = prefix
        agent.arguments = ["agent", *(str(word) for word in self.arguments(cache_bytes, memory_bytes))]
        agent.start()
        for uri in uris:
            until("it is served again", lambda: is_served(uri), 60)

    def end(self):
        """A clean exit takes two seconds."""
        agent = self.site.agents[0]
        agent.kill() if self.plan.quick else agent.end()

    def counts(self, name):
        """All rows of a metric of the host: labels and value."""
        url = f"http://127.0.0.1:{self.metrics}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
        rows = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", text, re.M)
        return [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in rows]

    def read_bytes(self):
        """The bytes that units have sent to the host."""
        return sum(value for _, value in self.counts("scree_unit_read_bytes_total"))

    def wait_until_quiet(self):
        """Waits until nothing is written to units any more."""
        last = None
        while last != (now := self.counts("scree_unit_written_bytes_total")):
            last = now
            time.sleep(3)

    def requested(self, *areas):
        """The number of requested blocks by where they were found."""
        table = {"memory": 0.0, "file": 0.0, "units": 0.0}
        for labels, value in self.counts("scree_cache_requested_blocks_total"):
            if labels["area"] in (areas or ("image", "active")):
                table[labels["from"]] += value
        return table

    def stop(self):
        self.site.stop()


def is_served(uri):
    return (
        subprocess.run(["nbdinfo", "--size", uri], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    )


def fio(folder, uris, prefix=(), **options):
    """Runs one job on each disk at once, and returns their results. `read_iolog` may be a list."""
    output = folder / "fio.json"
    output.unlink(missing_ok=True)
    logs = options.pop("read_iologs", None)
    settings = {"bs": "4k", "norandommap": 1, "randrepeat": 0, **options}
    words = [*prefix, "fio", "--ioengine=nbd", "--thread", "--output-format=json", f"--output={output}"]
    words += [f"--{key}={value}" for key, value in settings.items()]
    for place, uri in enumerate(uris):
        words += [f"--name=job{place}", f"--uri={uri}"]
        if logs:
            words.append(f"--read_iolog={logs[place]}")
    done = subprocess.run(
        words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    check(done.returncode == 0, f"fio: {done.stdout}")
    text = output.read_text()
    jobs = json.loads(text[text.index("{") :])["jobs"]
    check(not any(job["error"] for job in jobs), f"fio: {done.stdout}")
    return jobs


def log_of(path, requests):
    """Writes a log for fio: whether it is a write, offset, length."""
    words = ["fio version 2 iolog", "disk add", "disk open"]
    words += [f"disk {'write' if is_write else 'read'} {at} {length}" for is_write, at, length in requests]
    path.write_text("\n".join(words + ["disk close", ""]))
    return path


def fill(folder, uri, size):
    fio(folder, [uri], rw="write", bs="1m", iodepth=4, size=size)


def timed(plan, **options):
    return {"time_based": 1, "runtime": f"{int(plan.seconds * 1000)}ms", **options}


def local(folder, name, path, *more):
    """A file of this machine behind qemu-nbd."""
    return Part(folder, name, ["qemu-nbd", "-t", "-e", "4", "-f", "raw", "-k", "SOCKET", *more, path])


def at(part):
    return f"nbd+unix:///?socket={part.socket}"


def random_file(path, size):
    with open(path, "wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))
    return path


def turns(plan, ways):
    for repetition in range(plan.repetitions):
        yield from ((repetition, way) for way in (ways[::-1] if repetition % 2 else ways))


# ------------------------------------------------------------------ working sets

IN_MEMORY, IN_FILE = "in its memory", "in its file"


def cached(plan, results, folder, say):
    """A working set that fits, compared with a local file; then a restart, and a large cache."""
    table = results.setdefault("cached", {})
    size = plan.size // 4
    table["size"] = size
    far = Far(folder / "site", plan)
    near = None
    try:
        uri = far.volume("disk", size)
        fill(folder, uri, size)
        far.site.settle("disk")
        path = random_file(folder / "local", size)
        near = Part(folder, "near", [*AT_SERVERS, "qemu-nbd", "-t", "-e", "4", "-f", "raw", "-k", "SOCKET", path])
        for way, memory in ((IN_FILE, 0), (IN_MEMORY, 3 * size)):
            # A quarter of the cache is the active area.
            far.begin([uri], 6 * size, memory, is_new=True, prefix=AT_SERVERS)
            warm(far, folder, uri, size)
            working_set(plan, table, way, far, near, folder, size, uri, say)
        say("  a restart")
        restarted(table, far, folder, size, uri)
        say("  a large cache is opened")
        reopened(plan, table, far)
    finally:
        if near:
            near.stop()
        far.stop()


def warm(far, folder, uri, size):
    """Reads until everything is cached, as far as possible."""
    for _ in range(6):
        before = far.requested()["units"]
        fio(folder, [uri], rw="read", bs="64k", iodepth=8, size=size)
        if far.requested()["units"] - before < 0.001 * size / BLOCK:
            return


def working_set(plan, table, way, far, near, folder, size, uri, say):
    for depth in (1, 32):
        label = f"random read 4K QD{depth}"
        cells = table.setdefault(way, {}).setdefault(label, {})
        for repetition, name in turns(plan, ("Scree", "local")):
            say(f"  {repetition + 1}/{plan.repetitions}  {label}, {way}: {name}")
            before = far.requested()
            cpu = far.site.cpu_s()
            found = fio(
                folder,
                [uri if name == "Scree" else at(near)],
                ("taskset", "-c", str(CLIENT_CORE)),
                rw="randread",
                iodepth=depth,
                size=size,
                **timed(plan),
            )[0]["read"]
            cells.setdefault(name, []).append(found["iops"])
            if name == "Scree":
                cells.setdefault("cpu_us", []).append((far.site.cpu_s() - cpu) * 1e6 / found["total_ios"])
                for place, value in far.requested().items():
                    asked = cells.setdefault("asked", {})
                    asked[place] = asked.get(place, 0) + value - before[place]


def hit_ratio(far, folder, uri, log, **options):
    before = far.requested()
    fio(folder, [uri], read_iologs=[log], **options)
    came = {place: value - before[place] for place, value in far.requested().items()}
    return (came["memory"] + came["file"]) / sum(came.values())


def restarted(table, far, folder, size, uri):
    """A cache with room for half of the requested blocks, which follow Zipf's distribution."""
    numbers = random.Random(1)
    blocks = list(range(size // BLOCK))
    numbers.shuffle(blocks)
    weights = [1 / (rank + 1) for rank in range(len(blocks))]

    def log(count):
        asked = numbers.choices(blocks, weights, k=count)
        return log_of(folder / "zipf.log", [(False, block * BLOCK, BLOCK) for block in asked])

    far.begin([uri], 2 * size, is_new=True)
    fio(folder, [uri], read_iologs=[log(2 * len(blocks))], iodepth=32)
    cells = table.setdefault("restart", {})
    for way in ("ended", "killed"):
        before = hit_ratio(far, folder, uri, log(5000), iodepth=8)
        # Write-behind takes a second.
        time.sleep(2)
        if way == "killed":
            agent = far.site.agents[0]
            agent.kill()
            agent.start()
            until("it is served again", lambda: is_served(uri), 60)
        else:
            far.begin([uri], 2 * size)
        after = hit_ratio(far, folder, uri, log(1000), iodepth=8)
        cells[way] = {"before": before, "after": after}


HEAD_BYTES, ENTRY_BYTES = 8192, 32


def fill_directory(path):
    """Marks every slot of a cache as used."""
    with open(path, "r+b") as file:
        slots = int.from_bytes(file.read(36)[32:36], "little")
        # The default division; blocks beyond the capacity of an area are not cached.
        parts = [(1, slots // 4), (2, slots // 2), (3, slots // 4)]
        file.seek(HEAD_BYTES)
        slot = 0
        for area, count in parts:
            tags = os.urandom(20 * count)
            file.write(
                b"".join(
                    (slot + one + (1 << 32)).to_bytes(8, "little")
                    + tags[20 * one : 20 * one + 20]
                    + bytes([0, area, 0, 0])
                    for one in range(count)
                )
            )
            slot += count
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def reopened(plan, table, far):
    """The directory is written here: to fill such a cache would take longer than everything
    else."""
    size = 64 * MIB if plan.quick else 10 * GIB
    cells = table.setdefault("reopened", {"bytes": size, "with": [], "without": []})
    far.begin([], size, is_new=True)
    agent = far.site.agents[0]
    for _repetition in range(plan.repetitions):
        for way in ("without", "with"):
            far.end()
            fill_directory(far.cache)
            words = far.arguments(size if way == "with" else 0)
            agent.arguments = ["agent", *(str(word) for word in words)]
            begun = time.monotonic()
            agent.start()
            cells[way].append(time.monotonic() - begun)
            if way == "with":
                kept = sum(value for _, value in far.counts("scree_cache_area_bytes"))
                cells["blocks"] = kept / BLOCK
    far.cache.unlink()


# ----------------------------------------------------------------------- streams

OFF_RANDOM, OFF_SEQUENTIAL = "random 4K QD64, no cache", "sequential 256K QD8, no cache"
STREAMS = {
    OFF_RANDOM: (0, {"rw": "randread", "iodepth": 64}),
    OFF_SEQUENTIAL: (0, {"rw": "read", "bs": "256k", "iodepth": 8}),
    "sequential 256K QD1, no cache": (0, {"rw": "read", "bs": "256k"}),
    "sequential 256K QD1": (64 * MIB, {"rw": "read", "bs": "256k"}),
    "sequential 4K QD1": (64 * MIB, {"rw": "read"}),
}


def streams(plan, results, folder, say):
    """Cold sequential reads, compared with the throughput of units under many requests."""
    table = results.setdefault("streams", {})
    far = Far(folder / "site", plan)
    try:
        uri = far.volume("disk", plan.size)
        fill(folder, uri, plan.size)
        far.site.settle("disk")
        for repetition, name in turns(plan, list(STREAMS)):
            say(f"  {repetition + 1}/{plan.repetitions}  {name}")
            memory, options = STREAMS[name]
            far.begin([uri], memory_bytes=memory)
            found = fio(folder, [uri], size=plan.size, **timed(plan), **options)[0]["read"]
            table.setdefault(name, []).append(found["bw_bytes"] / MIB)
    finally:
        far.stop()


# -------------------------------------------------------------------------- maps

# A little more than the 262,144 blocks after which a volume's map is written.
MERGED_BYTES = 1100 * MIB

PERCENTILES = {"median": "50.000000", "90 %": "90.000000", "99 %": "99.000000"}


def maps(plan, results, folder, say):
    """Single blocks over 1 TiB, each behind a map page of its own."""
    table = results.setdefault("maps", {})
    count, each = (200, 20) if plan.quick else (20_000, 1000)
    table["blocks"] = count
    numbers = random.Random(2)
    places = numbers.sample(range((1 << 40) // BLOCK), count)
    far = Far(folder / "site", plan)
    try:
        uri = far.volume("disk", 1 << 40)
        cache = GIB if not plan.quick else 64 * MIB
        far.begin([uri], cache, 64 * MIB)
        log = log_of(folder / "maps.log", [(True, place * BLOCK, BLOCK) for place in places])
        fio(folder, [uri], read_iologs=[log], iodepth=32)
        far.site.settle("disk")
        if not plan.quick:
            # After this many blocks the changes are merged into the map; before that they are in
            # tail pages, which the host reads when it opens the volume.
            fio(folder, [uri], rw="write", bs="1m", iodepth=4, size=MERGED_BYTES)
            far.site.settle("disk")
            far.wait_until_quiet()
        # Each block is read only once: it is cached afterwards.
        unread = iter(numbers.sample(places, count))
        for repetition, way in turns(plan, ("no cache", "warm maps")):
            say(f"  {repetition + 1}/{plan.repetitions}  {way}")
            far.begin([uri], *((cache, 64 * MIB) if way == "warm maps" else ()))
            wanted = [(False, next(unread) * BLOCK, BLOCK) for _ in range(each)]
            side = fio(folder, [uri], read_iologs=[log_of(folder / "maps.log", wanted)], iodepth=1)[0]["read"]
            cells = table.setdefault(way, {})
            for name, percentile in PERCENTILES.items():
                trips = side["clat_ns"]["percentile"][percentile] / 1e6 / TRIP_MS
                cells.setdefault(name, []).append(trips)
            cells.setdefault("mean", []).append(side["clat_ns"]["mean"] / 1e6 / TRIP_MS)
    finally:
        far.stop()


# ------------------------------------------------------------------------ storms

CLONES = 16
# The common reads of eight clones are among these first requests; later each clone does other work.
BOOT_REQUESTS = 1000


def boots(count):
    """The boot of each clone of the trace, as offsets and lengths, and all blocks that are ever
    read."""
    reads = []
    for line in lzma.decompress(BOOTS.read_bytes()).decode().splitlines():
        words = line.split()
        if words[1:2] == ["read"]:
            reads.append((int(words[2]), int(words[3])))
    begun = []
    for place, read in enumerate(reads):
        # A machine starts with the first block of its disk.
        if read == (0, BLOCK) and (not begun or place - begun[-1] > BOOT_REQUESTS):
            begun.append(place)
    return [reads[place : place + count] for place in begun], reads


def runs(reads, longest=MIB):
    """The blocks of reads, in long runs."""
    blocks = sorted(
        {block for offset, length in reads for block in range(offset // BLOCK, -(-(offset + length) // BLOCK))}
    )
    found = []
    for block in blocks:
        if found and sum(found[-1]) == block * BLOCK and found[-1][1] < longest:
            found[-1] = (found[-1][0], found[-1][1] + BLOCK)
        else:
            found.append((block * BLOCK, BLOCK))
    return found


def knows_images():
    return (
        subprocess.run(
            [BINARY, "image", "mark", "--help"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ).returncode
        == 0
    )


def slowest(jobs):
    return max(job["read"]["runtime"] for job in jobs) / 1000


def storm(plan, results, folder, say):
    """Clones of one image boot: the first one, then all others at once."""
    table = results.setdefault("storm", {})
    each, reads = boots(50 if plan.quick else BOOT_REQUESTS)
    image = runs([one for boot in each for one in boot] if plan.quick else reads)
    table["image_bytes"] = sum(length for _, length in image)
    size = 3 * GIB
    logs = [log_of(folder / f"boot-{place}.log", [(False, *one) for one in boot]) for place, boot in enumerate(each)]
    logs = [logs[place % len(logs)] for place in range(CLONES)]
    table["boot_bytes"] = sum(length for _, length in runs(each[0]))
    filling = log_of(folder / "image.log", [(True, *one) for one in image])
    far = Far(folder / "site", plan)
    parts = []
    try:
        uri = far.volume("image", size)
        fio(folder, [uri], read_iologs=[filling], iodepth=4)
        far.site.operator("snapshot", "create", "image", "--name", "golden", "--wait")
        table["is_marked"] = knows_images()
        if table["is_marked"]:
            far.site.operator("image", "mark", "image")
        uris = [far.volume(f"clone-{place}", size, "--from", "golden") for place in range(CLONES)]
        path = folder / "local"
        run("qemu-img", "create", "-q", "-f", "raw", path, size)
        part = local(folder, "filled", path)
        parts.append(part)
        fio(folder, [at(part)], read_iologs=[filling], iodepth=4)
        part.stop()
        parts = [local(folder, f"near-{place}", path, "-r", "--shared=2") for place in range(CLONES)]
        for repetition in range(plan.repetitions):
            say(f"  {repetition + 1}/{plan.repetitions}  Scree")
            far.begin(uris, 256 * MIB if plan.quick else 4 * GIB, 64 * MIB, is_new=True)
            storming(table.setdefault("Scree", {}), folder, uris, logs, far.read_bytes)
            say(f"  {repetition + 1}/{plan.repetitions}  local")
            # The same again, without distant reads.
            storming(table.setdefault("local", {}), folder, [at(part) for part in parts], logs, lambda: 0)
    finally:
        for part in parts:
            part.stop()
        far.stop()


def storming(cells, folder, uris, logs, read_bytes):
    before = read_bytes()
    cells.setdefault("first_s", []).append(slowest(fio(folder, uris[:1], read_iologs=logs[:1], iodepth=1)))
    between = read_bytes()
    cells.setdefault("others_s", []).append(slowest(fio(folder, uris[1:], read_iologs=logs[1:], iodepth=1)))
    cells.setdefault("first_bytes", []).append(between - before)
    cells.setdefault("others_bytes", []).append(read_bytes() - between)


# ------------------------------------------------------------------- the report


def targets(results):
    rows = []
    table = results.get("cached", {})
    for way in (IN_MEMORY, IN_FILE):
        for label, cells in table.get(way, {}).items():
            rows.append(
                (
                    f"{label}, all of it {way} / a local file",
                    0.9,
                    median_ratio(cells["Scree"], cells["local"]),
                    True,
                    "×",
                )
            )
    for way, cells in table.get("restart", {}).items():
        rows.append(
            (
                f"hit ratio of the first 1,000 requests after its process was {way} / before",
                0.95,
                cells["after"] / cells["before"],
                True,
                "×",
            )
        )
    if "reopened" in table:
        rows.append(
            (
                f"start of a host with a full cache of {table['reopened']['bytes'] / GIB:.3g} GiB",
                2,
                median(table["reopened"]["with"]),
                False,
                " s",
            )
        )
    table = results.get("streams", {})
    for name, values in table.items():
        if not name.endswith("no cache"):
            rows.append((f"{name}, cold / {OFF_RANDOM}", 0.8, median_ratio(values, table[OFF_RANDOM]), True, "×"))
    if "maps" in results:
        rows.append(
            (
                "median of cold reads all over 1 TiB, maps in the cache",
                1.3,
                median(results["maps"]["warm maps"]["median"]),
                False,
                " round trips",
            )
        )
    if "storm" in results:
        table = results["storm"]
        rows.append(
            (
                "boots of the 2nd to 16th clone: read from units, of the image",
                5,
                100 * median(table["Scree"]["others_bytes"]) / table["image_bytes"],
                False,
                " %",
            )
        )
        rows.append(
            (
                "the same: time / on local files",
                1.2,
                median_ratio(table["Scree"]["others_s"], table["local"]["others_s"]),
                False,
                "×",
            )
        )
    return rows


def report_cached(table):
    rows = []
    for way in (IN_MEMORY, IN_FILE):
        for label, cells in table[way].items():
            asked = cells["asked"]
            total = sum(asked.values())
            places = ", ".join(f"{100 * asked[place] / total:.1f} %" for place in ("memory", "file", "units"))
            rows.append(
                [
                    f"{label}, {way}",
                    number(median(cells["Scree"])),
                    number(median(cells["local"])),
                    f"{median_ratio(cells['Scree'], cells['local']):.2f}",
                    f"{median(cells['cpu_us']):.1f}",
                    places,
                ]
            )
    reopened, restart = table["reopened"], table["restart"]
    return [
        "## A working set that fits",
        "",
        f"IOPS of a volume of {table['size'] // MIB} MiB of which the cache has all, beside a file of this machine"
        " through qemu-nbd. Host and qemu-nbd are pinned to core 0, the client to core 1; links and"
        " daemons are not, and do little. Both read from the page cache. On the right, the processor time of Scree"
        " for a read (µs), daemons included, and where the requested blocks were found: memory, file, units.",
        "",
        markdown(["", "Scree", "local", "Scree / local", "µs", "memory, file, units"], rows),
        "",
        "## Restarts",
        "",
        "A cache whose active area has room for half of a volume; single blocks are requested in"
        " Zipf's distribution (exponent 1), 5,000 before and 1,000 after the host's process has ended"
        " on SIGTERM, or on SIGKILL:",
        "",
        markdown(
            ["", "hit ratio before", "after"],
            [[way, f"{cells['before']:.1%}", f"{cells['after']:.1%}"] for way, cells in restart.items()],
        ),
        "",
        f"From the start of a host's process until it is ready, with a cache of {reopened['bytes'] / GIB:.3g} GiB"
        f" whose directory says of {reopened['blocks']:,.0f} blocks that they are there, none of it in memory:"
        f" {median(reopened['with']):.2f} s; without a cache: {median(reopened['without']):.2f} s. The directory was"
        " written for this test; the slots themselves are empty.",
        "",
    ]


def report_streams(table):
    return [
        "## Streams",
        "",
        "Reads of what is in no cache, by a host that has just begun (MiB/s); with a cache, it has 64 MiB of"
        " memory and no file.",
        "",
        markdown(
            ["", "MiB/s", f"/ {OFF_RANDOM}"],
            [
                [name, number(median(table[name])), f"{median_ratio(table[name], table[OFF_RANDOM]):.2f}"]
                for name in STREAMS
            ],
        ),
        "",
    ]


def report_maps(table):
    columns = [*PERCENTILES, "mean"]
    rows = [[way] + [f"{median(table[way][key]):.2f}" for key in columns] for way in ("no cache", "warm maps")]
    return [
        "## Maps",
        "",
        f"{table['blocks']:,} blocks at random places of 1 TiB; each read, one at a time, is of a block that was not"
        " read. The host has just begun: no page of the map is in its memory. *Warm maps*: they came into"
        f" the cache's file as they were written. Time of a read in round trips of {TRIP_MS:g} ms:",
        "",
        markdown(["", *columns], rows),
        "",
    ]


def report_storm(table):
    def seconds(name, what):
        return f"{median(table[name][what]):.2f}"

    def share(what):
        moved = median(table["Scree"][what])
        return f"{moved / MIB:.1f} MiB, {100 * moved / table['image_bytes']:.2f} %"

    image = (
        "in the image area, as the image is marked"
        if table["is_marked"]
        else "in the active area, as this Scree cannot mark images"
    )
    return [
        "## A storm of boots",
        "",
        f"{CLONES} clones of an image ({table['image_bytes'] // MIB:,} MiB in use). Each replays a boot of"
        " [`boots-in-turn`](../crates/cache/traces/README.md), one request at a time and without pauses: the first"
        f" {BOOT_REQUESTS:,} requests of one of its eight clones, {table['boot_bytes'] // MIB} MiB. The first one"
        f" boots alone with nothing in the cache; then all others at once. What they read is {image}. Beside it, a"
        f" raw file through {CLONES} qemu-nbd, in the page cache; nothing is pinned.",
        "",
        markdown(
            ["", "Scree", "local files", "read from units, of the image"],
            [
                ["the first clone, s", seconds("Scree", "first_s"), seconds("local", "first_s"), share("first_bytes")],
                [
                    f"the other {CLONES - 1}, s",
                    seconds("Scree", "others_s"),
                    seconds("local", "others_s"),
                    share("others_bytes"),
                ],
            ],
        ),
        "",
    ]


def report(results):
    lines = []
    for name, write in (
        ("cached", report_cached),
        ("streams", report_streams),
        ("maps", report_maps),
        ("storm", report_storm),
    ):
        if name in results:
            lines += write(results[name])
    if lines:
        lines = [
            "**Distant units** in the following are daemons over mutual TLS on loopback, each behind a link with a"
            f" latency of {LINK_US / 1000:g} ms in each direction. {DAEMONS} of them, one copy.",
            "",
        ] + lines
    return "\n".join(lines)
