"""Where the contestants run: as processes on one machine, or on nodes in network namespaces of their own."""
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "system"))
from cluster import BUILD, Cluster, namespaces_work, run  # noqa: E402


class Topology:
    """`node_count` nodes with `ranks_per_node` ranks each. Several nodes are joined by veth and a bridge, with that MTU and rate."""

    def __init__(self, name, title, node_count, ranks_per_node, mtu=None, rate=None, has_bars=False, build=BUILD, family=None):
        self.name = name
        self.title = title
        self.node_count = node_count
        self.ranks_per_node = ranks_per_node
        self.mtu = mtu
        self.rate = rate
        self.has_bars = has_bars  # the bars apply here, so more sizes are measured
        self.family = family  # topologies of one family differ in the number of ranks alone: they show how figures grow
        self.build = build
        self.daemon_environment = {}
        self.settings = ""  # more lines of the daemons' configuration
        self.shares_processors = False  # all nodes run on all processors
        self.cluster = None

    @property
    def size(self):
        return self.node_count * self.ranks_per_node

    @property
    def nodes(self):
        return [chr(ord("a") + index) for index in range(self.node_count)]

    def is_possible(self):
        return self.node_count == 1 or namespaces_work()

    def node_of_rank(self, rank):
        return self.nodes[rank // self.ranks_per_node]

    def address(self, node):
        return "127.0.0.1" if self.node_count == 1 else f"10.97.0.{self.nodes.index(node) + 1}"

    def processors(self, node):
        """Returns the processors of a node, as `taskset -c` takes them. None: it shares all of them with the others, because there are fewer processors
        than nodes. Real nodes do not run on each other's processors."""
        own = sorted(os.sched_getaffinity(0))
        each = len(own) // self.node_count
        if self.node_count == 1 or each == 0 or self.shares_processors:
            return None
        first = self.nodes.index(node) * each
        return ",".join(map(str, own[first:first + each]))

    def command(self, node, *command):
        return self.cluster.in_node(node, *command)

    def __enter__(self):
        self.cluster = Cluster(self.nodes, f'log_level = "warning"; {self.settings}', namespaces=self.node_count > 1, start=False, build=self.build,
                               daemon_environment=self.daemon_environment,
                               processors={node: self.processors(node) for node in self.nodes if self.processors(node)})
        try:
            if self.node_count > 1:
                self._shape()
            for node in self.nodes:
                self.cluster.start(node)
            self.cluster.wait_ready()
            self.idle_kib = self._resident_kib()
        except BaseException:
            self.cluster.close()
            raise
        return self

    def _resident_kib(self):
        status = pathlib.Path(f"/proc/{self.cluster.daemons[self.nodes[0]].pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))

    def _shape(self):
        hub = self.cluster.namespaces["*hub"]
        for index, node in enumerate(self.nodes):
            namespace = self.cluster.namespaces[node]
            if self.mtu:
                run("ip", "-n", hub, "link", "set", f"port{index}", "mtu", str(self.mtu))
                run("ip", "-n", namespace, "link", "set", "veth0", "mtu", str(self.mtu))
            if self.rate:
                run("tc", "-n", namespace, "qdisc", "add", "dev", "veth0", "root", "tbf", "rate", self.rate, "burst", "128kb", "latency", "50ms")

    def __exit__(self, *_):
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second interrupt must not stop the cleanup that the first one began
        try:
            self._end_strangers()
            self.cluster.close()
        finally:
            signal.signal(signal.SIGINT, interrupt)

    def _end_strangers(self):
        """Kills what contestants left in the namespaces. The namespaces belong to this topology alone."""
        daemons = {daemon.pid for daemon in self.cluster.daemons.values()}
        for namespace in self.cluster.namespaces.values():
            for process in run("ip", "netns", "pids", namespace, check=False).stdout.split():
                if int(process) not in daemons:
                    try:
                        os.kill(int(process), signal.SIGKILL)
                    except ProcessLookupError:
                        pass


LOCAL = "one node"
NODES_9000 = "several nodes, MTU 9000"

ALL = [
    Topology("local2", "one node, 2 ranks", 1, 2, has_bars=True, family=LOCAL),
    Topology("local4", "one node, 4 ranks", 1, 4, has_bars=True, family=LOCAL),
    Topology("nodes2-9000", "2 nodes, MTU 9000", 2, 1, mtu=9000, has_bars=True, family=NODES_9000),
    Topology("nodes2-1500", "2 nodes, MTU 1500", 2, 1, mtu=1500, has_bars=True),
    Topology("nodes2-1gbit", "2 nodes, 1 Gbit/s, MTU 1500", 2, 1, mtu=1500, rate="1gbit", has_bars=True),
    Topology("local8", "one node, 8 ranks", 1, 8, family=LOCAL),
    Topology("nodes2x2-9000", "2 nodes with 2 ranks each, MTU 9000", 2, 2, mtu=9000, family=NODES_9000),
    Topology("nodes4x2-9000", "4 nodes with 2 ranks each, MTU 9000", 4, 2, mtu=9000, family=NODES_9000),
    Topology("nodes2x2-1500", "2 nodes with 2 ranks each, MTU 1500", 2, 2, mtu=1500),
    Topology("nodes3-9000", "3 nodes, MTU 9000", 3, 1, mtu=9000, family=NODES_9000),
    Topology("nodes4-9000", "4 nodes, MTU 9000", 4, 1, mtu=9000),
    Topology("nodes3-1500", "3 nodes, MTU 1500", 3, 1, mtu=1500),
    Topology("nodes4-1500", "4 nodes, MTU 1500", 4, 1, mtu=1500),
    Topology("nodes3-1gbit", "3 nodes, 1 Gbit/s, MTU 1500", 3, 1, mtu=1500, rate="1gbit"),
    Topology("nodes4-1gbit", "4 nodes, 1 Gbit/s, MTU 1500", 4, 1, mtu=1500, rate="1gbit"),
]
