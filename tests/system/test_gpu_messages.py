#!/usr/bin/env python3
"""Messages from and to GPU buffers (of doubles), between real daemons. Their sizes are around those of chunks and rings. Some are cut off in the
middle."""
import time
import unittest

from cluster import Cluster
from failure_case import HEARTBEAT_BOUND_S, FailureCase, read_until

CHUNK = 512 << 10  # daemon/exec/message_pipe.h
RING = 8 * CHUNK
EAGER = 16384      # proto/message_header.h
BOUNDARIES = (0, 1, EAGER, EAGER + 1, CHUNK - 1, CHUNK, CHUNK + 1, RING, RING + 1, 2 * RING + 4711)
LARGE = (3 * RING, RING, 5000)
RING_OF_RANKS = "aabb"  # one message within each node, and one between the nodes in each direction


def text_of(sizes):
    return "sizes=" + ",".join(map(str, sizes))


def counts(cluster):
    gpus = cluster.json("a", "gpus")
    return [gpus[key] for key in ("messages_by_nccl", "messages_by_copies", "nccl_failed")]


class GpuMessagesByNccl(FailureCase):
    """Messages between two GPUs of a node. NCCL moves them once its communicator has formed. Small ones go with their envelope."""
    def cluster(self, engine="nccl", rule="", settings="", gpus=3, **environment):
        environment["CUDA_DOUBLE_FAIL"] = rule
        return Cluster("a", f'gpu_engine = "{engine}"; {settings}', gpus=gpus, daemon_environment=environment, client_environment=environment)

    def check_sizes(self, cluster, name="sizes", steps=3, sizes=(0, EAGER, EAGER + 1, CHUNK + 1, RING + 1)):
        for process in self.ranks(cluster, "aaa", name, "messages", text_of(sizes), f"steps={steps}", devices=[0, 1, 2]):
            self.expect(process, "OK", within_s=60)
        cluster.wait_gpus_idle()

    def test_each_engine(self):
        for engine, peer, some in (("nccl", "1", True), ("nccl", "0", True), ("kernels", "1", False), ("kernels", "0", False), ("auto", "0", True)):
            with self.subTest(engine=engine, peer=peer), self.cluster(engine, settings='gpu_tuning = "off";', CUDA_DOUBLE_PEER=peer) as cluster:
                self.check_sizes(cluster)
                if some:
                    cluster.wait(lambda: cluster.json("a", "gpus")["nccl_communicators"] == 1, "one is left, for all GPUs that have messages")
                formed = counts(cluster)
                self.check_sizes(cluster, "formed")
                by_nccl, by_copies, failed = counts(cluster)
                self.assertEqual((by_nccl > formed[0], failed), (some, 0), (formed, by_nccl, by_copies))
                self.assertEqual(by_copies > formed[1], not some, (formed, by_nccl, by_copies))
                self.assertIn(f"{by_nccl} by NCCL, {by_copies} by copies", cluster.commctl("a", "gpus").stdout)

    def test_old_nccl(self):
        """Before 2.26, work of several users of NCCL could race."""
        with self.cluster(CUDA_DOUBLE_NCCL_VERSION="22505") as cluster:
            self.check_sizes(cluster)
            self.assertEqual(counts(cluster)[0], 0)

    def test_no_communicator(self):
        with self.cluster(rule="ncclCommInitRankConfig:1+") as cluster:
            self.check_sizes(cluster, steps=3)
            by_nccl, by_copies, _ = counts(cluster)
            self.assertEqual((by_nccl, by_copies > 0), (0, True))

    def test_a_kernel_that_hangs(self):
        with self.cluster(rule="ncclKernel:3") as cluster:
            for process in self.ranks(cluster, "aa", "stuck", "messages", text_of([CHUNK]), "steps=1000", "op_timeout_ms=1000", devices=[0, 1]):
                self.expect(process, "TIMED_OUT", within_s=20)
            cluster.wait(lambda: counts(cluster)[2] == 1, "NCCL's communicator is ended", timeout_s=20)
            self.assertIn("a message does not end", cluster.json("a", "gpus")["nccl_error"])
            cluster.wait_gpus_idle()
            self.check_sizes(cluster, "again")
            self.assertEqual([gpu["error"] for gpu in cluster.json("a", "gpus")["gpus"]], [""] * 3)

    def test_an_error_of_nccl(self):
        with self.cluster(rule="ncclSend:5=3") as cluster:
            for process in self.ranks(cluster, "aa", "broken", "messages", text_of([CHUNK]), "steps=1000", devices=[0, 1]):
                self.expect(process, "DEVICE", within_s=20)
            cluster.wait(lambda: counts(cluster)[2] == 1, "NCCL's communicator is ended", timeout_s=20)
            cluster.wait_gpus_idle()
            self.check_sizes(cluster, "again")

    def test_killed(self):
        with self.cluster() as cluster:
            for victim in 0, 1:
                ranks = self.start(cluster, "aa", f"killed-{victim}", "messages", text_of(LARGE), devices=[0, 1])
                time.sleep(0.2)
                ranks[victim].kill()
                self.expect(ranks[1 - victim], "RANK_LOST", within_s=HEARTBEAT_BOUND_S)
                cluster.wait_gpus_idle()
            self.assertGreater(counts(cluster)[0], 0)


class GpuMessages(FailureCase):
    def check_sizes(self, layout, devices, sizes=BOUNDARIES, steps=2, **environment):
        with Cluster(sorted(set(layout)), gpus=2, client_environment=environment, daemon_environment=environment) as cluster:
            for process in self.ranks(cluster, layout, "sizes", "messages", text_of(sizes), f"steps={steps}", devices=devices):
                self.expect(process, "OK", within_s=60)
            cluster.wait_gpus_idle()
            return max(cluster.json(node, "gpus")["pinned_bytes"] for node in set(layout))

    def test_between_nodes(self):
        self.check_sizes("ab", [0, 1])

    def test_to_oneself(self):
        self.check_sizes("a", [1])

    def test_within_and_between_nodes(self):
        self.check_sizes(RING_OF_RANKS, [0, 1, 0, 0])

    def test_gpus_that_do_not_reach_each_other(self):
        self.check_sizes("aab", [0, 1, 0], CUDA_DOUBLE_PEER="0")

    def test_some_on_the_host(self):
        self.check_sizes("aabbb", [0, -1, -1, 1, 0])

    def test_gpus_that_are_late(self):
        self.check_sizes(RING_OF_RANKS, [0, 1, 0, 1], sizes=(1, EAGER, CHUNK + 1, RING + 1), CUDA_DOUBLE_DELAY_US="2000", CUDA_DOUBLE_BLOCKING_ALLOCATION="1")

    def test_pinned_memory_is_bounded(self):
        """The memory that messages pass through does not grow with their size. It grows with their number only up to a limit."""
        self.assertLess(self.check_sizes("ab", [0, 1], sizes=[6 * RING] * 2, steps=1), 18 << 20)
        self.assertLess(self.check_sizes("ab", [0, 1], sizes=[RING + CHUNK] * 12, steps=1), 66 << 20)

    # --- Ends ---

    def check_killed(self, layout, devices, *victims):
        """victims: (rank, seconds after which it is killed). Each is one of new ranks of the same daemons."""
        with Cluster(sorted(set(layout)), gpus=2) as cluster:
            for victim, after_s in victims:
                with self.subTest(victim=victim):
                    ranks = self.start(cluster, layout, "work", "messages", text_of(LARGE), devices=devices)
                    time.sleep(after_s)
                    ranks[victim].kill()
                    for rank, process in enumerate(ranks):
                        if rank != victim:
                            self.expect(process, "RANK_LOST", f"rank {victim}", f"node {layout[victim]}", within_s=5)
                    cluster.wait_gpus_idle()
            for process in self.ranks(cluster, layout, "work", "messages", text_of(LARGE), "steps=1", devices=devices):
                self.expect(process, "OK", within_s=20)

    def test_killed_client(self):
        self.check_killed(RING_OF_RANKS, [0, 1, 0, 1], *((victim, 0.013 * victim) for victim in range(4)))

    def test_killed_client_with_its_buffers_on_the_host(self):
        self.check_killed("ab", [-1, 0], (0, 0))
        self.check_killed("ab", [0, -1], (1, 0.01))

    def test_killed_daemon(self):
        with Cluster("ab", gpus=2) as cluster:
            ranks = self.start(cluster, RING_OF_RANKS, "work", "messages", text_of(LARGE), devices=[0, 1, 0, 1])
            cluster.daemons["b"].kill()
            for process in ranks[:2]:
                self.expect(process, "NODE_LOST", "node b", within_s=HEARTBEAT_BOUND_S)
            for process in ranks[2:]:
                self.expect(process, "DAEMON_LOST", within_s=2)
            cluster.wait_gpus_idle(["a"])
            for process in self.ranks(cluster, "aa", "survivors", "messages", text_of(LARGE), "steps=1", devices=[0, 1]):
                self.expect(process, "OK", within_s=20)

    def test_a_recv_that_is_not_posted(self):
        """Large and small messages wait for a receiver that does not come. Their deadline ends them, and commd holds nothing of them."""
        with Cluster("ab", gpus=1) as cluster:
            waits = cluster.rank("a", "half", 0, 2, "messages", text_of(LARGE), "op_timeout_ms=700", "device=0")
            idle = cluster.rank("b", "half", 1, 2, "idle", "op_timeout_ms=700", "device=0", "seconds=20")
            read_until(idle, "FORMED")
            self.expect(waits, "TIMED_OUT", "no recv has taken it", within_s=10)
            idle.kill()
            cluster.wait_gpus_idle()

    # --- Faults ---

    def check_fault(self, rule, symbol, code="DEVICE", breaks=False, layout="ab", devices=(0, 0), **settings):
        """The call fails on node a, in the middle of messages. The rank there is told which GPU and call. The other rank is told that its peer's
        message ended, or that the peer is gone, since it then exits. The next communicator works."""
        with Cluster(sorted(set(layout)), gpus=2, start=False) as cluster:
            for name in sorted(set(layout)):
                cluster.start(name, environment=dict(settings, CUDA_DOUBLE_FAIL=rule) if name == "a" else settings)
            cluster.wait_ready()
            lines = [self.last_line(process, 15) for process in self.ranks(cluster, layout, "broken", "messages", text_of(LARGE), devices=devices)]
            for line in lines:
                self.assertTrue(line.startswith((code, "RANK_LOST", "ABORTED")), lines)
            self.assertTrue(any(line.startswith(code) and "GPU 0" in line and symbol in line for line in lines), lines)
            for name in set(layout):
                cluster.wait(lambda name=name: all(gpu["memories"] == 0 for gpu in cluster.json(name, "gpus")["gpus"]), "all memory is let go of")
            devices = [1] * len(layout) if breaks else devices
            for process in self.ranks(cluster, layout, "again", "messages", text_of(LARGE), "steps=1", devices=devices):
                self.expect(process, "OK", within_s=20)
            for name in set(layout):
                cluster.daemons[name].terminate()
                self.assertEqual(cluster.daemons[name].wait(timeout=20), 0, cluster.log(name))

    def test_a_copy_that_fails(self):
        for number in (1, 9, 30):
            with self.subTest(number):
                self.check_fault(f"cuMemcpyAsync:{number}=1", "cuMemcpyAsync")

    def test_a_copy_that_breaks_the_gpu(self):
        self.check_fault("cuMemcpyAsync:12=700", "cuMemcpyAsync", breaks=True)

    def test_a_copy_within_a_node_that_fails(self):
        self.check_fault("cuMemcpyAsync:2=1", "cuMemcpyAsync", layout="aa")

    def test_a_mark_that_fails(self):
        self.check_fault("cuStreamWriteValue64:7=1", "cuStreamWriteValue64")

    def test_no_pinned_memory(self):
        self.check_fault("cuMemHostAlloc:3", "cuMemHostAlloc", code="NO_MEMORY")

    def test_work_that_fails_later(self):
        self.check_fault("cuStreamQuery:2=719", "cuStreamQuery", breaks=True, CUDA_DOUBLE_DELAY_US="20000")


if __name__ == "__main__":
    unittest.main()
