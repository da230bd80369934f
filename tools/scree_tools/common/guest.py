"""A guest in QEMU, driven over its serial console."""

import queue
import re
import subprocess
import threading
import time

from scree_tools.common.process import TARGET, Failed, check


class Guest:
    """A Linux guest under QEMU, driven over its serial line."""

    def __init__(self, arguments, log, memory_mib=384, monitor=None, boot_s=90):
        self.log = open(log, "ab")
        self.count = 0
        self.process = subprocess.Popen(
            ["qemu-system-x86_64", "-accel", "tcg", "-m", str(memory_mib)]
            + ["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"]
            + arguments
            # Ports for disks that are plugged while it runs.
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
        """A guest whose root is the export behind a unix socket."""
        guest = TARGET / "guest"
        disk = ",".join(
            [
                "driver=nbd,node-name=disk",
                f"server.type=unix,server.path={socket},export={export}",
                # The guest waits for its disk to return instead of failing.
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
        """Reads lines up to one that matches; returns them and the match."""
        seen = []
        until = time.monotonic() + timeout_s
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                raise Failed(f"the guest did not say '{pattern}' in {timeout_s} s; it said:\n" + "\n".join(seen[-20:]))
            match = re.search(pattern, line)
            if match:
                return seen, match
            seen.append(line)

    def said(self):
        """The output that has not been read yet."""
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
        """Kills QEMU, as a power failure."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
