#!/usr/bin/env python3
"""Completion queues of ranks on GPUs (doubles of them), on one node and on two."""
import sys
import unittest

from cluster import ROOT, Cluster


class GpuQueues(unittest.TestCase):
    def test_ranks_on_gpus(self):
        for layout in ("aa", "ab"):
            for rings in ("on", "off"):
                with self.subTest(layout=layout, rings=rings), Cluster(sorted(set(layout)), gpus=2, client_environment={"COMMD_RINGS": rings}) as cluster:
                    ranks = [cluster.client(node, sys.executable, ROOT / "tests/system/queue_gpu.py", cluster.socket(node), rank, rank)
                             for rank, node in enumerate(layout)]
                    for process in ranks:
                        output, errors = process.communicate(timeout=60)
                        self.assertEqual(output.strip(), "OK", errors)


if __name__ == "__main__":
    unittest.main()
