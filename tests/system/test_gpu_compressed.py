#!/usr/bin/env python3
"""Compressed all-reduces between nodes, of buffers on GPUs: the GPUs encode and decode, with the host's bits."""
import struct
import unittest

from cluster import BUILD, Cluster
from program_case import ProgramCase

WAITS = True
FORMATS = {1: "bf16", 2: "f8", 3: "top_k"}


def encoded_bytes(form, count, permille=50):
    """What one node's part takes, without the last block's rounding."""
    return {1: 2 * count, 2: count * 260 / 256, 3: count / 1024 * (2 + 6 * -(-1024 * permille // 1000))}[form]


class GpuCompressed(ProgramCase):
    def results(self, layout, devices, count=30000, settings="slice_bytes = 32768;", **environment):
        """The lines that each rank prints."""
        with Cluster(sorted(set(layout)), settings, gpus=4 if devices else 0, daemon_environment=environment, client_environment=environment) as cluster:
            ranks = self.start(cluster, layout, "compressed", count, devices=devices)
            lines = []
            for rank, process in enumerate(ranks):
                output, errors = process.communicate(timeout=120)
                self.assertEqual(process.returncode, 0, f"rank {rank}: {errors}")
                lines.append(output.splitlines())
            if devices:
                cluster.wait_gpus_idle()
        self.assertEqual([len(each) for each in lines], [12] * len(layout))
        for each in lines:  # the results; residuals differ
            self.assertEqual([line.split()[:4] for line in each], [line.split()[:4] for line in lines[0]])
        return lines

    def check(self, layout, devices, **options):
        """GPUs and the host give the same results and residuals."""
        self.assertEqual(self.results(layout, devices, **options), self.results(layout, None))

    def test_a_gpu_a_node(self):
        self.check("abc", [0, 0, 1])

    def test_ranks_that_share_a_gpu(self):
        self.check("aaab", [0, 0, 0, 1])

    def test_several_gpus_by_kernels(self):
        self.check("aabbb", [0, 1, 2, 0, 1], settings='slice_bytes = 32768; gpu_engine = "kernels";')

    def test_three_rails_and_late_gpus(self):
        self.check("aabb", [0, 1, 1, 0], settings='rails = 3; slice_bytes = 32768; gpu_engine = "kernels";', CUDA_DOUBLE_DELAY_US="300", CUDA_DOUBLE_SEED="5")

    def test_by_nccl(self):
        """NCCL adds two inputs as the host does, so the bits are the same here, too."""
        for peer in ("1", "0"):
            with self.subTest(peer=peer):
                self.check("aabb", [0, 1, 2, 3], settings='slice_bytes = 32768; gpu_engine = "nccl";', CUDA_DOUBLE_PEER=peer)

    def test_nodes_with_and_without_gpus(self):
        """One wire format: a node whose buffers are on the host takes part."""
        self.check("aab", [0, 1, -1])

    def test_gpus_that_do_not_reach_each_other(self):
        """The host encodes."""
        self.check("aabb", [0, 1, 0, 1], settings='slice_bytes = 32768; gpu_engine = "kernels";', CUDA_DOUBLE_PEER="0")


class GpuCompressedFailures(ProgramCase):
    def test_a_launch_that_fails(self):
        """Of the reduction, of an encoding or of a decoding: all ranks are told the call, and nothing is kept."""
        for launch in (1, 2, 3, 4, 9):
            with self.subTest(launch=launch), Cluster("ab", "slice_bytes = 32768;", gpus=1, start=False) as cluster:
                for name in "ab":
                    cluster.start(name, environment={"CUDA_DOUBLE_FAIL": f"cuLaunchKernel:{launch}=1" if name == "b" else ""})
                cluster.wait_ready()
                ranks = self.start(cluster, "aabb", "compressed", 30000, devices=[0, 0, 0, 0])
                for rank, process in enumerate(ranks):
                    _, errors = process.communicate(timeout=30)
                    self.assertEqual(process.returncode, 1, f"rank {rank}")
                    self.assertRegex(errors, r"GPU 0.*cuLaunchKernel")
                    self.assertNotIn(" sent ", errors)  # a GPU's failure is no fault of the peer
                cluster.wait_gpus_idle()
                self.check_after(cluster)

    def check_after(self, cluster):
        for process in self.start(cluster, "ab", "compressed", 3000, name="again", devices=[0, 0]):
            _, errors = process.communicate(timeout=30)
            self.assertEqual(process.returncode, 0, errors)


class GpuCompressedTraffic(ProgramCase):
    """Only compressed bytes pass through pinned memory."""

    def check(self, layout, devices, form, settings="slice_bytes = 65536;", count=400 * 1024):
        nodes = sorted(set(layout))
        with Cluster(nodes, settings, gpus=4, start=False) as cluster:
            for name in nodes:
                cluster.start(name, environment={"CUDA_DOUBLE_TRAFFIC": str(cluster.folder / f"{name}.traffic")})
            cluster.wait_ready()
            ranks = [cluster.client(node, BUILD / "tests/system/compressed", "traffic", rank, len(layout), count, devices[rank], form) for rank, node in enumerate(layout)]
            for rank, process in enumerate(ranks):
                output, errors = process.communicate(timeout=120)
                self.assertEqual(process.returncode, 0, f"rank {rank}: {errors}")
            for name in nodes:
                links = struct.unpack("16Q", (cluster.folder / f"{name}.traffic").read_bytes())
                self.check_links(FORMATS[form], links, encoded_bytes(form, count), len(nodes), {device for node, device in zip(layout, devices) if node == name})

    def check_links(self, form, links, size, nodes, gpus):
        """A node encodes all but its own part, and then its part of the sum. It decodes what the others send for its part, and their parts of the sum."""
        to_host, from_host = links[::2], links[1::2]
        for way, expected in ((to_host, size), (from_host, 2 * size * (nodes - 1) / nodes)):
            self.assertAlmostEqual(sum(way) / expected, 1, delta=0.06, msg=f"{form}: {way}, {expected}")
            for gpu in range(8):
                share = expected / len(gpus) if gpu in gpus else 0
                self.assertAlmostEqual(way[gpu], share, delta=expected / 6, msg=f"{form}, GPU {gpu} of {gpus}: {way}")

    def test_one_gpu_a_node(self):
        for form in FORMATS:
            with self.subTest(form=FORMATS[form]):
                self.check("abc", [0, 1, 2], form)

    def test_gpus_in_turns(self):
        self.check("aabb", [0, 1, 2, 3], 1, 'slice_bytes = 65536; rails = 1; gpu_engine = "kernels";')
        self.check("aabb", [0, 1, 2, 3], 2, 'slice_bytes = 65536; gpu_engine = "nccl";')


if __name__ == "__main__":
    unittest.main()
