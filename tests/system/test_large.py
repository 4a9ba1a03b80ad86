#!/usr/bin/env python3
"""A cluster of more nodes than each has connections: membership, connections on demand, jobs on some of the nodes, nodes that die and come back."""
import json
import time
import unittest

from cluster import Cluster

WAITS = True
NODES = 20


class Large(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.names = [f"n{index:02}" for index in range(NODES)]
        cls.cluster = Cluster(cls.names, namespaces=False)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def states(self, name):
        return {row["name"]: row["state"] for row in self.cluster.json(name, "nodes")["nodes"] if row["name"] != name}

    def links(self, name):
        return sum(state == "up" for state in self.states(name).values())

    def all_run(self):
        return all(set(self.states(name).values()) <= {"up", "alive"} for name in self.names)

    def run_job(self, job, names, *options):
        ranks = [self.cluster.rank(name, job, rank, len(names), "loop", "count=20000", "steps=3", "together=1", *options) for rank, name in enumerate(names)]
        for rank in ranks:
            out, errors = rank.communicate(timeout=60)
            self.assertEqual(out.strip().splitlines()[-1], "OK", out + errors)

    def test_a_ping(self):
        """A ping dials a node without a connection, and the connection ends again."""
        self.cluster.wait(lambda: "alive" in self.states("n06").values(), "a node without a connection", timeout_s=40)
        stranger = next(name for name, state in self.states("n06").items() if state == "alive")
        pinged = self.cluster.commctl("n06", "ping", stranger)
        self.assertEqual((pinged.returncode, pinged.stdout.count(" ms\n")), (0, 3), pinged.stderr)
        self.cluster.wait(lambda: self.states("n06")[stranger] == "alive", "the connection is over", timeout_s=20)

    def test_connections_are_few_and_everybody_is_known(self):
        self.cluster.wait(self.all_run, "every node knows that the others run")
        self.cluster.wait(lambda: all(1 <= self.links(name) <= 8 for name in self.names), "connections to neighbours alone", timeout_s=40)
        self.assertEqual(self.cluster.commctl("n03", "nodes").returncode, 0)

    def test_jobs_on_some_nodes(self):
        """Jobs at once, on nodes without connections to each other; names are used again, on other nodes."""
        self.run_job("job", ["n01", "n09", "n17"])
        self.run_job("job", ["n02", "n09", "n12", "n19"])
        self.run_job("all", self.names)

    def test_summary_and_trouble(self):
        self.cluster.wait(self.all_run, "every node runs")
        summary = self.cluster.json("n04", "nodes", "--summary")
        self.assertEqual(summary["nodes"], NODES)
        self.assertEqual(sum(summary["states"].values()), NODES)
        self.assertEqual(self.cluster.json("n04", "nodes", "--down")["nodes"], [])
        text = self.cluster.commctl("n04", "nodes", "--summary").stdout
        self.assertRegex(text, rf"nodes +{NODES}\n")

    def test_a_node_that_is_killed_and_comes_back(self):
        self.cluster.wait(self.all_run, "every node runs")
        self.cluster.daemons["n11"].kill()
        self.cluster.daemons["n11"].wait()
        others = [name for name in self.names if name != "n11"]
        began = time.monotonic()
        self.cluster.wait(lambda: all(self.states(name)["n11"] not in ("up", "alive") for name in others), "all know that it is dead", timeout_s=15)
        self.assertLess(time.monotonic() - began, 10)
        trouble = self.cluster.commctl("n04", "-f", "json", "nodes", "--down")
        self.assertEqual(trouble.returncode, 5)
        self.assertEqual([row["name"] for row in json.loads(trouble.stdout)["nodes"]], ["n11"])
        self.run_job("without", ["n00", "n05", "n10", "n15"])
        self.cluster.start("n11")
        self.cluster.wait(self.all_run, "all know that it is back")
        self.run_job("with", ["n00", "n05", "n11", "n15"])


if __name__ == "__main__":
    unittest.main()
