#!/usr/bin/env python3
"""Everything that the library offers, with buffers on GPUs, which are doubles (tests/cuda_double), between real daemons."""
import unittest

from cluster import Cluster
from program_case import ProgramCase


class GpuSurface(ProgramCase):
    def check(self, layout, devices, turns=8, gpus=4, settings="", environment=None, program="surface"):
        """layout: the node of each rank. devices: its GPU on that node, or -1. Afterwards the daemons hold nothing of the ranks."""
        with Cluster(sorted(set(layout)), settings=settings, gpus=gpus, client_environment=environment, daemon_environment=environment) as cluster:
            self.check_ranks(cluster, layout, program, turns, devices=devices)
            cluster.wait_gpus_idle()

    def test_one_rank(self):
        self.check("a", [3])

    def test_ranks_that_share_a_gpu(self):
        self.check("aaa", [1, 1, 1])

    def test_a_gpu_each(self):
        self.check("aaaa", [2, 0, 1, 3])

    def test_two_nodes_of_four_gpus(self):
        self.check("aaaabbbb", [0, 1, 2, 3, 0, 1, 2, 3], turns=4)

    def test_two_nodes_of_four_gpus_and_two_ranks_each(self):
        self.check("abbaabbaabbaabba", [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3], turns=2)

    def test_two_nodes_of_two_gpus_and_two_ranks_each(self):
        self.check("abbaabba", [0, 0, 0, 0, 1, 1, 1, 1], gpus=2)

    def test_some_on_the_host(self):
        self.check("aabab", [0, -1, -1, 1, 0])

    def test_three_rails(self):
        self.check("abab", [0, 0, 1, 0], turns=4, settings="rails = 3; slice_bytes = 4096;")

    def test_gpus_that_are_late(self):
        """Work in streams begins up to 2 ms late, and allocations wait for all of that work, as a real driver may do."""
        self.check("aaab", [0, 0, 1, 1], turns=4, environment={"CUDA_DOUBLE_DELAY_US": "2000", "CUDA_DOUBLE_BLOCKING_ALLOCATION": "1"})

    def test_gpus_that_do_not_reach_each_other(self):
        for layout, devices in (("aaaaa", [0, 1, 2, 3, 1]), ("aabbb", [0, 1, 1, 0, 1])):
            with self.subTest(layout):
                self.check(layout, devices, turns=4, environment={"CUDA_DOUBLE_PEER": "0"})

    def test_on_the_socket_alone(self):
        self.check("aab", [0, 0, 1], turns=4, environment={"COMMD_RINGS": "0"})

    def test_memory_allocated_and_freed_all_the_time(self):
        for layout, devices, peer, numbered in (("aa", [0, 0], 1, 1), ("aab", [0, 1, 0], 1, 0), ("aa", [0, 1], 0, 1)):
            with self.subTest(layout):
                self.check(layout, devices, turns=24, program="reuse",
                           environment={"CUDA_DOUBLE_PEER": str(peer), "CUDA_DOUBLE_MAPPINGS_NUMBERED": str(numbered)})


if __name__ == "__main__":
    unittest.main()
