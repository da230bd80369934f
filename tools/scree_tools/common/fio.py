"""Jobs of fio and their results."""

import json
import subprocess
from pathlib import Path

from scree_tools.common.process import check


def fio_job(output, said):
    """The result of the only job in the JSON file `output`, which must have no error; `said` is
    what fio printed."""
    text = output.read_text() if output.exists() else ""
    check("{" in text, f"fio: {said} {text}")
    found = json.loads(text[text.index("{") :])["jobs"][0]
    check(found["error"] == 0, f"fio: error {found['error']}: {said}")
    return found


class Fio:
    """Writes or verifies each block of a disk of `size` bytes once, in an order that the seed
    determines."""

    def __init__(self, uri, size, seed, folder, *arguments):
        self.log = Path(folder) / "fio.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [
                    "fio",
                    "--name=job",
                    "--ioengine=nbd",
                    f"--uri={uri}",
                    "--thread",
                    "--rw=randwrite",
                    "--bs=4k",
                    "--iodepth=16",
                    f"--size={size}",
                    f"--randseed={seed}",
                    "--verify=crc32c-intel",
                    "--verify_fatal=1",
                    "--verify_state_save=0",
                    f"--aux-path={folder}",
                    *arguments,
                ],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @classmethod
    def write(cls, uri, size, seed, folder, rate):
        """`rate` is fio's, in bytes per second."""
        return cls(uri, size, seed, folder, "--do_verify=0", f"--rate={rate}")

    @classmethod
    def verify(cls, uri, size, seed, folder):
        return cls(uri, size, seed, folder, "--verify_only")

    def is_running(self):
        return self.process.poll() is None

    def wait(self):
        code = self.process.wait(600)
        check(code == 0, f"fio ended with {code}:\n{self.log.read_text()[-3000:]}")
