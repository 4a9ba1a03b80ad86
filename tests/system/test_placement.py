#!/usr/bin/env python3
"""Where commd's threads run on a machine with two NUMA nodes. hwloc is told that each processor of this machine is a NUMA node (HWLOC_SYNTHETIC), and
that the machine is this one (HWLOC_THISSYSTEM): so threads really move."""
import os
import pathlib
import sys
import unittest

from cluster import Cluster
from failure_case import FailureCase, read_until

RANK = pathlib.Path(__file__).with_name("rank.py")

PROCESSORS = sorted(os.sched_getaffinity(0))
TWO_NODES = {"HWLOC_SYNTHETIC": "numa:2 pu:1", "HWLOC_THISSYSTEM": "1"}
SETTINGS = "worker_threads = 5;"  # the main thread and four others


def processors_of_threads(cluster, node):
    """Returns {thread's name: the processors that it may use}, of the threads that placement moves."""
    found = {}
    for task in pathlib.Path(f"/proc/{cluster.daemons[node].pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        if name.startswith("commd-work"):
            found[name] = os.sched_getaffinity(int(task.name))
    return found


@unittest.skipUnless(PROCESSORS[:2] == [0, 1], "this process may not use the processors 0 and 1")
class Placement(FailureCase):
    def count(self, cluster):
        processors = processors_of_threads(cluster, "a").values()
        return [sum(each == {processor} for each in processors) for processor in (0, 1)]

    def test_threads_run_near_the_ranks(self):
        with Cluster("a", SETTINGS, namespaces=False, daemon_environment=TWO_NODES) as cluster:
            self.assertEqual(self.count(cluster), [2, 2], "no ranks: evenly")
            ranks = [cluster.client("a", "taskset", "-c", "1", sys.executable, RANK, "one", rank, 2, "loop", "seconds=60") for rank in (0, 1)]
            for rank in ranks:
                read_until(rank, "READY")
            cluster.wait(lambda: self.count(cluster) == [0, 4], f"threads near the ranks: {processors_of_threads(cluster, 'a')}")
            for rank in ranks:
                rank.kill()
            cluster.wait(lambda: self.count(cluster) == [2, 2], "threads are spread again")
            cluster.wait_logged("a", "2 NUMA nodes")

    def test_off(self):
        with Cluster("a", SETTINGS + 'numa_placement = "off";', namespaces=False, daemon_environment=TWO_NODES) as cluster:
            self.assertEqual(set(map(frozenset, processors_of_threads(cluster, "a").values())), {frozenset(PROCESSORS)})
            self.assertNotIn("NUMA", cluster.log("a"))

    def test_a_machine_with_one_numa_node(self):
        with Cluster("a", SETTINGS, namespaces=False, daemon_environment={"HWLOC_SYNTHETIC": "numa:1 pu:2", "HWLOC_THISSYSTEM": "1"}) as cluster:
            self.assertEqual(set(map(frozenset, processors_of_threads(cluster, "a").values())), {frozenset(PROCESSORS)})

    def test_a_machine_that_cannot_be_read(self):
        with Cluster("a", SETTINGS, namespaces=False, daemon_environment={"HWLOC_XMLFILE": "/nonexistent", "HWLOC_THISSYSTEM": "1"}) as cluster:
            self.assertEqual(set(map(frozenset, processors_of_threads(cluster, "a").values())), {frozenset(PROCESSORS)})


if __name__ == "__main__":
    unittest.main()
