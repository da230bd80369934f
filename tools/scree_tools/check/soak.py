"""Rounds of random writes and flushes, each ended by kill -9, each checked.

  tools/run check soak [--rounds 200] [--seed N]

After every restart each block must have its content at the last flush or a later
one, and the blocks together must be a state that the disk really had: if a write is
visible, every write that was acknowledged before it was sent is visible, too.
Snapshots must keep their content.

A seed determines the writes, and the kills as far as the clock allows.
"""

import argparse
import hashlib
import random
import select
import shutil
import struct
import subprocess
import time

import nbd

from scree_tools.common.process import BINARY, TARGET, Failed, check, main
from scree_tools.common.scree import Scree

BLOCK = 4096
BLOCKS = 16 * 1024
IN_FLIGHT = 24
FOLDER = TARGET / "soak"
ZEROES = bytes(BLOCK)


def content(block, serial):
    """The content of a block after the write with this serial; serial 0 is an unwritten block."""
    if serial == 0:
        return ZEROES
    return struct.pack("<8sQQQ", b"SOAKDATA", block, serial, block * serial) * (BLOCK // 32)


def serial_in(data):
    return 0 if data == ZEROES else struct.unpack_from("<8sQQ", data)[2]


class Write:
    """A write of a run of blocks. Times are event counts of this program."""

    __slots__ = ("serial", "first", "count", "zero", "sent", "acknowledged")

    def __init__(self, serial, first, count, zero, sent):
        self.serial, self.first, self.count, self.zero, self.sent = serial, first, count, zero, sent
        self.acknowledged = None


class Model:
    """The possible contents of the disk."""

    def __init__(self):
        # For each block the writes since its content was last certain, in order; the first entry is
        # the certain state. Overlapping writes are never in flight together, so the order is known.
        self.history = [[None] for _ in range(BLOCKS)]
        self.writes = []
        self.busy = set()
        self.clock = 0

    def now(self):
        self.clock += 1
        return self.clock

    def flushed(self, sent):
        """A flush that was sent at this time has been acknowledged: writes acknowledged before
        it are durable."""
        rest = []
        for write in self.writes:
            if write.acknowledged is None or write.acknowledged > sent:
                rest.append(write)
                continue
            for block in range(write.first, write.first + write.count):
                history = self.history[block]
                if write in history:
                    del history[: history.index(write)]
        self.writes = rest

    def check(self, read):
        """Compares with the disk after a crash, and continues from its state."""
        seen = []
        for block in range(BLOCKS):
            data, history = read(block), self.history[block]
            found = None
            for place, write in enumerate(history):
                serial = write.serial if write is not None and not write.zero else 0
                if data == content(block, serial):
                    # Of writes with the same content (zeroes), the latest one.
                    found = place
            if found is None:
                allowed = [0 if write is None or write.zero else write.serial for write in history]
                raise Failed(
                    f"block {block} holds serial {serial_in(data)} "
                    f"(whole: {data == content(block, serial_in(data))}), allowed are {allowed}: "
                    + ("a flushed write is lost" if serial_in(data) < max(allowed) else "a mixture")
                )
            seen.append(found)
        # The latest visible write: all writes that were acknowledged before it was sent must be
        # visible.
        pending = set(self.writes)
        latest = max(
            (
                self.history[block][seen[block]].sent
                for block in range(BLOCKS)
                if self.history[block][seen[block]] in pending and not self.history[block][seen[block]].zero
            ),
            default=0,
        )
        for block in range(BLOCKS):
            for write in self.history[block][seen[block] + 1 :]:
                check(
                    write.acknowledged is None or write.acknowledged > latest,
                    f"block {block} lacks serial {write.serial}, which was acknowledged before a "
                    "write that is there was sent: states are mixed",
                )
            self.history[block] = [self.history[block][seen[block]]]
        self.writes = []
        self.busy = set()


class Client:
    """Two connections to one volume, with many requests in flight."""

    def __init__(self, uri):
        self.handles = []
        for _ in range(2):
            handle = nbd.NBD()
            handle.connect_uri(uri)
            self.handles.append(handle)

    def turn(self, timeout_ms):
        """Makes progress on the connections; False if one has failed."""
        poll = select.poll()
        for handle in self.handles:
            if handle.aio_is_dead() or handle.aio_is_closed():
                return False
            direction = handle.aio_get_direction()
            events = 0
            if direction & nbd.AIO_DIRECTION_READ:
                events |= select.POLLIN
            if direction & nbd.AIO_DIRECTION_WRITE:
                events |= select.POLLOUT
            poll.register(handle.aio_get_fd(), events)
        ready = dict(poll.poll(timeout_ms))
        try:
            for handle in self.handles:
                events = ready.get(handle.aio_get_fd(), 0)
                if events & select.POLLOUT and handle.aio_get_direction() & nbd.AIO_DIRECTION_WRITE:
                    handle.aio_notify_write()
                elif events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    handle.aio_notify_read()
        except nbd.Error:
            return False
        return True


class Soak:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.model = Model()
        self.serial = 0
        self.counts = {"writes": 0, "flushes": 0, "kills": 0, "snapshots": 0}
        self.snapshots = []
        # A small journal, early destaging and short retention, so that each round has ring wraps,
        # versions, checkpoints and reclaiming.
        self.scree = Scree(
            FOLDER / "scree",
            5,
            arguments=["--journal-size", "16M", "--destage-after", "1s", "--grace", "1s", "--retain-count", "3"],
        )

    def write(self, client, handle):
        """Sends one write or a flush, or nothing if all its blocks are busy."""
        model, chance = self.model, self.random.random()
        if chance < 0.02:
            sent = model.now()

            def flushed(error):
                if not error.value:
                    self.counts["flushes"] += 1
                    model.flushed(sent)
                self.in_flight -= 1
                return 1

            handle.aio_flush(completion=flushed)
            self.in_flight += 1
            return
        # Half of the writes go to a hot sixteenth of the disk.
        room = BLOCKS // 16 if self.random.random() < 0.5 else BLOCKS
        count = min(self.random.choice((1, 1, 1, 2, 4, 16, 64)), room)
        first = self.random.randrange(room - count + 1)
        blocks = range(first, first + count)
        if not model.busy.isdisjoint(blocks):
            return
        self.serial += 1
        write = Write(self.serial, first, count, chance < 0.05, model.now())
        model.busy.update(blocks)
        model.writes.append(write)
        for block in blocks:
            model.history[block].append(write)

        def written(error):
            if not error.value:
                self.counts["writes"] += 1
                write.acknowledged = model.now()
                model.busy.difference_update(blocks)
            self.in_flight -= 1
            return 1

        flags = 0
        if write.zero:
            handle.aio_zero(count * BLOCK, first * BLOCK, completion=written, flags=flags)
        else:
            data = bytearray(b"".join(content(block, self.serial) for block in blocks))
            buffer = nbd.Buffer.from_bytearray(data)
            handle.aio_pwrite(buffer, first * BLOCK, completion=written, flags=flags)
        self.in_flight += 1

    def round(self):
        """Writes until a random moment, kills Scree, starts it, and checks."""
        client = Client(self.uri)
        self.in_flight = 0
        deadline = time.monotonic() + self.random.uniform(0.01, 1.5)
        helper = None
        snapshot_at = deadline - self.random.uniform(0, 0.3) if self.random.random() < 0.3 else None
        while time.monotonic() < deadline:
            if snapshot_at and time.monotonic() > snapshot_at:
                # A snapshot in between: a destage races the kill.
                snapshot_at = None
                helper = subprocess.Popen(
                    [str(BINARY), "snapshot", "create", "disk", "--dir", str(self.scree.folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            for handle in client.handles:
                while self.in_flight < IN_FLIGHT:
                    before = self.in_flight
                    self.write(client, handle)
                    if self.in_flight == before:
                        break
            check(client.turn(20), "a connection ended before its time\n" + self.scree.log_tail())
        self.kill()
        # Writes that were answered before the kill count as acknowledged.
        for _ in range(1000):
            if not client.turn(10):
                break
        if helper is not None:
            helper.wait()
        # Sometimes it is killed again while it recovers.
        while self.random.random() < 0.2:
            self.scree.process = subprocess.Popen(
                [str(BINARY), "up", "--dir", str(self.scree.folder)] + self.scree.arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(self.random.uniform(0.005, 0.2))
            self.kill()
        self.start()
        everything = self.everything(self.uri)
        self.model.check(lambda block: everything[block * BLOCK : (block + 1) * BLOCK])

    def kill(self):
        self.scree.kill()
        self.counts["kills"] += 1

    def start(self):
        self.scree.start()
        self.uri = self.scree.export("disk")

    def everything(self, uri):
        handle = nbd.NBD()
        handle.connect_uri(uri)
        step = 1 << 20
        data = b"".join(bytes(handle.pread(step, at)) for at in range(0, BLOCKS * BLOCK, step))
        handle.shutdown()
        return data

    def remember(self, name):
        """Takes a snapshot of an idle disk and records its content."""
        data = self.everything(self.uri)
        self.scree.snapshot("disk", name)
        self.snapshots.append((name, hashlib.sha256(data).hexdigest()))

    def recall(self):
        """Checks a snapshot through a clone, and deletes both."""
        name, digest = self.snapshots.pop(0)
        self.scree.cli("volume", "create", f"of-{name}", "--from", name)
        data = self.everything(self.scree.export(f"of-{name}", "--read-only"))
        check(hashlib.sha256(data).hexdigest() == digest, f"snapshot {name} has changed")
        self.scree.cli("volume", "unexport", f"of-{name}")
        self.scree.cli("volume", "delete", f"of-{name}")
        self.scree.cli("snapshot", "delete", name)
        self.counts["snapshots"] += 1


def prove_the_checker():
    """Checks the checker: it must reject a lost flush and a mixture of states, and accept every
    state after a crash."""

    def disk(*serials):
        model = Model()
        for number, (serial, flushed) in enumerate(((1, True), (2, False), (3, False))):
            write = Write(serial, number, 1, False, model.now())
            model.writes.append(write)
            model.history[number].append(write)
            write.acknowledged = model.now()
            if flushed:
                model.flushed(model.now())
        try:
            model.check(lambda block: content(block, serials[block] if block < 3 else 0))
        except Failed:
            return False
        return True

    good = disk(1, 2, 3) and disk(1, 2, 0) and disk(1, 0, 0)
    bad = disk(0, 2, 3) or disk(1, 0, 3) or disk(1, 9, 0)
    check(good and not bad, "the checker itself is wrong")


def soak():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    arguments = parser.parse_args()
    prove_the_checker()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    print(f"soak: {arguments.rounds} rounds, seed {arguments.seed}", flush=True)
    begun = time.monotonic()
    soak = Soak(arguments.seed)
    try:
        soak.scree.start()
        soak.scree.cli("volume", "create", "disk", "--size", BLOCKS * BLOCK, "--replicas", 2)
        soak.uri = soak.scree.export("disk")
        for number in range(1, arguments.rounds + 1):
            try:
                soak.round()
                if number % 5 == 1:
                    soak.remember(f"round-{number}")
                if len(soak.snapshots) > 4 or number == arguments.rounds:
                    soak.recall()
            except Failed as failure:
                raise Failed(f"round {number}, seed {arguments.seed}: {failure}") from failure
            if number % 10 == 0:
                room = sum(f.stat().st_blocks * 512 for f in soak.scree.folder.rglob("*") if f.is_file())
                print(
                    f"  {number} rounds, {time.monotonic() - begun:.0f} s; its folder takes {room >> 20:,} MiB",
                    flush=True,
                )
    except Failed as failure:
        raise Failed(f"{failure}\nThe folder and its log are kept: {FOLDER}") from failure
    finally:
        soak.scree.kill()
    shutil.rmtree(FOLDER, ignore_errors=True)
    counts = soak.counts
    print(
        f"soak: {arguments.rounds} rounds, {counts['kills']} kills, {counts['writes']:,} writes and "
        f"{counts['flushes']:,} flushes acknowledged, {counts['snapshots']} snapshots checked: "
        f"nothing flushed was lost, no states were mixed ({time.monotonic() - begun:.0f} s)"
    )


if __name__ == "__main__":
    main(soak)
