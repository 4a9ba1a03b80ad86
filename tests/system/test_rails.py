#!/usr/bin/env python3
"""Daemons of three rails, each a UDP port: what commctl says of them."""
import unittest

from cluster import Cluster

SETTINGS = "rails = 3; slice_bytes = 4096;"


class Traffic(unittest.TestCase):
    def node(self, cluster, name, other):
        return next(row for row in cluster.json(name, "nodes")["nodes"] if row["name"] == other)

    def test_nodes_shows_the_traffic_of_all_rails(self):
        with Cluster("ab", SETTINGS) as cluster:
            idle = self.node(cluster, "a", "b")
            self.assertEqual((idle["rails_connected"], idle["rails_needed"]), (1, 1))
            self.assertEqual(self.node(cluster, "a", "a")["rails_needed"], 0)
            ranks = [cluster.rank(node, "work", rank, 2, "loop", "count=50000", "seconds=600") for rank, node in enumerate("ab")]
            for process in ranks:
                self.assertEqual([process.stdout.readline().strip() for _ in range(2)], ["FORMED", "READY"])
            busy = self.node(cluster, "a", "b")
            self.assertEqual((busy["rails_connected"], busy["rails_needed"]), (3, 3))
            # Each node sends 400,000 bytes an operation; a rail alone a third of them.
            self.assertGreater(busy["sent_bytes"] - idle["sent_bytes"], 400000)
            self.assertGreater(busy["received_bytes"] - idle["received_bytes"], 400000)
            self.assertRegex(cluster.commctl("a", "nodes").stdout, r"RAILS[^$]*\n[^$]*b  .*  3/3  ")
            for process in ranks:
                process.kill()


if __name__ == "__main__":
    unittest.main()
