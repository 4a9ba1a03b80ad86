#!/usr/bin/env python3
"""commd measures operations among a node's GPUs with and without NCCL, keeps the table in a file, and chooses by it. The GPUs are doubles (tests/cuda_double)."""
import json
import os
import unittest

from cluster import Cluster
from failure_case import FailureCase
from program_case import ProgramCase
from test_gpu_nccl import counts

KINDS = {"all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}
FAST, SLOW = 1000, 1000000


class TuningCase(FailureCase):
    def cluster(self, names="a", gpus=2, settings="", **environment):
        """The table's file is in the folder of the cluster, which goes with it; `path` finds it."""
        cluster = Cluster(names, gpus=gpus, start=False, daemon_environment=environment)
        cluster.settings = f'gpu_tuning = "{self.path(cluster)}";\n{settings}'
        for name in names:
            cluster.write_config(name)
        self.addCleanup(cluster.close)
        return cluster

    def path(self, cluster):
        return cluster.folder / "state" / "commd" / "gpu-tuning.json"

    def start_all(self, cluster):
        for name in cluster.names:
            cluster.start(name)
        cluster.wait_ready()

    def restart(self, cluster):
        cluster.daemons["a"].terminate()
        self.assertEqual(cluster.daemons["a"].wait(timeout=20), 0, cluster.log("a"))
        cluster.start("a")
        cluster.wait_ready()

    def run_once(self, cluster, layout="aa", devices=(0, 1), name="work"):
        for process in self.ranks(cluster, layout, name, "once", devices=list(devices)):
            self.expect(process, "OK", within_s=30)

    @staticmethod
    def check_surface(cluster, name):
        ProgramCase().check_ranks(cluster, "aaaa", "surface", 3, devices=[0, 1, 2, 3], name=name)

    def tuning(self, cluster):
        return cluster.json("a", "gpus", "--tuning")

    def wait_measured(self, cluster, sets=1):
        cluster.wait(lambda: len(self.tuning(cluster)["tunings"]) == sets and self.tuning(cluster)["tunings_wait"] == 0, "the GPUs are measured", timeout_s=90)
        return self.tuning(cluster)["tunings"]

    def wait_file(self, cluster):
        cluster.wait(lambda: self.path(cluster).exists(), "the table is written", timeout_s=20)
        return json.loads(self.path(cluster).read_text())

    def write(self, cluster, nccl_ns, without_ns):
        """Changes the times in the file, so that one engine is faster everywhere."""
        table = self.wait_file(cluster)
        for row in (row for each in table["sets"] for row in each["rows"]):
            row.update(nccl_ns=nccl_ns, without_ns=without_ns)
        self.path(cluster).write_text(json.dumps(table))


class GpuTuning(TuningCase):
    def test_measured_kept_and_used(self):
        cluster = self.cluster()
        self.start_all(cluster)
        self.run_once(cluster)
        measured = self.wait_measured(cluster)
        self.assertEqual(measured[0]["gpus"], [0, 1])
        self.assertEqual({row["kind"] for row in measured[0]["rows"]}, KINDS)
        self.assertTrue(all(row["nccl_ns"] > 0 and row["without_ns"] > 0 for row in measured[0]["rows"]))
        self.assertEqual(counts(cluster)[2:], [0, 0, 0, 0], "measurements are not operations of users, and nothing failed")
        table = self.wait_file(cluster)
        self.assertEqual(len(table["sets"][0]["rows"]), len(measured[0]["rows"]))
        self.assertRegex(cluster.commctl("a", "gpus", "--tuning").stdout, r"(?m)^GPUS .* FASTER$\n0,1 +all_reduce +4\.0 KiB .* ms +(NCCL|without)$")
        cluster.wait_gpus_idle()
        for nccl_ns, without_ns, engine in ((FAST, SLOW, "NCCL"), (SLOW, FAST, "kernels")):
            with self.subTest(engine):
                self.write(cluster, nccl_ns, without_ns)
                self.restart(cluster)
                self.run_once(cluster)
                by_nccl, by_kernels, *_ = counts(cluster)
                self.assertEqual((by_nccl > 0, by_kernels > 0), (engine == "NCCL", engine == "kernels"))
                shown = [row for row in cluster.json("a", "algorithms")["engines"] if row["kind"] in KINDS]
                self.assertEqual({(row["engine"], row["reason"]) for row in shown}, {(engine, "measured")})
                self.assertRegex(cluster.commctl("a", "algorithms", "all_reduce").stdout, rf"(?m)^GPUS .* BECAUSE$\n0,1 +all_reduce +8 B +{engine} .* measured$")

    def test_gpus_that_do_not_reach_each_other(self):
        """NCCL is measured against the way through the host. Until then, NCCL is used."""
        cluster = self.cluster(CUDA_DOUBLE_PEER="0")
        self.start_all(cluster)
        self.run_once(cluster)
        self.assertGreater(counts(cluster)[0], 0)
        self.wait_measured(cluster)
        for nccl_ns, without_ns, engine in ((SLOW, FAST, "host"), (FAST, SLOW, "NCCL")):
            with self.subTest(engine):
                self.write(cluster, nccl_ns, without_ns)
                self.restart(cluster)
                self.run_once(cluster)
                by_nccl, by_kernels, by_host, *_ = counts(cluster)
                self.assertEqual((by_nccl > 0, by_kernels, by_host > 0), (engine == "NCCL", 0, engine == "host"))
                shown = [row for row in cluster.json("a", "algorithms", "all_reduce")["engines"]]
                self.assertEqual({(row["engine"], row["reason"]) for row in shown}, {(engine, "measured")})

    def test_messages(self):
        """A broadcast between two GPUs is measured, for all pairs of GPUs that reach each other alike."""
        cluster = self.cluster(gpus=3)
        self.start_all(cluster)
        self.send(cluster, False)
        self.assertEqual([each["gpus"] for each in self.wait_measured(cluster)], [[0, 1]])
        for nccl_ns, without_ns in ((FAST, SLOW), (SLOW, FAST)):
            with self.subTest(nccl_ns=nccl_ns):
                self.write(cluster, nccl_ns, without_ns)
                self.restart(cluster)
                self.send(cluster, nccl_ns == FAST)
                self.assertEqual(len(self.tuning(cluster)["tunings"]), 1)

    def send(self, cluster, by_nccl):
        """by_nccl: whether NCCL moves messages, of a pair of GPUs that was measured and of those like it."""
        for process in self.ranks(cluster, "aa", "pair", "messages", "sizes=600000", "steps=20", devices=[0, 1]):
            self.expect(process, "OK", within_s=30)
        first = cluster.json("a", "gpus")["messages_by_nccl"]
        for process in self.ranks(cluster, "aaa", "three", "messages", "sizes=600000", "steps=20", devices=[0, 1, 2]):
            self.expect(process, "OK", within_s=30)
        self.assertEqual(first > 0, by_nccl)
        self.assertEqual(cluster.json("a", "gpus")["messages_by_nccl"] > first, by_nccl)

    def test_all_types_and_operators(self):
        """Both engines, by a table that prefers NCCL for every other kind, and for larger sizes."""
        cluster = self.cluster(gpus=3)
        self.start_all(cluster)
        self.run_once(cluster, "aaa", (0, 1, 2))
        self.wait_measured(cluster)
        table = self.wait_file(cluster)
        for row in table["sets"][0]["rows"]:
            by_nccl = sorted(KINDS).index(row["kind"]) % 2 == 0 or row["bytes"] > 4096
            row.update(nccl_ns=FAST if by_nccl else SLOW, without_ns=SLOW if by_nccl else FAST)
        self.path(cluster).write_text(json.dumps(table))
        self.restart(cluster)
        ProgramCase().check_ranks(cluster, "aaa", "matrix", devices=[0, 1, 2])
        ProgramCase().check_ranks(cluster, "aaa", "surface", 4, devices=[0, 1, 2])
        by_nccl, by_kernels, *_ = counts(cluster)
        self.assertGreater(min(by_nccl, by_kernels), 10)
        cluster.wait_gpus_idle()

    def test_operations_between_nodes(self):
        """Each node goes by its own table: here node a uses NCCL, and node b does not."""
        cluster = self.cluster("ab")
        cluster.start("a")
        cluster.start("b", "--set", "gpu_tuning=off")
        cluster.wait_ready()
        self.run_once(cluster)
        self.wait_measured(cluster)
        self.write(cluster, FAST, SLOW)
        self.restart(cluster)
        for process in self.ranks(cluster, "aabb", "both", "once", "count=100000", devices=[0, 1, 0, 1]):
            self.expect(process, "OK", within_s=30)
        self.assertGreater(counts(cluster)[0], 0)
        shown = cluster.json("b", "gpus")
        self.assertEqual((shown["operations_by_nccl"], shown["operations_by_host"] > 0), (0, True))

    def test_operations_go_on_meanwhile(self):
        """They are checked to the last element while commd measures, and afterwards."""
        cluster = self.cluster(gpus=4)
        self.start_all(cluster)
        self.check_surface(cluster, "surface")
        self.wait_measured(cluster, sets=len(self.tuning(cluster)["tunings"]) + self.tuning(cluster)["tunings_wait"])
        self.check_surface(cluster, "again")
        cluster.wait_gpus_idle()

    def test_a_file_that_is_not_right(self):
        """A line in the log says why, the GPUs are measured again, and the file is right again."""
        cluster = self.cluster()
        self.start_all(cluster)
        self.run_once(cluster)
        self.wait_measured(cluster)
        text = json.dumps(self.wait_file(cluster))
        path = self.path(cluster)
        table = json.loads(text)
        wrong = {"truncated": text[:len(text) // 2], "empty": "", "not JSON": "\0\xff" * 50, "nested": "[" * 100000, "huge": text + " " * (2 << 20),
                 "a number too large": text.replace('"nccl_ns": ', '"nccl_ns": 9999999999999999999999', 1), "zero": text.replace('"nccl_ns": ', '"nccl_ns": 0, "x": ', 1),
                 "other versions": text.replace("CUDA", "cuda", 1), "other GPUs": text.replace("PCI", "pci", 1), "twice": json.dumps(dict(table, sets=table["sets"] * 2))}
        for what, content in wrong.items():
            with self.subTest(what):
                path.write_bytes(content.encode("latin-1"))
                before = cluster.log("a").count("measure")
                self.restart(cluster)
                self.assertGreater(cluster.log("a").count("measure"), before, cluster.log("a"))
                self.assertEqual(self.tuning(cluster)["tunings"], [])
        for what, make in (("a folder", lambda: path.mkdir()), ("a pipe", lambda: os.mkfifo(path)), ("a link", lambda: path.symlink_to("/dev/zero"))):
            with self.subTest(what):
                path.unlink() if not path.is_dir() else path.rmdir()
                make()
                self.restart(cluster)
                cluster.wait_logged("a", "commd measures the GPUs again")
        self.run_once(cluster)
        self.wait_measured(cluster)
        cluster.wait(lambda: not path.is_symlink() and path.is_file(), "the table is written in place of the link", timeout_s=20)
        self.restart(cluster)
        self.assertEqual(len(self.tuning(cluster)["tunings"]), 1)

    def test_ctas(self):
        """With another number of CTAs, NCCL is another one: the table does not hold."""
        cluster = self.cluster(settings="gpu_nccl_ctas = 32;")
        self.start_all(cluster)
        self.run_once(cluster)
        self.wait_measured(cluster)
        self.assertIn("with 32 CTAs", self.wait_file(cluster)["versions"])
        cluster.settings = cluster.settings.replace("32", "0")
        cluster.write_config("a")
        self.restart(cluster)
        cluster.wait_logged("a", "other GPUs or versions")
        self.run_once(cluster)
        self.wait_measured(cluster)

    def test_nothing_can_be_written(self):
        cluster = self.cluster()
        (cluster.folder / "state").write_text("not a folder")
        self.start_all(cluster)
        self.run_once(cluster)
        self.wait_measured(cluster)
        cluster.wait(lambda: "is lost when commd ends" in cluster.log("a"), "the log says so", timeout_s=20)
        self.restart(cluster)
        self.run_once(cluster)

    def test_nccl_refuses(self):
        """Operations go on with kernels, and commd says that it tries again."""
        cluster = self.cluster(CUDA_DOUBLE_FAIL="ncclCommInitRankConfig:1+")
        self.start_all(cluster)
        self.run_once(cluster)
        cluster.wait(lambda: "commd tries again in" in cluster.log("a"), "the measurement fails", timeout_s=60)
        self.run_once(cluster, name="again")
        self.assertEqual(self.tuning(cluster)["tunings"], [])
        self.assertEqual(self.tuning(cluster)["tunings_wait"], 1)
        cluster.wait_gpus_idle()
        self.restart(cluster)

    def test_a_kernel_of_nccl_that_hangs(self):
        cluster = self.cluster(CUDA_DOUBLE_FAIL="ncclKernel:5")
        self.start_all(cluster)
        self.run_once(cluster)
        cluster.wait(lambda: "commd tries again in" in cluster.log("a"), "the measurement is given up", timeout_s=60)
        self.run_once(cluster, name="again")
        cluster.wait_gpus_idle()

    def test_the_daemon_ends_while_it_measures(self):
        cluster = self.cluster()
        self.start_all(cluster)
        self.run_once(cluster)
        self.restart(cluster)
        self.run_once(cluster)
        self.wait_measured(cluster)

    def test_not_measured(self):
        """The configuration decides, or there is no NCCL: there is nothing to choose."""
        for settings, environment in (('gpu_engine = "nccl";', {}), ('gpu_engine = "kernels";', {}), ("", {"COMMD_NCCL_LIBRARY": "/nowhere/libnccl.so.2"})):
            with self.subTest(settings=settings, environment=environment):
                cluster = self.cluster(settings=settings, **environment)
                self.start_all(cluster)
                self.run_once(cluster)
                shown = self.tuning(cluster)
                self.assertEqual((shown["tunings"], shown["tunings_wait"]), ([], 0))
                self.assertFalse(self.path(cluster).exists())
                reasons = {row["reason"] for row in cluster.json("a", "algorithms", "all_reduce")["engines"]}
                self.assertEqual(len(reasons), 1)
                self.assertFalse([reason for reason in reasons if "measured" in reason])


if __name__ == "__main__":
    unittest.main()
