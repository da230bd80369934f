"""Two controllers on one PostgreSQL that are killed again and again, while
clients use them; and a check that every request was carried out once or not at all.

  tools/run check chaos [--minutes 5 | --seconds 20] [--seed N] [--clients 4] [--agents 2]

Each client has volumes and snapshots of its own. It creates, snapshots, clones,
attaches, writes, detaches and deletes through any controller, and records of each
request whether it was answered (it must hold), refused (nothing has changed) or
lost (it may hold, once). Meanwhile controllers are killed with -9 and started
again, and PostgreSQL's connections are cut. At the end

  * everything that was answered as created exists once, with the requested size;
  * everything that was answered as deleted is deleted, and nothing exists that was not requested;
  * no attachment, snapshot or volume is left half way;
  * writes that were flushed through an export can be read after a detach, from
    the volume and from the clones of its snapshots;
  * no epoch ever decreased, no volume had two writers, and no name two owners.

The seed determines the requests. The clock determines which replies are lost.
"""

import argparse
import random
import shutil
import struct
import threading
import time

import nbd

from scree_tools.common.process import Failed, check, main
from scree_tools.common.service import Refused, Site, Unknown, until

MIB = 1 << 20
BLOCK = 4096
SIZES = [4 * MIB, 8 * MIB, 16 * MIB]
# The first blocks of each volume are written.
BLOCKS = 64
# Number of volumes of each client; their content is read at the end.
VOLUMES_MAX = 5
SNAPSHOTS_MAX = 8
SETTLED_WITHIN_S = 90
ZEROES = bytes(BLOCK)


def content(serial):
    return struct.pack("<8sQ", b"CHAOSBLK", serial) * (BLOCK // 16) if serial else ZEROES


class Disk:
    """The possible contents of a volume's blocks: serials, of which 0 is the empty block. A
    single serial is certain; several are possible after a lost write."""

    def __init__(self, blocks=None):
        self.blocks = {block: set(serials) for block, serials in (blocks or {}).items()}

    def copy(self):
        return Disk(self.blocks)

    def check(self, name, handle):
        for block in range(BLOCKS):
            data = bytes(handle.pread(BLOCK, block * BLOCK))
            allowed = self.blocks.get(block, {0})
            if not any(data == content(serial) for serial in allowed):
                head = struct.unpack_from("<8sQ", data)
                raise Failed(f"{name}, block {block} holds {head}, allowed are {sorted(allowed)}")


class Volume:
    def __init__(self, name, size, disk=None):
        self.name, self.size = name, size
        self.disk = disk or Disk()
        # None: unknown.
        self.exists = None
        self.attachment = None
        self.uri = None


class Snapshot:
    def __init__(self, name, volume, disk):
        self.name, self.volume, self.size, self.disk = name, volume.name, volume.size, disk
        self.exists = None
        # Its consistency point may come later, so it may contain later writes.
        self.is_open = True


class Client(threading.Thread):
    """A client that uses volumes and snapshots of its own."""

    def __init__(self, site, number, seed, stop):
        super().__init__(daemon=True)
        self.site, self.number, self.stop = site, number, stop
        self.random = random.Random(f"{seed}/{number}")
        self.apis = [site.api(at) for at in range(len(site.ports))]
        self.volumes, self.snapshots = [], []
        self.serial = 0
        self.counts = {"answered": 0, "refused": 0, "lost": 0}
        self.failure = None

    def run(self):
        try:
            while not self.stop.is_set():
                self.step()
        except Exception as error:  # reported when the thread is joined
            self.failure = error

    def ask(self, method, path, body=None, key=None):
        try:
            answer = self.random.choice(self.apis).ask(method, path, body, key)
            self.counts["answered"] += 1
            return answer
        except Refused:
            self.counts["refused"] += 1
            raise
        except Unknown:
            self.counts["lost"] += 1
            # The controller is restarted.
            self.stop.wait(0.05)
            raise

    def insist(self, method, path, body=None, timeout_s=SETTLED_WITHIN_S):
        """Repeats an idempotent request until there is an answer."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                return self.ask(method, path, body)
            except Unknown as lost:
                if time.monotonic() > end:
                    raise Failed(f"no answer in {timeout_s} s: {lost}") from lost
                time.sleep(0.1)

    def fresh(self, what):
        self.serial += 1
        return f"{what}-{self.number}-{self.serial}"

    def there(self, things):
        return [thing for thing in things if thing.exists]

    def step(self):
        volumes = self.there(self.volumes)
        if not volumes:
            return self.create()
        volume = self.random.choice(volumes)
        attached = volume.attachment is not None
        many = len(self.there(self.snapshots)) >= SNAPSHOTS_MAX
        deeds = [
            (3 if len(volumes) < VOLUMES_MAX else 0, self.create),
            (0 if many else 3, lambda: self.snapshot(volume)),
            (2 if len(volumes) < VOLUMES_MAX else 0, self.clone),
            (0 if attached else 5, lambda: self.attach(volume)),
            (8 if attached else 0, lambda: self.write(volume)),
            (3 if attached else 0, lambda: self.detach(volume)),
            (1 if attached else 2, lambda: self.delete(volume)),
            (4 if many else 1, self.forget),
        ]
        weights, does = zip(*deeds)
        self.random.choices(does, weights)[0]()

    def submit(self, thing, path, body):
        """Requests something new. A lost request is repeated half of the time: "exists already"
        is then an answer, unless the request has a key, with which the first answer is
        repeated."""
        things = self.volumes if isinstance(thing, Volume) else self.snapshots
        things.append(thing)
        is_lost = False
        key = f"{self.random.random()}" if self.random.random() < 0.5 else None
        while True:
            try:
                answer = self.ask("POST", path, body, key)
            except Refused as refused:
                if not (is_lost and key is None and refused.code == "already_exists"):
                    check(not is_lost, f"{body} was lost, and then refused: {refused}")
                    things.remove(thing)
                    raise
                kind = path.split("?")[0]
                answer = self.insist("GET", f"{kind}/{thing.name}")
            except Unknown:
                if self.random.random() < 0.5:
                    is_lost = True
                    continue
                return None
            thing.exists = True
            check(answer["name"] == thing.name and answer["size"] == thing.size, f"requested {body}, and got {answer}")
            return answer

    def create(self):
        volume = Volume(self.fresh("disk"), self.random.choice(SIZES))
        self.submit(volume, "/v1/volumes", {"name": volume.name, "size": volume.size})

    def snapshot(self, volume):
        snapshot = Snapshot(self.fresh("snap"), volume, volume.disk.copy())
        body = {"volume": volume.name, "name": snapshot.name}
        answer = self.submit(snapshot, "/v1/snapshots", body)
        snapshot.is_open = answer is None or not answer["taken"]

    def clone(self):
        snapshots = self.there(self.snapshots)
        if not snapshots:
            return
        snapshot = self.random.choice(snapshots)
        settled = self.insist("GET", f"/v1/snapshots/{snapshot.name}?wait=20")
        snapshot.is_open = not settled["taken"]
        check(settled["state"] in ("completed", "pending", "error"), f"{settled}")
        if settled["state"] == "error":
            is_deleted = all(one.name != snapshot.volume for one in self.there(self.volumes))
            check(is_deleted, f"a snapshot of an existing volume failed: {settled}")
            snapshot.exists = False
            self.insist("DELETE", f"/v1/snapshots/{snapshot.name}")
            return
        if settled["state"] == "pending":
            return
        volume = Volume(self.fresh("clone"), snapshot.size, snapshot.disk.copy())
        self.submit(volume, "/v1/volumes", {"name": volume.name, "from": snapshot.name})

    def attach(self, volume):
        host = f"h{self.random.randint(1, len(self.site.agents))}"
        body = {"volume": volume.name, "host": host}
        # A repeated request has the same desired state.
        found = self.insist("POST", "/v1/attachments?wait=30", body)
        found = self.settled(found, "attached")
        check(found["host"] == host and found["volume"] == volume.name, f"{body}: {found}")
        volume.attachment, volume.uri = found["id"], found["uri"]

    def settled(self, found, state):
        """The attachment, once it is in `state`."""
        end = time.monotonic() + SETTLED_WITHIN_S
        while found["state"] != state:
            check(time.monotonic() < end, f"not {state} in {SETTLED_WITHIN_S} s: {found}")
            found = self.insist("GET", f"/v1/attachments/{found['id']}?wait=10")
        return found

    def write(self, volume):
        """Writes a few blocks and flushes: then they are certain. An export works without
        controllers, so an error is a failure."""
        handle = opened(volume.uri)
        for _ in range(self.random.randint(1, 8)):
            block = self.random.randrange(BLOCKS)
            self.serial += 1
            handle.pwrite(content(self.serial), block * BLOCK)
            volume.disk.blocks[block] = {self.serial}
            for snapshot in self.snapshots:
                if snapshot.is_open and snapshot.volume == volume.name:
                    snapshot.disk.blocks.setdefault(block, {0}).add(self.serial)
        handle.flush()
        if self.random.random() < 0.2:
            volume.disk.check(volume.name, handle)
        handle.shutdown()

    def detach(self, volume):
        found = self.insist("DELETE", f"/v1/attachments/{volume.attachment}?wait=30")
        self.settled(found, "detached")
        volume.attachment = volume.uri = None

    def delete(self, volume):
        if volume.attachment is not None:
            # The volume is in use: the request must be refused.
            try:
                self.ask("DELETE", f"/v1/volumes/{volume.name}")
            except Refused as refused:
                check(refused.code == "conflict", f"deleting what is in use: {refused}")
            except Unknown:
                pass
            else:
                raise Failed(f"{volume.name} was deleted while it was attached")
            return
        self.delete_surely(volume, f"/v1/volumes/{volume.name}")

    def delete_surely(self, thing, path):
        """Deletes something, and repeats the request until the result is certain."""
        thing.exists = None
        try:
            self.insist("DELETE", path)
        except Refused as refused:
            check(refused.code == "not_found" or "being deleted" in str(refused), f"deleting {thing.name}: {refused}")
        thing.exists = False

    def forget(self):
        snapshots = self.there(self.snapshots)
        if snapshots:
            snapshot = self.random.choice(snapshots)
            self.delete_surely(snapshot, f"/v1/snapshots/{snapshot.name}")


def opened(uri):
    handle = nbd.NBD()
    handle.connect_uri(uri)
    return handle


class Saboteur(threading.Thread):
    """Kills controllers and cuts connections."""

    def __init__(self, site, seed, stop):
        super().__init__(daemon=True)
        self.site, self.stop = site, stop
        self.random = random.Random(f"{seed}/saboteur")
        self.kills = self.cuts = 0
        self.failure = None

    def run(self):
        try:
            while not self.stop.wait(self.random.uniform(0.2, 1.5)):
                self.random.choice([self.kill, self.kill, self.cut])()
        except Exception as error:  # reported when the thread is joined
            self.failure = error

    def kill(self):
        """Kills one controller, or both at once."""
        victims = [c for c in self.site.controllers if self.random.random() < 0.6]
        for victim in victims:
            victim.kill()
            self.kills += 1
        self.stop.wait(self.random.uniform(0, 0.7))
        for victim in victims:
            victim.start()

    def cut(self):
        share = self.random.choice([0.3, 1])
        self.cuts += 1
        self.site.postgres.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'scree' "
            f"AND pid <> pg_backend_pid() AND random() < {share}",
            "postgres",
        )


class Watcher(threading.Thread):
    """Checks the invariants that hold at every moment."""

    # If the saboteur cuts its connection, it retries.
    LOOK = """
        SELECT 'epoch', id, epoch::text FROM volumes
        UNION ALL SELECT 'writers', volume, count(*)::text FROM attachments
            WHERE state <> 'detached' AND access = 'read-write' GROUP BY volume HAVING count(*) > 1
        UNION ALL SELECT 'names', name, count(*)::text FROM volumes
            WHERE deleting = 0 GROUP BY name HAVING count(*) > 1
        UNION ALL SELECT 'snapshots', name, count(*)::text FROM snapshots
            GROUP BY name HAVING count(*) > 1
    """

    def __init__(self, postgres, stop):
        super().__init__(daemon=True)
        self.postgres, self.stop = postgres, stop
        self.epochs = {}
        self.looks = 0
        self.failure = None

    def run(self):
        try:
            while not self.stop.wait(0.3):
                self.look()
        except Exception as error:  # reported when the thread is joined
            self.failure = error

    def look(self):
        for what, which, number in self.postgres.try_sql(self.LOOK) or []:
            check(what == "epoch", f"{number} {what} of {which} at once")
            before = self.epochs.get(which, 0)
            check(int(number) >= before, f"the epoch of {which} went from {before} to {number}")
            self.epochs[which] = int(number)
        self.looks += 1


class Chaos:
    def __init__(self, arguments):
        self.arguments = arguments
        self.site = Site(controllers=2, agents=arguments.agents, postgres_settings=("-c", "fsync=off"))
        self.stop = threading.Event()
        seed = arguments.seed
        self.clients = [Client(self.site, n, seed, self.stop) for n in range(arguments.clients)]
        self.saboteur = Saboteur(self.site, seed, self.stop)
        self.watcher = Watcher(self.site.postgres, self.stop)

    def run(self, seconds):
        workers = [*self.clients, self.saboteur, self.watcher]
        for worker in workers:
            worker.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not any(worker.failure for worker in workers):
            self.stop.wait(0.2)
        self.stop.set()
        for worker in workers:
            worker.join(SETTLED_WITHIN_S + 60)
            check(not worker.is_alive(), f"{worker} does not end")
        for worker in workers:
            if worker.failure is not None:
                raise worker.failure
        for controller in self.site.controllers:
            if not controller.is_running():
                controller.start()
        for agent in self.site.agents:
            check(agent.is_running(), "an agent ended by itself:\n" + agent.log_tail())
        self.watcher.look()

    def things(self, kind):
        return [thing for client in self.clients for thing in getattr(client, kind)]

    def check(self):
        """The final checks, when nothing is killed any more."""
        postgres = self.site.postgres
        until("every attachment has settled", self.attachments_settled, SETTLED_WITHIN_S, 0.5)
        self.check_names("volumes", "WHERE deleting = 0")
        self.check_names("snapshots", "")
        until("every snapshot is completed", lambda: self.snapshots_settled(), SETTLED_WITHIN_S, 0.5)
        until(
            "deleted volumes are removed",
            lambda: postgres.sql("SELECT id FROM volumes WHERE deleting = 1") == [],
            SETTLED_WITHIN_S,
            0.5,
        )
        check(postgres.sql("SELECT id FROM jobs WHERE answer IS NULL") == [], "a job is left")
        left = postgres.sql(
            "SELECT a.id, a.state FROM attachments a WHERE a.state <> 'detached' "
            "AND NOT EXISTS (SELECT 1 FROM volumes v WHERE v.id = a.volume)"
        )
        check(left == [], f"attachments of deleted volumes: {left}")
        for client in self.clients:
            self.check_content(client)
        self.watcher.look()

    def attachments_settled(self):
        rows = self.site.postgres.sql(
            "SELECT v.name, a.desired, a.state, a.reported_generation = a.generation, COALESCE(a.problem, '') "
            "FROM attachments a JOIN volumes v ON v.id = a.volume WHERE a.state <> 'detached'"
        )
        self.moving = [row for row in rows if row[1:4] != ("1", "attached", "t")]
        return not self.moving

    def snapshots_settled(self):
        rows = self.site.postgres.sql("SELECT name, state, volume_name FROM snapshots")
        there = {volume.name for volume in self.things("volumes") if volume.exists is not False}
        for name, state, volume in rows:
            check(state != "error" or volume not in there, f"snapshot {name} is in error")
        return all(state != "pending" for _, state, _ in rows)

    def check_names(self, kind, where):
        rows = self.site.postgres.sql(f"SELECT name, size_bytes FROM {kind} {where}")
        found = {}
        for name, size in rows:
            check(name not in found, f"{name} exists twice")
            found[name] = int(size)
        requested = {thing.name: thing for thing in self.things(kind)}
        for name, size in found.items():
            check(name in requested, f"{name} exists and was not requested")
            thing = requested[name]
            check(thing.exists is not False, f"{name} exists, and was answered as deleted")
            check(size == thing.size, f"{name} has {size} bytes, {thing.size} were requested")
            # The lost request was carried out.
            thing.exists = True
        for name, thing in requested.items():
            check(name in found or not thing.exists, f"{name} was answered as created, and does not exist")

    def check_content(self, client):
        for volume in client.there(client.volumes):
            if volume.attachment is None:
                client.attach(volume)
            handle = opened(volume.uri)
            volume.disk.check(volume.name, handle)
            handle.shutdown()
            # Closed and opened again: the blocks come from the units.
            client.detach(volume)
            client.attach(volume)
            handle = opened(volume.uri)
            volume.disk.check(volume.name, handle)
            handle.shutdown()
            client.detach(volume)
        for snapshot in client.there(client.snapshots):
            volume = Volume(client.fresh("check"), snapshot.size, snapshot.disk.copy())
            body = {"name": volume.name, "from": snapshot.name}
            client.submit(volume, "/v1/volumes", body)
            client.attach(volume)
            handle = opened(volume.uri)
            volume.disk.check(f"{snapshot.name} of {snapshot.volume}", handle)
            handle.shutdown()
            client.detach(volume)
            client.delete_surely(volume, f"/v1/volumes/{volume.name}")


def chaos():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    seconds = arguments.seconds or arguments.minutes * 60
    begun = time.monotonic()
    work = Chaos(arguments)
    try:
        work.run(seconds)
        work.check()
    except Failed as failure:
        moving = getattr(work, "moving", [])
        logs = "\n".join(work.site.logs())
        raise Failed(
            f"seed {arguments.seed}: {failure}\n{moving or ''}\n{logs}\nThe logs are kept: {work.site.folder}"
        ) from failure
    finally:
        work.site.stop()
    shutil.rmtree(work.site.folder, ignore_errors=True)
    total = {key: sum(client.counts[key] for client in work.clients) for key in work.clients[0].counts}
    print(
        f"chaos: {total['answered']:,} requests answered, {total['refused']:,} refused, "
        f"{total['lost']:,} lost; {work.saboteur.kills} kills of controllers, {work.saboteur.cuts} "
        f"cuts of PostgreSQL's connections; {len(work.things('volumes'))} volumes and "
        f"{len(work.things('snapshots'))} snapshots checked: each request was carried out once or "
        f"not at all ({time.monotonic() - begun:.0f} s)"
    )


if __name__ == "__main__":
    main(chaos)
