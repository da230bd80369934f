"""A running `scree up`, with a client for its API."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from scree_tools.common.process import BINARY, Failed, check


class Scree:
    """One `scree up` on one data directory, and its command line."""

    def __init__(self, folder, units=8, core=None, arguments=()):
        self.folder = Path(folder)
        self.units = units
        self.core = core
        self.arguments = [str(argument) for argument in arguments]
        self.process = None
        self.log = self.folder.parent / (self.folder.name + ".log")

    @property
    def socket(self):
        return self.folder / "nbd.sock"

    def start(self, timeout_s=60):
        """Starts it and returns the seconds until it answers."""
        command = [str(BINARY), "up", "--dir", str(self.folder), "--units", str(self.units)]
        if self.core is not None:
            command = ["taskset", "-c", str(self.core)] + command
        begun = time.monotonic()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command + self.arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while True:
            if self.process.poll() is not None:
                raise Failed(f"scree up ended with {self.process.returncode}:\n" + self.log_tail())
            if self.try_cli("status") is not None:
                return time.monotonic() - begun
            if time.monotonic() - begun > timeout_s:
                raise Failed(f"scree up does not answer after {timeout_s} s:\n" + self.log_tail())
            time.sleep(0.02)

    def settle(self, volume):
        """Destages a volume without waiting for the timer: a completed snapshot has all earlier
        writes on the units. Returns the time."""
        name = f"settle-{time.monotonic_ns()}"
        self.cli("snapshot", "create", volume, "--name", name, "--wait")
        ended = time.monotonic()
        self.cli("snapshot", "delete", name)
        return ended

    def log_tail(self, lines=20):
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def kill(self):
        """kill -9."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def stop(self, timeout_s=120):
        """Sends SIGTERM and waits for a clean exit."""
        if self.process is not None:
            self.process.terminate()
            code = self.process.wait(timeout_s)
            self.process = None
            check(code == 0, f"scree up ended with {code} on SIGTERM:\n" + self.log_tail())

    def try_cli(self, *arguments):
        done = subprocess.run(
            [str(BINARY), *[str(a) for a in arguments], "-o", "json"],
            env={**os.environ, "SCREE_DIR": str(self.folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        self.last_error = done.stderr
        if done.returncode != 0:
            return None
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def cli(self, *arguments):
        answer = self.try_cli(*arguments)
        if answer is None:
            words = " ".join(str(a) for a in arguments)
            raise Failed(f"`scree {words}` failed: {self.last_error.strip()}\n" + self.log_tail())
        return answer

    def export(self, volume, *arguments):
        return self.cli("volume", "export", volume, *arguments)["uri"]

    def snapshot(self, volume, name, timeout_s=60):
        """Takes a snapshot and waits until it can be cloned."""
        self.cli("snapshot", "create", volume, "--name", name)
        self.wait_for_snapshot(name, timeout_s)

    def wait_for_snapshot(self, name, timeout_s=60):
        until = time.monotonic() + timeout_s
        while True:
            for snapshot in self.cli("snapshot", "list"):
                if snapshot["name"] == name and snapshot["state"] == "completed":
                    return
            check(time.monotonic() < until, f"snapshot {name} is not completed in {timeout_s} s")
            time.sleep(0.05)
