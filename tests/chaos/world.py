"""A cluster in namespaces, with the verbs of faults, and what its daemons hold."""
import os
import pathlib
import re
import signal
import threading
import time

import filters
import process_sockets
from cluster import Cluster, run

SPARE = "spare"
RAILS = 2
SETTINGS = f'listen = "0.0.0.0:7400"; rails = {RAILS};'
MTU = 9000
FILTER_AGAIN_S = 0.1


class Lateness:
    """Notices how late this machine wakes a thread: the bars for time are longer by that."""

    STEP_S = 0.01

    def __init__(self):
        self.worst = 0.0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self):
        while True:
            before = time.monotonic()
            if self.ended.wait(self.STEP_S):
                return
            self.worst = max(self.worst, time.monotonic() - before - self.STEP_S)

    def take(self):
        worst, self.worst = self.worst, 0.0
        return worst

    def close(self):
        self.ended.set()
        self.thread.join()


class World(Cluster):
    """`nodes` are members from the start. One more node, the spare, has a certificate and is added by a fault."""

    def __init__(self, nodes, **options):
        super().__init__([*nodes, SPARE], SETTINGS, namespaces=True, start=False, **options)
        self.order = [*nodes, SPARE]
        self.members = list(nodes)
        self.filtered = 0.0
        self.cuts = {name: set() for name in self.order}      # whose datagrams this node does not get
        self.percent = {name: 0 for name in self.order}
        self.draining = set()
        self.stopped = set()
        self.disturbed = False  # somebody else has let a stopped daemon go on
        self.exits = []  # of daemons that ended by themselves
        self.expected_ends = set()
        try:
            for index, name in enumerate(self.order):
                self._link(name, "set", "veth0", "mtu", str(MTU))
                self._link("*hub", "set", f"port{index}", "mtu", str(MTU))
                self._hurry_arp(name)
            self._list_members()
            for name in self.members:
                self.start(name)
            self.wait_ready()
        except BaseException:
            self.close()
            raise

    def _hurry_arp(self, name):
        """If a neighbour does not answer, the kernel says within a second that its host is unreachable, as routers do. By default, it takes 8 s."""
        folder = "/proc/sys/net/ipv4/neigh/veth0"
        for key, value in (("base_reachable_time_ms", 1000), ("delay_first_probe_time", 0), ("retrans_time_ms", 200)):
            run(*self.in_node(name, "sh", "-c", f"echo {value} > {folder}/{key}"))

    def _list_members(self):
        self.names = list(self.members)
        for name in self.members:
            self.write_config(name)

    def _link(self, name, *command):
        run("ip", "-n", self.namespaces[name], "link", *command)

    def _port(self, name):
        return f"port{self.order.index(name)}"

    def _port_state(self, name, state):
        run("ip", "netns", "exec", self.namespaces["*hub"], "bridge", "link", "set", "dev", self._port(name), "state", str(state))

    def address(self, name, moved=False):
        return f"10.97.0.{self.order.index(name) + 1 + (100 if moved else 0)}"

    def alive(self, name):
        return name in self.daemons and self.daemons[name].poll() is None and self.pid(name) not in self.expected_ends

    def pid(self, name):
        return self.daemons[name].pid

    # --- The verbs of faults. Each does nothing if its daemon does not run.

    def kill_daemon(self, name):
        if self.alive(name):
            self.expected_ends.add(self.pid(name))
            self.daemons[name].kill()
            self.stopped.discard(name)
            self.draining.discard(name)

    def start_daemon(self, name):
        if name in self.daemons and self.pid(name) in self.expected_ends:
            self.daemons[name].wait(timeout=30)
        if not self.alive(name):
            self.start(name)
            if self.cuts[name] or self.percent[name]:
                self.wait(lambda: pathlib.Path(self.socket(name)).exists(), f"{name} listens")
                self._filter(name)

    def stop_daemon(self, name):
        if self.alive(name):
            self.daemons[name].send_signal(signal.SIGSTOP)
            self.stopped.add(name)

    def continue_daemon(self, name):
        if name in self.stopped:
            state = pathlib.Path(f"/proc/{self.pid(name)}/stat").read_text().rpartition(")")[2].split()[0]
            self.disturbed = self.disturbed or state != "T"
            self.daemons[name].send_signal(signal.SIGCONT)
            self.stopped.discard(name)

    def take_disturbed(self):
        disturbed, self.disturbed = self.disturbed, False
        return disturbed

    def hole(self, name):
        self._port_state(name, 0)

    def fill(self, name):
        self._port_state(name, 3)

    def link_down(self, name):
        self._link(name, "set", "veth0", "down")

    def link_up(self, name):
        self._link(name, "set", "veth0", "up")

    def mtu(self, name, size):
        self._link("*hub", "set", self._port(name), "mtu", str(size))

    def _readdress(self, name, moved):
        for verb, address in (("del", self.address(name, not moved)), ("add", self.address(name, moved))):
            run("ip", "-n", self.namespaces[name], "addr", verb, f"{address}/24", "dev", "veth0")

    def move(self, name):
        self._readdress(name, True)

    def move_back(self, name):
        self._readdress(name, False)

    def _filter(self, name):
        if self.alive(name):
            filters.drop(self.pid(name), [self.address(each) for each in self.cuts[name]], self.percent[name])

    def keep_cut(self):
        """New sockets, of TCP connections that are made meanwhile, drop the same."""
        if time.monotonic() >= self.filtered + FILTER_AGAIN_S:
            self.filtered = time.monotonic()
            for name in self.order:
                if self.cuts[name] or self.percent[name]:
                    self._filter(name)

    def cut(self, *pairs):
        """Nothing that the first node of a pair sends reaches the second."""
        for sender, receiver in pairs:
            self.cuts[receiver].add(sender)
        for name in {receiver for _, receiver in pairs}:
            self._filter(name)

    def uncut(self):
        for name in self.members:
            if self.cuts[name]:
                self.cuts[name].clear()
                self._filter(name)

    def loss(self, names, percent):
        for name in names:
            self.percent[name] = percent
            self._filter(name)

    def drain(self, name, timeout_s):
        if self.alive(name) and name not in self.stopped:
            self.commctl(name, "drain", "--timeout", timeout_s)
            self.draining.add(name)

    def undrain(self, name):
        if name in self.draining and self.alive(name):
            self.commctl(name, "undrain")
        self.draining.discard(name)

    def _reload(self, names):
        for name in names:
            if self.alive(name):
                self.daemons[name].send_signal(signal.SIGHUP)

    def add_spare(self):
        others = list(self.members)
        self.members = [*others, SPARE]
        self._list_members()
        self.start(SPARE)
        self._reload(others)

    def remove_spare(self):
        self.members = [name for name in self.members if name != SPARE]
        self._list_members()
        self._reload(self.members)
        self.expected_ends.add(self.pid(SPARE))
        self.daemons[SPARE].terminate()
        self.daemons[SPARE].wait(timeout=30)

    # --- What is there.

    def whole(self):
        """Whether every daemon runs and has all others."""
        return all(self.commctl(name, "status").returncode == 0 for name in self.members)

    def knows_restarted(self, name):
        """Whether all daemons know the process that runs on this node now, and no earlier one."""
        instance = self.json(name, "status")["instance"]
        rows = [row for other in self.members if other != name for row in self.json(other, "nodes")["nodes"] if row["name"] == name]
        return all(row["instance"] == instance for row in rows if row["state"] == "up") and any(row["state"] == "up" for row in rows)

    def crashes(self):
        """Returns a text for each daemon that ended by itself, or that a sanitizer complains about."""
        found = []
        for name, process in self.daemons.items():
            if process.poll() is not None and process.pid not in self.expected_ends:
                found.append(f"commd of {name} ended with {process.returncode}\n{self.log(name)[-6000:]}")
            complaint = re.search(r"(ERROR: AddressSanitizer|runtime error:|LeakSanitizer|[Aa]ssertion)(.|\n){0,4000}", self.log(name))
            if complaint:
                found.append(f"commd of {name}: {complaint.group(0)}")
        return found

    def descriptors(self, name):
        """Returns how many the daemon has, but for connections of bulk links, which come and go."""
        pid = self.pid(name)
        connections = process_sockets.descriptors(pid, process_sockets.inodes(pid, ("tcp",)))
        return len(os.listdir(f"/proc/{pid}/fd")) - len(connections)

    def private_kib(self, name):
        text = pathlib.Path(f"/proc/{self.pid(name)}/smaps_rollup").read_text()
        return sum(int(re.search(rf"^{field}:\s+(\d+)", text, re.MULTILINE).group(1)) for field in ("Private_Dirty", "Private_Clean"))

    def rooms(self, name):
        """Returns what users hold of this daemon, and its counts, that must be 0 when nobody uses it. Leaves out what this question takes."""
        held = {}
        for user in self.json(name, "users")["users"]:
            for kind, use in user["kinds"].items():
                if user["group"] != "administration" and use["used"]:
                    held[kind] = held.get(kind, 0) + use["used"]
        status = self.json(name, "status")
        held.update({key: status[key] for key in ("comms_formed", "comms_forming", "comms_failed", "ops_pending", "memory_registered_bytes") if status[key]})
        return held

    def links(self, name):
        """Returns by node how many rails are connected."""
        return {row["name"]: row["rails_connected"] for row in self.json(name, "nodes")["nodes"] if not row["self"]}
