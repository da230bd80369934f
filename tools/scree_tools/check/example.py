"""Runs packaging/examples/three-hosts/README.md: every command on the machine that
it names, and checks what a VM has written before and after the failure.

  tools/run check example

It uses four machines of its own (tools/scree_tools/common/machine.py). The file servers are
folders that the three hosts have mounted; everything else is as on the page.
"""

import json
import re
import shlex
import shutil
import socket
import time

from scree_tools.common.machine import Machine, as_root, in_own_network
from scree_tools.common.process import BINARY, ROOT, TARGET, check, main, run

FOLDER = TARGET / "example-test"
EXAMPLE = ROOT / "packaging" / "examples" / "three-hosts"
ADDRESSES = {"c1": "10.77.0.10", "h1": "10.77.0.1", "h2": "10.77.0.2", "h3": "10.77.0.3"}
MONITOR = "run/vms/one.monitor"


def commands():
    """Machine and words of each command, in the order of the page."""
    found = []
    for block in re.findall(r"^```\n(.*?)^```$", (EXAMPLE / "README.md").read_text(), re.M | re.S):
        found += re.findall(r"^([a-z]\d)# (.*)$", block, re.M)
    check(len(found) > 30, f"the page shows {len(found)} commands; it is not what this test expects")
    return found


def carried_over(words, said, known):
    """The values that a later command needs from this output."""
    if " host add " in words:
        known["TOKEN"] = re.search(r"--token (\S+)", said)[1]
        known["AUTHORITY"] = re.search(r"--authority (\S+)", said)[1]
    if words.endswith("/master.key") and words.startswith("cat "):
        known["KEY"] = said.strip()


def of_the_vm(machine, attachment, words):
    """A request to the disk, as the VM's own device sends it."""
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.settimeout(60)
        monitor.connect(f"/proc/{machine.first}/root/{MONITOR}")
        path = f"/machine/peripheral/scree-{attachment}/virtio-backend"

        def answer():
            said = b""
            while not said.endswith(b"(qemu) "):
                more = monitor.recv(4096)
                check(more, f"the VM's monitor was closed after {said}")
                said += more
            return said.decode(errors="replace")

        answer()
        monitor.sendall(f'qemu-io -d {path} "{words}"\n'.encode())
        answer()


def reader(machines, host, volume):
    """Reads a volume through a clone that is served on `host`: QEMU prints the result of a
    request of a VM's monitor where no one can read it."""
    scree = "scree --dir /var/lib/scree/controller -o json"
    ask = machines["c1"].sh
    ask(f"{scree} snapshot create {volume} --name seen --wait")
    ask(f"{scree} volume create looked-at --from seen")
    said = ask(f"{scree} volume export looked-at --read-only --host {host}")
    uri = json.loads(said)["uri"]
    return lambda words: machines[host].sh(f"qemu-io -r -f raw -c '{words}' '{uri}'")


def attached(machines, host):
    """The only attachment, which is on `host`."""
    said = machines["c1"].sh("scree --dir /var/lib/scree/controller -o json attachment list")
    found = json.loads(said)
    check(
        len(found) == 1 and (found[0]["state"], found[0]["host"]) == ("attached", host),
        f"'disk' should be attached on {host}: {found}",
    )
    return found[0]["id"]


def work():
    as_root()
    in_own_network()
    shutil.rmtree(FOLDER, ignore_errors=True)
    begun = time.monotonic()
    package = run(
        ROOT / "packaging" / "build-deb", "--binary", BINARY, "--out", FOLDER, "--compression", "gzip"
    ).splitlines()[-1]
    # Files that the operator copies to each machine.
    brought = FOLDER / "brought"
    shutil.copytree(EXAMPLE, brought)
    shutil.copy(package, brought / "scree.deb")
    servers = {}
    for server in ("nas1", "nas2", "nas3"):
        (FOLDER / server).mkdir()
        servers[FOLDER / server] = f"mnt/units/{server}"

    machines, known = {}, {}
    try:
        names = [(address, f"{name} {name}.example") for name, address in ADDRESSES.items()]
        for name, address in ADDRESSES.items():
            data = FOLDER / f"{name}-data"
            data.mkdir()
            shares = {brought: "brought", data: "var/lib/scree"}
            machines[name] = Machine(name, FOLDER / name, address, shares | (servers if name != "c1" else {}), names)
        for name, words in commands():
            print(f"{time.monotonic() - begun:3.0f} s  {name}# {words}", flush=True)
            if words == "poweroff -f":
                # Another host may rely on flushed and destaged writes.
                attachment = attached(machines, name)
                of_the_vm(machines[name], attachment, "write -P 7 1M 4M")
                of_the_vm(machines[name], attachment, "flush")
                wait_until_it_is_destaged(machines)
                machines.pop(name).end()
                continue
            carried = " ".join(f"{key}={shlex.quote(value)}" for key, value in known.items())
            said = machines[name].sh(f"cd /brought; {carried}\n{words}")
            print("".join(f"         {line}\n" for line in said.splitlines()), end="", flush=True)
            carried_over(words, said, known)

        attached(machines, "h2")
        seen = reader(machines, "h2", "disk")("read -P 7 1M 4M")
        check("read 4194304/4194304" in seen and "failed" not in seen, f"what h1 had written is not on h2: {seen}")
        said = machines["c1"].sh("scree --dir /var/lib/scree/controller -o json unit list")
        units = json.loads(said)
        check([unit["state"] for unit in units] == ["healthy"] * 3, f"the units: {units}")
    finally:
        for machine in machines.values():
            machine.end()
    shutil.rmtree(FOLDER)
    print(f"The page tells the truth ({time.monotonic() - begun:.0f} s)")


def wait_until_it_is_destaged(machines):
    def holds():
        said = machines["c1"].sh("scree --dir /var/lib/scree/controller -o json status")
        return json.loads(said)["journal_used_bytes"] == 0

    machines["c1"].wait_until("what the VM wrote is on the units", holds)


main(work)
