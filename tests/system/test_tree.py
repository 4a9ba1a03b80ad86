#!/usr/bin/env python3
"""A communicator that forms by a tree, of nodes with two rails: a node is silent for less than the patience, a process is lost while it forms, a node is lost for good."""
import time
import unittest

from cluster import Cluster, namespaces_work, run
from failure_case import FailureCase, read_until

WAITS = True  # it keeps less than half a processor busy
NODES = "abcdefghijkl"
RANKS_OF_A_NODE = 3  # 36 ranks on 12 nodes: not every pair of nodes is connected
OUTAGE_S = 2.0
# Once an outage is over, its node connects to all others again. On a machine with a load of 30, these 12 daemons needed more than 2 s for that: the
# default patience was over.
SETTINGS = 'listen = "0.0.0.0:7400"; rails = 2; slice_bytes = 65536; heartbeat_timeout_ms = 8000;'


@unittest.skipUnless(namespaces_work(), "network namespaces cannot be made here")
class Tree(FailureCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(NODES, SETTINGS)
        cls.addClassCleanup(cls.cluster.close)

    def setUp(self):
        """Whatever an earlier test did, all nodes know that all others run."""
        self.cluster.wait(lambda: all(row["state"] in ("up", "alive") for name in NODES for row in self.cluster.json(name, "nodes")["nodes"] if row["name"] != name),
                          "all nodes run", timeout_s=60)

    def port(self, index, state):
        """Sets the state of a port of the bridge. 0: the port drops everything, and no node is told. 3: the usual state."""
        run("ip", "netns", "exec", self.cluster.namespaces["*hub"], "bridge", "link", "set", "dev", f"port{index}", "state", str(state))

    def begin(self, name, seconds):
        """Ranks that have formed, and wait for so long before their only operation, a large one. Ranks that are busy all the time would starve 12 daemons."""
        ranks = self.ranks(self.cluster, NODES * RANKS_OF_A_NODE, name, "idle", "timeout_ms=60000", f"seconds={seconds}", "count=100000")
        self.addCleanup(lambda: [process.kill() for process in ranks])
        for process in ranks:
            read_until(process, "FORMED")
        return ranks

    def test_a_silent_node(self):
        """A node and all its links are silent for a while: the operation, which uses both rails, does not fail."""
        ranks = self.begin("silent", 5)
        self.port(5, 0)
        time.sleep(OUTAGE_S)
        self.port(5, 3)
        for process in ranks:
            self.expect(process, "OK", within_s=90)
        for name in NODES:
            self.assertIsNone(self.cluster.daemons[name].poll())

    def test_a_lost_node(self):
        """Nobody runs an operation: the parent of the node in the tree notices, and all ranks of other nodes are told the same."""
        ranks = self.begin("lost", 8)
        self.port(7, 0)
        self.addCleanup(self.port, 7, 3)
        told = {self.last_line(process, 60) for rank, process in enumerate(ranks) if NODES[rank % len(NODES)] != "h"}
        self.assertEqual(len(told), 1, told)
        self.assertRegex(told.pop(), "NODE_LOST .*node h")

    def test_a_process_that_is_lost_while_others_wait(self):
        """A rank does not come. Then a process ends: all others are told at once, not after their time."""
        ranks = [self.cluster.rank((NODES * RANKS_OF_A_NODE)[rank], "waits", rank, 36, "once", "timeout_ms=120000") for rank in range(1, 36)]
        self.addCleanup(lambda: [process.kill() for process in ranks])
        self.cluster.wait(lambda: all(any(row["name"] == "waits" and row["known_ranks"] == 35 for row in self.cluster.json(name, "comms")["comms"]) for name in "bg"),
                          "all but one have come", timeout_s=60)
        began = time.monotonic()
        ranks[20].kill()
        ranks[20].wait()
        for process in ranks[:20] + ranks[21:]:
            line = self.last_line(process, 20)
            self.assertRegex(line, rf"RANK_LOST .*the process of rank 21 \(pid {ranks[20].pid}\) of node j was lost while")
        self.assertLess(time.monotonic() - began, 15)


if __name__ == "__main__":
    unittest.main()
