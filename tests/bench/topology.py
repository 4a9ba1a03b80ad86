"""Where the contestants run: on one node, or on nodes in network namespaces of their own."""
import os
import pathlib
import re
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))
from cluster import BUILD, Cluster, namespaces_work, run  # noqa: E402

# Beyond one datagram's worth of burst tbf would cut large packets up; 1 MB is a switch's queue, 8 ms at this rate.
LINK_LIMIT = ["tbf", "rate", "1gbit", "burst", "256kb", "limit", "1mb"]
NAME = re.compile(r"local([1-9])$|nodes([2-9])-(1500|9000|1g)$")


class Topology:
    """local<ranks> or nodes<nodes>-<mtu|1g>: one rank a node, MTU 1500 where the link is limited to 1 Gbit/s."""

    def __init__(self, name, with_daemons=True):
        match = NAME.match(name)
        if not match:
            raise SystemExit(f"run-bench: {name}: expected local2, nodes2-9000, nodes2-1g or the like")
        self.name = name
        self.is_local = match[1] is not None
        self.ranks = int(match[1] or match[2])
        self.is_limited = match[3] == "1g"
        self.mtu = 1500 if self.is_limited else int(match[3] or 0)
        self.nodes = ["a"] if self.is_local else ["a", "b", "c", "d", "e", "f", "g", "h", "i"][:self.ranks]
        self.ranks_of_node = self.ranks if self.is_local else 1
        self.runs = 0
        self.cluster = Cluster(self.nodes, settings='log_level = "warning";', namespaces=not self.is_local, start=False)
        try:
            if not self.is_local:
                self._shape_links()
            if with_daemons:
                for node in self.nodes:
                    self.cluster.start(node)
                self.cluster.wait_ready()
        except BaseException:
            self.close()
            raise

    def _shape_links(self):
        hub = self.cluster.namespaces["*hub"]
        for index, node in enumerate(self.nodes):
            ends = [(self.cluster.namespaces[node], "veth0"), (hub, f"port{index}")]
            for namespace, device in ends:
                run("ip", "-n", namespace, "link", "set", device, "mtu", self.mtu)
                if self.is_limited:
                    run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *LINK_LIMIT)
        run("ip", "-n", hub, "link", "set", "bridge0", "mtu", self.mtu)

    def address(self, node):
        return "127.0.0.1" if self.is_local else self.cluster.addresses[node].split(":")[0]

    def folder(self):
        """A new, empty one, gone with the topology."""
        self.runs += 1
        folder = self.cluster.folder / f"run-{self.runs}"
        folder.mkdir()
        return folder

    def packets(self):
        """Sent by all nodes so far; 0 where there is no link."""
        total = 0
        for node in [] if self.is_local else self.nodes:
            path = "/sys/class/net/veth0/statistics/tx_packets"
            total += int(run(*self.cluster.in_node(node, "cat", path)).stdout)
        return total

    def close(self):
        # A second Ctrl-C must not stop what the first began.
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._remove_all()
        finally:
            signal.signal(signal.SIGINT, interrupt)

    def _remove_all(self):
        daemons = [process.pid for process in self.cluster.daemons.values()]
        for namespace in self.cluster.namespaces.values():
            for process in run("ip", "netns", "pids", namespace, check=False).stdout.split():
                if int(process) not in daemons:
                    try:
                        os.kill(int(process), signal.SIGKILL)
                    except ProcessLookupError:
                        pass
        self.cluster.close()
