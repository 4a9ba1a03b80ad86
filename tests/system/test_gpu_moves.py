#!/usr/bin/env python3
"""Which operations NCCL (its double) carries out among the GPUs of a node, and what passes through pinned memory, for each kind."""
import struct
import unittest

from cluster import Cluster
from failure_case import FailureCase
from test_gpu_nccl import counts

NCCL = 'gpu_engine = "nccl"; '
KINDS = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")


class GpuMoves(FailureCase):
    """Gathers, scatters and all_to_alls: what stays on the node goes from GPU to GPU by NCCL, all else over the link of the rank's own GPU."""

    def run_ranks(self, cluster, layout, devices, name, *options):
        for process in self.ranks(cluster, layout, name, "moves", *options, devices=devices):
            self.expect(process, "OK", within_s=30)

    def test_results(self):
        for layout, devices, settings in (("aabb", [0, 1, 2, 3], NCCL), ("aaabbc", [0, 1, 0, 2, 3, 1], NCCL), ("abab", [0, 0, 1, 1], NCCL + "rails = 3; slice_bytes = 4096;")):
            for peer in ("1", "0"):
                with self.subTest(layout=layout, peer=peer), Cluster(sorted(set(layout)), settings, gpus=4, client_environment={"CUDA_DOUBLE_PEER": peer},
                                                                     daemon_environment={"CUDA_DOUBLE_PEER": peer}) as cluster:
                    self.run_ranks(cluster, layout, devices, "moves", "count=3001")
                    by_nccl, _, by_host, refused, failed, stuck = counts(cluster)
                    self.assertEqual((by_nccl, by_host, refused, failed, stuck), (3, 0, 0, 0, 0))
                    cluster.wait_gpus_idle()

    def test_without_nccl(self):
        for settings, environment in (('gpu_engine = "kernels";', {}), ('gpu_engine = "kernels";', {"CUDA_DOUBLE_PEER": "0"}), ("", {})):
            with self.subTest(settings=settings, **environment), Cluster("ab", settings, gpus=2, daemon_environment=environment, client_environment=environment) as cluster:
                self.run_ranks(cluster, "aabb", [0, 1, 1, 0], "moves", "count=3001")
                self.assertEqual(counts(cluster)[0], 0)

    def test_each_kind_is_by_nccl(self):
        """One node and several: each operation counts once on each node, as NCCL's."""
        for layout, devices, settings in (("aaa", [0, 1, 2], NCCL), ("aaaa", [1, 0, 0, 1], NCCL), ("aaabb", [0, 1, 2, 3, 0], NCCL),
                                          ("aabb", [0, 1, 2, 3], NCCL + "rails = 3; slice_bytes = 4096;")):
            with self.subTest(layout=layout, devices=devices), Cluster(sorted(set(layout)), settings, gpus=4) as cluster:
                self.run_ranks(cluster, layout, devices, "kinds", "count=3001", f"kinds={','.join(KINDS)}")
                for node in sorted(set(layout)):
                    shown = cluster.json(node, "gpus")
                    self.assertEqual([shown[f"operations_by_{engine}"] for engine in ("nccl", "kernels", "host")], [len(KINDS), 0, 0], node)

    def test_traffic(self):
        """In blocks of 8 * count bytes, for nodes a and b: to the host, and from it. The root, rank 1, is on node a. Each GPU's share takes its own link."""
        count, layout, devices = 10000, "aabb", [0, 1, 2, 3]
        expected = {"gather": ({}, {1: 2}, {2: 1, 3: 1}, {}), "scatter": ({1: 2}, {}, {}, {2: 1, 3: 1}),
                    "all_to_all": ({0: 2, 1: 2}, {0: 2, 1: 2}, {2: 2, 3: 2}, {2: 2, 3: 2}),
                    "all_reduce": ({0: .5, 1: .5}, {0: .5, 1: .5}, {2: .5, 3: .5}, {2: .5, 3: .5}),
                    "reduce_scatter": ({0: 2, 1: 2}, {0: 1, 1: 1}, {2: 2, 3: 2}, {2: 1, 3: 1}),
                    "all_gather": ({0: 1, 1: 1}, {0: 2, 1: 2}, {2: 1, 3: 1}, {2: 2, 3: 2}),
                    "broadcast": ({1: 1}, {0: 1}, {}, {2: .5, 3: .5}), "reduce": ({0: .5, 1: .5}, {1: 1}, {2: .5, 3: .5}, {})}
        for kind, ways in expected.items():
            with self.subTest(kind=kind), Cluster("ab", NCCL, gpus=4, start=False, client_environment={"CUDA_DOUBLE_PEER": "0"}) as cluster:
                for name in "ab":
                    cluster.start(name, environment={"CUDA_DOUBLE_PEER": "0", "CUDA_DOUBLE_TRAFFIC": str(cluster.folder / f"{name}.traffic")})
                cluster.wait_ready()
                self.run_ranks(cluster, layout, devices, "traffic", f"count={count}", f"kinds={kind}")
                links = [struct.unpack("16Q", (cluster.folder / f"{name}.traffic").read_bytes()) for name in "ab"]
                got = [{gpu: blocks / (8 * count) for gpu, blocks in enumerate(link[way::2]) if blocks} for link in links for way in (0, 1)]
                self.assertEqual(got, list(ways))


if __name__ == "__main__":
    unittest.main()
