#!/usr/bin/env python3
"""Runs the examples with real daemons: each checks its own result."""
import unittest

from cluster import BUILD, Cluster


class OnThreeNodes(unittest.TestCase):
    gpus = 0

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(["a", "b", "c"], gpus=cls.gpus)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def check(self, program, layout, *options, expected="right"):
        name = f"{program}-{len(layout)}-{'-'.join(option.strip('-=') for option in options)}".strip("-").replace("=", "-")
        ranks = [self.cluster.client(node, BUILD / "examples" / program, "--name", name, "--rank", rank, "--size", len(layout), *options)
                 for rank, node in enumerate(layout)]
        for rank, process in enumerate(ranks):
            output, errors = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, f"rank {rank}: {output}{errors}")
            if rank == 0:
                self.assertIn(expected, output)
                said = output
        return said


class Examples(OnThreeNodes):
    def test_ring(self):
        self.check("ring", "aabbc")

    def test_transpose(self):
        self.check("transpose", "abcab")

    def test_sort(self):
        self.check("sort", "abbca")

    def test_kmeans(self):
        self.check("kmeans", "abca")

    def test_overlap(self):
        self.check("overlap", "abca")

    def test_one_rank_each(self):
        for program in ("ring", "transpose", "sort", "kmeans", "overlap"):
            self.check(program, "a")

    def test_by_the_launcher(self):
        """commctl run gives the ranks their number and the size, without --rank and --size."""
        for program, options in (("ring", []), ("kmeans", []), ("train", ["--steps", "40"])):
            process = self.cluster.client("a", BUILD / "commctl", "run", "-n", 3, "--", BUILD / "examples" / program, *options)
            output, errors = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, f"{program}: {output}{errors}")
            self.assertIn("[0] ", output)

    def test_training_bucketed_and_compressed(self):
        """With gradients in a group, the loss equals that of one process. With compressed gradients, it is close to that."""
        self.check("train", "aabb", "--steps", "60", "--bucketed", expected="within 1e-05")
        for compression in ("bf16", "f8", "top_k"):
            self.check("train", "aabb", "--steps", "60", f"--compressed={compression}", expected="within 0.05")


class ExamplesOnGpus(OnThreeNodes):
    """With doubles of GPUs: ranks share a GPU, or each rank has its own."""
    gpus = 2

    def test_overlap(self):
        self.check("overlap", "abca", "--device=0")
        self.check("overlap", "aab", "--device=1")


if __name__ == "__main__":
    unittest.main()
