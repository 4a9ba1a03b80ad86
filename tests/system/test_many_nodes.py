#!/usr/bin/env python3
"""A configuration of 10,000 nodes, of which three are there: they find each other, and commd stays small, idle, and quick to answer."""
import pathlib
import re
import time
import unittest

from cluster import Cluster, cpu_s
from failure_case import FailureCase

WAITS = True
NODES = 10000
PRESENT = ("n0007", "n4444", "n9001")
FOUND_S = 200             # each asks 64 nodes a second; two find each other before one has asked half of all
IDLE_S = 20
IDLE_SHARE = 0.01         # of a processor; while it asks all nodes, too. It is 0.002, and more on a busy machine
KNOWN_NODE_BYTES = 800    # with its part of the configuration, and places in tables of the four rails
COMMCTL_S = 3.0           # a third of a second on an idle machine


def private_bytes(pid):
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(int(number) for number in re.findall(r"^Private_\w+:\s+(\d+)", text, re.MULTILINE))


class ManyNodes(FailureCase):
    def cluster(self, count):
        cluster = Cluster(PRESENT, "rails = 4;", namespaces=False, start=False)
        self.addCleanup(cluster.close)
        addresses = {f"n{i:04d}": f"127.1.{i // 250}.{1 + i % 250}:7400" for i in range(count)}
        addresses.update(cluster.addresses)
        nodes = cluster.folder / "nodes"
        nodes.write_text("".join(f"{name} {address}\n" for name, address in addresses.items()))
        for name in PRESENT:
            path = cluster.config_path(name)
            path.write_text(re.sub(r"nodes = \(.*\);\n", f'nodes_file = "{nodes}";\n', path.read_text()))
            cluster.start(name)
        for name in PRESENT:
            cluster.wait(lambda: pathlib.Path(cluster.socket(name)).exists(), f"{name} listens")
        return cluster

    def up(self, cluster, name):
        return {row["name"] for row in cluster.json(name, "nodes")["nodes"] if row["state"] == "up"}

    def private(self, cluster):
        return min(private_bytes(daemon.pid) for daemon in cluster.daemons.values())

    def wait_found(self, cluster):
        deadline = time.monotonic() + FOUND_S
        while any(self.up(cluster, name) != set(PRESENT) for name in PRESENT):
            self.assertLess(time.monotonic(), deadline, cluster.logs())
            time.sleep(1)

    def answers(self, cluster, *arguments):
        began = time.monotonic()
        done = cluster.commctl(PRESENT[0], *arguments)
        self.assertLess(time.monotonic() - began, COMMCTL_S, arguments)
        return done.stdout

    def test_three_of_ten_thousand(self):
        small = self.cluster(40)
        self.wait_found(small)
        without = self.private(small)
        small.close()
        cluster = self.cluster(NODES)
        time.sleep(14)  # they ask by now
        before = sum(cpu_s(daemon.pid) for daemon in cluster.daemons.values())
        time.sleep(IDLE_S)
        used = sum(cpu_s(daemon.pid) for daemon in cluster.daemons.values()) - before
        self.assertLess(used / len(PRESENT) / IDLE_S, IDLE_SHARE)
        self.assertLess((self.private(cluster) - without) / (NODES - 40), KNOWN_NODE_BYTES)
        self.wait_found(cluster)
        summary = dict(line.split() for line in self.answers(cluster, "nodes", "--summary").splitlines())
        self.assertEqual((summary["nodes"], summary["up"]), (str(NODES), str(len(PRESENT))))
        self.assertEqual(self.answers(cluster, "nodes", "--down").count("\n"), NODES - len(PRESENT) + 1)
        self.assertIn(f"{len(PRESENT) - 1} of {NODES - 1} up", self.answers(cluster, "status"))
        self.assertLess(len(self.answers(cluster, "metrics")), 1 << 20)
        self.check_job(cluster)

    def check_job(self, cluster):
        """A communicator of two nodes that the others' places do not hold up."""
        ranks = [cluster.rank(name, "job", rank, 2, "loop", "count=1000", "seconds=1", "together=1") for rank, name in enumerate(PRESENT[:2])]
        for rank in ranks:
            output, errors = rank.communicate(timeout=60)
            self.assertTrue(output.splitlines()[-1:] and output.splitlines()[-1].startswith("OK"), output + errors)


if __name__ == "__main__":
    unittest.main()
