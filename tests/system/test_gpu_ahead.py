#!/usr/bin/env python3
"""Operations in a row on one GPU (a double): commd puts them in the GPU's stream behind each other, with waits for the clients' streams (gpu_ahead). The
unit test tests/unit/exec/test_ahead.c shows that the processor does not look in between."""
import time
import unittest

from cluster import BUILD, Cluster
from failure_case import FailureCase

WAITS = True
AHEAD = "gpu_ahead = 8;"


def ahead(cluster):
    return cluster.json("a", "gpus")["operations_ahead"]


class GpuAhead(FailureCase):
    def cluster(self, settings=AHEAD, gpus=2, **environment):
        return Cluster("a", settings, gpus=gpus, daemon_environment=environment, client_environment=environment)

    def check_order(self, cluster, devices, name="order"):
        """Streams alone order each operation between the work that makes its input and the work that reads its output. Every byte is checked."""
        ranks = [cluster.client("a", BUILD / "tests/system/stream_order", name, rank, len(devices), device, 30) for rank, device in enumerate(devices)]
        for process in ranks:
            output, errors = process.communicate(timeout=60)
            self.assertEqual((process.returncode, output), (0, "90 operations checked\n"), errors)

    def test_order(self):
        for devices, some in (([0], True), ([0, 0], True), ([1, 1, 1, 1], True), ([0, 1], False)):
            for delay_us in ("0", "3000"):
                with self.subTest(devices=devices, delay_us=delay_us), self.cluster(CUDA_DOUBLE_DELAY_US=delay_us) as cluster:
                    self.check_order(cluster, devices)
                    self.assertEqual(ahead(cluster) > 0, some)
                    shown = cluster.commctl("a", "gpus").stdout
                    self.assertEqual("operations that waited on a GPU" in shown, some)
                    cluster.wait_gpus_idle()

    def test_one_launch_for_each_operation(self):
        """As in a program that launches the kernel itself. A launch too many would fail, and so the operation."""
        for settings in "", AHEAD:
            for count in 2, 16384:
                for allowed, result in ((20, "OK"), (19, "DEVICE")):
                    rule = {"CUDA_DOUBLE_FAIL": f"cuLaunchKernel:{allowed + 1}+=1"}
                    with self.subTest(settings=settings, count=count, allowed=allowed), Cluster("a", settings, gpus=2, daemon_environment=rule) as cluster:
                        for process in self.ranks(cluster, "aa", "launches", "loop", "steps=20", f"count={count}", devices=[0, 0]):
                            self.expect(process, result, within_s=20)

    def test_off(self):
        with self.cluster("") as cluster:
            self.check_order(cluster, [0, 0])
            self.assertEqual(ahead(cluster), 0)

    def test_limit_of_a_user(self):
        with self.cluster(AHEAD + " user_limit_gpu_waits = 1;") as cluster:
            self.check_order(cluster, [0, 0])
            self.assertGreater(ahead(cluster), 0)

    def stuck(self, cluster, timeout_ms):
        """The second operation of rank 0 waits in its stream; commd's stream waits for it on the GPU. The delay of the GPU lets the first one run until commd
        has heard of the second."""
        ranks = [cluster.client("a", BUILD / "tests/system/stream_stuck", "stuck", rank, 2, 0, timeout_ms) for rank in range(2)]
        cluster.wait(lambda: ahead(cluster) > 0, "the second operation waits on the GPU")
        return ranks

    def test_a_stream_that_does_not_come(self):
        """The operation ends at its deadline; the next one of the same communicator is right. Another communicator on the GPU is not held up."""
        with self.cluster(CUDA_DOUBLE_DELAY_US="30000") as cluster:
            ranks = self.stuck(cluster, 2000)
            for process in self.ranks(cluster, "aa", "beside", "once", devices=[0, 0]):
                self.expect(process, "OK", within_s=10)
            for process in ranks:
                output, errors = process.communicate(timeout=30)
                self.assertRegex(output, r"^SECOND deadline passed .*waiting for the stream of rank 0\nOK\n$", errors)
            cluster.wait_gpus_idle()

    def test_a_client_that_dies(self):
        with self.cluster(CUDA_DOUBLE_DELAY_US="30000") as cluster:
            ranks = self.stuck(cluster, 60000)
            started = time.monotonic()
            ranks[0].kill()
            output, _ = ranks[1].communicate(timeout=30)
            self.assertRegex(output, r"^SECOND a rank of the communicator is lost ")
            self.assertLess(time.monotonic() - started, 10)
            cluster.wait_gpus_idle()
            self.check_order(cluster, [0, 0], "again")

    def test_another_users_nccl_ends_behind_the_wait(self):
        """NCCL hangs on GPUs where a stream of commd waits for a client. NCCL's communicator can free its memory only after that wait, which lasts for longer
        than NCCL has to end. Its ranks are told in time, no group is leaked, and both GPUs go on. Nothing waits on the GPU meanwhile that did not wait before."""
        settings = AHEAD + ' gpu_engine = "nccl"; drain_timeout_ms = 500;'
        with self.cluster(settings, CUDA_DOUBLE_FAIL="ncclKernel:1", CUDA_DOUBLE_DELAY_US="30000") as cluster:
            stuck = self.stuck(cluster, 24000)
            for process in self.ranks(cluster, "aa", "hangs", "once", "op_timeout_ms=1000", devices=[0, 1]):
                self.expect(process, "TIMED_OUT", "GPU", within_s=10)
            cluster.wait(lambda: cluster.json("a", "gpus")["nccl_failed"] == 1, "the group is given up")
            before = ahead(cluster)
            self.check_order(cluster, [0, 0], "beside")
            self.assertEqual(ahead(cluster), before)
            for process in self.ranks(cluster, "aa", "beside-nccl", "once", devices=[0, 1]):
                self.expect(process, "OK", within_s=10)
            for process in stuck:
                output, errors = process.communicate(timeout=30)
                self.assertRegex(output, r"^SECOND deadline passed .*waiting for the stream of rank 0\nOK\n$", errors)
            self.check_order(cluster, [0, 0], "after")
            gpus = cluster.json("a", "gpus")
            self.assertEqual((gpus["nccl_stuck"], [gpu["error"] for gpu in gpus["gpus"]]), (0, ["", ""]))
            cluster.wait_gpus_idle()


if __name__ == "__main__":
    unittest.main()
