#!/usr/bin/env python3
"""NCCL (its double) as the engine of the GPUs of a node: which engine runs an operation, and what happens if NCCL refuses, fails or hangs. If the
loop's thread calls NCCL, the double ends commd."""
import pathlib
import tempfile
import time
import unittest

from cluster import Cluster
from failure_case import FailureCase, read_until
from program_case import ProgramCase

WAITS = True
NCCL = 'gpu_engine = "nccl";'
HANGS = "=-1"
MIXED = [0, -1]  # a rank on a GPU, and one on the host: their data pass through pinned memory


COUNTS = ("operations_by_nccl", "operations_by_kernels", "operations_by_host", "nccl_refused", "nccl_failed", "nccl_stuck")


def counts(cluster):
    gpus = cluster.json("a", "gpus")
    return [gpus[key] for key in COUNTS]


class GpuEngines(ProgramCase):
    def check_surface(self, cluster, layout, devices):
        """Returns how much each engine has done of it."""
        before = counts(cluster)
        self.check_ranks(cluster, layout, "surface", 3, name=f"surface-{len(layout)}", devices=devices)
        return [after - earlier for after, earlier in zip(counts(cluster), before)]

    def test_every_kind_with_each_engine(self):
        for engine, peer in (("nccl", 1), ("nccl", 0), ("auto", 1), ("auto", 0), ("kernels", 1)):
            environment = {"CUDA_DOUBLE_PEER": str(peer)}
            with Cluster("a", f'gpu_engine = "{engine}";', gpus=4, daemon_environment=environment, client_environment=environment) as cluster:
                for layout, devices in (("aaaa", [0, 1, 2, 3]), ("aaaaa", [2, 0, 1, 0, 1]), ("aaaaaa", [0, 0, 1, 1, 2, 2])):
                    with self.subTest(layout=layout, engine=engine, peer=peer):
                        by_nccl, by_kernels, _, refused, failed, _ = self.check_surface(cluster, layout, devices)
                        self.assertEqual(by_nccl > 0, engine == "nccl" or (engine, peer) == ("auto", 0))
                        self.assertEqual((refused, failed), (0, 0))
                        if peer:
                            self.assertGreater(by_kernels, 0, "scans, and operations of one GPU")


class GpuNccl(FailureCase):
    def cluster(self, rule="", settings=NCCL, gpus=3, **environment):
        return Cluster("a", settings, gpus=gpus, daemon_environment=dict(environment, CUDA_DOUBLE_FAIL=rule))

    def test_every_init_fails(self):
        """Another engine does all work of NCCL. A run without the failure shows that NCCL is called otherwise."""
        for peer in (1, 0):
            for rule in ("ncclCommInitRankConfig:1+", "ncclGetUniqueId:1+", "ncclGroupStart:1+", "ncclGroupEnd:1+", "cuMemAlloc:1+", ""):
                with self.subTest(rule=rule, peer=peer), self.cluster(rule, CUDA_DOUBLE_PEER=str(peer)) as cluster:
                    for process in self.ranks(cluster, "aaa", "work", "once", devices=[0, 1, 2]):
                        self.expect(process, "OK", within_s=15)
                    by_nccl, by_kernels, by_host, refused, failed, _ = counts(cluster)
                    self.assertEqual((by_nccl > 0, by_kernels > 0, by_host > 0), (False, peer == 1, peer == 0) if rule else (True, False, False))
                    self.assertEqual((refused, failed), (1 if rule else 0, 0))
                    shown = cluster.json("a", "gpus")["nccl_error"]
                    self.assertIn(rule.split(":", maxsplit=1)[0], shown)
                    if rule:
                        cluster.wait_logged("a", "run without NCCL")
                    self.assertEqual(bool(rule), "run without NCCL" in cluster.log("a"), cluster.log("a"))
                    self.assertIn(f"{by_nccl} by NCCL", cluster.commctl("a", "gpus").stdout)
                    cluster.daemons["a"].terminate()
                    self.assertEqual(cluster.daemons["a"].wait(timeout=20), 0, cluster.log("a"))

    def test_communicators_on_the_same_gpus_share_one_of_nccl(self):
        """Also if their ranks have the GPUs in another order, or share them. There is none before the first operation needs it."""
        with self.cluster(gpus=4) as cluster:
            idle = self.ranks(cluster, "aa", "idle", "idle", "seconds=600", devices=[0, 1])
            for process in idle:
                read_until(process, "FORMED")
            self.assertEqual(cluster.json("a", "gpus")["nccl_communicators"], 0)
            ranks = [process for name, devices in (("first", [0, 1]), ("other-way", [1, 0]), ("shared", [0, 1, 1]), ("others", [2, 3]))
                     for process in self.start(cluster, "a" * len(devices), name, "loop", "steps=40", "pause=0.02", devices=devices)]
            self.assertEqual(cluster.json("a", "gpus")["nccl_communicators"], 2)
            for process in ranks:
                self.expect(process, "OK", within_s=30)
            for process in idle:
                process.kill()

    def test_versions(self):
        for version, used in ((21805, False), (21903, True), (22203, True), (22703, True), (23200, True)):
            with self.subTest(version), self.cluster(CUDA_DOUBLE_NCCL_VERSION=str(version)) as cluster:
                for process in self.ranks(cluster, "aa", "work", "once", devices=[0, 1]):
                    self.expect(process, "OK", within_s=15)
                self.assertEqual(counts(cluster)[0] > 0, used)
                self.assertEqual(cluster.json("a", "gpus")["nccl_version"], f"{version // 10000}.{version // 100 % 100}.{version % 100}" if used else "")
                if not used:
                    cluster.wait_logged("a", "NCCL 2.18.5 is too old")
                self.assertEqual("NCCL 2.18.5 is too old" in cluster.log("a"), not used)

    def test_a_library_that_is_no_nccl(self):
        """It is a warning, and the kernels. Without any library, there is no warning. The administrator sees why."""
        with tempfile.TemporaryDirectory() as folder:
            broken = pathlib.Path(folder) / "libnccl.so.2"
            broken.write_text("not a library")
            for path, text, warns in ((broken, "file too short", True), ("libm.so.6", "has no ncclGetVersion: it is too old, or no NCCL", True),
                                      (f"{folder}/none.so", "No such file or directory", False)):
                for engine in "auto", "nccl":
                    with self.subTest(text, engine=engine), self.cluster(settings=f'gpu_engine = "{engine}";', COMMD_NCCL_LIBRARY=str(path)) as cluster:
                        for process in self.ranks(cluster, "aa", "work", "once", devices=[0, 1]):
                            self.expect(process, "OK", within_s=15)
                        self.assertEqual(counts(cluster)[0], 0)
                        self.assertRegex(cluster.commctl("a", "gpus").stdout, f"(?s)^CUDA 13.0, NCCL none,.*\nNCCL is not used: [^\n]*{text}\n")
                        self.assertEqual(cluster.log("a").count("NCCL cannot be used: "), warns + (engine == "nccl"), cluster.log("a"))

    def test_kernels_do_not_load_nccl(self):
        """Nobody makes commd load it later, when its loop would wait for that."""
        with self.cluster(settings='gpu_engine = "kernels";') as cluster:
            for process in self.ranks(cluster, "aa", "work", "once", devices=[0, 1]):
                self.expect(process, "OK", within_s=15)
            self.assertIn("NCCL is not used: gpu_engine = \"kernels\" in the configuration\n", cluster.commctl("a", "gpus").stdout)
            cluster.commctl("a", "algorithms")
            self.assertNotIn("nccl", pathlib.Path(f"/proc/{cluster.daemons['a'].pid}/maps").read_text())

    def test_an_init_that_hangs(self):
        """The operation waits for a few seconds. Then another engine carries it out. Only NCCL's thread is lost."""
        with self.cluster("ncclGroupEnd:1" + HANGS) as cluster:
            for process in self.ranks(cluster, "aa", "work", "once", devices=[0, 1]):
                self.expect(process, "OK", within_s=15)
            by_nccl, by_kernels, *_ = counts(cluster)
            self.assertEqual((by_nccl, by_kernels > 0), (0, True))
            self.check_new_communicator(cluster, "aa", "host")

    def test_a_kernel_that_hangs(self):
        """The communicator's error names NCCL and the GPUs. commd aborts NCCL's communicator, and the next one works on the same GPUs."""
        with self.cluster("ncclKernel:1") as cluster:
            beside = self.start(cluster, "aa", "beside", "loop", "steps=200", devices=[2, 2])
            for process in self.ranks(cluster, "aa", "stuck", "once", "op_timeout_ms=4000", devices=[0, 1]):
                self.expect(process, "TIMED_OUT", "NCCL among GPUs 0, 1", within_s=15)
            cluster.wait(lambda: counts(cluster)[4:] == [1, 0], "NCCL's communicator is ended")
            self.assertIn("does not end", cluster.json("a", "gpus")["nccl_error"])
            for process in beside:
                self.expect(process, "OK", within_s=30)
            before = counts(cluster)[0]
            self.check_new_communicator(cluster, "aa", "again", [0, 1])
            self.assertGreater(counts(cluster)[0], before)
            self.assertEqual([gpu["error"] for gpu in cluster.json("a", "gpus")["gpus"]], ["", "", ""])
            cluster.wait_gpus_idle()

    def test_an_error_while_a_kernel_runs(self):
        """The rank is told at once, not at the operation's deadline."""
        with self.cluster("ncclKernel:1,ncclCommGetAsyncError:40+=6") as cluster:
            for process in self.ranks(cluster, "aa", "broken", "once", devices=[0, 1]):
                self.expect(process, "DEVICE", "GPU ", "ncclCommGetAsyncError", "remote process exited", within_s=10)
            cluster.wait(lambda: counts(cluster)[4:] == [1, 0], "NCCL's communicator is ended")
            self.check_new_communicator(cluster, "aa", "host")
            cluster.wait_gpus_idle()

    def stick(self, cluster, name, devices):
        """Starts ranks whose operation hangs in a kernel of NCCL. It has no deadline: on a busy machine, that could pass before the kernel begins."""
        stuck = self.ranks(cluster, "aa", name, "once", "op_timeout_ms=600000", devices=devices)
        self.wait_hangs(cluster)
        return stuck

    def end_stuck(self, cluster, name, stuck):
        cluster.commctl("a", "abort", name, "--reason", "long enough")
        for process in stuck:
            self.expect(process, "ABORTED", "long enough", within_s=15)

    def test_an_abort_that_hangs(self):
        """commd stops using these GPUs, and says why. Everything else goes on, and commd ends in time."""
        with self.cluster("ncclKernel:1,ncclCommAbort:1" + HANGS) as cluster:
            self.end_stuck(cluster, "stuck", self.stick(cluster, "stuck", [0, 1]))
            cluster.wait(lambda: counts(cluster)[5] == 1, "NCCL's communicator is given up", timeout_s=60)
            errors = [gpu["error"] for gpu in cluster.json("a", "gpus")["gpus"]]
            self.assertRegex(errors[0], "GPU 0 .*NCCL did not release the GPU")
            self.assertRegex(errors[1], "GPU 1 .*NCCL did not release the GPU")
            self.assertEqual(errors[2], "")
            for process in self.ranks(cluster, "a", "on-it", "once", devices=[0]):
                self.expect(process, "DEVICE", "NCCL did not release the GPU", within_s=15)
            self.check_new_communicator(cluster, "aa", "beside-it", [2, 2])
            self.check_new_communicator(cluster, "aa", "host")
            cluster.daemons["a"].terminate()
            self.assertEqual(cluster.daemons["a"].wait(timeout=20), 0, cluster.log("a"))

    def test_two_communicators_that_hang_on_one_gpu(self):
        """NCCL's communicator of GPUs 0 and 1 is aborted, but cannot free its memory on GPU 0 while that of GPUs 0 and 2 hangs there. So commd gives up that
        one, too. Its ranks are told at once, with NCCL's words. Then both end, and no GPU counts as failed. A communicator on other GPUs goes on."""
        with self.cluster("ncclKernel:1,ncclKernel:3", gpus=5) as cluster:
            first = self.stick(cluster, "first", [0, 1])
            second = self.ranks(cluster, "aa", "second", "once", "op_timeout_ms=60000", devices=[0, 2])
            cluster.wait(lambda: counts(cluster)[0] == 2, "the second one hangs")
            beside = self.start(cluster, "aa", "beside", "loop", "steps=200", devices=[3, 4])
            self.end_stuck(cluster, "first", first)
            cluster.wait(lambda: counts(cluster)[4] == 1, "the first one is given up", timeout_s=40)
            for process in second:
                self.expect(process, "DEVICE", "GPU 0, NCCL among 2 GPUs", "no progress", "another communicator", "does not end", within_s=8)
            cluster.wait(lambda: cluster.json("a", "gpus")["nccl_communicators"] == 1, "both have ended")
            self.assertEqual(counts(cluster)[3:], [0, 2, 0])
            self.assertEqual({gpu["error"] for gpu in cluster.json("a", "gpus")["gpus"]}, {""})
            for process in beside:
                self.expect(process, "OK", within_s=30)
            for devices in ([0, 1], [0, 2], [2, 1]):
                self.check_new_communicator(cluster, "aa", "again", devices)
            cluster.wait_gpus_idle()

    def wait_hangs(self, cluster):
        cluster.wait(lambda: (cluster.gpu_folder / "a-gpus/nccl-hangs").exists(), "a kernel of NCCL hangs", timeout_s=20)

    def wait_pins(self, cluster):
        """Soon after the driver goes on, pinned memory can be had again. Until then, who needs some is told why not."""
        lines = [""]
        for attempt in range(20):
            lines = [self.last_line(process, 15) for process in self.ranks(cluster, "aa", f"pins-{attempt}", "once", devices=MIXED)]
            if all(line.startswith("OK") for line in lines):
                return
            self.assertTrue(all("cuMemHostAlloc has not returned" in line for line in lines), lines)
        self.fail(lines)

    def check_works_again(self, cluster):
        cluster.wait(lambda: counts(cluster)[4:] == [1, 0], "NCCL's communicator is ended", timeout_s=20)
        self.wait_pins(cluster)
        self.check_new_communicator(cluster, "aa", "again", [0, 1])
        cluster.wait_gpus_idle()
        cluster.daemons["a"].terminate()
        self.assertEqual(cluster.daemons["a"].wait(timeout=20), 0, cluster.log("a"))

    def test_a_kernel_that_hangs_while_memory_is_pinned(self):
        """The driver lets cuMemHostAlloc wait for the kernel that hangs. commd answers meanwhile, and who needs the memory is told. When NCCL's communicator is
        aborted, the driver goes on, and so does everything else."""
        with self.cluster("ncclKernel:1", CUDA_DOUBLE_BLOCKING_ALLOCATION="1") as cluster:
            stuck = self.ranks(cluster, "aa", "stuck", "once", "op_timeout_ms=600000", devices=[0, 1])
            self.wait_hangs(cluster)
            for process in self.ranks(cluster, "aa", "needs-memory", "once", devices=MIXED):
                self.expect(process, "DEVICE", "cuMemHostAlloc does not return", within_s=15)
            for process in self.ranks(cluster, "aa", "needs-it-too", "once", devices=MIXED):
                self.expect(process, "DEVICE", "an earlier cuMemHostAlloc has not returned", within_s=15)
            self.assertEqual(counts(cluster)[4:], [0, 0])
            cluster.commctl("a", "abort", "stuck", "--reason", "long enough")
            for process in stuck:
                self.expect(process, "ABORTED", "long enough", within_s=15)
            self.check_works_again(cluster)

    def test_a_deadline_while_memory_is_pinned(self):
        """The operation on the GPUs that hang ends at its deadline, although the driver does not return from cuMemHostAlloc for another one."""
        with self.cluster("ncclKernel:1", CUDA_DOUBLE_BLOCKING_ALLOCATION="1") as cluster:
            stuck = self.ranks(cluster, "aa", "stuck", "once", "op_timeout_ms=10000", devices=[0, 1])
            self.wait_hangs(cluster)
            began = time.monotonic()
            pins = self.ranks(cluster, "aa", "needs-memory", "once", devices=MIXED)
            for process in stuck:
                self.expect(process, "TIMED_OUT", "NCCL among GPUs 0, 1", within_s=25)
            self.assertLess(time.monotonic() - began, 10 + 2 + 5)
            for process in pins:  # they are told, or get the memory when NCCL's communicator has been aborted
                self.assertRegex(self.last_line(process, 25), "^OK|cuMemHostAlloc does not return")
            self.check_works_again(cluster)

    def test_an_abort_that_hangs_beside_others(self):
        """NCCL does not give back GPUs 0 and 1. Whoever uses GPU 0 with another GPU is told at once then, with NCCL's words; that GPU does not count as failed.
        An operation that is under way elsewhere goes on."""
        with self.cluster("ncclKernel:1,ncclCommAbort:1" + HANGS, gpus=5) as cluster:
            stuck = self.stick(cluster, "stuck", [0, 1])
            shares = self.start(cluster, "aa", "shares", "loop", "pause=0.02", devices=[0, 2])
            beside = self.start(cluster, "aa", "beside", "loop", "pause=0.02", "seconds=25", "together=1", devices=[3, 4])
            self.end_stuck(cluster, "stuck", stuck)
            cluster.wait(lambda: counts(cluster)[5] == 1, "NCCL's communicator is leaked", timeout_s=60)
            self.assertEqual([process.poll() for process in beside], [None, None])
            for process in shares:
                self.expect(process, "DEVICE", "GPU 0", "NCCL did not release the GPU within 10 s, after: ", "does not end", within_s=5)
            cluster.wait(lambda: [bool(gpu["error"]) for gpu in cluster.json("a", "gpus")["gpus"]] == [True, True, False, False, False], "GPUs 0, 1")
            self.check_new_communicator(cluster, "aa", "others", [2, 3])
            for process in beside:
                self.expect(process, "OK", within_s=40)
            cluster.daemons["a"].terminate()
            self.assertEqual(cluster.daemons["a"].wait(timeout=20), 0, cluster.log("a"))


if __name__ == "__main__":
    unittest.main()
