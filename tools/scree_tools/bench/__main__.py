"""Compares Scree with the disk formats and servers that its users have today.

  tools/run bench                  everything, about 70 minutes
  tools/run bench --quick          every path once, too short to mean anything
  tools/run bench --only SECTION   one of: workloads snapshots steady memory open parity loss
                               relays filters replicas guests policies cached streams maps storm
                               aged bonnie limited daemons ceph; the last two need
                               `tools/packages ceph`, and are left out where that is not
                               installed, and of --quick; limited needs root, and is left out
                               without
  tools/run bench --write FOLDER   writes the reports there as well: benchmarks.md, of chains
                               (relays filters replicas guests) benchmarks-chains.md, and of
                               caches (policies to bonnie) benchmarks-cache.md
  tools/run bench --json FILE      writes the numbers there, after each section
  tools/run bench --resume         continues after the last section in FILE, if the run was
                               interrupted on this machine

All servers run in one session, on one file system, pinned to core 0; the client
(fio over NBD on a unix socket) is pinned to core 1. Repetitions are interleaved,
in turning order, and medians reported. Nothing is asserted about time.
"""

import argparse
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from scree_tools.bench import cache as bench_cache
from scree_tools.bench import ceph as bench_ceph
from scree_tools.bench import chains as bench_chains
from scree_tools.bench import guest as bench_guest
from scree_tools.bench import hvsto as bench_hvsto
from scree_tools.bench import policies as bench_policies
from scree_tools.bench import units as bench_units
from scree_tools.bench.report import DESTAGED, report, report_of_cache, report_of_chains
from scree_tools.common.fio import fio_job
from scree_tools.common.process import TARGET, check, cpu_of, main, run
from scree_tools.common.scree import Scree

SERVER_CORE, CLIENT_CORE = 0, 1
MIB = 1 << 20
GIB = 1 << 30
FOLDER = TARGET / "bench"


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- the servers


class Server:
    """A server of one disk over NBD, and its processor time."""

    def __init__(self, name, uri):
        self.name, self.uri = name, uri

    def pid(self):
        raise NotImplementedError

    def cpu_s(self):
        """User and system time of all its threads, in seconds."""
        return cpu_of(self.pid())

    def drain(self):
        """Writes everything out that would disturb the next server."""
        os.sync()


class Process(Server):
    """qemu-nbd or nbdkit."""

    def __init__(self, name, command):
        self.socket = FOLDER / f"{name.replace(' ', '-')}.sock"
        self.socket.unlink(missing_ok=True)
        words = [str(word).replace("SOCKET", str(self.socket)) for word in command]
        self.log = FOLDER / f"{name.replace(' ', '-')}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                ["taskset", "-c", str(SERVER_CORE)] + words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        for _ in range(500):
            if self.socket.exists():
                break
            check(self.process.poll() is None, f"{name} ended: {self.log.read_text()}")
            time.sleep(0.02)
        super().__init__(name, f"nbd+unix:///?socket={self.socket}")

    def pid(self):
        return self.process.pid

    def stop(self):
        # qemu-nbd loses a signal that comes while it starts.
        for _ in range(300):
            self.process.terminate()
            try:
                self.process.wait(timeout=0.1)
                return
            except subprocess.TimeoutExpired:
                pass
        self.process.kill()
        self.process.wait()


def start_scree(*arguments):
    # Speed is measured, not how much a small disk may promise.
    arguments = ("--overcommit", 100000, *arguments)
    scree = Scree(FOLDER / "scree", 8, SERVER_CORE, arguments)
    scree.start()
    return scree


class Volume(Server):
    """A volume of a Scree. Several may share one process; only one at a time works."""

    def __init__(self, scree, name, volume, size, replicas):
        self.scree, self.volume = scree, volume
        scree.cli("volume", "create", volume, "--size", size, "--replicas", replicas)
        super().__init__(name, scree.export(volume))

    def pid(self):
        return self.scree.process.pid

    def engine(self):
        return self.scree.cli("volume", "show", self.volume)["engine"]

    def settle(self):
        return self.scree.settle(self.volume)

    def drain(self):
        self.settle()
        super().drain()


def qemu_nbd(name, path, format):
    return Process(name, ["qemu-nbd", "-t", "-e", "4", "-f", format, "-k", "SOCKET", path])


def overlay(path, base):
    run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", base, path)


# ----------------------------------------------------------------- the client


def fio(server, rw, *arguments, **options):
    """Runs one fio job. Returns its read and write sides with the processor time of the server."""
    output = FOLDER / "fio.json"
    settings = {"bs": "4k", "iodepth": 1, "thread": 1, "norandommap": 1, "randrepeat": 0, **options}
    output.unlink(missing_ok=True)
    before = server.cpu_s()
    done = subprocess.run(
        ["taskset", "-c", str(CLIENT_CORE), "fio", "--name=job", "--ioengine=nbd"]
        + [f"--uri={server.uri}", f"--rw={rw}", "--output-format=json", f"--output={output}"]
        + [f"--{key}={value}" for key, value in settings.items()]
        + list(arguments),
        cwd=FOLDER,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    check(done.returncode == 0, f"fio on {server.name}: {done.stdout}")
    job = fio_job(output, done.stdout)
    sides = [job[side] for side in ("read", "write") if job[side]["total_ios"] > 0]
    bytes = sum(side["io_bytes"] for side in sides)
    runtime_s = max(side["runtime"] for side in sides) / 1000
    return {
        "iops": sum(side["iops"] for side in sides),
        "mib_s": bytes / MIB / runtime_s,
        "bytes": bytes,
        "operations": sum(side["total_ios"] for side in sides),
        "runtime_s": runtime_s,
        "latency_us": sides[0]["lat_ns"]["mean"] / 1000,
        "latency_us_p50": sides[0]["clat_ns"].get("percentile", {}).get("50.000000", 0) / 1000,
        "cpu_before_s": before,
    }


def copy(server):
    """Copies a file from memory to the disk and flushes. fio's NBD engine omits the final flush,
    so nbdcopy does this."""
    before = server.cpu_s()
    begun = time.monotonic()
    run(
        "taskset",
        "-c",
        CLIENT_CORE,
        "nbdcopy",
        "--flush",
        "--sparse=0",
        "--connections=1",
        "--threads=1",
        "--requests=8",
        "--request-size=262144",
        FOLDER / "source",
        server.uri,
    )
    runtime_s = time.monotonic() - begun
    bytes = (FOLDER / "source").stat().st_size
    return {
        "bytes": bytes,
        "operations": bytes // (256 << 10),
        "runtime_s": runtime_s,
        "mib_s": bytes / MIB / runtime_s,
        "cpu_before_s": before,
    }


class Plan:
    """Duration and repetitions."""

    def __init__(self, quick):
        self.quick = quick
        self.size = 32 * MIB if quick else GIB
        self.sequential = 16 * MIB if quick else 512 * MIB
        self.seconds = 0.1 if quick else 4
        self.ramp = 0 if quick else 1
        self.repetitions = 1 if quick else 3
        self.chains = [1, 3] if quick else [1, 5, 10, 50]
        self.snapshots = [0, 1, 3] if quick else [0, 1, 10, 100, 1000]
        self.chain_max = 3 if quick else 100
        self.big = 1 << 40

    def timed(self, **options):
        # fio accepts whole seconds or milliseconds.
        return {
            "size": self.size,
            "time_based": 1,
            "runtime": f"{int(self.seconds * 1000)}ms",
            "ramp_time": f"{self.ramp}s",
            **options,
        }


# name, what is reported, fio's rw, options
WORKLOADS = [
    ("random read 4K QD1", "iops", "randread", {"iodepth": 1}),
    ("random read 4K QD32", "iops", "randread", {"iodepth": 32}),
    ("sequential read 256K QD8", "mib_s", "read", {"bs": "256k", "iodepth": 8}),
    ("random read 4K QD32, from the device", "iops", "randread", {"iodepth": 32}),
    ("sequential read 256K QD8, from the device", "mib_s", "read", {"bs": "256k", "iodepth": 8}),
    ("random write 4K QD1", "iops", "randwrite", {"iodepth": 1}),
    ("random write 4K QD32", "iops", "randwrite", {"iodepth": 32}),
    ("random write 4K QD32, flush every 32", "iops", "randwrite", {"iodepth": 32, "fsync": 32}),
    ("sequential write 256K QD8, with flush", "mib_s", "write", {"bs": "256k", "iodepth": 8}),
    ("random 50/50 16K QD32", "iops", "randrw", {"bs": "16k", "iodepth": 32}),
]
# Read with the data in memory, and without.
WARM = {"random read 4K QD1", "random read 4K QD32", "sequential read 256K QD8"}
COLD = {name for name, *_ in WORKLOADS if name.endswith("from the device")}


def one(plan, server, workload):
    """One run of one workload: the value, and the processor time per operation."""
    name, unit, rw, options = workload
    if name in COLD:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("1")
        # A warm-up would load the dropped data again.
        result = fio(server, rw, **plan.timed(**options) | {"ramp_time": 0})
    elif rw == "write":
        result = copy(server)
        if isinstance(server, Volume):
            # The time until the client was done, and until everything was on the units.
            ended = time.monotonic()
            runtime_s = result["runtime_s"] + server.settle() - ended
            result["destaged_mib_s"] = result["bytes"] / MIB / runtime_s
    elif plan.ramp == 0:
        result = fio(server, rw, **plan.timed(**options))
    else:
        # The warm-up is a job of its own, so that it does not count.
        warm = plan.timed(**options) | {"runtime": f"{plan.ramp}s", "ramp_time": 0}
        fio(server, rw, **warm)
        result = fio(server, rw, **plan.timed(**options) | {"ramp_time": 0})
    if name not in WARM | COLD:
        server.drain()
    result["cpu_us"] = (server.cpu_s() - result["cpu_before_s"]) * 1e6 / result["operations"]
    return result


def workloads(plan, results):
    say("Filling each disk")
    scree = start_scree()
    servers = []
    try:
        for name, format in (("qcow2", "qcow2"), ("raw", "raw"), ("file", "raw")):
            path = FOLDER / f"disk-{name}"
            run("qemu-img", "create", "-q", "-f", format, path, plan.size)
        with open(FOLDER / "source", "wb") as source:
            for _ in range(plan.sequential // MIB):
                source.write(os.urandom(MIB))
        file = Process("nbdkit file", ["nbdkit", "-f", "-U", "SOCKET", "file", FOLDER / "disk-file"])
        servers += [
            Volume(scree, "Scree", "one", plan.size, 1),
            Volume(scree, "Scree, 2 replicas", "two", plan.size, 2),
            qemu_nbd("qcow2", FOLDER / "disk-qcow2", "qcow2"),
            qemu_nbd("raw", FOLDER / "disk-raw", "raw"),
            file,
        ]
        for server in servers:
            fio(server, "write", bs="1m", iodepth=4, size=plan.size)
            server.drain()
        # Backing chains: a populated disk behind more and more layers with few writes, as a chain
        # of snapshots leaves them.
        shutil.copyfile(FOLDER / "disk-qcow2", FOLDER / "chain-0")
        chains = []
        for layer in range(1, max(plan.chains) + 1):
            overlay(FOLDER / f"chain-{layer}", FOLDER / f"chain-{layer - 1}")
            run("qemu-io", "-f", "qcow2", "-c", f"write {layer * 1024}k 4k", FOLDER / f"chain-{layer}")
        for layers in plan.chains:
            # Each one is only read here; servers share the layers.
            chains.append(
                Process(
                    f"qcow2 behind {layers}",
                    ["qemu-nbd", "-t", "-e", "4", "-r", "-f", "qcow2", "-k", "SOCKET"] + [FOLDER / f"chain-{layers}"],
                )
            )
        servers += chains
        servers.append(Process("nbdkit null", ["nbdkit", "-f", "-U", "SOCKET", "null", plan.size]))
        table = results["workloads"] = {}
        results["conditions"]["servers"] = [server.name for server in servers]
        for repetition in range(plan.repetitions):
            say("Reading each disk once, so that its data is in memory")
            for server in servers:
                fio(server, "read", bs="1m", iodepth=4, size=plan.size)
            for workload in WORKLOADS:
                turn = servers if repetition % 2 == 0 else servers[::-1]
                for server in turn:
                    if server in chains and (workload[0] not in WARM or "QD8" in workload[0]):
                        continue
                    if workload[0] in COLD and server.name == "nbdkit null":
                        continue
                    say(f"  {repetition + 1}/{plan.repetitions}  {workload[0]}: {server.name}")
                    result = one(plan, server, workload)
                    cell = table.setdefault(workload[0], {}).setdefault(server.name, {})
                    cell.setdefault("value", []).append(result[workload[1]])
                    cell.setdefault("cpu_us", []).append(result["cpu_us"])
                    if "destaged_mib_s" in result:
                        cell = table.setdefault(DESTAGED, {}).setdefault(server.name, {})
                        cell.setdefault("value", []).append(result["destaged_mib_s"])
        results["scree_memory_mib"] = memory_mib(scree)
    finally:
        for server in servers:
            if isinstance(server, Process):
                server.stop()
        scree.kill()
    tidy()


def memory_mib(scree):
    """The largest resident memory of the process so far."""
    status = Path(f"/proc/{scree.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


def tidy():
    for path in FOLDER.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix not in (".json", ".md"):
            path.unlink()
    os.sync()


# ------------------------------------------------------------------ snapshots


def read_again(plan, server):
    """Latency of 4K reads, one at a time, over the same 2 MiB."""
    seconds = 0.05 if plan.quick else 2
    return fio(
        server,
        "randread",
        size=2 * MIB,
        offset=8 * MIB,
        time_based=1,
        runtime=f"{int(seconds * 1000)}ms",
    )["latency_us"]


def scribble(plan, server, blocks=64):
    """The writes between two snapshots, some of them in the 2 MiB."""
    fio(server, "randwrite", size=plan.size // 2, io_size=blocks * 4096)


def snapshots(plan, results):
    table = results["snapshots"] = {"Scree": {}, "qcow2": {}}
    scree = start_scree()
    try:
        volume = Volume(scree, "Scree", "disk", plan.size, 1)
        never = Volume(scree, "Scree", "never", plan.size, 1)
        for server in (volume, never):
            fio(server, "write", bs="1m", iodepth=4, size=plan.size)
            server.drain()
        taken = 0
        for count in plan.snapshots:
            say(f"  Scree: {count} snapshots")
            while taken < count:
                # A thousand starts of fio would take longer than the snapshots.
                if taken % 10 == 0:
                    scribble(plan, volume)
                taken += 1
                scree.cli("snapshot", "create", "disk", "--name", f"s{taken}")
            if count:
                scree.wait_for_snapshot(f"s{count}", 300)
            volume.drain()
            read_again(plan, volume)
            table["Scree"][count] = statistics.median(read_again(plan, volume) for _ in range(plan.repetitions))
        # In turns: a disk with all snapshots, and one without.
        pairs = [(read_again(plan, volume), read_again(plan, never)) for _ in range(1 if plan.quick else 9)]
        results["snapshots_beside_none"] = {
            "with": [pair[0] for pair in pairs],
            "without": [pair[1] for pair in pairs],
        }
    finally:
        scree.kill()
    path = FOLDER / "layer-0"
    run("qemu-img", "create", "-q", "-f", "qcow2", path, plan.size)
    server = qemu_nbd("qcow2", path, "qcow2")
    fio(server, "write", bs="1m", iodepth=4, size=plan.size)
    layers = 0
    for count in plan.snapshots:
        if count > plan.chain_max:
            break
        say(f"  qcow2: {count} backing files")
        while layers < count:
            server.stop()
            layers += 1
            overlay(FOLDER / f"layer-{layers}", FOLDER / f"layer-{layers - 1}")
            server = qemu_nbd("qcow2", FOLDER / f"layer-{layers}", "qcow2")
            if layers % 10 == 1:
                scribble(plan, server)
        os.sync()
        read_again(plan, server)
        table["qcow2"][count] = statistics.median(read_again(plan, server) for _ in range(plan.repetitions))
    server.stop()
    tidy()
    snapshot_times(plan, results)


def snapshot_times(plan, results):
    """Duration of the commands, on volumes with writes under way."""
    table = results["snapshot_times_ms"] = {}
    scree = start_scree()
    try:
        volumes = [
            ("1 GiB", Volume(scree, "1 GiB", "small", GIB, 1)),
            ("1 TiB", Volume(scree, "1 TiB", "big", plan.big, 1)),
        ]
        for turn in range(2 if plan.quick else 7):
            for label, volume in volumes:
                size = GIB if label == "1 GiB" else plan.big
                fio(volume, "randwrite", iodepth=32, size=size, io_size=(2 if plan.quick else 24) * MIB)
                cells = table.setdefault(label, {"snapshot": [], "completed": [], "clone": []})
                begun = time.monotonic()
                scree.cli("snapshot", "create", volume.volume, "--name", f"{volume.volume}{turn}")
                cells["snapshot"].append((time.monotonic() - begun) * 1000)
                scree.wait_for_snapshot(f"{volume.volume}{turn}")
                cells["completed"].append((time.monotonic() - begun) * 1000)
                begun = time.monotonic()
                scree.cli("volume", "create", f"{volume.volume}-clone{turn}", "--from", f"{volume.volume}{turn}")
                cells["clone"].append((time.monotonic() - begun) * 1000)
    finally:
        scree.kill()
    tidy()


# --------------------------------------------- steady state and amplification


def allocated(folder):
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def steady(plan, results):
    """Random overwrites of more than three times the journal's size, without a pause."""
    # Nothing is reclaimed, so that the units hold everything that was written.
    scree = start_scree(
        "--retain-count",
        100_000,
        "--retain-age",
        "7d",
        "--grace",
        "7d",
        *(("--journal-size", "16M") if plan.quick else ()),
    )
    table = results["steady"] = {}
    servers = []
    try:
        run("qemu-img", "create", "-q", "-f", "qcow2", FOLDER / "disk-qcow2", plan.size)
        run("qemu-img", "create", "-q", "-f", "raw", FOLDER / "disk-file", plan.size)
        servers = [
            Volume(scree, "Scree", "one", plan.size, 1),
            Volume(scree, "Scree, 2 replicas", "two", plan.size, 2),
            qemu_nbd("qcow2", FOLDER / "disk-qcow2", "qcow2"),
            Process("nbdkit file", ["nbdkit", "-f", "-U", "SOCKET", "file", FOLDER / "disk-file"]),
        ]
        journal = (16 if plan.quick else 100) * MIB
        for server in servers:
            fio(server, "write", bs="1m", iodepth=4, size=plan.size)
            server.drain()
        for server in servers:
            say(f"  {server.name}")
            ours = isinstance(server, Volume)
            units_before = allocated(FOLDER / "scree" / "units") if ours else 0
            begin = fio(server, "randwrite", iodepth=32, size=plan.size, io_size=journal // 2)
            pass_ = fio(server, "randwrite", iodepth=32, size=plan.size, io_size=3 * journal)
            after = fio(
                server,
                "randwrite",
                iodepth=32,
                **plan.timed() | {"runtime": f"{int(plan.seconds * 2000)}ms", "ramp_time": 0},
            )
            server.drain()
            row = table[server.name] = {"first": begin["iops"], "after": after["iops"]}
            if ours:
                written = allocated(FOLDER / "scree" / "units") - units_before
                client = begin["bytes"] + pass_["bytes"] + after["bytes"]
                replicas = 2 if "2" in server.name else 1
                row["amplification"] = written / client / replicas
    finally:
        for server in servers:
            if isinstance(server, Process):
                server.stop()
        scree.kill()
    tidy()


# -------------------------------------------------------------- memory, opening


def memory(plan, results):
    """A 1 TiB volume with 4 KiB writes all over."""
    scree = start_scree()
    try:
        volume = Volume(scree, "Scree", "big", plan.big, 1)
        written = (8 if plan.quick else 1024) * MIB
        fio(volume, "randwrite", iodepth=32, size=plan.big, io_size=written)
        volume.drain()
        results["memory"] = {"written": written, "mib": memory_mib(scree)}
    finally:
        scree.kill()
    tidy()


def opening(plan, results):
    """kill -9 under full write load, then the time until a read succeeds."""
    scree = start_scree()
    rows = results["open"] = []
    try:
        volume = Volume(scree, "Scree", "disk", plan.size, 1)
        for _ in range(1 if plan.quick else 5):
            client = subprocess.Popen(
                ["taskset", "-c", str(CLIENT_CORE), "fio", "--name=job", "--ioengine=nbd"]
                + [f"--uri={volume.uri}", "--rw=randwrite", "--bs=4k", "--iodepth=32"]
                + [f"--size={plan.size}", "--norandommap", "--time_based", "--runtime=60"]
                + ["--thread", f"--output={FOLDER / 'killed.json'}"],
                cwd=FOLDER,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            # Waits for a full journal for a limited time: destaging empties it.
            fullest, until = 0.0, time.monotonic() + (3 if plan.quick else 15)
            while time.monotonic() < until:
                engine = volume.engine()
                full = engine["journal_used_bytes"] / engine["journal_bytes"]
                if full >= 0.9 or (plan.quick and full > 0.3):
                    fullest = full
                    break
                fullest = full
            scree.kill()
            client.kill()
            client.wait()
            begun = time.monotonic()
            scree.start()
            while subprocess.run(
                ["qemu-io", "-f", "raw", "-r", "-c", "read 0 4096", volume.uri],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ).returncode:
                check(time.monotonic() - begun < 60, "the volume does not come back")
                time.sleep(0.02)
            rows.append({"full": fullest, "seconds": time.monotonic() - begun})
    finally:
        scree.kill()
    tidy()


def conditions(plan):
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    versions = [
        run("fio", "--version").strip(),
        run("qemu-nbd", "--version").splitlines()[0].split(" (")[0],
        run("nbdkit", "--version").strip(),
    ]
    return {
        "quick": plan.quick,
        "cpu": cpu[1] if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release().split("-")[0],
        "file_system": run("stat", "-f", "-c", "%T", FOLDER).strip(),
        "versions": ", ".join(versions),
        "size": plan.size,
        "seconds": plan.seconds,
        "ramp": plan.ramp,
        "repetitions": plan.repetitions,
        "load": os.getloadavg()[0],
    }


def of_module(measure):
    """A section that another module measures."""

    def section(plan, results):
        measure(plan, results, FOLDER, say)
        tidy()

    return section


SECTIONS = {
    "workloads": workloads,
    "snapshots": snapshots,
    "steady": steady,
    "memory": memory,
    "open": opening,
    "parity": of_module(bench_units.parity),
    "loss": of_module(bench_units.loss),
    "relays": of_module(bench_chains.relays),
    "filters": of_module(bench_chains.filters),
    "replicas": of_module(bench_chains.replicas),
    "guests": of_module(bench_guest.guests),
    "policies": of_module(bench_policies.policies),
    "cached": of_module(bench_cache.cached),
    "streams": of_module(bench_cache.streams),
    "maps": of_module(bench_cache.maps),
    "storm": of_module(bench_cache.storm),
    "aged": of_module(bench_hvsto.aged),
    "bonnie": of_module(bench_hvsto.bonnie),
    "limited": of_module(bench_units.limited),
    "daemons": of_module(bench_units.beside_rbd),
    "ceph": of_module(bench_ceph.ceph),
}
# Sections with a report of their own.
OF_CHAINS = {"relays", "filters", "replicas", "guests"}
OF_CACHE = {"policies", "cached", "streams", "maps", "storm", "aged", "bonnie"}
# Sections that need a Ceph cluster, and take too long for a quick run.
OF_CEPH = {"daemons", "ceph"}
# A section that creates network namespaces.
OF_ROOT = {"limited"}


def can_measure(name, is_quick):
    if name in OF_CEPH:
        return not is_quick and shutil.which("ceph-osd") is not None
    return name not in OF_ROOT or os.geteuid() == 0


def read_back(path):
    """Reads numbers back. JSON has only texts as keys."""

    def keys(table):
        return {int(key) if key.isdigit() else key: value for key, value in table.items()}

    return json.loads(path.read_text(), object_hook=keys)


def tell(text, folder, name):
    print(text)
    if folder:
        (folder / name).write_text(text)


def bench():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=SECTIONS, action="append")
    parser.add_argument("--seconds", type=float, help="of each run, 4 if not said")
    parser.add_argument("--repetitions", type=int, help="3 if not said")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    check(arguments.json or not arguments.resume, "--resume needs --json FILE")
    check(os.cpu_count() >= 2, "the benchmark needs two cores, one for the server and one for the client")
    plan = Plan(arguments.quick)
    plan.seconds = arguments.seconds or plan.seconds
    plan.repetitions = arguments.repetitions or plan.repetitions
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    results = {"conditions": conditions(plan), "measured": []}
    if arguments.resume:
        results = read_back(arguments.json)
    every = [name for name in SECTIONS if can_measure(name, arguments.quick)]
    for name in arguments.only or every:
        if name in results["measured"]:
            continue
        say(f"{name}:")
        SECTIONS[name](plan, results)
        results["measured"].append(name)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    measured = set(results["measured"])
    if measured - OF_CHAINS - OF_CACHE:
        tell(report(results, WORKLOADS, [bench_units, bench_ceph]), arguments.write, "benchmarks.md")
    if measured & OF_CHAINS:
        tell(report_of_chains(results, [bench_chains, bench_guest]), arguments.write, "benchmarks-chains.md")
    if measured & OF_CACHE:
        tell(
            report_of_cache(results, [bench_cache, bench_hvsto, bench_policies]), arguments.write, "benchmarks-cache.md"
        )
    if "policies" in measured and arguments.write:
        bench_policies.pictures(FOLDER, arguments.write / "pictures")
    shutil.rmtree(FOLDER, ignore_errors=True)


if __name__ == "__main__":
    # A regular exit, so that child processes end, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main(bench)
