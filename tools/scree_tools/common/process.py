"""The paths of the tree and its build, and running commands."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
BINARY = Path(os.environ.get("SCREE_BINARY", TARGET / "release" / "scree"))


class Failed(Exception):
    """A check that failed."""


def check(holds, otherwise):
    if not holds:
        raise Failed(otherwise)


def run(*command, **options):
    """Runs a command and returns its output; prints all of it if the command fails."""
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


def main(work):
    """Runs a script's main function and turns a failure into a message and an exit code."""
    try:
        work()
    except Failed as failure:
        print(f"\nFAILED: {failure}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
