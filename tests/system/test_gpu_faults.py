#!/usr/bin/env python3
"""Calls of the CUDA driver and of NCCL fail in commd, because their doubles let them fail. The ranks concerned are told which call failed. All
others go on, and commd ends cleanly."""
import unittest

from cluster import Cluster
from failure_case import FailureCase

SHARED = ("aa", [0, 0])          # kernels on one GPU
APART = ("aab", [0, 1, 0])       # on two GPUs through pinned memory, and with another node
EACH = ("aaa", [0, 1, 1])        # on two GPUs of one node
OF_THE_CONTEXT = "=700"          # the error after which nothing works in the context


class GpuFaults(FailureCase):
    def check(self, rule, symbol, code, where, breaks=False, again=True, at_its_end=False, **settings):
        """On node a, the first communicator meets the fault. breaks: its GPU cannot be used afterwards. again: the next communicator works.
        at_its_end: the call that fails moves results to their places, and another node may have its own results by then."""
        layout, devices = where
        with Cluster(sorted(set(layout)), gpus=2, start=False) as cluster:
            for name in sorted(set(layout)):
                cluster.start(name, environment=dict(settings, CUDA_DOUBLE_FAIL=rule) if name == "a" else settings)
            cluster.wait_ready()
            others = self.start(cluster, layout, "host", "loop", "steps=100")
            for node, process in zip(layout, self.ranks(cluster, layout, "broken", "once", devices=devices)):
                if node == "a" or not at_its_end:
                    self.expect(process, code, "GPU", symbol, within_s=15)
                else:
                    self.expect(process, ("OK", code), within_s=15)
            for process in others:
                self.expect(process, "OK", within_s=30)
            if breaks:
                self.check_broken(cluster, layout, symbol)
            elif again:
                self.check_new_communicator(cluster, layout, "again", devices)
            self.check_new_communicator(cluster, layout, "host-again")
            for name in set(layout):
                cluster.wait(lambda name=name: all(gpu["memories"] == 0 for gpu in cluster.json(name, "gpus")["gpus"]), "all memory is let go of")
                cluster.daemons[name].terminate()
                self.assertEqual(cluster.daemons[name].wait(timeout=20), 0, cluster.log(name))

    def check_broken(self, cluster, layout, symbol):
        errors = [gpu["error"] for gpu in cluster.json("a", "gpus")["gpus"]]
        broken = errors.index(next(error for error in errors if error))
        self.assertIn(symbol, errors[broken])
        self.assertIn(symbol, cluster.commctl("a", "gpus").stdout)
        self.assertEqual(errors[1 - broken], "")
        for process in self.ranks(cluster, "a", "on-it", "once", devices=[broken]):
            self.expect(process, "DEVICE", symbol, within_s=10)
        self.check_new_communicator(cluster, "aa", "beside-it", [1 - broken] * 2)

    def test_no_pinned_memory(self):
        self.check("cuMemHostAlloc:1+", "cuMemHostAlloc", "NO_MEMORY", SHARED, again=False)

    def test_no_pinned_memory_for_copies(self):
        self.check("cuMemHostAlloc:2", "cuMemHostAlloc", "NO_MEMORY", APART)

    def test_pinned_memory_is_charged_to_its_user(self):
        """Slices that pass through pinned memory count towards user_limit_lane_bytes, as those in host memory do. A user without a GPU goes on."""
        layout, devices = APART
        with Cluster(sorted(set(layout)), "user_limit_lane_bytes = 1024;", gpus=2) as cluster:
            for process in self.ranks(cluster, layout, "broken", "once", devices=devices):
                self.expect(process, "LIMIT", "user_limit_lane_bytes", within_s=15)
            cluster.wait_gpus_idle()

    def test_a_copy(self):
        self.check("cuMemcpyAsync:1=1", "cuMemcpyAsync", "DEVICE", APART, at_its_end=True)

    def test_a_copy_that_breaks_the_gpu(self):
        self.check("cuMemcpyAsync:1" + OF_THE_CONTEXT, "cuMemcpyAsync", "DEVICE", APART, breaks=True, at_its_end=True)

    def test_memory_that_another_gpu_does_not_reach(self):
        """commd refuses memory of IPC handles if the GPUs could not work on it together."""
        with Cluster("a", gpus=2, daemon_environment={"CUDA_DOUBLE_IMPORTS_PEER": "0"}) as cluster:
            for process in self.ranks(cluster, "aa", "apart", "once", devices=[0, 1]):
                self.expect(process, "UNSUPPORTED", "does not reach memory of GPU", "gpu_peer_access", within_s=10)
            self.check_new_communicator(cluster, "aa", "host")

    def test_a_stream_that_is_asked_about(self):
        """If the driver reports any error other than "not done yet", commd stops using the context."""
        self.check("cuStreamQuery:1=999", "cuStreamQuery", "DEVICE", SHARED, breaks=True, CUDA_DOUBLE_DELAY_US="20000")

    def test_a_kernel(self):
        self.check("cuLaunchKernel:1=2", "cuLaunchKernel", "NO_MEMORY", SHARED)

    def test_a_kernel_that_breaks_the_gpu(self):
        self.check("cuLaunchKernel:1" + OF_THE_CONTEXT, "cuLaunchKernel", "DEVICE", SHARED, breaks=True)

    def test_a_mark(self):
        self.check("cuStreamWriteValue64:1=1", "cuStreamWriteValue64", "DEVICE", SHARED)

    def test_a_mark_behind_work_that_is_late(self):
        """commd releases memory only after the work in the stream that uses it has ended."""
        for where in (SHARED, APART):
            with self.subTest(where[0]):
                self.check("cuStreamWriteValue64:1=1", "cuStreamWriteValue64", "DEVICE", where, at_its_end=where == APART, CUDA_DOUBLE_DELAY_US="50000")

    def test_a_stream(self):
        self.check("cuStreamCreateWithPriority:1", "cuStreamCreateWithPriority", "NO_MEMORY", SHARED)

    def test_a_question(self):
        """The driver accepts the work, but the work fails when its turn comes. commd notices, because it asks the driver while it waits."""
        self.check("cuStreamQuery:1=719", "cuStreamQuery", "DEVICE", SHARED, breaks=True, CUDA_DOUBLE_DELAY_US="50000")

    def test_a_gpu_that_fails_before_the_other_is_done(self):
        """The kernels of two GPUs are one operation. It fails, although the other GPU finishes its part."""
        self.check("cuStreamQuery:1=719", "cuStreamQuery", "DEVICE", ("aa", [0, 1]), breaks=True, CUDA_DOUBLE_DELAY_US="50000")

    def check_nccl(self, rule, symbol):
        self.check(rule, symbol, "DEVICE", EACH, CUDA_DOUBLE_PEER="0", CUDA_DOUBLE_HANG_MS="500")

    def test_nccl_refuses_the_first_call_of_a_group(self):
        self.check_nccl("ncclAllReduce:1", "ncclAllReduce")

    def test_nccl_refuses_the_second_call_of_a_group(self):
        """If commd did not report the failure, the first rank would wait for ever."""
        self.check_nccl("ncclAllReduce:2", "ncclAllReduce")

    def test_nccl_refuses_a_group(self):
        self.check_nccl("ncclGroupEnd:2", "ncclGroupEnd")

    def test_nccl_fails_later(self):
        self.check_nccl("ncclCommGetAsyncError:12", "ncclCommGetAsyncError")

    def check_engine(self, engine, code, **settings):
        """Every all-reduce of NCCL fails. So the result tells whether commd calls NCCL."""
        with Cluster("a", f'gpu_engine = "{engine}";', gpus=2, daemon_environment=dict(settings, CUDA_DOUBLE_FAIL="ncclAllReduce:1+")) as cluster:
            for process in self.ranks(cluster, "aa", "engine", "once", devices=[0, 1]):
                self.expect(process, code, *([] if code == "OK" else ["ncclAllReduce"]), within_s=15)

    def test_the_engine_is_not_there(self):
        missing = {"COMMD_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}
        with Cluster("a", 'gpu_engine = "nccl";', gpus=2, daemon_environment=missing) as cluster:
            cluster.wait_logged("a", 'gpu_engine = "nccl", but NCCL cannot be used: /nowhere', is_pattern=True)
            for process in self.ranks(cluster, "aa", "engine", "once", devices=[0, 1]):
                self.expect(process, "OK", within_s=15)

    def test_which_engine_runs(self):
        for engine, peer, code in (("auto", 1, "OK"), ("auto", 0, "DEVICE"), ("nccl", 1, "DEVICE"), ("nccl", 0, "DEVICE"), ("kernels", 1, "OK"), ("kernels", 0, "OK")):
            with self.subTest(engine=engine, peer=peer):
                self.check_engine(engine, code, CUDA_DOUBLE_PEER=str(peer))


if __name__ == "__main__":
    unittest.main()
