"""Measures the cost of encryption. For tools/run report and cost.py.

`scree cost` measures everything, and predicts other work than the calibration's: encryption in
guests on machines of cost_guest.py, calibrated on one of 512 MiB; volumes on this machine.
"""

import hashlib
import json
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scree_tools.common.process import BINARY, Failed
from scree_tools.report import cost_guest

CIPHERS = ["aes-256-xts", "aes-128-xts", "aes-256-cbc", "aes-128-cbc"]

# As in the paper: files of 10 to 1000 MB are written, by machines with this much memory (MiB).
MEMORIES = [256, 512, 768, 1024]
WRITES = [10, 30, 100, 250, 400, 700, 1000]
# Words are counted in files of 10 to 500 MB.
WORDS = [10, 50, 100, 250, 500]

BLOCK_WORKS = ["cold:200M:256K", "direct:48M:16K:30:1", "direct:64M:64K:70:1"]
STACKABLE_WORKS = [
    "write:80M:64K",
    "write:48M:16K",
    "write:100M:512K",
    "cold:100M:256K",
    "random:24M:16K",
    "random:48M:64K",
    "words:100M",
]
VOLUME_WORKS = [
    "direct:48M:64K:100:8",
    "direct:64M:64K:50:8",
    "direct:48M:16K:70:4",
    "direct:64M:256K:30:4",
    "direct:96M:128K:80:16",
    "direct:24M:16K:0:8",
]

# Encryption adds less to a volume than everything else takes, and a machine is never idle: many
# rounds.
VOLUME_ROUNDS = 40
# Nor is a disk: with this much memory, in bytes, volumes are in memory.
MEMORY_FOLDER = Path("/dev/shm")
MEMORY_MIN = 20 << 30

# Small works are measured more often: the kernel reports idle time in steps of 10 ms.
ROUNDS_SMALL = 5
SMALL_MB = 100


def version():
    """A key of the measuring program and method: stored results of another one do not count."""
    files = [BINARY, Path(__file__), Path(cost_guest.__file__)]
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()[:16]


class Rig:
    """A place and its stored results: an interrupted run continues."""

    def __init__(self, folder, quick):
        self.folder = folder / version()
        self.folder.mkdir(parents=True, exist_ok=True)
        folder = self.folder
        self.quick = quick
        programs = ["cryptsetup", "mke2fs"] if quick else cost_guest.PROGRAMS
        self.initrd, self.image = cost_guest.given(folder, programs)

    def guest(self, memory_mib):
        place = Path(tempfile.mkdtemp(dir=self.folder))
        return cost_guest.CostGuest(place, self.initrd, self.image, memory_mib)

    def once(self, name, measure):
        kept = self.folder / f"{name}.json"
        if not kept.exists():
            result = measure()
            part = kept.with_suffix(".part")
            part.write_text(json.dumps(result))
            part.rename(kept)
        return json.loads(kept.read_text())

    def calibrate(self, name, memory_mib, words, needs_folder):
        def measure():
            guest = self.guest(memory_mib)
            try:
                at = (
                    ["--folder", guest.folder()]
                    if needs_folder
                    else ["--folder", "/tmp", "--device", "/dev/vda", "--overwrite"]
                )
                return guest.cost("calibrate", "--calibration", "/tmp/c.json", *words, *at)
            finally:
                guest.end()

        return self.once(f"{name}-calibration", measure)

    def validate(self, name, memory_mib, calibration, place, needs_folder, parts):
        """`parts` are tuples of a cipher, rounds and works."""

        def measure():
            guest = self.guest(memory_mib)
            try:
                at = (
                    ["--folder", guest.folder()]
                    if needs_folder
                    else ["--folder", "/tmp", "--device", "/dev/vda", "--overwrite"]
                )
                guest.put(json.dumps(calibration), "/tmp/c.json")
                result = []
                for cipher, rounds, works in parts:
                    each = [word for work in works for word in ("--work", work)]
                    result.append(
                        guest.cost(
                            "validate",
                            "--calibration",
                            "/tmp/c.json",
                            "--place",
                            place,
                            "--cipher",
                            cipher,
                            "--rounds",
                            rounds,
                            *at,
                            *each,
                        )
                    )
                return {
                    **result[0],
                    "cases": [{**case, "rounds": one["rounds"]} for one in result for case in one["cases"]],
                }
            finally:
                guest.end()

        return self.once(name, measure)


def by_size(sizes, form):
    """Parts for small sizes and for large ones."""
    small = [form.format(size) for size in sizes if size < SMALL_MB]
    large = [form.format(size) for size in sizes if size >= SMALL_MB]
    parts = [(CIPHERS[0], ROUNDS_SMALL, small), (CIPHERS[0], 1, large)]
    return [part for part in parts if part[2]]


def block(rig):
    ciphers = CIPHERS[:1] if rig.quick else CIPHERS
    words = ["--place", "guest-block", *(word for one in ciphers for word in ("--cipher", one))]
    words += ["--rounds", 1, "--bytes", "4M" if rig.quick else "16M", "--data-max", "64M" if rig.quick else "1G"]
    calibration = rig.calibrate("block", 512, words, needs_folder=False)
    if rig.quick:
        return calibration, {
            "mixed": rig.validate(
                "block-mixed",
                512,
                calibration,
                "guest-block",
                False,
                [(CIPHERS[0], 3, ["write:40M:1M", "direct:8M:16K:30:1"])],
            )
        }
    found = {}
    found["mixed"] = rig.validate(
        "block-mixed", 512, calibration, "guest-block", False, [(cipher, 2, BLOCK_WORKS) for cipher in CIPHERS]
    )
    for memory in MEMORIES:
        found[f"writes-{memory}"] = rig.validate(
            f"block-writes-{memory}", memory, calibration, "guest-block", False, by_size(WRITES, "write:{}M:1M")
        )
    found["words"] = rig.validate("block-words", 1024, calibration, "guest-block", False, by_size(WORDS, "words:{}M"))
    return calibration, found


def stackable(rig):
    words = ["--place", "guest-stackable", "--rounds", 3, "--bytes", "8M", "--data-max", "1G"]
    calibration = rig.calibrate("stackable", 512, words, needs_folder=True)
    parts = [(cipher, 2, STACKABLE_WORKS) for cipher in ("aes-256-gcm", "chacha20-poly1305")]
    return calibration, {"mixed": rig.validate("stackable-mixed", 512, calibration, "guest-stackable", True, parts)}


def volume_folder(rig):
    """The folder in which volumes are measured."""
    is_large = MEMORY_FOLDER.is_dir() and shutil.disk_usage(MEMORY_FOLDER).free >= MEMORY_MIN
    return MEMORY_FOLDER if is_large else rig.folder


def volumes(rig, place, cipher):
    kept = rig.folder / f"{place}.calibration"
    at = ["--calibration", kept, "--place", place, "--folder", volume_folder(rig)]
    # The page cache is above volumes, and none of these works uses it.
    words = ["--rounds", VOLUME_ROUNDS, "--bytes", "16M", "--data-max", "1M"]

    def calibrate():
        kept.unlink(missing_ok=True)
        return cost("calibrate", *at, *words)

    def validate():
        each = [word for work in VOLUME_WORKS for word in ("--work", work)]
        result = cost("validate", *at, "--cipher", cipher, "--rounds", VOLUME_ROUNDS, *each)
        return {**result, "cases": [{**case, "rounds": result["rounds"]} for case in result["cases"]]}

    calibration = rig.once(f"{place}-calibration", calibrate)
    kept.write_text(json.dumps(calibration))
    return calibration, {"mixed": rig.once(f"{place}-mixed", validate)}


def cost(*words):
    """The output of `scree cost` on this machine."""
    # Its notices are for people.
    said = subprocess.run(
        [str(word) for word in (BINARY, "cost", *words, "-o", "json")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    if said.returncode != 0:
        raise Failed(f"`scree cost {words[0]}` ended with {said.returncode}")
    return json.loads(said.stdout)


def measure(rig):
    """By place: its calibration and its validation, by name."""
    if rig.quick:
        return {"guest-block": block(rig)}
    # Separately: guests count instructions, and these measure time.
    ours = {"filter": volumes(rig, "filter", "aes-256-xts"), "agent": volumes(rig, "agent", "aes-256-gcm")}
    with ThreadPoolExecutor(2) as pool:
        jobs = {"guest-block": pool.submit(block, rig), "guest-stackable": pool.submit(stackable, rig)}
        return {name: job.result() for name, job in jobs.items()} | ours
