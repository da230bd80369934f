"""Unit daemons over mutual TLS: compared with RBD, behind limited links, with parity, and while
one is lost. For tools/run bench; needs root."""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scree_tools.bench.ceph import Cluster, Rbd, job
from scree_tools.bench.report import markdown, median, number
from scree_tools.common.daemons import Daemons, Links
from scree_tools.common.fio import fio_job
from scree_tools.common.process import check
from scree_tools.common.service import until

MIB = 1 << 20
JOURNAL = "16M"


class OnDaemons:
    """A volume on the daemons of a site."""

    def __init__(self, site, name, volume, size, *redundancy, host=1):
        self.site, self.name, self.volume = site, name, volume
        site.create(volume, size, *redundancy)
        uri = site.export(volume, host)
        self.arguments = ["--ioengine=nbd", f"--uri={uri}", "--thread"]
        self.environment = dict(os.environ)

    def cpu_s(self):
        return self.site.cpu_s()

    def settle(self):
        self.site.settle(self.volume)


class Unmeasured:
    """Its processor time does not count."""

    def cpu_s(self):
        return 0.0


def forget():
    """Drops the daemons' data from memory."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")


def fill(server, plan, folder):
    job(Unmeasured(), server, folder, "write", {"bs": "1m", "iodepth": 4, "size": plan.size})


def timed(plan, **options):
    runtime = {"time_based": 1, "runtime": f"{int(plan.seconds * 1000)}ms"}
    return {"bs": "4k", "size": plan.size, **runtime, **options}


def site(folder, count, **options):
    options["agent"] = ("--journal-size", JOURNAL, *options.get("agent", ()))
    options["controller"] = ("--overcommit", 100000, *options.get("controller", ()))
    return Daemons(folder, count, **options)


# ------------------------------------------------------------------- beside RBD

BESIDE = [
    ("random read 4K QD32", "randread", {"iodepth": 32}),
    ("random write 4K QD32, to the end of the last destage", "randwrite", {"iodepth": 32}),
]


def beside_rbd(plan, results, folder, say):
    """Three OSDs with three copies, and three daemons with three copies."""
    table = results.setdefault("daemons", {})
    cluster = Cluster(folder / "ceph")
    daemons = None
    try:
        cluster.tool("up")
        cluster.tool("pool", "bench", 3)
        daemons = site(folder / "site", 3)
        servers = [
            (Rbd(cluster, "RBD", "bench", plan.size), cluster),
            (OnDaemons(daemons, "Scree", "disk", plan.size, "--replicas", 3), Unmeasured()),
        ]
        for server, _ in servers:
            fill(server, plan, folder)
        for repetition in range(plan.repetitions):
            for name, rw, options in BESIDE:
                for server, storage in servers if repetition % 2 == 0 else servers[::-1]:
                    say(f"  {repetition + 1}/{plan.repetitions}  {name}: {server.name}")
                    settings = timed(plan, **options)
                    if rw == "randwrite":
                        settings = {"bs": "4k", "size": plan.size, "io_size": plan.sequential // 4, **options}
                    else:
                        cluster.forget()
                    result = job(storage, server, folder, rw, settings)
                    cell = table.setdefault(name, {}).setdefault(server.name, {"iops": [], "cpu_us": []})
                    for what in cell:
                        cell[what].append(result[what])
    finally:
        if daemons:
            daemons.stop()
        cluster.tool("down")


# ---------------------------------------------------------------- limited links

# Bandwidth of each unit's link, and of each host's.
UNIT_MIB_S, HOST_MIB_S = 10, 30
LIMITED = [
    ("random read 256K QD32", "randread", {"bs": "256k", "iodepth": 32}),
    ("sequential write 256K QD8, to the end of the last destage", "write", {"bs": "256k", "iodepth": 8}),
]


def rate(mib_s):
    return f"{mib_s * 8 * MIB}bit"


def limited(plan, results, folder, say):
    """One volume on one unit and on eight; then two hosts with a volume each."""
    table = results.setdefault("limited", {})
    for count in (1, 8):
        links = Links({"s": rate(UNIT_MIB_S), "h": "10gbit"})
        try:
            daemons = site(folder / f"site-{count}", count, links=links)
            try:
                volume = OnDaemons(daemons, f"{count} units", "disk", plan.size, "--replicas", 1)
                measure_limited(plan, table, [volume], str(count), folder, say)
            finally:
                daemons.stop()
        finally:
            links.remove()
    links = Links({"s": rate(UNIT_MIB_S), "h": rate(HOST_MIB_S)})
    try:
        daemons = site(folder / "site-hosts", 8, hosts=2, links=links)
        try:
            volumes = [
                OnDaemons(daemons, f"host {host}", f"disk{host}", plan.size, "--replicas", 1, host=host)
                for host in (1, 2)
            ]
            measure_limited(plan, table, volumes[:1], "one volume", folder, say)
            measure_limited(plan, table, volumes, "two volumes", folder, say)
        finally:
            daemons.stop()
    finally:
        links.remove()


def measure_limited(plan, table, volumes, label, folder, say):
    for repetition in range(plan.repetitions):
        # Written first, so that there is data to read.
        for name, rw, options in LIMITED[::-1]:
            say(f"  {repetition + 1}/{plan.repetitions}  {name}: {label}")
            # Times include destaging, and reads are of written data.
            size = plan.size // (12 if label == "1" else 3)
            settings = {"size": size, **options}
            if rw != "write":
                settings |= {"time_based": 1, "runtime": f"{int(plan.seconds * 2000)}ms"}
            table.setdefault(name, {}).setdefault(label, []).append(together(volumes, folder, rw, settings))


def together(volumes, folder, rw, settings):
    """MiB/s of all volumes together, until the end of the last destage."""
    begun = time.monotonic()
    running = []
    for number_, volume in enumerate(volumes):
        output = folder / f"fio-{number_}.json"
        output.unlink(missing_ok=True)
        words = [f"--{key}={value}" for key, value in settings.items()]
        running.append(
            (
                output,
                subprocess.Popen(
                    [
                        "fio",
                        "--name=job",
                        *volume.arguments,
                        f"--rw={rw}",
                        "--randrepeat=0",
                        "--norandommap=1",
                        "--output-format=json",
                        f"--output={output}",
                        *words,
                    ],
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                ),
            )
        )
    moved, slowest = 0, 0.0
    for output, process in running:
        said, _ = process.communicate()
        check(process.returncode == 0, f"fio: {said}")
        side = fio_job(output, said)["read" if "read" in rw else "write"]
        moved += side["io_bytes"]
        slowest = max(slowest, side["runtime"] / 1000)
    if "read" not in rw:
        with ThreadPoolExecutor() as pool:
            list(pool.map(OnDaemons.settle, volumes))
        slowest = time.monotonic() - begun
    return moved / MIB / slowest


# ----------------------------------------------------------------------- parity


def parity(plan, results, folder, say):
    """Random reads of healthy 4+2 compared with one copy, on the same eight daemons."""
    table = results.setdefault("parity", {})
    daemons = site(folder / "site", 8)
    try:
        servers = [
            OnDaemons(daemons, "one copy", "one", plan.size, "--replicas", 1),
            OnDaemons(daemons, "4+2", "rows", plan.size, "--erasure", "4+2"),
        ]
        for server in servers:
            fill(server, plan, folder)
        for repetition in range(plan.repetitions):
            for server in servers if repetition % 2 == 0 else servers[::-1]:
                say(f"  {repetition + 1}/{plan.repetitions}  random read 4K QD32: {server.name}")
                forget()
                result = job(Unmeasured(), server, folder, "randread", timed(plan, iodepth=32))
                table.setdefault(server.name, []).append(result["iops"])
    finally:
        daemons.stop()


# ----------------------------------------------------------------------- a loss


def stall_ms(folder, server, plan, then):
    """The longest time of one request of a random mix in ms, and the operations per second of
    the mix, while `then()` runs in the middle."""
    output = folder / "fio.json"
    output.unlink(missing_ok=True)
    seconds = max(plan.seconds * 3, 2)
    process = subprocess.Popen(
        [
            "fio",
            "--name=job",
            *server.arguments,
            "--rw=randrw",
            "--bs=4k",
            "--iodepth=8",
            "--rate_iops=1000,1000",
            f"--size={plan.size}",
            "--time_based",
            f"--runtime={seconds}",
            "--norandommap=1",
            "--output-format=json",
            f"--output={output}",
        ],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    time.sleep(seconds / 3)
    then()
    said, _ = process.communicate()
    check(process.returncode == 0, f"fio, while a unit was killed: {said}")
    found = fio_job(output, said)
    return max(found[side]["lat_ns"]["max"] for side in ("read", "write")) / 1e6


def loss(plan, results, folder, say):
    """A unit is killed under a client; then its data is copied from the others."""
    table = results.setdefault("loss", {})
    throttle = 2 if plan.quick else 16
    for repetition in range(plan.repetitions):
        daemons = site(
            folder / f"site-{repetition}",
            5,
            controller=("--grace", "0s"),
            agent=("--repair-bytes-per-second", f"{throttle}M"),
        )
        try:
            server = OnDaemons(daemons, "Scree", "disk", plan.size, "--replicas", 2)
            fill(server, plan, folder)
            foreground = timed(plan, iodepth=8)
            forget()
            before = job(Unmeasured(), server, folder, "randread", foreground)["iops"]
            say(f"  {repetition + 1}/{plan.repetitions}  killed under a client")
            gone = daemons.stores[0]
            table.setdefault("stall_ms", []).append(stall_ms(folder, server, plan, gone.kill))
            say("    what it had is copied")
            held = bytes_of(daemons)
            daemons.lose(gone)
            begun = time.monotonic()
            daemons.operator("unit", "remove", gone.name, "--lost")
            until("it is being repaired", lambda: daemons.operator("unit", "jobs"), 60)
            forget()
            during = job(Unmeasured(), server, folder, "randread", foreground)["iops"]
            is_repairing = bool(daemons.operator("unit", "jobs"))
            check(is_repairing or plan.quick, "it was repaired before the client was through")
            daemons.wait_until_repaired(1200)
            seconds = time.monotonic() - begun
            copied = (bytes_of(daemons) - held) / MIB
            table.setdefault("foreground", []).append(during / before)
            table.setdefault("repaired_mib_s", []).append(copied / seconds)
            table["throttle_mib_s"] = throttle
        finally:
            daemons.stop()


def bytes_of(daemons):
    """The bytes that all running daemons hold."""
    names = {store.name for store in daemons.stores if store.is_running()}
    units = daemons.operator("unit", "list")
    return sum(unit["bytes"] or 0 for unit in units if unit["daemon"] in names)


# ------------------------------------------------------------------- the report


def targets(results):
    """Rows of the targets: what, target, value, at least, unit."""
    rows = []
    for name, cells in results.get("daemons", {}).items():
        rows.append(
            (
                f"three daemons / RBD on three OSDs, {name}",
                3.0,
                median(cells["Scree"]["iops"]) / median(cells["RBD"]["iops"]),
                True,
                "×",
            )
        )
    for name, cells in results.get("limited", {}).items():
        rows.append((f"8 limited units / 1, {name}", 7.0, median(cells["8"]) / median(cells["1"]), True, "×"))
        rows.append(
            (
                f"two hosts' volumes / one, {name}",
                1.9,
                median(cells["two volumes"]) / median(cells["one volume"]),
                True,
                "×",
            )
        )
    if "parity" in results:
        ratio = median(results["parity"]["4+2"]) / median(results["parity"]["one copy"])
        rows.append(("random read 4K QD32, 4+2 / one copy", 0.8, ratio, True, "×"))
    if "loss" in results:
        table = results["loss"]
        rows.append(("longest stall when a unit is killed", 1000, median(table["stall_ms"]), False, " ms"))
        rows.append(
            ("repair / its throttle", 0.7, median(table["repaired_mib_s"]) / table["throttle_mib_s"], True, "×")
        )
        rows.append(("random reads while it repairs / before", 0.7, median(table["foreground"]), True, "×"))
    return rows


def report(results):
    """The sections of the report that were measured."""
    lines = []
    if "daemons" in results:
        rows = [
            [name]
            + [
                f"{number(median(cells[server]['iops']))} ({number(median(cells[server]['cpu_us']))} µs)"
                for server in ("RBD", "Scree")
            ]
            for name, cells in results["daemons"].items()
        ]
        lines += [
            "## Unit daemons beside RBD",
            "",
            "Three OSDs, and three unit daemons over mutual TLS on loopback; three copies each, nothing"
            " in the storage daemons' memory; nothing is pinned. IOPS, and in brackets the processor"
            " time of an operation, storage daemons and client together.",
            "",
            markdown(["", "RBD", "Scree"], rows),
            "",
        ]
    if "limited" in results:
        labels = ["1", "8", "one volume", "two volumes"]
        rows = [
            [name] + [number(median(cells[label])) for label in labels] for name, cells in results["limited"].items()
        ]
        lines += [
            "## Limited links",
            "",
            f"Each unit daemon behind a link of {UNIT_MIB_S} MiB/s (tbf), MiB/s of the clients. On the"
            f" right, two hosts behind links of {HOST_MIB_S} MiB/s and eight units: a volume on one"
            " host, and one on each.",
            "",
            markdown(["", "1 unit", "8 units", "one host", "two hosts, together"], rows),
            "",
        ]
    if "parity" in results:
        rows = [[name, number(median(values))] for name, values in results["parity"].items()]
        lines += [
            "## Parity",
            "",
            "Random reads 4K QD32 (IOPS) of volumes on the same eight daemons.",
            "",
            markdown(["", "IOPS"], rows),
            "",
        ]
    if "loss" in results:
        table = results["loss"]
        rows = [
            ["longest request of a client while a unit is killed", f"{number(median(table['stall_ms']))} ms"],
            [
                "copied again, of what the unit had",
                f"{number(median(table['repaired_mib_s']))} MiB/s of {table['throttle_mib_s']} MiB/s allowed",
            ],
            ["random reads 4K QD8 meanwhile", f"{median(table['foreground']) * 100:.0f} % of before"],
        ]
        lines += ["## A unit is lost", "", "Five daemons, two copies, one host.", "", markdown(["", ""], rows), ""]
    return "\n".join(lines)
