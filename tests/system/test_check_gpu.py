#!/usr/bin/env python3
"""Runs the programs for machines with a GPU, tests/gpu/check_gpu.py and bench_gpu.py, on doubles of GPUs, to see that they work."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import test_gpu_failures
from cluster import BUILD, ROOT, Cluster


class CheckGpu(unittest.TestCase):
    def run_program(self, name, *options):
        environment = dict(os.environ, COMMD_BUILD=str(BUILD))
        environment.pop("COMMD_CUDA_LIBRARY", None)
        process = subprocess.run([sys.executable, "-B", str(ROOT / "tests/gpu" / name), *map(str, options)], check=False, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, env=environment)
        return process.returncode, process.stdout

    def test_checks(self):
        code, output = self.run_program("check_gpu.py", "--double", "--quick")
        self.assertEqual(code, 0, output)
        self.assertRegex(output.splitlines()[-1], r"^([5-9]|1\d) passed, 0 failed, 0 skipped$", output)

    def test_checks_of_several_gpus(self):
        code, output = self.run_program("check_gpu.py", "--double", "--only", "several GPUs")
        self.assertEqual(code, 0, output)
        self.assertRegex(output.splitlines()[-1], r"^10 passed, 0 failed, 0 skipped$", output)
        self.assertIn("all_reduce: ", output)

    def test_figures(self):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report"
            code, output = self.run_program("bench_gpu.py", "--double", "--quick", "--json", report)
            if "built without a CUDA toolkit" in output:
                self.skipTest("built without a CUDA toolkit: there are no kernels to measure")
            self.assertEqual(code, 0, output)
            written = json.loads(report.read_text())
        self.assertEqual(written["left_out"], [])
        self.assertIn("QUIC, one connection, each way", written["figures"])  # 0 on a busy machine: then two nodes have no bar
        self.assertEqual(len(written["bars"]), 16 + (written["figures"]["QUIC, one connection, each way"][0] > 0), written["bars"])
        for who in ("alone", "nccl", "kernels", "auto"):
            self.assertIn(f"several/{who}/2/1048576/median", written["figures"])

    def test_what_needs_a_double(self):
        """A test that needs settings of the double is skipped with a real GPU, which would ignore them."""
        self.addCleanup(setattr, Cluster, "real_gpus", False)
        Cluster.real_gpus = True
        result = unittest.TestResult()
        test_gpu_failures.GpuFailures("test_a_gpu_that_does_not_get_to_it").run(result)
        self.assertEqual([reason for _, reason in result.skipped], ["it needs a double of a GPU (CUDA_DOUBLE_DELAY_US)"], result.errors)
        with self.assertRaises(unittest.SkipTest):
            Cluster("a", gpus=1, client_environment={"CUDA_DOUBLE_PEER": "0"})

    def test_without_a_gpu(self):
        for name in ("check_gpu.py", "bench_gpu.py"):
            with self.subTest(name):
                code, output = self.run_program(name)
                if code != 77:
                    self.skipTest("there is a GPU")
                self.assertRegex(output, r"^skipped: .*\n$")


if __name__ == "__main__":
    unittest.main()
