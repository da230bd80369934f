"""A PostgreSQL server, controllers and agents as processes, and requests to them over TLS, for
the check chaos and the benchmark of the service."""

import http.client
import json
import os
import pwd
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from scree_tools.common.process import BINARY, Failed, check, run

# The user of Debian's package; the server refuses to run as root.
POSTGRES_USER = "postgres"


def free_port():
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what, holds, timeout_s, every_s=0.05):
    """Waits until `holds()` is true, and returns its value."""
    end = time.monotonic() + timeout_s
    while True:
        found = holds()
        if found:
            return found
        check(time.monotonic() < end, f"not within {timeout_s} s: {what}")
        time.sleep(every_s)


class Postgres:
    """A server in a folder, which listens on a socket there."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir()
        installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        check(installed, "PostgreSQL is not installed; run `tools/packages test`")
        self.programs = installed[-1].parent
        self.prefix = []
        if os.getuid() == 0:
            user = pwd.getpwnam(POSTGRES_USER)
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self.prefix = ["setpriv", "--reuid", POSTGRES_USER, "--regid", POSTGRES_USER]
            self.prefix += ["--clear-groups", "--"]
        self.data = self.folder / "data"
        run(
            *self.prefix,
            self.programs / "initdb",
            "--auth=trust",
            "--no-sync",
            "--username=scree",
            "-D",
            self.data,
            cwd="/",
        )
        self.process = None

    def start(self, *settings):
        log = open(self.folder.parent / "postgres.log", "ab")
        command = [*self.prefix, str(self.programs / "postgres"), "-D", str(self.data)]
        command += ["-k", str(self.folder), "-c", "listen_addresses=", *settings]
        # Logs lock waits that take longer than anything should.
        command += ["-c", "log_lock_waits=on", "-c", "log_line_prefix=%m [%p] "]
        # A process group of its own: signals of the terminal are not for it.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
        until("PostgreSQL is ready", lambda: self.try_sql("SELECT 1", "postgres"), 30)
        if self.sql("SELECT 1 FROM pg_database WHERE datname = 'scree'", "postgres") == []:
            self.sql("CREATE DATABASE scree", "postgres")

    def url(self):
        return f"postgres://scree@{str(self.folder).replace('/', '%2F')}/scree"

    def try_sql(self, statement, database="scree"):
        """The rows of a statement, as tuples of text; None if it fails."""
        done = subprocess.run(
            [
                "psql",
                "-X",
                "-q",
                "-A",
                "-t",
                "-v",
                "ON_ERROR_STOP=1",
                "-F",
                "\t",
                "-h",
                str(self.folder),
                "-U",
                "scree",
                "-d",
                database,
                "-c",
                statement,
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        self.last_error = done.stderr
        if done.returncode != 0:
            return None
        return [tuple(line.split("\t")) for line in done.stdout.splitlines()]

    def sql(self, statement, database="scree"):
        rows = self.try_sql(statement, database)
        check(rows is not None, f"psql: {statement}: {self.last_error if rows is None else ''}")
        return rows

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            # Immediate shutdown: no data is needed any more.
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(30)
        self.process = None


class Service:
    """`scree controller`, `scree agent` or `scree unit`, on one data directory."""

    # The prefix of its command, such as `taskset`.
    prefix = ()

    def __init__(self, folder, *arguments):
        self.folder = Path(folder)
        self.arguments = [str(argument) for argument in arguments]
        self.log = self.folder.parent / (self.folder.name + ".log")
        self.process = None

    def start(self, timeout_s=60):
        """Starts it and waits until it is ready."""
        kind, *rest = self.arguments
        command = [*self.prefix, str(BINARY), kind, "--dir", str(self.folder), *rest]
        log = open(self.log, "ab")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        said = []
        reader = threading.Thread(target=lambda: said.append(self.process.stdout.readline()))
        reader.daemon = True
        reader.start()
        reader.join(timeout_s)
        if not said or b"is ready" not in said[0]:
            raise Failed(f"{' '.join(command)} is not ready:\n" + self.log_tail())
        return self

    def log_tail(self, lines=20):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def end(self, timeout_s=60):
        """Sends SIGTERM and waits for a clean exit."""
        self.process.terminate()
        code = self.process.wait(timeout_s)
        self.process.stdout.close()
        self.process = None
        check(code == 0, f"{self.folder.name} ended with {code} on SIGTERM:\n{self.log_tail()}")

    def kill(self):
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.process = None


class Busy(Failed):
    """The database was busy; nothing was changed."""


def cli(*arguments, **environment):
    """The output of a command with -o json; raises Failed, or Busy."""
    printed = cli_text(*arguments, "-o", "json", **environment)
    return json.loads(printed) if printed.strip() else {}


def cli_text(*arguments, **environment):
    """The output of a command as text."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SCREE_")}
    done = subprocess.run(
        [str(BINARY), *[str(argument) for argument in arguments]],
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        words = " ".join(str(argument) for argument in arguments)
        kind = Busy if "the database is busy" in done.stderr else Failed
        raise kind(f"`scree {words}` failed: {done.stderr.strip()}")
    return done.stdout


class Unknown(Exception):
    """The result of a request is unknown: it may have been carried out."""


class Refused(Exception):
    """A controller has refused a request, and changed nothing."""

    def __init__(self, status, problem):
        super().__init__(f"{status}: {problem.get('detail')}")
        self.status, self.code = status, problem.get("code")


class Api:
    """Requests to one controller, as one user, one at a time."""

    def __init__(self, port, context, timeout_s=60):
        self.port, self.context, self.timeout_s = port, context, timeout_s
        self.connection = None

    def ask(self, method, path, body=None, key=None):
        """The answer; raises Refused, or Unknown. With a key the request may be repeated."""
        text = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        try:
            if self.connection is None:
                self.connection = http.client.HTTPSConnection(
                    "localhost", self.port, context=self.context, timeout=self.timeout_s
                )
            self.connection.request(method, path, text, headers)
            response = self.connection.getresponse()
            answer = json.loads(response.read() or b"null")
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise Unknown(f"{method} {path}: {error!r}") from error
        if response.status >= 500:
            raise Unknown(f"{method} {path}: {response.status}: {answer.get('detail')}")
        if response.status >= 400:
            raise Refused(response.status, answer)
        return answer

    def close(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Site:
    """Controllers on one PostgreSQL (or one on SQLite), agents, and a user."""

    def __init__(self, controllers, agents, postgres_settings=(), sqlite=False, controller_arguments=()):
        # Close to the root: the path of a socket has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="scree-", dir="/tmp"))
        self.folder.chmod(0o711)
        self.postgres, self.controllers, self.agents = None, [], []
        try:
            self._set_up(controllers, agents, postgres_settings, sqlite, controller_arguments)
        except Failed as failure:
            self.stop()
            raise Failed("\n".join([str(failure), *self.logs()])) from failure

    def _set_up(self, controllers, agents, postgres_settings, sqlite, controller_arguments):
        arguments = ["--grace", "1s", *controller_arguments]
        if not sqlite:
            self.postgres = Postgres(self.folder / "pg")
            self.postgres.start(*postgres_settings)
            url = self.folder / "url"
            url.touch(0o600)
            url.write_text(self.postgres.url() + "\n")
            arguments += ["--database-file", url]
        self.ports = [free_port() for _ in range(controllers)]
        self.controllers = [
            Service(self.folder / f"c{number}", "controller", "--listen", f"127.0.0.1:{port}", *arguments)
            for number, port in enumerate(self.ports, 1)
        ]
        first = self.controllers[0].start()
        for controller in self.controllers[1:]:
            # Every controller signs with the first one's authority.
            controller.folder.mkdir(mode=0o700)
            for name in ["authority.key", "authority.pem"]:
                copy = controller.folder / name
                copy.touch(0o600)
                copy.write_bytes((first.folder / name).read_bytes())
            controller.start()
        self.urls = ",".join(f"https://localhost:{port}" for port in self.ports)
        for number in range(1, agents + 1):
            self._add_agent(f"h{number}")
        words = self._invited("user", "tester", "--administrator")
        cli("login", self.urls, *words, SCREE_CONFIG=str(self.folder / "profiles"))
        self.context = self._tls(self.folder / "profiles/profiles/default.toml")

    def _invited(self, kind, name, *arguments):
        first = str(self.controllers[0].folder)

        def invited():
            try:
                return cli(kind, "add", name, *arguments, SCREE_DIR=first)
            except Busy as busy:
                # This machine was stopped for a while; the log names the locks.
                print(busy, *self.logs(), sep="\n", file=sys.stderr)
                return None

        invitation = until(f"{name} is invited", invited, 60)
        return ["--token", invitation["token"], "--authority", invitation["authority"]]

    def _add_agent(self, name):
        folder = self.folder / name
        words = self._invited("host", name)
        cli("host", "join", self.urls, *words, SCREE_DIR=str(folder))
        arguments = ["--journal-size", "16M", "--destage-after", "1s"]
        if self.agents:
            # Every host has the first one's wrapping key.
            (folder / "keys").mkdir(mode=0o700)
            copy = folder / "keys/master.key"
            copy.touch(0o600)
            copy.write_bytes((self.agents[0].folder / "keys/master.key").read_bytes())
        else:
            arguments += ["--units", "4"]
        self.agents.append(Service(folder, "agent", *arguments).start())

    def _tls(self, profile):
        own = self._parts(profile, self.folder / "user.pem")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(self.folder / "authority.pem")
        context.load_cert_chain(own)
        return context

    def _parts(self, profile, own):
        """Writes the files of a profile for other programs: the authority's certificate, and the
        user's with its key. Returns the latter."""
        text = profile.read_text()

        def part(name):
            return re.search(rf'^{name} = """(.*?)"""', text, re.M | re.S)[1].lstrip("\n")

        (self.folder / "authority.pem").write_text(part("authority"))
        own.touch(0o600)
        own.write_text(part("certificate") + "\n" + part("key"))
        return own

    def log_in(self, name):
        """Logs in as an existing user; returns the file with certificate and key."""
        first = str(self.controllers[0].folder)
        token = cli("user", "token", name, SCREE_DIR=first)
        words = ["--token", token["token"], "--authority", token["authority"]]
        folder = self.folder / f"profiles-{name}"
        cli("login", self.urls, *words, SCREE_CONFIG=str(folder))
        return self._parts(folder / "profiles/default.toml", self.folder / f"{name}.pem")

    def logs(self, lines=20):
        """The last lines of each log."""
        for log in sorted(self.folder.glob("*.log")):
            text = log.read_text(errors="replace").splitlines()
            yield "\n".join([f"-- {log.name}", *text[-lines:]])

    def api(self, number):
        """Requests to the controller of this number, from 0 on."""
        return Api(self.ports[number], self.context)

    def stop(self):
        for service in self.agents + self.controllers:
            service.kill()
        if self.postgres is not None:
            self.postgres.stop()
