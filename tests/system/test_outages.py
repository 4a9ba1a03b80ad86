#!/usr/bin/env python3
"""Links that fail for less than the patience: no operation of a light or a heavy job fails, and no byte is wrong."""
import re
import time
import unittest

from cluster import Cluster, namespaces_work, run
from failure_case import FailureCase, read_until

ALONE = True  # it has limits of time
OUTAGE_S = 2.0
STALL_BOUND_S = OUTAGE_S + 3.0  # a machine that runs other tests is slow; on an idle machine, the delay is 1 s more than the outage
BEFORE_S = AFTER_S = 1.0  # work before the first fault and after the last; an operation that a fault delays is waited for in any case
SETTINGS = 'listen = "0.0.0.0:7400"; rails = 2; slice_bytes = 65536;'


@unittest.skipUnless(namespaces_work(), "network namespaces cannot be made here")
class Outages(FailureCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster("abc", SETTINGS, start=False)
        cls.addClassCleanup(cls.cluster.close)
        for index, name in enumerate("abc"):
            cls.link(name, "set", "veth0", "mtu", "9000")
            cls.link("*hub", "set", f"port{index}", "mtu", "9000")
        for name in "abc":
            cls.cluster.start(name)
        cls.cluster.wait_ready()

    @classmethod
    def link(cls, name, *command):
        run("ip", "-n", cls.cluster.namespaces[name], "link", *command)

    def address(self, name, verb, address):
        run("ip", "-n", self.cluster.namespaces[name], "addr", verb, f"{address}/24", "dev", "veth0")

    def port(self, index, state):
        """Sets the state of a port of the bridge. 0: the port drops everything, and no node is told. 3: the usual state."""
        run("ip", "netns", "exec", self.cluster.namespaces["*hub"], "bridge", "link", "set", "dev", f"port{index}", "state", str(state))

    def at_work(self, name, *faults, pause_s=OUTAGE_S):
        """A light and a heavy job run. The faults come in the middle of both, one after the other."""
        jobs = [(f"{name}-{kind}", count) for kind, count in (("light", 100), ("heavy", 200000))]
        seconds = BEFORE_S + pause_s * (len(faults) - 1) + AFTER_S
        options = [f"seconds={seconds}", "together=1", "slowest=1", "op_timeout_ms=20000"]
        ranks = [process for job, count in jobs for process in self.ranks(self.cluster, "abc", job, "loop", f"count={count}", *options)]
        for process in ranks:
            read_until(process, "READY")
        for index, fault in enumerate(faults):
            time.sleep(pause_s if index else BEFORE_S)
            fault()
        for process in ranks:
            lines = process.communicate(timeout=60)[0].splitlines()
            self.assertTrue(lines[-1].startswith("OK"), f"{lines[-1]}\n{self.cluster.log('a')[-2000:]}\n{self.cluster.log('c')[-2000:]}")
            slowest, steps = re.match(r"SLOWEST ([0-9.]+) of ([0-9]+)", lines[-2]).groups()
            self.assertGreater(int(steps), 3)
            self.assertLess(float(slowest), STALL_BOUND_S)
        for node in "abc":
            for row in self.cluster.json(node, "nodes")["nodes"]:
                self.assertEqual(row["state"] if row["name"] != node else "up", "up")
            self.assertNotIn("is down", self.cluster.log(node))

    def test_a_black_hole(self):
        self.at_work("hole", lambda: self.port(2, 0), lambda: self.port(2, 3))

    def test_a_link_that_is_down(self):
        self.at_work("down", lambda: self.link("b", "set", "veth0", "down"), lambda: self.link("b", "set", "veth0", "up"))

    def test_a_path_that_gets_narrower(self):
        self.addCleanup(self.link, "*hub", "set", "port0", "mtu", "9000")
        self.at_work("narrow", lambda: self.link("*hub", "set", "port0", "mtu", "1500"))

    def test_new_addresses(self):
        """The address changes of the node that dials all others, and of the node that all others dial."""
        def move(name, old, new):
            self.address(name, "del", old)
            self.address(name, "add", new)
        self.at_work("move", lambda: move("a", "10.97.0.1", "10.97.0.11"), lambda: move("c", "10.97.0.3", "10.97.0.13"))


if __name__ == "__main__":
    unittest.main()
