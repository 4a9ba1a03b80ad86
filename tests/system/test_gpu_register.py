#!/usr/bin/env python3
"""Clients' memory that NCCL (its double) registers. The double's results are garbage if only some ranks pass registered memory. A context breaks if
memory is unmapped before it is deregistered, or deregistered while NCCL's work uses it."""
import unittest

from cluster import Cluster
from failure_case import FailureCase
from program_case import ProgramCase

ON = 'gpu_engine = "nccl"; gpu_nccl_register = "on";'


def counts(cluster):
    """Now, since the start, and memory that waits."""
    gpus = cluster.json("a", "gpus")
    return [gpus[key] for key in ("nccl_registered", "nccl_registered_ever", "nccl_retired")]


WINDOWS = 'gpu_engine = "nccl"; gpu_nccl_register = "windows";'


class RegisterCase(unittest.TestCase):
    def cluster(self, settings=ON, nodes="a", rule="", **environment):
        environment["CUDA_DOUBLE_FAIL"] = rule
        return Cluster(nodes, settings, gpus=4, daemon_environment=environment)

    def wait_none(self, cluster):
        cluster.wait(lambda: counts(cluster)[::2] == [0, 0], "all memory is deregistered and freed")
        self.assertEqual([gpu["error"] for gpu in cluster.json("a", "gpus")["gpus"]], [""] * 4)
        cluster.wait_gpus_idle()


class Programs(RegisterCase, ProgramCase):
    def test_all_kinds_with_memory_of_both_kinds(self):
        """In each turn, some ranks pass memory that cannot be registered. Ranks that share GPUs also use memory of commd."""
        for layout, devices in (("aaaa", [0, 1, 2, 3]), ("aaaaa", [2, 0, 1, 0, 1])):
            for peer in "1", "0":
                for settings in ON, WINDOWS:
                    with self.subTest(layout=layout, peer=peer, settings=settings), self.cluster(settings, CUDA_DOUBLE_PEER=peer) as cluster:
                        self.check_ranks(cluster, layout, "surface", 3, devices=devices)
                        self.wait_none(cluster)
                        self.assertEqual(cluster.json("a", "gpus")["nccl_failed"], 0)


class Ranks(RegisterCase, FailureCase):
    def test_registered_once(self):
        """Every operation uses the same memory. It is freed when its process has ended, though NCCL's communicator stays."""
        for rule, some in (("", True), ("ncclCommRegister:2+", False)):
            with self.subTest(rule), self.cluster(rule=rule) as cluster:
                for process in self.ranks(cluster, "aaaa", "registered", "loop", "steps=20", "memory=comm", devices=[0, 1, 2, 3]):
                    self.expect(process, "OK", within_s=20)
                self.assertEqual(counts(cluster)[1], 4 if some else 1)
                self.assertGreaterEqual(cluster.json("a", "gpus")["operations_by_nccl"], 20)
                self.wait_none(cluster)
                self.assertEqual(cluster.json("a", "gpus")["nccl_communicators"], 1)
                self.assertIn("since the start; 0 to be freed", cluster.commctl("a", "gpus").stdout)

    def test_windows(self):
        """One window of all GPUs. NCCL older than 2.27.3 has none, and where NCCL fails at one, commd goes on without."""
        for rule, version, windows in (("", "22809", 1), ("", "22601", 0), ("ncclCommWindowRegister:3=3", "22809", 0)):
            with self.subTest(rule=rule, version=version), self.cluster(WINDOWS, rule=rule, CUDA_DOUBLE_NCCL_VERSION=version) as cluster:
                for process in self.ranks(cluster, "aaaa", "windows", "loop", "steps=20", "memory=comm", devices=[0, 1, 2, 3]):
                    self.expect(process, "OK", within_s=20)
                gpus = cluster.json("a", "gpus")
                self.assertEqual((gpus["nccl_windows_ever"], gpus["nccl_windows_refused"]), (windows, bool(rule)))
                self.assertEqual((counts(cluster)[1], gpus["operations_by_nccl"] >= 20), (0, False) if rule else (4, True))
                self.assertEqual("windows of NCCL: " in cluster.commctl("a", "gpus").stdout, windows == 1 or bool(rule))
                self.wait_none(cluster)
                self.assertEqual(cluster.json("a", "gpus")["nccl_windows"], 0)

    def test_windows_between_nodes(self):
        with self.cluster(WINDOWS, nodes="ab") as cluster:
            for process in self.ranks(cluster, "aabb", "nodes", "loop", "steps=10", "count=70000", "memory=comm", devices=[0, 1, 0, 1]):
                self.expect(process, "OK", within_s=30)
            self.assertGreater(cluster.json("a", "gpus")["nccl_windows_ever"] + counts(cluster)[1], 0)
            self.wait_none(cluster)

    def test_a_killed_rank_of_a_window(self):
        with self.cluster(WINDOWS) as cluster:
            killed = self.start(cluster, "aaa", "killed", "loop", "count=70000", "memory=comm", devices=[0, 1, 2])
            killed[0].kill()
            for process in killed[1:]:
                self.expect(process, "RANK_LOST", within_s=10)
            self.wait_none(cluster)
            self.assertEqual((cluster.json("a", "gpus")["nccl_windows_ever"], cluster.json("a", "gpus")["nccl_windows"]), (1, 0))

    def test_off(self):
        with self.cluster('gpu_engine = "nccl";') as cluster:
            for process in self.ranks(cluster, "aa", "off", "loop", "steps=3", "memory=comm", devices=[0, 1]):
                self.expect(process, "OK", within_s=20)
            self.assertEqual((counts(cluster)[1], cluster.json("a", "gpus")["operations_by_nccl"] > 0), (0, True))
            self.assertNotIn("since the start", cluster.commctl("a", "gpus").stdout)

    def test_between_nodes(self):
        with self.cluster(nodes="ab") as cluster:
            for process in self.ranks(cluster, "aabb", "nodes", "loop", "steps=10", "count=70000", "memory=comm", devices=[0, 1, 0, 1]):
                self.expect(process, "OK", within_s=30)
            self.assertEqual(counts(cluster)[1], 2)
            self.wait_none(cluster)

    def test_killed_ranks(self):
        with self.cluster() as cluster:
            for name in "first", "second":
                killed = self.start(cluster, "aaa", name, "loop", "count=70000", "memory=comm", devices=[0, 1, 2])
                killed[0].kill()
                for process in killed[1:]:
                    self.expect(process, "RANK_LOST", within_s=10)
                self.wait_none(cluster)
            self.assertEqual(counts(cluster)[1], 6)

    def test_a_kernel_that_hangs(self):
        """NCCL's communicator is aborted, and takes its registrations with it."""
        with self.cluster(rule="ncclKernel:2") as cluster:
            for process in self.ranks(cluster, "aa", "stuck", "loop", "op_timeout_ms=1000", "memory=comm", devices=[0, 1]):
                self.expect(process, "TIMED_OUT", "NCCL among GPUs 0, 1", within_s=10)
            self.wait_none(cluster)
            for process in self.ranks(cluster, "aa", "again", "once", "memory=comm", devices=[0, 1]):
                self.expect(process, "OK", within_s=15)
            self.wait_none(cluster)


if __name__ == "__main__":
    unittest.main()
