"""Latency of the API with many volumes in its database.

  tools/run bench.service [--volumes 10000] [--clients 16] [--requests 200] [--quick] [--write FILE]

On SQLite with one controller, and on PostgreSQL with two: it makes the volumes
with all clients at once, and counts how many a second; then one client measures
each verb. Everything is asked over TLS, with connections that are kept.

Then how long a running guest waits for a disk, from the request to its node in
/dev: beside a disk of qemu-nbd that QEMU is given by hand.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import threading
import time
from pathlib import Path

from scree_tools.bench.report import markdown
from scree_tools.common.guest import Guest
from scree_tools.common.process import TARGET, check, main
from scree_tools.common.service import Site, until

MIB = 1 << 20

# The limit of each verb, in milliseconds.
TARGET_MS = 50
TARGET_CREATES = 200
TARGET_PLUG_MS = 1000

# The command of the guest: no double quotes, since it is an argument of its kernel.
GUEST = (
    "b=/bin/busybox; $b --install -s /bin; "
    "mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys; "
    "while read m; do insmod /modules/$m.ko; done </modules/order 2>/dev/null; "
    "stty -echo; export PS1=; echo GUEST: up; exec sh"
)


def fill(site, clients, volumes):
    """Creates volumes with all clients at once. Returns the number per second of the last half."""
    done, failures, lock = [], [], threading.Lock()

    def work(number):
        api = site.api(number % len(site.ports))
        try:
            for serial in range(volumes // clients):
                body = {"name": f"disk-{number}-{serial}", "size": 64 * MIB}
                api.ask("POST", "/v1/volumes", body)
                with lock:
                    done.append(time.monotonic())
        except Exception as error:  # reported below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not failures, f"{len(failures)} clients failed: {failures[:1]}")
    done.sort()
    last = done[len(done) // 2 :]
    return (len(last) - 1) / (last[-1] - last[0])


def measure(site, requests):
    """The milliseconds that each verb took, by verb."""
    api, took = site.api(0), {}

    def ask(verb, method, path, body=None):
        begun = time.monotonic()
        answer = api.ask(method, path, body)
        took.setdefault(verb, []).append((time.monotonic() - begun) * 1000)
        return answer

    for number in range(requests):
        name = f"more-{number}"
        ask("create", "POST", "/v1/volumes", {"name": name, "size": 64 * MIB})
        ask("snapshot", "POST", "/v1/snapshots", {"volume": name, "name": f"{name}-snap"})
        ask("clone", "POST", "/v1/volumes", {"name": f"{name}-clone", "from": f"{name}-snap"})
        ask("show", "GET", f"/v1/volumes/{name}")
        body = {"volume": name, "host": "h1"}
        found = ask("attach, requested", "POST", "/v1/attachments", body)
        begun = time.monotonic()
        found = api.ask("GET", f"/v1/attachments/{found['id']}?wait=60")
        took.setdefault("attach, until served", []).append((time.monotonic() - begun) * 1000)
        check(found["state"] == "attached", f"{found}")
        # Many journals would fill the disk and show nothing more.
        ask("detach, requested", "DELETE", f"/v1/attachments/{found['id']}")
        api.ask("GET", f"/v1/attachments/{found['id']}?wait=60")
        if number % 20 == 0:
            ask("list a page of 1,000", "GET", "/v1/volumes?limit=1000")
    return took


def spell(took):
    """The rows of a table: each verb, its median and its 99th percentile."""
    rows = []
    for verb, times in took.items():
        times.sort()
        p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
        rows.append([verb, f"{statistics.median(times):.1f}", f"{p99:.1f}"])
    return rows


class Monitor:
    """QEMU's monitor, as long as no other client needs it."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.lines = self.socket.makefile("r")
        self.lines.readline()
        self.ask("qmp_capabilities")

    def ask(self, command, **arguments):
        request = {"execute": command, "arguments": arguments}
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        while True:
            answer = json.loads(self.lines.readline())
            check("error" not in answer, f"{command}: {answer}")
            if "return" in answer:
                return answer["return"]

    def wait_for(self, event):
        while json.loads(self.lines.readline()).get("event") != event:
            pass

    def close(self):
        self.lines.close()
        self.socket.close()


def plug(site, requests):
    """The milliseconds from the request until the guest has the device node: by hand, and by the
    service."""
    folder = site.folder / "guest"
    folder.mkdir()
    monitor, served = folder / "qmp", folder / "qemu-nbd"
    with open(folder / "raw", "wb") as raw:
        raw.truncate(64 * MIB)
    server = subprocess.Popen(["qemu-nbd", "-f", "raw", "-t", "-e", "8", "-x", "disk", "-k", served, folder / "raw"])
    arguments = ["-machine", "q35", "-device", "pcie-root-port,id=port1,chassis=1"]
    arguments += ["-kernel", TARGET / "guest/vmlinuz", "-initrd", TARGET / "guest/initrd"]
    arguments += ["-append", f'console=ttyS0 quiet panic=-1 rdinit=/bin/busybox -- sh -c "{GUEST}"']
    guest = Guest(arguments, folder / "log", 160, monitor)
    by_hand, by_service = [], []
    api = site.api(0)
    api.ask("POST", "/v1/volumes", {"name": "plugged", "size": 64 * MIB})

    def timed(into, work):
        guest.send("while [ ! -b /dev/vda ]; do usleep 2000; done; echo ==HERE==")
        begun = time.monotonic()
        answer = work()
        guest.wait_for("==HERE==", 60)
        into.append((time.monotonic() - begun) * 1000)
        return answer

    def hand():
        qmp = Monitor(monitor)
        server = {"type": "unix", "path": str(served)}
        qmp.ask("blockdev-add", driver="nbd", **{"node-name": "d"}, export="disk", server=server)
        qmp.ask("device_add", driver="virtio-blk-pci", drive="d", id="v", bus="port1")
        return qmp

    try:
        until("qemu-nbd listens", served.exists, 30)
        for _ in range(requests):
            qmp = timed(by_hand, hand)
            qmp.ask("device_del", id="v")
            qmp.wait_for("DEVICE_DELETED")
            qmp.ask("blockdev-del", **{"node-name": "d"})
            qmp.close()
            body = {"volume": "plugged", "host": "h1", "vm": f"qmp:{monitor}"}
            made = timed(by_service, lambda: api.ask("POST", "/v1/attachments", body))
            found = api.ask("GET", f"/v1/attachments/{made['id']}?wait=60")
            check(found["state"] == "attached", f"{found}")
            api.ask("DELETE", f"/v1/attachments/{made['id']}")
            found = api.ask("GET", f"/v1/attachments/{made['id']}?wait=60")
            check(found["state"] == "detached", f"{found}")
    finally:
        guest.kill()
        server.kill()
        server.wait()
    return by_hand, by_service


def measured(site, name, arguments):
    """All measurements on one site, as a part of the page."""
    rate = fill(site, arguments.clients, arguments.volumes)
    rows = spell(measure(site, arguments.requests))
    by_hand, by_service = plug(site, max(3, arguments.requests // 10))
    rows += spell({"to the guest's node, by hand": by_hand, "to the guest's node, by Scree": by_service})
    more = statistics.median(by_service) - statistics.median(by_hand)
    return [
        f"## {name}",
        "",
        f"{arguments.volumes:,} volumes created by {arguments.clients} clients at once:"
        f" **{rate:,.0f} per second** in the second half (target on PostgreSQL: {TARGET_CREATES}).",
        "",
        markdown(["", "median, ms", "99th percentile, ms"], rows),
        "",
        f"To plug a disk into a running guest, Scree adds **{more:.0f} ms** to the time of QEMU"
        f" itself (target: under {TARGET_PLUG_MS} ms).",
        "",
    ]


def bench():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--volumes", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="few of everything")
    parser.add_argument("--only", choices=["sqlite", "postgresql"])
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.volumes, arguments.requests = 500, 10
    parts = [
        "# Benchmarks of the service",
        "",
        "Made by `make bench-service`; do not edit by hand.",
        "",
        f"The target for create, snapshot, clone and attach is at most {TARGET_MS} ms. Everything runs"
        f" on one machine with {os.cpu_count()} cores (load {os.getloadavg()[0]:.1f} before):"
        " client, controllers, database, agent, guest. Requests go over TLS 1.3 on connections"
        " that are kept; each change is on stable storage before it is answered (SQLite"
        " `synchronous=FULL`, PostgreSQL as Debian configures it). Guests run under TCG.",
        "",
    ]
    kinds = [("sqlite", 1, "SQLite, one controller"), ("postgresql", 2, "PostgreSQL, two controllers")]
    for kind, controllers, name in kinds:
        if arguments.only not in (None, kind):
            continue
        site = Site(controllers, 1, sqlite=kind == "sqlite")
        try:
            part = measured(site, name, arguments)
        finally:
            site.stop()
        shutil.rmtree(site.folder, ignore_errors=True)
        print("\n".join(part), flush=True)
        parts += part
    if arguments.write:
        arguments.write.write_text("\n".join(parts).rstrip() + "\n")


if __name__ == "__main__":
    main(bench)
