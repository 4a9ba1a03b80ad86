#!/usr/bin/env python3
"""A process with two ranks mixes devices, streams, buffers and captures (mixes.c), on GPUs that are doubles."""
import unittest

from cluster import BUILD, Cluster

WAITS = True


class GpuMixes(unittest.TestCase):
    def check(self, devices, settings="", **environment):
        with Cluster("a", settings, gpus=2, daemon_environment=environment, client_environment=environment) as cluster:
            process = cluster.client("a", BUILD / "tests/system/mixes", *devices)
            output, errors = process.communicate(timeout=60)
            self.assertEqual((process.returncode, output, errors), (0, "OK\n", ""))
            cluster.wait_gpus_idle()

    def test_a_gpu_for_each_rank(self):
        for settings in ("", 'gpu_engine = "nccl";'):
            for delay_us in ("0", "2000"):
                with self.subTest(settings=settings, delay_us=delay_us):
                    self.check([0, 1], settings, CUDA_DOUBLE_DELAY_US=delay_us)

    def test_one_gpu_for_both_ranks(self):
        for settings in ("", "gpu_ahead = 8;"):
            with self.subTest(settings=settings):
                self.check([1, 1], settings, CUDA_DOUBLE_DELAY_US="2000")


if __name__ == "__main__":
    unittest.main()
