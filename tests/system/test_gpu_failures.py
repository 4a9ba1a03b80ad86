#!/usr/bin/env python3
"""kill -9 ends clients and daemons while operations run on GPUs (doubles of them). The errors name the lost rank, no memory is left, and
streams are released."""
import signal
import time
import unittest

from cluster import Cluster
from failure_case import HEARTBEAT_BOUND_S, FailureCase, read_until

WAITS = True
FOUR = "aabb"
TWO_A_GPU = [0, 0, 1, 1]
ONE_A_GPU = [0, 1, 0, 1]


class GpuFailures(FailureCase):
    def check_killed_client(self, layout, devices, victim):
        with Cluster(sorted(set(layout)), gpus=2) as cluster:
            ranks = self.start(cluster, layout, "work", "loop", devices=devices)
            other = self.start(cluster, layout, "other", "loop", "steps=300", devices=devices)
            ranks[victim].kill()
            for rank, process in enumerate(ranks):
                if rank != victim:
                    self.expect(process, "RANK_LOST", f"rank {victim}", str(ranks[victim].pid), f"node {layout[victim]}", within_s=4)
            self.check_new_communicator(cluster, layout, "work", devices)
            for process in other:
                self.expect(process, "OK", within_s=40)
            cluster.wait_gpus_idle()

    def test_a_gpu_that_does_not_get_to_it(self):
        """A kernel of another process never ends. The ranks are still told of their deadline, although commd cannot release their memory yet."""
        with Cluster("a", "drain_timeout_ms = 500;", gpus=1, start=False) as cluster:
            cluster.start("a", environment={"CUDA_DOUBLE_DELAY_US": "10000000"})
            cluster.wait_ready()
            ranks = self.ranks(cluster, "aa", "stuck", "once", "op_timeout_ms=1000", devices=[0, 0])
            for process in ranks:
                read_until(process, "FORMED")
            formed = time.monotonic()
            for process in ranks:
                self.expect(process, "TIMED_OUT", "running on GPUs", within_s=10)
            self.assertLess(time.monotonic() - formed, 4.4, "1 s, and 2 s for the GPU to leave the buffers")
            self.check_new_communicator(cluster, "aa", "host")
            cluster.daemons["a"].terminate()
            cluster.daemons["a"].wait(timeout=25)

    def test_killed_client_that_shares_its_gpu(self):
        self.check_killed_client(FOUR, TWO_A_GPU, 1)

    def test_killed_client_of_another_node(self):
        self.check_killed_client(FOUR, ONE_A_GPU, 3)

    def test_killed_client_of_one_gpu(self):
        self.check_killed_client("aaa", [1, 1, 1], 0)

    def test_killed_again_and_again(self):
        """Ranks are killed at any moment of operations with large buffers. Nothing of the dead ranks is left, and the next operations work."""
        layout, devices = "aaabb", [0, 0, 1, 0, 1]
        with Cluster("ab", gpus=2) as cluster:
            for turn in range(4):
                ranks = self.start(cluster, layout, f"work-{turn}", "loop", "count=20000", devices=devices)
                time.sleep(0.03 * turn)
                victims = [ranks[turn % 5], ranks[(turn + 2) % 5]] if turn % 2 else [ranks[turn]]
                for process in victims:
                    process.kill()
                for process in ranks:
                    if process not in victims:
                        self.expect(process, "RANK_LOST", "rank", within_s=4)
                cluster.wait_gpus_idle("ab")
            self.check_new_communicator(cluster, layout, "work", devices)

    def test_killed_while_its_stream_waits(self):
        """A rank for which the other one waits is killed. The other rank's stream goes on, and that rank gets the error."""
        with Cluster("a", gpus=1) as cluster:
            waits = cluster.rank("a", "half", 0, 2, "stream", "device=0")
            idle = cluster.rank("a", "half", 1, 2, "idle", "device=0")
            read_until(waits, "POSTED")
            read_until(idle, "FORMED")
            idle.kill()
            self.expect(waits, "RANK_LOST", "rank 1", within_s=4)
            cluster.wait_gpus_idle("a")

    def test_killed_daemon_while_a_stream_waits(self):
        with Cluster("a", gpus=1) as cluster:
            waits = cluster.rank("a", "half", 0, 2, "stream", "device=0")
            idle = cluster.rank("a", "half", 1, 2, "idle", "device=0", "seconds=1")
            read_until(waits, "POSTED")
            cluster.daemons["a"].kill()
            self.expect(waits, "DAEMON_LOST", within_s=4)
            self.expect(idle, "DAEMON_LOST", within_s=4)
            cluster.daemons["a"].wait()
            cluster.start("a")
            cluster.wait_ready()
            self.check_new_communicator(cluster, "aa", "half", [0, 0])
            cluster.wait_gpus_idle("a")

    def test_stopped_daemon_while_a_stream_waits(self):
        """The library's thread notices the end of commd, even while the rank itself waits in the driver."""
        with Cluster("a", gpus=1) as cluster:
            waits = cluster.rank("a", "half", 0, 2, "stream", "device=0")
            idle = cluster.rank("a", "half", 1, 2, "idle", "device=0", "seconds=30")
            read_until(waits, "POSTED")
            cluster.daemons["a"].send_signal(signal.SIGSTOP)
            self.expect(waits, "DAEMON_LOST", "stopped, or gets no processor time", within_s=8)
            idle.kill()
            cluster.daemons["a"].send_signal(signal.SIGCONT)
            self.check_new_communicator(cluster, "aa", "half", [0, 0])
            cluster.wait_gpus_idle("a")

    def test_killed_daemon_of_another_node(self):
        with Cluster("abc", gpus=2) as cluster:
            ranks = self.start(cluster, "aabbc", "work", "loop", devices=[0, 1, 0, 0, 1])
            cluster.daemons["c"].kill()
            for process in ranks[:4]:
                self.expect(process, "NODE_LOST", "node c", within_s=HEARTBEAT_BOUND_S)
            self.expect(ranks[4], "DAEMON_LOST", within_s=2)
            cluster.wait_gpus_idle("ab")
            self.check_new_communicator(cluster, "aabb", "survivors", [0, 1, 0, 0])
            cluster.daemons["c"].wait()
            cluster.start("c")
            cluster.wait_ready()
            self.check_new_communicator(cluster, "aabbc", "work", [0, 1, 0, 0, 1])

    def test_ended_daemon(self):
        """After SIGTERM during operations, commd ends cleanly."""
        with Cluster("ab", gpus=2) as cluster:
            ranks = self.start(cluster, "aab", "work", "loop", devices=[0, 1, 0])
            cluster.daemons["a"].terminate()
            self.assertEqual(cluster.daemons["a"].wait(timeout=20), 0, cluster.log("a"))
            for process in ranks:
                process.communicate(timeout=20)
            cluster.wait_gpus_idle("b")


if __name__ == "__main__":
    unittest.main()
