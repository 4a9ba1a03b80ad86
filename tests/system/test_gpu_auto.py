#!/usr/bin/env python3
"""gpu_engine = "auto": the table of measured times gives small operations to kernels and large ones to NCCL. The GPUs are doubles (tests/cuda_double)."""
import json
import unittest

from cluster import Cluster
from failure_case import read_until
from program_case import ProgramCase
from test_gpu_nccl import counts
from test_gpu_tuning import KINDS, TuningCase

BOUNDARY_BYTES = 32768  # up to here, kernels
NCCL_NS, KERNEL_NS_PER_BYTE = 1000000, 16
MATRIX_BOUNDARY_BYTES = 8192  # matrix.c has operations of up to 4100 bytes, and of 12,300 and more
SMALL = [1, 33, 8191, 8192]  # of 4 bytes each
LARGE = [8193, 9001, 100003]
KERNELS_ARE_SLOW = {"CUDA_DOUBLE_KERNEL_US": "4000"}
BY_SIZE = {"CUDA_DOUBLE_KERNEL_US_PER_MIB": "10000", "CUDA_DOUBLE_NCCL_US": "3000"}  # kernels: 20 us for 4 KiB, 10 ms for 2 MiB


class Auto(TuningCase, ProgramCase):
    start = ProgramCase.start

    def set_boundary(self, cluster, boundary_bytes):
        """Writes times of two lines into the table, which meet at the boundary."""
        table = self.wait_file(cluster)
        kernel_ns = NCCL_NS - KERNEL_NS_PER_BYTE * boundary_bytes
        for row in (row for each in table["sets"] for row in each["rows"]):
            row.update(nccl_ns=NCCL_NS, without_ns=kernel_ns + KERNEL_NS_PER_BYTE * row["bytes"])
        self.path(cluster).write_text(json.dumps(table))
        self.restart(cluster)

    def measured_cluster(self, layout, devices, boundary_bytes=BOUNDARY_BYTES, **options):
        cluster = self.cluster(gpus=4, **options)
        self.start_all(cluster)
        self.run_once(cluster, layout, devices)
        self.wait_measured(cluster)
        self.set_boundary(cluster, boundary_bytes)
        return cluster

    def run_engines(self, cluster, devices, rounds, elements, name="engines"):
        self.check_ranks(cluster, "a" * len(devices), "engines", rounds, ",".join(str(count) for count in elements), name=name, devices=devices)

    def test_both_at_once_on_one_communicator(self):
        """Operations of both engines are in flight at the same time, on streams and without. Each side of the boundary has its engine."""
        rounds = 25
        for devices in ([0, 1], [2, 0, 1], [0, 1, 0, 1]):
            with self.subTest(devices=devices):
                cluster = self.measured_cluster("a" * len(devices), devices)
                self.run_engines(cluster, devices, rounds, SMALL + LARGE)
                by_nccl, by_kernels, by_host, refused, failed, stuck = counts(cluster)
                self.assertEqual((by_nccl, by_kernels, by_host), (3 * rounds * len(LARGE), 3 * rounds * len(SMALL), 0))
                self.assertEqual((refused, failed, stuck), (0, 0, 0))
                self.assertIn(f"{by_nccl} by NCCL", cluster.commctl("a", "gpus").stdout)
                cluster.wait_gpus_idle()

    def test_both_at_once_and_late(self):
        """The same with GPUs on which each piece of work is late: the streams of one are ahead of those of the other."""
        devices = [0, 1, 2]
        cluster = self.measured_cluster("aaa", devices, CUDA_DOUBLE_DELAY_US="300")
        self.run_engines(cluster, devices, 6, SMALL + LARGE)
        by_nccl, by_kernels, by_host, *failures = counts(cluster)
        self.assertEqual((by_nccl, by_kernels, by_host, failures), (18 * len(LARGE), 18 * len(SMALL), 0, [0, 0, 0]))

    def check_matrix(self, cluster, layout, devices):
        """All types and operators, by kernels up to the boundary and by NCCL above it. Types and operators that NCCL has not stay with the others."""
        before = counts(cluster)
        self.check_ranks(cluster, layout, "matrix", name="types", devices=devices)
        by_nccl, by_kernels, by_host, *failures = (after - old for after, old in zip(counts(cluster), before))
        self.assertGreater(min(by_nccl, by_kernels), 30)
        self.assertEqual((by_host, failures), (0, [0, 0, 0]))
        cluster.wait_gpus_idle()

    def test_all_types_and_operators_by_size(self):
        for devices in ([0, 1, 2], [0, 1, 1]):
            with self.subTest(devices=devices):
                cluster = self.measured_cluster("aaa", devices, boundary_bytes=MATRIX_BOUNDARY_BYTES)
                self.check_matrix(cluster, "aaa", devices)

    def test_by_size_between_nodes(self):
        """Node a goes by its table. Node b has none, and so takes the way through the host."""
        cluster = self.cluster("ab", gpus=2)
        cluster.start("a")
        cluster.start("b", "--set", "gpu_tuning=off")
        cluster.wait_ready()
        self.run_once(cluster)
        self.wait_measured(cluster)
        self.set_boundary(cluster, BOUNDARY_BYTES)
        self.check_ranks(cluster, "aabb", "engines", 5, ",".join(str(count) for count in SMALL + LARGE), name="sizes", devices=[0, 1, 1, 0])
        by_nccl, by_kernels, by_host, *failures = counts(cluster)
        self.assertEqual((by_nccl, by_kernels, by_host, failures), (15 * len(LARGE), 0, 15 * len(SMALL), [0, 0, 0]))
        self.assertEqual(cluster.json("b", "gpus")["operations_by_nccl"], 0)
        cluster.wait_gpus_idle()

    def test_algorithms_say_which(self):
        cluster = self.measured_cluster("aa", [0, 1])
        rows = [row for row in cluster.json("a", "algorithms")["engines"] if row["kind"] in KINDS]
        self.assertEqual({row["reason"] for row in rows}, {"measured"})
        self.assertEqual({row["engine"] for row in rows if row["size_bytes"] <= BOUNDARY_BYTES}, {"kernels"})
        self.assertEqual({row["engine"] for row in rows if row["size_bytes"] > BOUNDARY_BYTES}, {"NCCL"})

    def test_measured_by_size(self):
        """Not a table of the test's: commd measures how slow these GPUs are, and chooses by that. On a busy machine, all may take longer, but not less."""
        cluster = self.cluster(**BY_SIZE)
        self.start_all(cluster)
        self.run_once(cluster)
        rows = self.wait_measured(cluster)[0]["rows"]
        self.assertGreaterEqual(min(row["nccl_ns"] for row in rows), 3000000)
        by_bytes = {row["size_bytes"]: row for row in rows if row["kind"] == "all_reduce"}
        self.assertGreaterEqual(by_bytes[2 << 20]["without_ns"], 10000000)  # each GPU sums a half
        wanted = {True: 0, False: 0}  # by NCCL: how many operations
        for row in (by_bytes[4096], by_bytes[2 << 20]):
            wanted[row["nccl_ns"] < row["without_ns"]] += 3 * 2
        before = counts(cluster)
        self.run_engines(cluster, [0, 1], 2, [1024, 524288], name="sizes")
        by_nccl, by_kernels, *_ = (after - old for after, old in zip(counts(cluster), before))
        self.assertEqual((by_nccl, by_kernels), (wanted[True], wanted[False]), rows)

    def test_replays_across_a_change_of_the_table(self):
        """A graph is captured and replayed by kernels. Meanwhile, commd measures that NCCL is faster: later replays are by NCCL."""
        cluster = self.cluster(**KERNELS_ARE_SLOW)
        cluster.client_environment = dict(cluster.client_environment or {}, GRAPHS_STOP=str(cluster.folder / "stop"))
        self.start_all(cluster)
        ranks = self.start(cluster, "aa", "graphs", "until", 0, devices=[0, 1])
        for process in ranks:
            read_until(process, "READY")
        self.assertGreater(counts(cluster)[1], 0)
        self.wait_measured(cluster)
        before = counts(cluster)
        cluster.wait(lambda: counts(cluster)[0] > before[0] + 50, "replays are by NCCL", timeout_s=60)
        (cluster.folder / "stop").touch()
        self.expect_checked(ranks)
        self.assertEqual(counts(cluster)[3:], [0, 0, 0])
        cluster.wait_gpus_idle()

    def test_replays_of_both_engines(self):
        """Operations of one graph are on both sides of the boundary."""
        cluster = self.measured_cluster("aa", [0, 1], boundary_bytes=4096)
        self.check_ranks(cluster, "aa", "graphs", "replays", 100, name="graphs", devices=[0, 1])
        by_nccl, by_kernels, _, *failures = counts(cluster)
        self.assertGreater(min(by_nccl, by_kernels), 300)
        self.assertEqual(failures, [0, 0, 0])


if __name__ == "__main__":
    unittest.main()
