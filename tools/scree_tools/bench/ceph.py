"""Scree on a pool of a Ceph cluster beside RBD on the same cluster: for tools/run bench.

The cluster runs on this machine (tools/clusters/ceph), and shares its two cores with
both; nothing is pinned. Processor time is that of all that works for a disk: OSDs, and
librbd in fio, or Scree and fio.
"""

import os
import statistics
import subprocess
import time
from pathlib import Path

from scree_tools.common.fio import fio_job
from scree_tools.common.process import ROOT, check, cpu_of, run
from scree_tools.common.scree import Scree
from scree_tools.common.service import until

MIB = 1 << 20
JOURNAL = 100 * MIB

# Name, what is reported, fio's rw, options.
WORKLOADS = [
    ("random write 4K QD32, three journals long, to the end of the last destage", "iops", "randwrite", {"iodepth": 32}),
    ("random read 4K QD1, not in memory", "iops", "randread", {"iodepth": 1}),
    ("random read 4K QD32, not in memory", "iops", "randread", {"iodepth": 32}),
    ("sequential write 256K QD8, to the end of the last destage", "mib_s", "write", {"bs": "256k", "iodepth": 8}),
    ("sequential read 256K QD8 of that, not in memory", "mib_s", "read", {"bs": "256k", "iodepth": 8}),
    (
        "sequential read 256K QD8 of what was written at random, not in memory",
        "mib_s",
        "read",
        {"bs": "256k", "iodepth": 8},
    ),
]

# Scattered blocks are read in as many parts as they were written: no target.
WITHOUT_TARGET = WORKLOADS[-1][0]


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        self.environment = {**os.environ, "CEPH_CONF": str(folder / "ceph.conf")}

    def tool(self, *arguments):
        verb, *rest = arguments
        return run(ROOT / "tools" / "clusters/ceph", verb, self.folder, *rest)

    def cpu_s(self):
        pids = [(self.folder / "run" / f"osd.{number}.pid").read_text().strip() for number in range(3)]
        return sum(cpu_of(pid) for pid in pids)

    def forget(self):
        """Empties the OSDs' memory and the page cache."""
        for number in range(3):
            run("ceph", "tell", f"osd.{number}", "cache", "drop", env=self.environment)
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("1")


class Rbd:
    """An image, through librbd in fio. Its writes are durable when they are answered."""

    def __init__(self, cluster, name, pool, size):
        self.name = name
        run("rbd", "create", f"{pool}/disk", "--size", f"{size // MIB}M", env=cluster.environment)
        self.arguments = ["--ioengine=rbd", "--clientname=admin", f"--pool={pool}", "--rbdname=disk"]
        self.environment = cluster.environment

    def cpu_s(self):
        return 0.0

    def settle(self):
        pass

    def stop(self):
        pass


class RbdByNbd:
    """Another image, by qemu-nbd on a unix socket: as far from the client as Scree is."""

    def __init__(self, cluster, name, pool, size, folder):
        self.name = name
        run("rbd", "create", f"{pool}/other", "--size", f"{size // MIB}M", env=cluster.environment)
        socket = folder / "rbd.sock"
        image = f"rbd:{pool}/other:id=admin:conf={cluster.environment['CEPH_CONF']}"
        # Without QEMU's caches, as a VM's disk; librbd has its own.
        self.process = subprocess.Popen(
            ["qemu-nbd", "-t", "-e", "4", "-f", "raw", "--cache=none", "-k", socket, image], env=cluster.environment
        )
        until("qemu-nbd serves the image", socket.exists, 30)
        self.arguments = ["--ioengine=nbd", f"--uri=nbd+unix:///?socket={socket}", "--thread"]
        self.environment = cluster.environment

    def cpu_s(self):
        return cpu_of(self.process.pid)

    def settle(self):
        pass

    def stop(self):
        self.process.kill()
        self.process.wait()


class OnPool:
    """A volume of a Scree whose unit is a namespace of the same pool."""

    def __init__(self, cluster, name, pool, size, folder):
        self.name = name
        os.environ["CEPH_CONF"] = str(cluster.folder / "ceph.conf")
        self.scree = Scree(folder, units=0, arguments=("--overcommit", 100000))
        self.scree.start()
        self.scree.cli("unit", "add", f"rados://{pool}/scree")
        self.scree.cli("volume", "create", "disk", "--size", size, "--replicas", 1)
        self.arguments = ["--ioengine=nbd", f"--uri={self.scree.export('disk')}", "--thread"]
        self.environment = dict(os.environ)

    def cpu_s(self):
        return cpu_of(self.scree.process.pid)

    def settle(self):
        """Waits until all writes are in the pool."""
        name = f"settle-{time.monotonic_ns()}"
        self.scree.cli("snapshot", "create", "disk", "--name", name, "--wait")
        self.scree.cli("snapshot", "delete", name)

    def stop(self):
        self.scree.kill()


def job(cluster, server, folder, rw, settings):
    """One fio job, with the time until its writes are destaged."""
    output = folder / "fio.json"
    output.unlink(missing_ok=True)
    before = cluster.cpu_s() + server.cpu_s()
    begun = time.monotonic()
    done = subprocess.run(
        [
            "fio",
            "--name=job",
            *server.arguments,
            f"--rw={rw}",
            "--randrepeat=0",
            "--norandommap=1",
            "--output-format=json",
            f"--output={output}",
        ]
        + [f"--{key}={value}" for key, value in settings.items()],
        cwd=folder,
        env=server.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    check(done.returncode == 0, f"fio on {server.name}: {done.stdout}")
    found = fio_job(output, done.stdout)
    server.settle()
    wall_s = time.monotonic() - begun
    side = found["read" if "read" in rw else "write"]
    # Reads end with fio, and its start does not count.
    runtime_s = side["runtime"] / 1000 if "read" in rw else wall_s
    client_s = (found["usr_cpu"] + found["sys_cpu"]) / 100 * found["job_runtime"] / 1000
    cpu_s = cluster.cpu_s() + server.cpu_s() - before + client_s
    return {
        "iops": side["total_ios"] / runtime_s,
        "mib_s": side["io_bytes"] / MIB / runtime_s,
        "cpu_us": cpu_s * 1e6 / side["total_ios"],
    }


def measure(plan, table, cluster, servers, folder, say):
    size = plan.size
    for server in servers:
        job(cluster, server, folder, "write", {"bs": "1m", "iodepth": 4, "size": size})
    for repetition in range(plan.repetitions):
        for name, unit, rw, options in WORKLOADS:
            for server in servers if repetition % 2 == 0 else servers[::-1]:
                say(f"  {repetition + 1}/{plan.repetitions}  {name}: {server.name}")
                settings = {"bs": "4k", "size": size, **options}
                if "read" in rw:
                    cluster.forget()
                    settings |= {"time_based": 1, "runtime": f"{int(plan.seconds * 1000)}ms"}
                elif rw == "randwrite":
                    settings["io_size"] = 16 * MIB if plan.quick else 3 * JOURNAL
                else:
                    settings["io_size"] = plan.sequential
                if rw == "read":
                    is_rest = name == WITHOUT_TARGET
                    settings["offset"] = plan.sequential if is_rest else 0
                    settings["size"] = size - plan.sequential if is_rest else plan.sequential
                result = job(cluster, server, folder, rw, settings)
                cell = table.setdefault(name, {}).setdefault(server.name, {"unit": unit})
                cell.setdefault("value", []).append(result[unit])
                cell.setdefault("cpu_us", []).append(result["cpu_us"])


def ceph(plan, results, folder, say):
    """One pool without copies: RBD and Scree on it, one after the other."""
    cluster = Cluster(folder / "ceph")
    servers = []
    try:
        cluster.tool("up")
        cluster.tool("pool", "bench", 1)
        servers = [Rbd(cluster, "RBD", "bench", plan.size)]
        servers.append(RbdByNbd(cluster, "RBD by qemu-nbd", "bench", plan.size, folder))
        servers.append(OnPool(cluster, "Scree on rados://", "bench", plan.size, folder / "scree-on-pool"))
        measure(plan, results.setdefault("ceph", {}), cluster, servers, folder, say)
    finally:
        for server in servers:
            server.stop()
        cluster.tool("down")


def targets(results):
    """Rows of the targets: what, target, value, at least, unit."""
    rows = []
    for name, cells in results.get("ceph", {}).items():
        if name == WITHOUT_TARGET:
            continue
        rbd, _, ours = (statistics.median(cell["value"]) for cell in cells.values())
        target = 5.0 if name.startswith("random write") else 1.0
        rows.append((f"on one pool / RBD, {name}", target, ours / rbd, True, "×"))
    return rows


def report(results):
    """The section of the report, if it was measured."""
    if "ceph" not in results:
        return ""
    table = results["ceph"]
    lines = [
        "## Beside RBD, on one Ceph cluster",
        "",
        "Three OSDs on this machine, one copy, one pool; writes are counted to the end of the last",
        "destage. RBD is librbd within fio, and librbd within qemu-nbd on a unix socket, as Scree is.",
        "In brackets the processor time of an operation, OSDs, server and client together, but for the",
        "threads of librbd within fio. Two cores do all of it, and are busy.",
        "",
        "| | RBD | RBD by qemu-nbd | Scree on `rados://` | Scree / RBD | Scree / RBD by qemu-nbd |",
        "|---|---|---|---|---|---|",
    ]
    for name, cells in table.items():
        values = {server: statistics.median(cell["value"]) for server, cell in cells.items()}
        cpu = {server: statistics.median(cell["cpu_us"]) for server, cell in cells.items()}
        unit = {"iops": "IOPS", "mib_s": "MiB/s"}[next(iter(cells.values()))["unit"]]
        shown = [f"{values[s]:,.0f} {unit} ({cpu[s]:,.0f} µs)" for s in values]
        rbd, by_nbd, ours = values.values()
        lines.append(f"| {name} | {' | '.join(shown)} | {ours / rbd:.2f} | {ours / by_nbd:.2f} |")
    return "\n".join(lines) + "\n"
