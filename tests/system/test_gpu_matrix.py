#!/usr/bin/env python3
"""All types and operators on buffers of GPUs, which are doubles of them (tests/cuda_double), between real daemons."""
import unittest

from cluster import Cluster
from program_case import ProgramCase

TIMEOUT_S = 900  # for ten matrices of every type and operator, on two processors


class GpuMatrix(ProgramCase):
    def check(self, layout, devices, settings="", **environment):
        """layout: the node of each rank. devices: its GPU on that node, or -1."""
        with Cluster(sorted(set(layout)), settings, gpus=4, client_environment=environment, daemon_environment=environment) as cluster:
            self.check_ranks(cluster, layout, "matrix", devices=devices)

    def test_ranks_that_share_a_gpu(self):
        self.check("aaa", [1, 1, 1])

    def test_a_gpu_each(self):
        self.check("aaa", [2, 0, 1])

    def test_two_nodes_of_four_gpus(self):
        self.check("aaaabbbb", [0, 1, 2, 3, 0, 1, 2, 3])

    def test_two_nodes_and_two_ranks_a_gpu(self):
        self.check("abbaabba", [0, 0, 0, 0, 1, 1, 1, 1])

    def test_some_on_the_host(self):
        self.check("aabab", [0, -1, -1, 1, 0])

    def test_three_rails(self):
        self.check("abab", [0, 0, 1, 1], "rails = 3; slice_bytes = 4096;")

    def test_gpus_that_do_not_reach_each_other(self):
        """NCCL or the host moves data between the GPUs of a node."""
        self.check("aaaa", [0, 1, 1, 2], CUDA_DOUBLE_PEER="0")
        self.check("aab", [0, 1, 3], CUDA_DOUBLE_PEER="0")

    def test_gpus_that_do_not_reach_each_other_nor_have_nccl(self):
        self.check("aaa", [0, 1, 2], CUDA_DOUBLE_PEER="0", COMMD_NCCL_LIBRARY="/nowhere/libnccl.so.2")

    def test_the_engine_is_nccl(self):
        self.check("aaaa", [0, 1, 1, 2], 'gpu_engine = "nccl";')
        self.check("aabb", [0, 1, 1, 0], 'gpu_engine = "nccl";')

    def test_the_engine_is_kernels(self):
        self.check("aaa", [0, 1, 2], 'gpu_engine = "kernels";', CUDA_DOUBLE_PEER="0")
        self.check("aaaa", [0, 1, 1, 2], 'gpu_engine = "kernels";')
        self.check("aabb", [0, 1, 1, 0], 'gpu_engine = "kernels";')

    def test_gpus_and_the_host_in_one_node(self):
        self.check("aaa", [0, -1, 1])

    def test_gpus_that_do_not_reach_what_was_opened_on_another(self):
        self.check("aab", [0, 1, 0], 'gpu_peer_access = "off";', CUDA_DOUBLE_IMPORTS_PEER="0")


if __name__ == "__main__":
    unittest.main()
