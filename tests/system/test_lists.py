#!/usr/bin/env python3
"""Collectives on lists of buffers, between real daemons, in memory of all kinds."""
import sys
import unittest

from cluster import ROOT, Cluster


class Lists(unittest.TestCase):
    environment = {}

    def check(self, layout, gpus=0):
        """layout: the node of each rank."""
        with Cluster(sorted(set(layout)), client_environment=self.environment, gpus=gpus) as cluster:
            ranks = [cluster.client(node, sys.executable, "-S", "-B", ROOT / "tests/system/list_rank.py", "lists", rank, len(layout), 0 if gpus else -1)
                     for rank, node in enumerate(layout)]
            outputs = [process.communicate(timeout=240) for process in ranks]
            for process, (output, errors) in zip(ranks, outputs):
                self.assertEqual(process.returncode, 0, errors)
                self.assertRegex(output, r"^checked [0-9]{2,}\n$")

    def test_one_rank(self):
        self.check("a")

    def test_two_nodes_of_three_ranks(self):
        self.check("aba")


class OnGpus(Lists):
    """With doubles of GPUs. Two ranks share one."""

    def check(self, layout, gpus=1):
        super().check(layout, gpus)


class OnTheSocketAlone(Lists):
    environment = {"COMMD_RINGS": "0"}


if __name__ == "__main__":
    unittest.main()
