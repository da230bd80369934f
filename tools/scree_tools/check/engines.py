"""Scree on real distributed engines whose storage daemons are killed.

  tools/run check engines                  everything, about 15 minutes; needs root and 5 GB of memory
  tools/run check engines --only ENGINE    one of: rados s3 gluster; may be given again
  tools/run check engines --keep           leaves the engines running

Ceph (three OSDs, S3 gateway) and GlusterFS (three bricks) run on loopback, from the
distribution's packages (tools/packages ceph gluster). On each, in this order: the
conformance suite, where the engine has one of its own; then a volume that is written
through NBD while one of three storage daemons is killed and restarted; kill -9 of
Scree; every block verified; the same again, read while another daemon is killed; and
the volume is deleted, after which its space is reclaimed.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from scree_tools.common.fio import Fio
from scree_tools.common.process import ROOT, TARGET, check, main, run
from scree_tools.common.scree import Scree

FOLDER = TARGET / "engines"
CEPH = FOLDER / "ceph"
GLUSTER = FOLDER / "gluster"
MIB = 1 << 20
SIZE = 256 * MIB
# Writing must last longer than a daemon is down.
RATE = "16m"


def say(text):
    print(text, flush=True)


def tool(name, *arguments, **options):
    return run(ROOT / "tools" / name, *arguments, **options)


def wait_until(holds, within_s, otherwise):
    until = time.monotonic() + within_s
    while not holds():
        check(time.monotonic() < until, f"{otherwise} after {within_s} s")
        time.sleep(0.2)


def conformance(*arguments, **environment):
    """Runs a test binary on a real engine, and checks that it reports at least one test."""
    said = run("cargo", "test", "--quiet", *arguments, cwd=ROOT, env={**os.environ, **environment})
    check(" 0 passed" not in said.split("test result:")[-1], f"no test ran: {said}")
    say("    " + said.split("test result:")[-1].strip().splitlines()[0])


class Engine:
    """An engine for units, some of whose daemons can be killed."""

    def __init__(self, name, urls, environment, lose, bring_back, wait):
        self.name, self.urls, self.environment = name, urls, environment
        self.lose, self.bring_back, self.wait = lose, bring_back, wait

    def during(self, fio, number):
        """Kills a daemon while fio runs, and restarts it."""
        time.sleep(2)
        check(fio.is_running(), "fio was through before a daemon was killed:\n" + fio.log.read_text())
        say(f"    daemon {number} is killed")
        self.lose(number)
        time.sleep(6)
        say(f"    daemon {number} comes back")
        self.bring_back(number)
        fio.wait()
        self.wait()


def total(scree, field):
    return sum(unit[field] or 0 for unit in scree.cli("unit", "list"))


def exercise(engine):
    """Runs the steps of the head on one engine."""
    folder = FOLDER / f"scree-{engine.name}"
    os.environ.update(engine.environment)
    scree = Scree(
        folder,
        units=0,
        arguments=(
            "--journal-size",
            "32M",
            "--retain-count",
            0,
            "--grace",
            "0s",
            "--overcommit",
            100000,
        ),
    )
    scree.start()
    try:
        for url in engine.urls:
            scree.cli("unit", "add", url)
        scree.cli("volume", "create", "disk", "--size", SIZE, "--replicas", 1)
        uri = scree.export("disk")
        say("  written while a daemon is killed")
        engine.during(Fio.write(uri, SIZE, 1, FOLDER, RATE), 0)
        say("  kill -9 of Scree, and each block verified")
        scree.kill()
        scree.start()
        wait_until(
            lambda: subprocess.run(["nbdinfo", "--size", uri], capture_output=True).returncode == 0,
            60,
            "the volume is not served again",
        )
        Fio.verify(uri, SIZE, 1, FOLDER).wait()
        say("  overwritten while another daemon is killed")
        engine.during(Fio.write(uri, SIZE, 2, FOLDER, RATE), 1)
        scree.snapshot("disk", "all", 120)
        say("  verified from the units while the third one is killed")
        scree.stop()
        scree.start()
        wait_until(
            lambda: subprocess.run(["nbdinfo", "--size", uri], capture_output=True).returncode == 0,
            60,
            "the volume is not served again",
        )
        verify = Fio.verify(uri, SIZE, 2, FOLDER)
        engine.lose(2)
        time.sleep(5)
        engine.bring_back(2)
        verify.wait()
        engine.wait()
        held = total(scree, "bytes")
        check(held >= SIZE, f"the units hold {held} bytes of a disk of {SIZE}")
        say("  deleted; the room comes back")
        scree.cli("snapshot", "delete", "all")
        scree.cli("volume", "unexport", "disk")
        scree.cli("volume", "delete", "disk")
        begun, left = time.monotonic(), held
        while left >= SIZE // 50:
            check(time.monotonic() - begun < 300, f"{left} of {held} bytes have not come back")
            time.sleep(1)
            left = total(scree, "bytes")
        say(f"    in {time.monotonic() - begun:.0f} s")
        scree.stop()
    finally:
        scree.kill()
        for name in engine.environment:
            os.environ.pop(name, None)


def wait_ceph():
    tool("clusters/ceph", "wait", CEPH)


def ceph():
    tool("clusters/ceph", "up", CEPH)
    return {
        "lose": lambda number: tool("clusters/ceph", "stop-osd", CEPH, number),
        "bring_back": lambda number: tool("clusters/ceph", "start-osd", CEPH, number),
        "wait": wait_ceph,
    }


def rados():
    control = ceph()
    tool("clusters/ceph", "pool", CEPH, "scree", 2)
    tool("clusters/ceph", "user", CEPH, "scree", "scree")
    environment = {"CEPH_CONF": str(CEPH / "ceph.conf")}
    say("  conformance")
    conformance("-p", "rados", "--test", "rados", SCREE_TEST_RADOS="rados://scree@scree", **environment)
    exercise(Engine("rados", ["rados://scree@scree/exercise"], environment, **control))


def s3():
    control = ceph()
    endpoint = (CEPH / "s3.url").read_text().strip()
    # The gateway's data must survive the loss of an OSD, too.
    environment = {"CEPH_CONF": str(CEPH / "ceph.conf")}
    tool("clusters/ceph", "bucket", CEPH, "bucket")
    for pool in json.loads(run("ceph", "osd", "pool", "ls", "-f", "json", env={**os.environ, **environment})):
        if ".rgw" in pool or pool.startswith("default."):
            run("ceph", "osd", "pool", "set", pool, "size", 2, env={**os.environ, **environment})
    wait_ceph()
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "scree",
        "AWS_SECRET_ACCESS_KEY": "screesecret",
    }
    exercise(Engine("s3", ["s3://bucket/exercise"], environment, **control))


def gluster():
    tool("clusters/gluster", "up", GLUSTER)
    unit = GLUSTER / "mount" / "unit"
    unit.mkdir(exist_ok=True)
    exercise(
        Engine(
            "gluster",
            [f"file://{unit}"],
            {},
            lose=lambda number: tool("clusters/gluster", "stop-brick", GLUSTER, number),
            bring_back=lambda number: tool("clusters/gluster", "start-brick", GLUSTER, number),
            wait=lambda: tool("clusters/gluster", "wait", GLUSTER),
        )
    )


ENGINES = {"rados": rados, "s3": s3, "gluster": gluster}


def down():
    for name, folder in (("clusters/ceph", CEPH), ("clusters/gluster", GLUSTER)):
        if folder.exists():
            tool(name, "down", folder)


def engines():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=ENGINES, action="append")
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    if not arguments.keep:
        down()
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        for name in arguments.only or ENGINES:
            begun = time.monotonic()
            say(f"{name}:")
            shutil.rmtree(FOLDER / f"scree-{name}", ignore_errors=True)
            ENGINES[name]()
            say(f"  all of it held, in {time.monotonic() - begun:.0f} s")
    finally:
        if not arguments.keep:
            down()


if __name__ == "__main__":
    # A regular exit, so that child processes end, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main(engines)
