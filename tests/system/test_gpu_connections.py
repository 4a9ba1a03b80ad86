#!/usr/bin/env python3
"""Streams that share connections to a GPU (a double of one), as CUDA_DEVICE_MAX_CONNECTIONS sets it, and therefore hold up each other."""
import re
import unittest

from cluster import BUILD, Cluster

WAITS = True
TIMED_OUT = 3  # exit code of two_orders


class GpuConnections(unittest.TestCase):
    def run_ranks(self, connections, layout, command, daemon_connections=0):
        """Runs command(rank) for each rank, on the node that the layout gives it. Returns the exit codes and the outputs."""
        with Cluster(sorted(set(layout)), gpus=2, client_environment={"CUDA_DOUBLE_CONNECTIONS": str(connections)},
                     daemon_environment={"CUDA_DOUBLE_CONNECTIONS": str(daemon_connections)}) as cluster:
            processes = [cluster.client(node, *command(rank)) for rank, node in enumerate(layout)]
            outputs = ["".join(process.communicate(timeout=120)) for process in processes]
            return [process.returncode for process in processes], outputs

    def check_each(self, layout, command):
        for connections in (1, 2, 8):
            for of_daemon in (0, connections):
                with self.subTest(connections=connections, of_daemon=of_daemon):
                    codes, outputs = self.run_ranks(connections, layout, command, of_daemon)
                    self.assertEqual(set(codes), {0}, outputs)

    def test_computing_beside_operations(self):
        self.check_each("aab", lambda rank: [BUILD / "examples/overlap", "--rank", rank, "--size", 3, "--device", rank % 2])

    def test_everything(self):
        self.check_each("aab", lambda rank: [BUILD / "tests/system/surface", "surface", rank, 3, 2, rank % 2])

    def test_order_by_streams(self):
        self.check_each("aa", lambda rank: [BUILD / "tests/system/stream_order", "order", rank, 2, 0, 20])

    def test_two_communicators_in_two_orders(self):
        """With one connection neither operation can begin: each ends at its deadline with an error that says why, and the streams go on."""
        def command(rank):
            return [BUILD / "tests/system/two_orders", "orders", rank, 2, 0, 1500]

        codes, outputs = self.run_ranks(1, "aa", command)
        self.assertEqual(codes, [TIMED_OUT] * 2, outputs)
        for output in outputs:
            said = [re.search(f'TIMED_OUT op 1 all_reduce on "orders-{communicator}": not done within 1500 ms; node a: (.*)', output)[1] for communicator in (0, 1)]
            waits = [f"waiting for the stream of rank {other}" for other in (1, 0)]
            # The operation whose deadline passes last may have begun meanwhile.
            self.assertTrue(set(waits) & set(said) and set(said) <= {*waits, "about to begin", "running on GPUs"}, output)
        for connections in (2, 8):
            codes, outputs = self.run_ranks(connections, "aa", command)
            self.assertEqual(codes, [0, 0], outputs)


if __name__ == "__main__":
    unittest.main()
