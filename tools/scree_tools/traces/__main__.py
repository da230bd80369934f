"""Records again the traces on which cache policies are compared: crates/cache/traces.

  tools/run traces                 all of them, about 30 minutes; needs root, and `tools/packages traces`
  tools/run traces --only NAME     one of: boot database files; may be given more than once
  tools/run traces --to FOLDER     writes them there

Machines in QEMU, without KVM, do the work of a trace on disks of a Scree whose chain has a filter
`trace`. Requests pass the page caches of the machines first, as in a data center:
they are small, so that the disks get more requests than the caches can answer. See crates/cache/traces/README.md.
"""

import argparse
import base64
import http.client
import itertools
import json
import lzma
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from scree_tools.common import process
from scree_tools.common.guest import Guest
from scree_tools.common.process import ROOT, TARGET, check, main, run
from scree_tools.common.scree import Scree
from scree_tools.traces import image as trace_image
from scree_tools.traces.image import FILES, SCALE, file_name

FOLDER = TARGET / "traces"
BLOCK = 4096

TRACE = '[[filter]]\nkind = "trace"\nbytes_max = "256M"\n'


def say(text):
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


# ------------------------------------------------------------------- machines


def start_scree(name):
    """A Scree with its data directory in a folder that also has the machines' logs."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    scree = Scree(folder / "scree", 4, None, ("--overcommit", 100000))
    scree.start()
    return scree


def import_image(scree, image, name):
    scree.cli("volume", "create", name, "--size", image.stat().st_size, "--replicas", 1)
    run("nbdcopy", "--flush", image, scree.export(name))
    scree.settle(name)


def attach(scree, name):
    """Records the requests of a volume from now on; returns QEMU's options for the disk."""
    policy = scree.folder.parent / "policy.toml"
    policy.write_text(f'volume = "{name}"\n{TRACE}')
    scree.cli("chain", "apply", policy)
    scree.export(name)
    return f"driver=nbd,server.type=unix,server.path={scree.socket},export={name}"


def machine(scree, memory_mib, disks, network=()):
    """A guest whose first disk, of a -blockdev of QEMU, is its system disk."""
    arguments = ["-cpu", "max", "-kernel", str(FOLDER / "vmlinuz"), "-initrd", str(FOLDER / "initrd.img")]
    arguments += ["-append", "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=0 panic=-1"]
    arguments += ["-device", "virtio-rng-pci", *network]
    for number, disk in enumerate(disks):
        arguments += ["-blockdev", f"{disk},node-name=disk{number}", "-device", f"virtio-blk-pci,drive=disk{number}"]
    return Guest(arguments, scree.folder.parent / "guest.log", memory_mib=memory_mib, boot_s=600)


def end(guest):
    """Shuts the guest down."""
    guest.send("systemctl poweroff")
    guest.process.wait(300)
    guest.log.close()


def recorded(scree, name):
    """The requests to a volume in order: (ns since the beginning, verb, offset, length)."""
    scree.cli("volume", "unexport", name)
    # The filter writes its trace once a second.
    time.sleep(3)
    done = subprocess.run(
        [str(process.BINARY), "trace", name, "-o", "json"],
        text=True,
        capture_output=True,
        env={**os.environ, "SCREE_DIR": str(scree.folder)},
    )
    # Missing requests are reported there, too.
    check(done.returncode == 0 and not done.stderr, f"the trace of {name}: {done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [(line["time_ns"], line["verb"], line["offset"], line["length"]) for line in lines]


# ------------------------------------------------------------------- the files


# The verbs of fio's logs; others do not matter to a cache.
ACTIONS = {"read": "read", "write": "write", "write-zeroes": "write", "trim": "trim"}


def store(folder, name, requests):
    """Writes (verb, offset, length) as a compressed log of fio without times."""
    lines = ["fio version 2 iolog", "d add", "d open"]
    lines += [f"d {ACTIONS[verb]} {offset} {length}" for verb, offset, length in requests if verb in ACTIONS]
    text = "\n".join(lines + ["d close", ""])
    packed = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
    (folder / f"{name}.iolog.xz").write_bytes(packed)
    reads = [(offset, length) for verb, offset, length in requests if verb == "read"]
    blocks = {block for offset, length in reads for block in range(offset // BLOCK, (offset + length - 1) // BLOCK + 1)}
    requested = sum((offset + length - 1) // BLOCK + 1 - offset // BLOCK for offset, length in reads)
    say(
        f"{name}: {len(reads):,} reads of {requested:,} blocks, of {len(blocks):,} that are not the same;"
        f" {len(requests) - len(reads):,} others; {len(packed):,} bytes"
    )


# ------------------------------------------------------------------------ boot

CLONES = 8
BOOT_MEMORY_MIB = 256

# In a boot storm each machine starts this long after the previous one.
STORM_S = 5

# The work of users on a machine, more frequent work first.
WORKS = [
    "man -P cat bash | wc -l; man -P cat systemd.unit | wc -l",
    "python3 -c 'import asyncio, ctypes, email, http.server, json, sqlite3, unittest'",
    "dpkg -l | wc -l; dpkg -S bin/ls; apt-cache stats",
    "printf '#include <stdio.h>\\nint main(void) { return puts(\"compiled\") < 0; }' >a.c; gcc -O2 a.c -o a; ./a",
    "git init -q r; cp -r /usr/share/perl/5.*.*/Pod r; git -C r add .;"
    " git -C r -c user.name=a -c user.email=a@b commit -qm one",
    "zcat -f /usr/share/doc/lib*/copyright /usr/share/doc/lib*/changelog* | wc",
    "curl -s http://localhost/ | wc; journalctl -b | wc -l",
    "perl -MPod::Usage -MFile::Find -MEncode -MStorable -e 'print \"loaded\\n\"'",
    "grep -rl socket /usr/lib/python3 /usr/share/perl | wc -l",
    "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=a -keyout k -out c; ssh-keygen -q -t ed25519 -N '' -f s",
    "find / -xdev -newer /etc/hostname | wc -l",
    "systemctl start postgresql; su postgres -c 'psql -c \"select count(*) from pg_class\"'; systemctl stop postgresql",
    "sqlite3 d 'create table t(a); insert into t values(1); select * from t'; vim.tiny -es +q a.c",
    "ls -lR /usr | wc -l; du -s /usr /var",
    "python3 -m compileall -q -f -d x /usr/lib/python3.11/json /usr/lib/python3.11/email",
    "tar -C /usr/share -cf - doc man perl | wc -c",
    # As a virus scanner.
    "tar -C / --one-file-system -cf - . | wc -c",
]
WORKS_EACH = 16


def boot(to):
    """Clones of one image boot and are used."""
    trace_image.debian(FOLDER, say)
    scree = start_scree("boots")
    try:
        import_image(scree, FOLDER / "system.img", "image")
        scree.snapshot("image", "golden", 600)
        weights = [1 / (rank + 2) for rank in range(len(WORKS))]
        all = []
        for number in range(CLONES):
            say(f"Clone {number + 1} of {CLONES}")
            name = f"clone-{number}"
            scree.cli("volume", "create", name, "--from", "golden")
            guest = machine(scree, BOOT_MEMORY_MIB, [attach(scree, name)])
            try:
                say("  is up")
                for work in random.Random(name).choices(WORKS, weights, k=WORKS_EACH):
                    guest.sh(f"({work}) </dev/null >/dev/null 2>&1 || true", 600)
                end(guest)
            finally:
                guest.kill()
            all.append(of_image(recorded(scree, name)))
    finally:
        scree.kill()
    store(to, "boots-in-turn", [request for one in all for _, *request in one])
    storm = [
        (time_ns + number * STORM_S * 10**9, *request) for number, one in enumerate(all) for time_ns, *request in one
    ]
    storm.sort(key=lambda one: one[0])
    store(to, "boots-together", [request for _, *request in storm])


def of_image(requests):
    """The blocks that a clone reads of its image: all except those that it has written before."""
    own, reads = set(), []
    for time_ns, verb, offset, length in requests:
        blocks = range(offset // BLOCK, (offset + length + BLOCK - 1) // BLOCK)
        if verb in ("write", "write-zeroes", "trim"):
            own.update(blocks)
        if verb != "read":
            continue
        run = []
        for block in list(blocks) + [None]:
            if block is not None and block not in own:
                run.append(block)
            elif run:
                reads.append((time_ns, "read", run[0] * BLOCK, len(run) * BLOCK))
                run = []
    return reads


# -------------------------------------------------------------------- database

DATABASE_MEMORY_MIB = 192
ROWS = 100_000 * SCALE

# A row by its popularity, which does not depend on its position.
ROW = f"\\set r random_zipfian(1, {ROWS}, 1.05)\n\\set aid 1 + permute(:r, {ROWS})\n"

SCRIPTS = {
    "select": (ROW + "SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n", 12),
    "change": (
        ROW
        + f"""\\set bid random(1, {SCALE})
\\set tid random(1, {10 * SCALE})
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
""",
        3,
    ),
    "range": (ROW + "SELECT sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN :aid AND :aid + 1000;\n", 1),
}
TRANSACTIONS = 40_000


def data_machine(scree, image, memory_mib, network=()):
    """A guest with a disk for data, which is recorded; its system disk is not."""
    import_image(scree, FOLDER / image, "data")
    system = scree.folder.parent / "system.qcow2"
    run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", FOLDER / "system.img", system)
    system = f"driver=qcow2,file.driver=file,file.filename={system}"
    guest = machine(scree, memory_mib, [system, attach(scree, "data")], network)
    guest.sh("mount -o noatime /dev/vdb /data")
    say("  is up")
    return guest


def database(to):
    """pgbench; and the same with two backups."""
    trace_image.debian(FOLDER, say)
    backup = "(tar -C /data -cf - pg | wc -c)"
    # In the guest: work AMOUNT SEED.
    for name, parts in (
        ("database", ["work 5 1"]),
        (
            "database-backups",
            [
                "work 2 1",
                f"{{ work 1 2 & {backup}; wait; }}",
                "work 2 3",
                f"{{ work 1 4 & {backup}; wait; }}",
                "work 2 5",
            ],
        ),
    ):
        say(f"{name}: a machine")
        scree = start_scree(name)
        try:
            guest = data_machine(scree, "database.img", DATABASE_MEMORY_MIB)
            try:
                files = ""
                for script, (text, weight) in SCRIPTS.items():
                    text = base64.b64encode(text.encode()).decode()
                    guest.sh(f"echo {text} | base64 -d >/tmp/{script}")
                    files += f" -f /tmp/{script}@{weight}"
                guest.sh("P=$(echo /usr/lib/postgresql/*/bin)")
                guest.sh('as() { su postgres -c "$*" </dev/null; }')
                guest.sh("as $P/pg_ctl -D /data/pg -l /tmp/postgres.log -w -t 300 start", 300)
                guest.sh(
                    f"work() {{ as $P/pgbench -h /tmp -n -c 4 -j 1 --random-seed=$2"
                    f" -t $(($1 * {TRANSACTIONS // 20})){files} postgres; }}"
                )
                for part in parts:
                    say(f"  {part}")
                    said = guest.sh(part, 3600)
                    say(f"  {' '.join(line for line in said.splitlines() if 'tps' in line)}")
                guest.sh("as $P/pg_ctl -D /data/pg -m fast -w stop; umount /data", 300)
                end(guest)
            finally:
                guest.kill()
            requests = recorded(scree, "data")
        finally:
            scree.kill()
        store(to, name, [request for _, *request in requests])


# ----------------------------------------------------------------- file server

FILES_MEMORY_MIB = 192
REQUESTS = 48_000
CLIENTS = 4
ZIPF = 0.9
PUT_ONE_IN = 20
# After this many requests of a client a requested file swaps its popularity with any other one.
CHANGES_AFTER = 25


class Clients:
    """Clients that request files by their popularity, and sometimes replace an old file by a new
    one."""

    def __init__(self, port):
        self.port = port
        self.names = list(range(FILES))
        random.Random("popularity").shuffle(self.names)
        self.weights = list(itertools.accumulate(1 / (rank + 1) ** ZIPF for rank in range(FILES)))
        self.sizes = trace_image.file_sizes()
        self.changing = threading.Lock()

    def work(self, seed, requests):
        errors = []

        def drawn(chance):
            return chance.choices(range(FILES), cum_weights=self.weights)[0]

        def client(number):
            chance = random.Random(f"{seed} {number}")
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
            try:
                for count in range(requests // CLIENTS):
                    if count % CHANGES_AFTER == 0:
                        one, other = drawn(chance), chance.randrange(FILES)
                        with self.changing:
                            self.names[one], self.names[other] = self.names[other], self.names[one]
                    file = self.names[drawn(chance)]
                    if chance.randrange(PUT_ONE_IN) == 0:
                        body = chance.randbytes(self.sizes[file])
                        connection.request("PUT", f"/{file_name(file)}", body)
                    else:
                        connection.request("GET", f"/{file_name(file)}")
                    answer = connection.getresponse()
                    answer.read()
                    if answer.status not in (200, 201, 204):
                        raise OSError(f"{answer.status} {answer.reason}")
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=client, args=[number]) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check(not errors, f"the file server: {errors}")


def files(to):
    """A web server; and the same with a backup of all files."""
    trace_image.debian(FOLDER, say)
    trace_image.files(FOLDER, say)
    port = 18000 + os.getpid() % 1000
    network = [
        "-netdev",
        f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:80",
        "-device",
        "virtio-net-pci,netdev=net",
    ]
    for name, with_backup in (("files", False), ("files-backup", True)):
        say(f"{name}: a machine")
        scree = start_scree(name)
        try:
            guest = data_machine(scree, "files.img", FILES_MEMORY_MIB, network)
            try:
                guest.sh(
                    "interface=$(ls /sys/class/net | grep -v lo); ip link set $interface up;"
                    " ip address add 10.0.2.15/24 dev $interface; systemctl restart nginx",
                    120,
                )
                clients = Clients(port)
                say("  the first half")
                clients.work("first", REQUESTS // 2)
                if with_backup:
                    say("  a backup")
                    guest.sh("{ tar -C /data -cf - files | wc -c >/tmp/backup & }")
                    clients.work("backup", REQUESTS // 16)
                    guest.sh("wait", 1200)
                say("  the second half")
                clients.work("second", REQUESTS // 2)
                guest.sh("systemctl stop nginx; umount /data", 300)
                end(guest)
            finally:
                guest.kill()
            requests = recorded(scree, "data")
        finally:
            scree.kill()
        store(to, name, [request for _, *request in requests])


# ------------------------------------------------------------------------- all

RECORDED = {"boot": boot, "database": database, "files": files}


def traces():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=RECORDED, action="append")
    parser.add_argument("--to", type=Path, default=ROOT / "crates" / "cache" / "traces")
    arguments = parser.parse_args()
    check(os.geteuid() == 0, "tools/run traces needs root: it makes an image of Debian")
    FOLDER.mkdir(parents=True, exist_ok=True)
    arguments.to.mkdir(parents=True, exist_ok=True)
    for name in arguments.only or RECORDED:
        RECORDED[name](arguments.to)


if __name__ == "__main__":
    # A regular exit, so that child processes end, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main(traces)
