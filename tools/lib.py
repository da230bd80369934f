"""What demo, bench and soak share: a running Scree, and a guest in QEMU."""

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
BINARY = Path(os.environ.get("SCREE_BINARY", TARGET / "release" / "scree"))


class Failed(Exception):
    """Something that was to hold does not."""


def check(holds, otherwise):
    if not holds:
        raise Failed(otherwise)


def run(*command, **options):
    """Runs a command and returns what it prints; says all of it if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        **options,
    )
    if done.returncode != 0:
        words = " ".join(str(word) for word in command)
        raise Failed(f"`{words}` ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def cpu_of(pid):
    """User and system time of all threads of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fio_job(output, said):
    """What fio says in the JSON file `output` of its only job, which must have had no
    error; `said` is what it printed."""
    text = output.read_text() if output.exists() else ""
    check("{" in text, f"fio: {said} {text}")
    found = json.loads(text[text.index("{"):])["jobs"][0]
    check(found["error"] == 0, f"fio: error {found['error']}: {said}")
    return found


class Fio:
    """Writes or verifies each block of a disk of `size` bytes once, in random order that
    the seed decides."""

    def __init__(self, uri, size, seed, folder, *arguments):
        self.log = Path(folder) / "fio.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                ["fio", "--name=job", "--ioengine=nbd", f"--uri={uri}", "--thread",
                 "--rw=randwrite", "--bs=4k", "--iodepth=16", f"--size={size}",
                 f"--randseed={seed}", "--verify=crc32c-intel", "--verify_fatal=1",
                 "--verify_state_save=0", f"--aux-path={folder}", *arguments],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )

    @classmethod
    def write(cls, uri, size, seed, folder, rate):
        """`rate` is fio's, in bytes a second."""
        return cls(uri, size, seed, folder, "--do_verify=0", f"--rate={rate}")

    @classmethod
    def verify(cls, uri, size, seed, folder):
        return cls(uri, size, seed, folder, "--verify_only")

    def is_running(self):
        return self.process.poll() is None

    def wait(self):
        code = self.process.wait(600)
        check(code == 0, f"fio ended with {code}:\n{self.log.read_text()[-3000:]}")


class Scree:
    """One `scree up` on one folder, and its command line."""

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
            self.process = subprocess.Popen(
                command + self.arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        while True:
            if self.process.poll() is not None:
                raise Failed(
                    f"scree up ended with {self.process.returncode}:\n" + self.log_tail()
                )
            if self.try_cli("status") is not None:
                return time.monotonic() - begun
            if time.monotonic() - begun > timeout_s:
                raise Failed(f"scree up does not answer after {timeout_s} s:\n" + self.log_tail())
            time.sleep(0.02)

    def settle(self, volume):
        """Has everything of a volume destaged without waiting for the timer: a snapshot is
        completed when all before it lies on the units. Says when that was."""
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
        """SIGTERM, and waits for a clean end."""
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
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
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
        """Takes a snapshot and waits until a volume can be made from it."""
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


class Guest:
    """A Linux guest under QEMU, driven over its serial line."""

    def __init__(self, arguments, log, memory_mib=384, monitor=None, boot_s=90):
        self.log = open(log, "ab")
        self.count = 0
        self.process = subprocess.Popen(
            ["qemu-system-x86_64", "-accel", "tcg", "-m", str(memory_mib)]
            + ["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"]
            + arguments
            # Where disks are plugged in and out while it runs.
            + (["-qmp", f"unix:{monitor},server=on,wait=off"] if monitor else []),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.lines = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.wait_for(r"GUEST: up", boot_s)
        # Past the shell's greeting.
        self.sh("true")

    @classmethod
    def on_disk(cls, socket, export, log, monitor=None):
        """One whose root is the export behind a unix socket."""
        guest = TARGET / "guest"
        disk = ",".join(
            [
                "driver=nbd,node-name=disk",
                f"server.type=unix,server.path={socket},export={export}",
                # The guest waits for its disk to come back instead of failing.
                "reconnect-delay=120",
            ]
        )
        arguments = ["-kernel", str(guest / "vmlinuz"), "-initrd", str(guest / "initrd")]
        arguments += ["-append", "console=ttyS0 quiet panic=-1"]
        arguments += ["-blockdev", disk, "-device", "virtio-blk-pci,drive=disk"]
        return cls(arguments, log, monitor=monitor)

    def _listen(self):
        for line in self.process.stdout:
            self.log.write(line)
            self.log.flush()
            self.lines.put(line.decode(errors="replace").rstrip("\r\n"))
        self.lines.put(None)

    def wait_for(self, pattern, timeout_s):
        """The lines up to one that matches, and the match."""
        seen = []
        until = time.monotonic() + timeout_s
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                raise Failed(
                    f"the guest did not say '{pattern}' in {timeout_s} s; it said:\n"
                    + "\n".join(seen[-20:])
                )
            match = re.search(pattern, line)
            if match:
                return seen, match
            seen.append(line)

    def said(self):
        """What it has said and nobody has waited for."""
        lines = []
        while True:
            try:
                line = self.lines.get_nowait()
            except queue.Empty:
                return lines
            if line is not None:
                lines.append(line)

    def send(self, command):
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()

    def sh(self, command, timeout_s=60):
        """Runs a shell command in the guest and returns what it prints."""
        self.count += 1
        self.send(f"{command}; echo ==DONE {self.count} $?==")
        lines, match = self.wait_for(rf"==DONE {self.count} (\d+)==", timeout_s)
        output = "\n".join(lines)
        check(match[1] == "0", f"in the guest, `{command}` ended with {match[1]}:\n{output}")
        return output

    def power_off(self):
        self.send("umount -a 2>/dev/null; sync; poweroff -f")
        self.process.wait(60)
        self.log.close()

    def kill(self):
        """Pulls the plug."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def main(work):
    """Runs a script's work and turns its failure into a message and a code."""
    try:
        work()
    except Failed as failure:
        print(f"\nFAILED: {failure}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
