#!/usr/bin/env python3
"""NCCL (its double) carries out the GPUs' part of operations between nodes: reduce-scatter, each GPU's shard over its own link, all-gather."""
import signal
import struct
import time
import unittest

from cluster import Cluster
from failure_case import FailureCase, read_until
from program_case import ProgramCase
from test_gpu_nccl import counts

NCCL = 'gpu_engine = "nccl"; '


class GpuSlices(ProgramCase):
    def check(self, layout, devices, program="surface", options=("3",), settings=NCCL, engine=True, **environment):
        with Cluster(sorted(set(layout)), settings, gpus=4, daemon_environment=environment, client_environment=environment) as cluster:
            self.check_ranks(cluster, layout, program, *options, devices=devices)
            by_nccl, _, _, refused, failed, stuck = counts(cluster)
            self.assertEqual((by_nccl > 0, refused, failed, stuck), (engine, 0, 0, 0))
            cluster.wait_gpus_idle()

    def test_two_nodes_of_two_gpus(self):
        for peer in ("1", "0"):
            with self.subTest(peer=peer):
                self.check("aabb", [0, 1, 0, 1], CUDA_DOUBLE_PEER=peer)

    def test_nodes_of_different_numbers_of_gpus(self):
        self.check("aaabbc", [0, 1, 2, 3, 1, 0])
        self.check("aaaab", [0, 1, 2, 3, 0])

    def test_ranks_that_share_gpus(self):
        self.check("aaaabb", [0, 1, 1, 0, 2, 2], CUDA_DOUBLE_PEER="0")

    def test_ranks_in_turns(self):
        self.check("abab", [0, 0, 1, 1])

    def test_three_rails_and_short_slices(self):
        self.check("aabb", [0, 1, 0, 1], settings=NCCL + "rails = 3; slice_bytes = 4096;")

    def test_gpus_that_are_late(self):
        self.check("aabb", [0, 1, 0, 1], CUDA_DOUBLE_DELAY_US="300", CUDA_DOUBLE_SEED="7")

    def test_graphs(self):
        self.check("aabb", [0, 1, 0, 1], program="graphs", options=("replays", 50))

    def test_all_types_and_operators(self):
        self.check("aaabb", [0, 1, 1, 0, 1], program="matrix", options=(), CUDA_DOUBLE_PEER="0")

    def test_an_nccl_that_cannot_order_its_launches(self):
        self.check("aabb", [0, 1, 0, 1], CUDA_DOUBLE_NCCL_VERSION="22403", engine=False)


class GpuSliceTraffic(FailureCase):
    """What passes through pinned memory: 2 S a node for an all-reduce of S bytes, and a GPU's share of that over each GPU's link."""

    def check(self, layout, devices, settings, count=200000, **environment):
        with Cluster(sorted(set(layout)), settings, gpus=4, start=False, client_environment=environment) as cluster:
            for name in cluster.names:
                cluster.start(name, environment=dict(environment, CUDA_DOUBLE_TRAFFIC=str(cluster.folder / f"{name}.traffic")))
            cluster.wait_ready()
            for process in self.ranks(cluster, layout, "work", "once", f"count={count}", devices=devices):
                self.expect(process, "OK", within_s=30)
            for name in cluster.names:
                links = struct.unpack("16Q", (cluster.folder / f"{name}.traffic").read_bytes())
                self.check_links(links, 8 * count, {device for node, device in zip(layout, devices) if node == name})

    def check_links(self, links, size, gpus):
        to_host, from_host = links[::2], links[1::2]
        self.assertEqual((sum(to_host), sum(from_host)), (size, size))
        for way in (to_host, from_host):
            for gpu in range(8):
                share = size / len(gpus) if gpu in gpus else 0
                self.assertAlmostEqual(way[gpu], share, delta=size / 8, msg=f"GPU {gpu} of {gpus}: {way}")

    def test_by_nccl(self):
        self.check("aabb", [0, 1, 2, 3], NCCL)
        self.check("aaaabbbb", [0, 1, 2, 3, 3, 2, 1, 0], NCCL, CUDA_DOUBLE_PEER="0")

    def test_by_nccl_with_different_numbers_of_gpus(self):
        self.check("aaaabbc", [0, 1, 2, 3, 1, 0, 3], NCCL + "slice_bytes = 65536;", CUDA_DOUBLE_PEER="0")

    def test_by_nccl_with_ranks_that_share_gpus(self):
        self.check("aaaabb", [0, 1, 1, 0, 2, 3], NCCL)

    def test_by_kernels(self):
        """The GPUs take turns, slice by slice."""
        self.check("aabb", [0, 1, 2, 3], "slice_bytes = 65536; rails = 1;")


class GpuSliceFailures(FailureCase):
    def cluster(self, rule="", **environment):
        cluster = Cluster("ab", NCCL, gpus=2, start=False)
        self.addCleanup(cluster.close)
        for name in "ab":
            cluster.start(name, environment=dict(environment, CUDA_DOUBLE_FAIL=rule if name == "a" else ""))
        cluster.wait_ready()
        return cluster

    def check_after(self, cluster, failed):
        """The next communicator works on the same GPUs, by NCCL."""
        cluster.wait(lambda: counts(cluster)[4] == failed, "NCCL's communicator is ended", timeout_s=30)
        before = counts(cluster)[0]
        self.check_new_communicator(cluster, "aabb", "again", [0, 1, 0, 1])
        self.assertGreater(counts(cluster)[0], before)
        self.assertEqual([gpu["error"] for gpu in cluster.json("a", "gpus")["gpus"]], ["", ""])
        cluster.wait_gpus_idle()
        for name in "ab":
            cluster.daemons[name].terminate()
            self.assertEqual(cluster.daemons[name].wait(timeout=20), 0, cluster.log(name))

    def test_a_kernel_that_hangs(self):
        cluster = self.cluster("ncclKernel:1")
        ranks = self.ranks(cluster, "aabb", "stuck", "once", "op_timeout_ms=4000", devices=[0, 1, 0, 1])  # NCCL forms before
        for process in ranks:
            read_until(process, "FORMED")
        formed = time.monotonic()
        for process in ranks:
            self.expect(process, "TIMED_OUT", within_s=15)
        self.assertLess(time.monotonic() - formed, 7.4, "4 s, and 2 s for the GPUs to leave the buffers")
        self.check_after(cluster, 1)

    def test_a_call_that_fails(self):
        cluster = self.cluster("ncclReduceScatter:1")
        for process in self.ranks(cluster, "aabb", "broken", "once", "count=100000", devices=[0, 1, 0, 1]):
            self.expect(process, "DEVICE", "ncclReduceScatter", within_s=15)
        self.check_after(cluster, 1)

    def check_step(self, rule, *texts, layout="aabb", devices=(0, 1, 0, 1)):
        """A step of an all-reduce fails on node a. All ranks get one result, with the GPU and the step. A communicator in host memory, and one of GPUs on
        the other node, go on meanwhile, and nothing is left."""
        cluster = self.cluster(rule)
        others = self.start(cluster, "ab", "host", "loop", "steps=60", "pause=0.025")
        others += self.start(cluster, "bb", "gpus-of-b", "loop", "steps=60", "pause=0.025", devices=[0, 1])
        ranks = self.ranks(cluster, layout, "broken", "loop", "count=100000", devices=devices)
        lines = {self.last_line(process, 20) for process in ranks}
        self.assertEqual(len(lines), 1, lines)
        for text in ("DEVICE", "GPU ", *texts):
            self.assertIn(text, *lines)
        for process in others:
            self.expect(process, "OK", within_s=30)
        return cluster

    def test_each_step_of_an_all_reduce(self):
        for rule, step, failed in (("ncclReduceScatter:3", "ncclReduceScatter", 1), ("ncclAllGather:3", "ncclAllGather", 1), ("ncclGroupEnd:4", "ncclGroupEnd", 1),
                                   ("cuMemcpyAsync:3=1", "cuMemcpyAsync", 0), ("cuMemcpyAsync:6=1", "cuMemcpyAsync", 0),
                                   ("cuStreamWriteValue64:5=1", "cuStreamWriteValue64", 0)):
            with self.subTest(rule):
                self.check_after(self.check_step(rule, step), failed)

    def test_a_step_that_breaks_the_gpu(self):
        for rule, step in (("cuMemcpyAsync:3=700", "cuMemcpyAsync"), ("cuStreamQuery:1=719", "cuStreamQuery")):
            with self.subTest(rule):
                cluster = self.check_step(rule, step)
                cluster.wait(lambda cluster=cluster: all(gpu["memories"] == 0 for gpu in cluster.json("a", "gpus")["gpus"]), "all memory is let go of")
                broken = [bool(gpu["error"]) for gpu in cluster.json("a", "gpus")["gpus"]]
                self.assertEqual(sum(broken), 1, broken)
                self.check_new_communicator(cluster, "abb", "beside-it", [1 - broken.index(True), 0, 1])
                for name in "ab":
                    cluster.daemons[name].terminate()
                    self.assertEqual(cluster.daemons[name].wait(timeout=20), 0, cluster.log(name))

    def test_an_error_that_comes_later(self):
        cluster = self.cluster("ncclKernel:1,ncclCommGetAsyncError:40+=6")
        for process in self.ranks(cluster, "aabb", "broken", "once", devices=[0, 1, 0, 1]):
            self.expect(process, "DEVICE", "ncclCommGetAsyncError", "remote process exited", within_s=10)
        cluster.wait(lambda: counts(cluster)[4] == 1, "NCCL's communicator is ended", timeout_s=30)
        self.check_new_communicator(cluster, "aabb", "without", [0, 1, 0, 1])  # each further group gets the error as well
        cluster.wait_gpus_idle()

    def test_auto(self):
        """NCCL for operations that are not short, if the GPUs do not reach each other."""
        for peer, count, engine in (("0", 100000, "nccl"), ("0", 1000, "host"), ("1", 100000, "host")):
            with self.subTest(peer=peer, count=count), Cluster("ab", gpus=2, daemon_environment={"CUDA_DOUBLE_PEER": peer}) as cluster:
                for process in self.ranks(cluster, "aabb", "work", "once", f"count={count}", devices=[0, 1, 0, 1]):
                    self.expect(process, "OK", within_s=15)
                by_nccl, _, by_host, *_ = counts(cluster)
                self.assertEqual((by_nccl > 0, by_host > 0), (engine == "nccl", engine == "host"))

    def test_no_group(self):
        cluster = self.cluster("ncclCommInitRankConfig:1+")
        self.check_new_communicator(cluster, "aabb", "work", [0, 1, 0, 1])
        self.assertEqual(counts(cluster)[0], 0)
        self.assertEqual(counts(cluster)[3], 1)

    def test_killed_ranks(self):
        cluster = self.cluster()
        for victim in (0, 3):
            ranks = self.start(cluster, "aabb", f"killed-{victim}", "loop", devices=[0, 1, 0, 1])
            ranks[victim].send_signal(signal.SIGKILL)
            for rank, process in enumerate(ranks):
                if rank != victim:
                    self.expect(process, "RANK_LOST", within_s=15)
        self.check_after(cluster, 0)

    def test_a_killed_daemon(self):
        cluster = self.cluster()
        ranks = self.start(cluster, "aabb", "killed", "loop", devices=[0, 1, 0, 1])
        cluster.daemons["b"].kill()
        for rank, process in enumerate(ranks):
            self.expect(process, "NODE_LOST" if rank < 2 else "DAEMON_LOST", within_s=15)
        cluster.wait(lambda: all(gpu["memories"] == 0 for gpu in cluster.json("a", "gpus")["gpus"]), "all memory is let go of")
        self.check_new_communicator(cluster, "aa", "alone", [0, 1])


if __name__ == "__main__":
    unittest.main()
