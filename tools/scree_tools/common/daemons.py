"""A controller, agents and unit daemons over mutual TLS, for the check loss and the benchmark of
daemons."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from scree_tools.common import process
from scree_tools.common.process import check, cpu_of
from scree_tools.common.service import Service, cli, free_port, until


class Loopback:
    """All processes are at one address."""

    own = "127.0.0.1"

    def __init__(self, prefix=()):
        self.prefix = list(prefix)

    def to(self, name):
        """The prefix of a command on this machine, and the address of the machine."""
        return self.prefix, self.own

    def remove(self):
        pass


class Links:
    """Machines in network namespaces, each behind a link of its own to a bridge, with a limited
    bandwidth in each direction. Needs root."""

    own = "10.77.0.1"

    def __init__(self, rates):
        """`rates` are in tc's notation, by the first letters of the machines' names."""
        self.rates = rates
        self.names = []
        # Leftovers of a run that was killed.
        spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
        for space in re.findall(r"^scree-[hs]\d+", spaces.stdout, re.M):
            self._end(space.removeprefix("scree-"))
        subprocess.run(["ip", "link", "del", "scree-bench"], stderr=subprocess.DEVNULL)
        self._ip("link add scree-bench type bridge")
        self._ip(f"addr add {self.own}/24 dev scree-bench")
        self._ip("link set scree-bench up")

    @staticmethod
    def _ip(words):
        subprocess.run(["ip", *words.split()], check=True)

    def _end(self, name):
        """The kernel removes the link some time after the namespace: the name is in use until
        then."""
        subprocess.run(["ip", "link", "del", f"sb-{name}"], stderr=subprocess.DEVNULL)
        self._ip(f"netns del scree-{name}")

    def to(self, name):
        space = f"scree-{name}"
        if name not in self.names:
            self.names.append(name)
            end, address = f"sb-{name}", f"10.77.0.{len(self.names) + 1}"
            self._ip(f"netns add {space}")
            self._ip(f"link add {end} type veth peer name eth0 netns {space}")
            self._ip(f"link set {end} master scree-bench up")
            for words in ("link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up"):
                self._ip(f"-n {space} {words}")
            limit = f"root tbf rate {self.rates[name[0]]} burst 128k limit 1m".split()
            subprocess.run(["tc", "qdisc", "add", "dev", end, *limit], check=True)
            subprocess.run(["tc", "-n", space, "qdisc", "add", "dev", "eth0", *limit], check=True)
        return ["ip", "netns", "exec", space], f"10.77.0.{self.names.index(name) + 2}"

    def remove(self):
        for name in self.names:
            self._end(name)
        self._ip("link del scree-bench")


class Delay:
    """A link to `to`, a path or IP:PORT, with this latency in each direction. It listens at a
    path, or otherwise at a free port."""

    def __init__(self, to, micros, listen="127.0.0.1:0"):
        program = process.BINARY.parent / "examples" / "nbd_delay"
        # It ends with its input, also if its parent is killed.
        self.process = subprocess.Popen(
            [program, "--listen", str(listen), "--to", str(to), "--micros", str(micros)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.place = self.process.stdout.readline().strip()
        check(self.place, f"{program} does not listen at {listen}")

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Daemon(Service):
    """`scree unit --listen`, at another port each time unless it is behind a link with this
    latency in µs in each direction."""

    def __init__(self, folder, name, prefix, address, delay_micros=0):
        self.delay, here = None, f"{address}:0"
        arguments = []
        if delay_micros:
            here = f"{address}:{free_port()}"
            self.delay = Delay(here, delay_micros)
            arguments = ["--address", self.delay.place]
        super().__init__(folder, "unit", "--listen", here, *arguments)
        self.name, self.prefix = name, prefix

    def remove(self):
        """It is not started again."""
        self.kill()
        if self.delay:
            self.delay.stop()


class Daemons:
    """A site with `count` daemons s1, s2, … and hosts h1, h2, …; each has a folder of its
    own below `folder`, and lies where `links` says. Daemons are `delay_micros` away from all
    others, each way."""

    def __init__(self, folder, count, hosts=1, agent=(), controller=(), links=None, delay_micros=0):
        self.folder, self.delay_micros = Path(folder), delay_micros
        self.folder.mkdir(parents=True)
        self.links = links or Loopback()
        port, own = free_port(), self.links.own
        self.url = f"https://{own}:{port}"
        arguments = ["--listen", f"{own}:{port}", "--name", own, *controller]
        self.controller = Service(self.folder / "c", "controller", *arguments)
        self.agents, self.stores, self.made = [], [], 0
        try:
            self.controller.start()
            for _ in range(count):
                self.add()
            for number in range(1, hosts + 1):
                self._add_host(f"h{number}", agent)
            self.wait_until_well()
        except BaseException:
            self.stop()
            raise

    def operator(self, *arguments):
        return cli(*arguments, SCREE_DIR=str(self.controller.folder))

    def _join(self, kind, invited, folder):
        words = ["--token", invited["token"], "--authority", invited["authority"]]
        cli(kind, "join", self.url, *words, SCREE_DIR=str(folder))

    def _add_host(self, name, arguments):
        agent = Service(self.folder / name, "agent", *arguments)
        agent.prefix, _ = self.links.to(name)
        self._join("host", self.operator("host", "add", name), agent.folder)
        if self.agents:
            # Every host has the first one's wrapping key.
            (agent.folder / "keys").mkdir(mode=0o700)
            copy = agent.folder / "keys/master.key"
            copy.touch(0o600)
            copy.write_bytes((self.agents[0].folder / "keys/master.key").read_bytes())
        self.agents.append(agent.start())

    def add(self):
        """Adds a daemon."""
        self.made += 1
        name = f"s{self.made}"
        store = Daemon(self.folder / name, name, *self.links.to(name), self.delay_micros)
        self.stores.append(store)
        self._join("unit", self.operator("unit", "create", name), store.folder)
        return store.start()

    def wait_until_well(self, timeout_s=60):
        """Waits until all running daemons are used, and no others are known."""
        well = {store.name: "healthy" for store in self.stores}

        def states():
            return {unit["daemon"]: unit["state"] for unit in self.operator("unit", "list")}

        until("all daemons are used", lambda: states() == well, timeout_s)

    def wait_until_repaired(self, timeout_s=300):
        until("nothing is left to be repaired", lambda: self.operator("unit", "jobs") == [], timeout_s)

    def lose(self, store):
        """Destroys the machine of a daemon with all its data."""
        store.remove()
        shutil.rmtree(store.folder)
        self.stores.remove(store)

    def create(self, name, size, *redundancy):
        self.operator("volume", "create", name, "--size", size, *redundancy)

    def export(self, name, host=1):
        """The URI at which a host serves it."""
        self.operator("volume", "export", name, "--host", f"h{host}")
        return f"nbd+unix:///{name}?socket={self.agents[host - 1].folder / 'nbd.sock'}"

    def settle(self, volume):
        """Returns once all earlier writes are on the daemons."""
        name = f"settled-{os.urandom(8).hex()}"
        self.operator("snapshot", "create", volume, "--name", name, "--wait")
        self.operator("snapshot", "delete", name)

    def cpu_s(self):
        """User and system time of the agents and all running daemons, in seconds."""
        return sum(cpu_of(one.process.pid) for one in self.agents + self.stores if one.is_running())

    def check_running(self):
        for service in [*self.agents, *self.stores, self.controller]:
            check(service.is_running(), f"{service.folder.name} has ended:\n{service.log_tail()}")

    def restart(self, arguments, host=1):
        """Stops an agent cleanly, and starts it with other arguments."""
        agent = self.agents[host - 1]
        agent.end()
        agent.arguments = ["agent", *(str(argument) for argument in arguments)]
        agent.start()

    def stop(self):
        for service in [*self.agents, self.controller]:
            service.kill()
        for store in self.stores:
            store.remove()
