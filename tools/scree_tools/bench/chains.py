"""Chains: relays behind slow links, filters inline, out of process and remote, a monitor, and
replicas of limited speed. For tools/run bench.

The measurements of StorM's authors (Figures 4 to 9 and 13) are shown beside them, as far as
ratios can be compared between machines.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

from scree_tools.bench.report import markdown, median, number
from scree_tools.common import process
from scree_tools.common.fio import fio_job
from scree_tools.common.process import check, cpu_of, run
from scree_tools.common.scree import Scree

MIB = 1 << 20

# Latency in each direction of each link.
LINK_US = 100

# The size of a volume's own journal.
JOURNAL = "100M"

# Bytes of a relayed request, and requests at a time.
RELAYED = [(4, 1), (16, 1), (64, 1), (256, 1), (16, 4), (16, 8), (16, 16), (16, 32)]


def ended(process):
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Part:
    """A process that listens at a socket."""

    def __init__(self, folder, name, command, line=False):
        self.log = folder / f"{name}.log"
        self.socket = folder / f"{name}.sock"
        self.socket.unlink(missing_ok=True)
        words = [str(word).replace("SOCKET", str(self.socket)) for word in command]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                words, stdin=subprocess.PIPE if line else subprocess.DEVNULL, stdout=log, stderr=log
            )
        until = time.monotonic() + 30
        while not self.socket.exists():
            check(self.process.poll() is None and time.monotonic() < until, f"{name}: {self.log.read_text()}")
            time.sleep(0.01)

    def stop(self):
        ended(self.process)


def link(folder, name, to):
    """A link to the socket `to`."""
    program = process.BINARY.parent / "examples" / "nbd_delay"
    return Part(folder, name, [program, "--listen", "SOCKET", "--to", to, "--micros", LINK_US], line=True)


def relay(folder, name, to, export, *more):
    return Part(
        folder,
        name,
        [process.BINARY, "relay", "--listen", "unix:SOCKET", "--to", f"nbd+unix:///{export}?socket={to}", *more],
    )


def job(folder, uri, rw, seconds, **options):
    """One run of fio; its read and write sides."""
    output = folder / "fio.json"
    output.unlink(missing_ok=True)
    settings = {
        "bs": "16k",
        "iodepth": 1,
        "norandommap": 1,
        "randrepeat": 0,
        "time_based": 1,
        "runtime": f"{int(seconds * 1000)}ms",
        **options,
    }
    done = subprocess.run(
        [
            "fio",
            "--name=job",
            "--ioengine=nbd",
            "--thread",
            f"--uri={uri}",
            f"--rw={rw}",
            "--output-format=json",
            f"--output={output}",
        ]
        + [f"--{key}={value}" for key, value in settings.items()],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    check(done.returncode == 0, f"fio: {done.stdout}")
    return fio_job(output, done.stdout)


def of(found):
    """Operations per second of both sides, and the mean time of a write in µs."""
    return {"iops": found["read"]["iops"] + found["write"]["iops"], "write_us": found["write"]["lat_ns"]["mean"] / 1000}


def volume(scree, size, name="disk"):
    scree.cli("volume", "create", name, "--size", size, "--replicas", 1)
    return scree.export(name)


def at_once(plan, folder):
    """A volume in memory: it answers requests immediately."""
    scree = Scree(folder / "scree", 4, None, ("--overcommit", 100000))
    scree.start()
    uri = volume(scree, plan.size)
    job(folder, uri, "write", 1, bs="1m", iodepth=4, size=plan.size, time_based=0)
    return scree.socket, scree.kill


# Latency of a request on the slow server, in addition to the links.
SLOW_MS = 2


def slow(plan, folder):
    """Slow storage, as a remote server that is not Scree."""
    server = Part(
        folder,
        "slow",
        [
            "nbdkit",
            "-f",
            "-U",
            "SOCKET",
            "-t",
            128,
            "-e",
            "disk",
            "--filter=delay",
            "memory",
            plan.size,
            f"rdelay={SLOW_MS}ms",
            f"wdelay={SLOW_MS}ms",
        ],
    )
    return server.socket, server.stop


SERVERS = {"a volume in memory": at_once, f"a server that takes {SLOW_MS} ms": slow}


def relays(plan, results, folder, say):
    """Fig. 4 to 9: direct, forwarded, a passive relay, an active one."""
    for behind, start in SERVERS.items():
        place = folder / start.__name__
        place.mkdir()
        socket, stop = start(plan, place)
        table = results.setdefault("relays", {}).setdefault(behind, {})
        try:
            relayed(plan, table, place, socket, lambda words: say(f"  {behind}: {words}"))
        finally:
            stop()


def relayed(plan, table, folder, socket, say):
    parts = []
    try:
        (folder / "journal").mkdir()
        far = link(folder, "far", socket)
        parts.append(far)
        passive = relay(folder, "passive", far.socket, "disk")
        parts.append(passive)
        active = relay(
            folder, "active", far.socket, "disk", "--active", "--journal", folder / "journal", "--journal-size", JOURNAL
        )
        parts.append(active)
        # From here on its ring is overwritten, as in use, and as the volume's own is.
        job(
            folder,
            f"nbd+unix:///disk?socket={active.socket}",
            "write",
            0,
            bs="1m",
            iodepth=4,
            size=plan.size,
            io_size=256 * MIB,
            time_based=0,
        )
        for name, to in (("forwarded", far), ("passive relay", passive), ("active relay", active)):
            parts.append(link(folder, f"near-{name.split()[0]}", to.socket))
        ways = [("direct", far)] + list(zip(("forwarded", "passive relay", "active relay"), parts[3:]))
        for repetition in range(plan.repetitions):
            for kib, depth in RELAYED if not plan.quick else RELAYED[-1:]:
                label = f"{kib} KiB, {depth} at a time"
                for name, part in ways[::-1] if repetition % 2 else ways:
                    say(f"{repetition + 1}/{plan.repetitions}  {label}: {name}")
                    at = f"nbd+unix:///disk?socket={part.socket}"
                    found = of(job(folder, at, "randrw", plan.seconds, bs=f"{kib}k", iodepth=depth, size=plan.size))
                    table.setdefault(label, {}).setdefault(name, []).append(found)
    finally:
        for part in reversed(parts):
            part.stop()


INLINE = "".join(f'[[filter]]\nkind = "fault"\nname = "b{number}"\n' for number in range(3))
PROCESS = '[[filter]]\nkind = "fault"\nruns = "process"\n'


# The cost of a filter is smaller than the changes of the machine's speed within seconds: many short
# runs, each paired with one without filters.
TURNS = 4


def apply(scree, folder, name, filters):
    policy = folder / "policy.toml"
    policy.write_text(f'volume = "{name}"\n{filters}')
    scree.cli("chain", "apply", policy)


def cpu_of_all(pid):
    """Processor time of a process and its children, in seconds."""
    begun = Path(f"/proc/{pid}/task").glob("*/children")
    return cpu_of(pid) + sum(cpu_of_all(child) for words in begun for child in words.read_text().split())


def filters(plan, results, folder, say):
    """The cost of filters: three that forward everything, one out of process, and a monitor."""
    table = results.setdefault("filters", {})
    scree = Scree(folder / "scree", 4, None, ("--overcommit", 100000))
    scree.start()
    try:
        image, size = file_system(plan, folder)
        uri = volume(scree, size)
        run("nbdcopy", "--flush", image, uri)
        chains = [
            ("none", None),
            ("three inline", INLINE),
            ("one in a process", PROCESS),
            ("monitor", '[[filter]]\nkind = "monitor"\npaths = ["/nothing/**"]\n'),
            ("monitor, all told", '[[filter]]\nkind = "monitor"\n'),
        ]
        # Requests are within one large file.
        place = {"offset": size // 8, "size": size * 3 // 8}
        works = [
            ("random read 4K QD32", "randread", {"bs": "4k", "iodepth": 32}),
            ("random write 4K QD32", "randwrite", {"bs": "4k", "iodepth": 32}),
            ("random 50/50 16K QD32", "randrw", {"bs": "16k", "iodepth": 32}),
            ("random 50/50 16K QD1", "randrw", {"bs": "16k", "iodepth": 1}),
        ]
        for turn in range(TURNS * plan.repetitions if not plan.quick else 1):
            for work, rw, options in works:
                for name, chain in chains[::-1] if turn % 2 else chains:
                    say(f"  {turn + 1}  {work}: {name}")
                    if chain is None:
                        scree.try_cli("chain", "delete", "disk")
                    else:
                        apply(scree, folder, "disk", chain)
                    # Earlier writes must not be destaged during the measurement.
                    scree.settle("disk")
                    before = cpu_of_all(scree.process.pid)
                    found = job(folder, uri, rw, plan.seconds / 4, **options, **place)
                    requests = found["read"]["total_ios"] + found["write"]["total_ios"]
                    cpu_us = (cpu_of_all(scree.process.pid) - before) * 1e6 / requests
                    table.setdefault(work, {}).setdefault(name, []).append(
                        {"iops": of(found)["iops"], "cpu_us": cpu_us}
                    )
    finally:
        scree.kill()


def file_system(plan, folder):
    """An ext4 file system that consists mostly of one file."""
    size = plan.size
    tree = folder / "tree"
    tree.mkdir()
    with open(tree / "file", "wb") as file:
        file.truncate(size * 5 // 8)
        for at in range(0, size * 5 // 8, MIB):
            file.seek(at)
            file.write(os.urandom(4096) * 256)
    image = folder / "image"
    run(
        "mke2fs",
        "-q",
        "-t",
        "ext4",
        "-d",
        tree,
        image,
        f"{size // 1024}k",
        env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
    )
    shutil.rmtree(tree)
    return image, size


REPLICA_MIB_S = 40


def replicas(plan, results, folder, say):
    """Fig. 13: three replicas of limited speed, one of which is killed."""
    table = results.setdefault("replicas", {})
    size = min(plan.size, 256 * MIB)
    limit = ["--filter=rate", "memory", str(size), f"rate={REPLICA_MIB_S * 8}M", "burstiness=0.1"]
    for repetition in range(plan.repetitions):
        parts = []
        try:
            for name in ("first", "second", "third"):
                parts.append(Part(folder, name, ["nbdkit", "-f", "-U", "SOCKET", *limit]))
            one = relay(folder, "one", parts[0].socket, "")
            parts.append(one)
            say(f"  {repetition + 1}/{plan.repetitions}  one place")
            found = job(
                folder,
                f"nbd+unix:///disk?socket={one.socket}",
                "randread",
                plan.seconds,
                bs="64k",
                iodepth=16,
                size=size,
            )
            table.setdefault("one", []).append(found["read"]["bw_bytes"] / MIB)
            one.stop()
            policy = folder / "policy.toml"
            policy.write_text(
                'volume = "*"\n[[filter]]\nkind = "replicate"\n'
                + "".join(
                    f'[[filter.replica]]\nname = "{name}"\nuri = "nbd+unix:///?socket={part.socket}"\n'
                    for name, part in (("b", parts[1]), ("c", parts[2]))
                )
            )
            state = folder / f"state-{repetition}"
            three = relay(folder, "three", parts[0].socket, "", "--policy", policy, "--filter-dir", state)
            parts.append(three)
            in_sync(three, size)
            say(f"  {repetition + 1}/{plan.repetitions}  three")
            uri = f"nbd+unix:///disk?socket={three.socket}"
            found = job(folder, uri, "randread", plan.seconds, bs="64k", iodepth=16, size=size)
            table.setdefault("three", []).append(found["read"]["bw_bytes"] / MIB)
            say(f"  {repetition + 1}/{plan.repetitions}  one of three is killed")
            seconds = 2 if plan.quick else 20
            process = subprocess.Popen(
                [
                    "fio",
                    "--name=job",
                    "--ioengine=nbd",
                    "--thread",
                    f"--uri={uri}",
                    "--rw=randread",
                    "--bs=64k",
                    "--iodepth=8",
                    f"--size={size}",
                    "--time_based",
                    f"--runtime={seconds}",
                    "--output-format=json",
                    f"--output={folder / 'killed.json'}",
                ],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            time.sleep(seconds / 2)
            parts[2].process.kill()
            said, _ = process.communicate()
            check(process.returncode == 0, f"fio, while a replica was killed: {said}")
            found = fio_job(folder / "killed.json", said)
            table.setdefault("stall_ms", []).append(found["read"]["lat_ns"]["max"] / 1e6)
        finally:
            for part in reversed(parts):
                part.stop()


def in_sync(part, size):
    """Waits until both replicas are in sync: the filter's file lists no missing regions."""
    until = time.monotonic() + 120 + size / MIB / 5
    while True:
        log = part.log.read_text()
        if log.count("is in sync") >= 2:
            return
        check(part.process.poll() is None and time.monotonic() < until, f"they are not in sync: {log}")
        time.sleep(0.05)


# ------------------------------------------------------------------- the report


def ratios(cells, one, other, what):
    pairs = zip(cells[one], cells[other])
    return median([a[what] / b[what] for a, b in pairs])


def targets(results):
    rows = []
    for behind, table in results.get("relays", {}).items():
        for label, cells in table.items():
            rows.append(
                (
                    f"writes by an active relay / direct, {label}, {behind}",
                    0.95,
                    ratios(cells, "direct", "active relay", "write_us"),
                    True,
                    "×",
                )
            )
            if label.endswith("32 at a time"):
                rows.append(
                    (
                        f"active relay / passive relay, {label}, {behind}",
                        1.4,
                        ratios(cells, "active relay", "passive relay", "iops"),
                        True,
                        "×",
                    )
                )
    for work, cells in results.get("filters", {}).items():
        rows.append(
            (f"three filters inline / none, {work}", 0.97, ratios(cells, "three inline", "none", "iops"), True, "×")
        )
        rows.append(
            (
                f"processor time a request, three filters inline / none, {work}",
                1.03,
                ratios(cells, "three inline", "none", "cpu_us"),
                False,
                "×",
            )
        )
        if "16K" in work:
            rows.append((f"a monitor / none, {work}", 0.95, ratios(cells, "monitor", "none", "iops"), True, "×"))
    if "replicas" in results:
        table = results["replicas"]
        rows.append(
            ("reads of three limited replicas / one", 1.8, median(table["three"]) / median(table["one"]), True, "×")
        )
        rows.append(("longest stall when a replica is killed", 1000, median(table["stall_ms"]), False, " ms"))
    return rows


# Fig. 4 and 5 of the paper. For 4 to 32 threads it has no direct access.
PAPER_ACTIVE = {
    "4 KiB, 1 at a time": "0.94",
    "16 KiB, 1 at a time": "0.86",
    "64 KiB, 1 at a time": "0.88",
    "256 KiB, 1 at a time": "0.93",
}


def report(results):
    lines = []
    names = ["direct", "forwarded", "passive relay", "active relay"]
    if "relays" in results:
        lines += [
            "## Relays",
            "",
            "Half reads, half writes at random: a disk behind one link, behind two (forwarded),"
            " and behind two with a relay between them. A link takes"
            f" {LINK_US} µs each way, by a program that passes bytes on later. A passive relay answers when"
            " the disk has answered, an active one a write when its journal's file has it; reads go to the"
            " disk in both.",
            "",
        ]
    for behind, table in results.get("relays", {}).items():
        rows = [
            [label] + [number(median([one["iops"] for one in cells[name]])) for name in names]
            for label, cells in table.items()
        ]
        writes = [
            [label]
            + [number(median([one["write_us"] for one in cells[name]])) for name in names]
            + [f"{ratios(cells, 'active relay', 'direct', 'iops'):.2f}", PAPER_ACTIVE.get(label, "–")]
            for label, cells in table.items()
        ]
        lines += [
            f"### {behind.capitalize()}",
            "",
            "Requests a second:",
            "",
            markdown([""] + names, rows),
            "",
            "Mean time of a write in µs; on the right, all requests a second by an active relay to those of"
            " direct access, here and as the figures of StorM's authors give it (the cost of the way,"
            " Fig. 4, times that of the relay, Fig. 5):",
            "",
            markdown([""] + names + ["active / direct", "StorM"], writes),
            "",
        ]
    if "filters" in results:
        names = ["none", "three inline", "one in a process", "monitor", "monitor, all told"]
        rows = [
            [work]
            + [
                f"{number(median([one['iops'] for one in cells[name]]))}"
                f" ({median([one['cpu_us'] for one in cells[name]]):.1f} µs)"
                for name in names
            ]
            for work, cells in results["filters"].items()
        ]
        lines += [
            "## Filters",
            "",
            "A volume with an ext4 file system, requests within a large file of it, through filters"
            " that pass all on, and a monitor that tells of nothing, or of all: IOPS, and the processor"
            " time of Scree's processes for a request.",
            "",
            markdown([""] + names, rows),
            "",
        ]
    if "replicas" in results:
        table = results["replicas"]
        rows = [
            ["one place", f"{number(median(table['one']))} MiB/s"],
            ["the same and two replicas", f"{number(median(table['three']))} MiB/s"],
            ["longest request while one of them is killed", f"{number(median(table['stall_ms']))} ms"],
        ]
        lines += [
            "## Replicas",
            "",
            f"Random reads 64K QD16 through a relay; each place gives {REPLICA_MIB_S} MiB/s (nbdkit's filter"
            " rate). StorM's authors: 1.8 times with three.",
            "",
            markdown(["", ""], rows),
            "",
        ]
    return "\n".join(lines)
