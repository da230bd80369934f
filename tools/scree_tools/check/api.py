"""Compares the API with docs/openapi.json: `api-test --seconds 40`.

It starts a controller with the API over TLS and an agent with four units, and
joins an ordinary user and an administrator. Then

1. schemathesis (pinned in tools/venvs/api.txt) sends, with the certificate
   of each, requests that the description allows and that it does not, and compares
   the answers with it: no server error, no status, content type or answer that is not
   described, no valid request refused and no invalid one accepted;
2. a client is generated from the description, with which api_client/client.py
   creates, snapshots, clones, attaches and deletes a disk.

A failure prints the request as a curl command, and schemathesis' seed. The only valid
answers of 5xx are those in schemathesis.toml: there is a host, so nothing else is
`unavailable`, and the overcommit is so high that `no_capacity` never occurs.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from scree_tools.common.process import ROOT, Failed, check, run
from scree_tools.common.service import Site

DESCRIPTION = ROOT / "docs" / "openapi.json"
SETTINGS = Path(__file__).parent / "api_client"

# Requests that would damage the run itself, with the reason.
EXCLUDED = {
    "disable_user": "might disable the user who asks",
    "forget_user_keys": "might forget the key of the user who asks",
    "disable_host": "might disable the only host",
    "forget_host_keys": "might forget the only host's key",
    "leave_project": "might take the user out of the project that all is made in",
    "set_quota": "might leave no room to make anything in",
}


def seed_site(site):
    """Creates names that the description's examples use, and room for the ordinary user."""
    root = site.api(0)
    root.ask("POST", "/v1/users", {"name": "alice"})
    for user in ["alice", "tester"]:
        root.ask("POST", "/v1/grants", {"user": user, "right": "use", "host": "h1"})
    return root


class Schemathesis:
    """Runs of schemathesis against one site."""

    def __init__(self, site, venv, folder):
        self.site, self.venv, self.folder = site, venv, folder

    def run(self, who, certificate, seconds, seed, arguments):
        report = self.folder / who
        words = [
            self.venv / "bin" / "schemathesis",
            "--config-file",
            SETTINGS / "schemathesis.toml",
            "run",
            DESCRIPTION,
            "--url",
            f"https://localhost:{self.site.ports[0]}",
            "--tls-verify",
            self.site.folder / "authority.pem",
            "--request-cert",
            certificate,
            # A connection that is closed between two requests is no answer.
            "--request-retries",
            2,
            "--request-timeout",
            60,
            "--max-time",
            seconds,
            "--continue-on-failure",
            "--report",
            "ndjson",
            "--report-dir",
            report,
            "--generation-database",
            "none",
            "--warnings",
            "off",
        ]
        if seed is not None:
            words += ["--seed", seed]
        for operation in EXCLUDED:
            words += ["--exclude-operation-id", operation]
        environment = {
            **os.environ,
            "SCHEMATHESIS_HOOKS": "hooks",
            "PYTHONPATH": str(SETTINGS),
        }
        begun = time.monotonic()
        done = subprocess.run(
            [str(word) for word in words + arguments],
            env=environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        took = time.monotonic() - begun
        (self.folder / f"{who}.log").write_text(done.stdout)
        if done.returncode != 0:
            raise Failed(f"schemathesis, as {who}, ended with {done.returncode}:\n{done.stdout}")
        print(f"As {who}, in {took:.0f} s:\n{summary(done.stdout)}", flush=True)


def try_generated_client(site, venv, certificate):
    """Generates a client and runs client.py with it."""
    package = site.folder / "python" / "scree_client"
    package.parent.mkdir()
    said = run(
        venv / "bin" / "openapi-python-client",
        "generate",
        "--path",
        DESCRIPTION,
        "--meta",
        "none",
        "--config",
        SETTINGS / "generator.yaml",
        "--output-path",
        package,
        "--fail-on-warning",
        env={**os.environ, "PATH": f"{venv / 'bin'}:{os.environ['PATH']}"},
    )
    check((package / "client.py").exists(), f"no client was generated:\n{said}")
    url = f"https://localhost:{site.ports[0]}"
    print(
        run(
            venv / "bin" / "python",
            SETTINGS / "client.py",
            url,
            site.folder / "authority.pem",
            certificate,
            env={**os.environ, "PYTHONPATH": str(package.parent)},
        ).strip(),
        flush=True,
    )


def summary(text):
    """The summary that schemathesis prints."""
    lines = text.rstrip().splitlines()
    starts = [at for at, line in enumerate(lines) if " SUMMARY " in line]
    return "\n".join(lines[starts[-1] :] if starts else lines[-20:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=40, help="for schemathesis, altogether")
    parser.add_argument("--seed", type=int, help="of schemathesis")
    parser.add_argument("--keep", action="store_true", help="keep the site's folder")
    parser.add_argument("--only", choices=["ordinary", "administrator", "client"])
    parser.add_argument("rest", nargs="*", help="for schemathesis")
    arguments = parser.parse_args()
    venv = Path(run(ROOT / "tools" / "venv").splitlines()[-1])
    venv = venv if venv.is_absolute() else ROOT / venv
    site = Site(controllers=1, agents=1, sqlite=True, controller_arguments=["--overcommit", 1000000])
    try:
        seed_site(site)
        alice = site.log_in("alice")
        folder = site.folder / "schemathesis"
        folder.mkdir()
        judge = Schemathesis(site, venv, folder)
        if arguments.only in (None, "client"):
            try_generated_client(site, venv, alice)
        users = {"ordinary": alice, "administrator": site.folder / "user.pem"}
        for who, certificate in users.items():
            if arguments.only in (None, who):
                judge.run(who, certificate, arguments.seconds // 2, arguments.seed, arguments.rest)
        for service in [*site.controllers, *site.agents]:
            check(service.is_running(), f"{service.arguments[0]} has ended:\n{service.log_tail()}")
    except Failed as failure:
        sys.exit(f"{failure}\nThe logs are kept: {site.folder}")
    finally:
        site.stop()
    if not arguments.keep:
        shutil.rmtree(site.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
