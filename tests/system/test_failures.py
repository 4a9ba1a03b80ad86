#!/usr/bin/env python3
"""kill -9 ends clients and daemons. The other ranks get an error that names the lost one. No rank hangs, and a new communicator works."""
import os
import signal
import unittest

from cluster import Cluster
from failure_case import HEARTBEAT_BOUND_S, FailureCase, read_until

WAITS = True


class Failures(FailureCase):
    def test_killed_client(self):
        with Cluster("ab") as cluster:
            ranks = self.start(cluster, "aabb", "work", "loop")
            other = self.start(cluster, "ab", "other", "loop", "steps=6000")
            ranks[3].kill()
            for process in ranks[:3]:
                self.expect(process, "RANK_LOST", "rank 3", str(ranks[3].pid), "node b", within_s=2)
            self.check_new_communicator(cluster, "aabb", "work")
            for process in other:
                self.expect(process, "OK", within_s=40)

    def expect_abort(self, process, rank, name, *texts):
        _, errors = process.communicate(timeout=15)
        self.assertEqual(process.returncode, -signal.SIGABRT, errors)
        lines = [line for line in errors.splitlines() if line.startswith("libcommclient: ")]
        self.assertEqual(len(lines), 1, errors)
        for text in (f'rank {rank} of "{name}" aborts the process: ', *texts):
            self.assertIn(text, lines[0])

    def test_processes_that_abort_on_a_loss(self):
        """Ranks may differ. A rank that leaves or that calls comm_abort itself is not aborted, and an error of one operation is none of a loss."""
        with Cluster("abc") as cluster:
            ranks = [cluster.rank(node, "fatal", rank, 4, "loop", f"on_loss={int(rank != 2)}") for rank, node in enumerate("aabb")]
            for process in ranks:
                read_until(process, "READY")
            ranks[3].kill()
            for rank in (0, 1):
                self.expect_abort(ranks[rank], rank, "fatal", "the process of rank 3", str(ranks[3].pid), "node b")
            self.expect(ranks[2], "RANK_LOST", "rank 3", within_s=2)

            ranks = [cluster.rank(node, "node", rank, 3, "loop", "on_loss=1") for rank, node in enumerate("abc")]
            for process in ranks:
                read_until(process, "READY")
            cluster.daemons["c"].kill()
            for rank in (0, 1):
                self.expect_abort(ranks[rank], rank, "node", "node c lost: ")
            self.expect_abort(ranks[2], 2, "node", "commd closed the connection")

            ranks = [cluster.rank("a", "ends", rank, 3, "loop", "on_loss=1", *(["aborts=1"] if rank == 2 else [])) for rank in range(3)]
            self.expect(ranks[2], "OK", within_s=5)
            for rank in (0, 1):
                self.expect_abort(ranks[rank], rank, "ends", "aborted by rank 2", "enough")

            for process in [cluster.rank(node, "fine", rank, 2, "once", "on_loss=1") for rank, node in enumerate("ab")]:
                self.expect(process, "OK", within_s=15)
            late = [cluster.rank("a", "late", 0, 2, "once", "op_timeout_ms=1000", "on_loss=1"),
                    cluster.rank("b", "late", 1, 2, "idle", "seconds=3", "op_timeout_ms=1000", "on_loss=1")]
            self.expect(late[0], "TIMED_OUT", "late", within_s=5)
            late[1].communicate(timeout=20)
            bad = cluster.rank("a", "bad", 0, 1, "once", "on_loss=2")
            self.expect(bad, "INVALID_ARGUMENT", "on_loss is 2", within_s=5)

    def test_killed_client_that_forked(self):
        """The killed rank's child lives on, and has the connection open, too. The other ranks must not wait for the child."""
        with Cluster("ab") as cluster:
            ranks = [cluster.rank("ab"[rank // 2], "work", rank, 4, "loop", *(["fork=60"] if rank == 3 else [])) for rank in range(4)]
            worker = int(read_until(ranks[3], "WORKER").split()[1])
            self.addCleanup(os.kill, worker, signal.SIGKILL)
            for process in ranks:
                read_until(process, "READY")
            ranks[3].kill()
            ranks[3].wait()
            for process in ranks[:3]:
                self.expect(process, "RANK_LOST", "rank 3", str(ranks[3].pid), "node b", within_s=1)
            os.kill(worker, 0)
            self.check_new_communicator(cluster, "aabb", "work")

    def test_killed_client_in_a_split(self):
        """The other ranks wait for it in comm_split. They are told that it is lost, as in any other call."""
        with Cluster("ab") as cluster:
            ranks = self.ranks(cluster, "aab", "work", "split", "dies=2")
            for rank, process in enumerate(ranks[:2]):
                self.expect(process, "RANK_LOST", "the process of rank 2", within_s=5)

    def test_killed_daemon(self):
        with Cluster("abc") as cluster:
            ranks = self.start(cluster, "abc", "work", "loop")
            other = self.start(cluster, "ab", "other", "loop", "steps=8000")
            cluster.daemons["c"].kill()
            for process in ranks[:2]:
                self.expect(process, "NODE_LOST", "node c", within_s=HEARTBEAT_BOUND_S)
            self.expect(ranks[2], "DAEMON_LOST", within_s=2)
            self.check_new_communicator(cluster, "ab", "survivors")
            for process in other:
                self.expect(process, "OK", within_s=40)
            cluster.start("c")
            cluster.wait_ready()
            self.check_new_communicator(cluster, "abc", "work")
            self.assertIsNone(cluster.daemons["a"].poll())

    def test_stopped_client_hits_the_deadline(self):
        with Cluster("ab") as cluster:
            first = cluster.rank("a", "late", 0, 2, "once", "op_timeout_ms=1000")
            second = cluster.rank("b", "late", 1, 2, "idle", "seconds=5", "op_timeout_ms=1000")
            self.expect(first, "TIMED_OUT", "late", within_s=5)
            self.expect(second, "TIMED_OUT", within_s=12)
            self.check_new_communicator(cluster, "ab", "late2")

    def test_mismatch_on_one_node_names_both(self):
        with Cluster("ab") as cluster:
            ranks = [cluster.rank("a", "odd", 0, 2, "once"), cluster.rank("a", "odd", 1, 2, "once", "kind=broadcast")]
            for process in ranks:
                self.expect(process, "MISMATCH", "all_reduce", "broadcast", "rank 0", "rank 1", within_s=10)
            self.check_new_communicator(cluster, "ab", "odd")

    def test_mismatch_between_nodes_names_both(self):
        with Cluster("ab") as cluster:
            ranks = [cluster.rank("a", "odd", 0, 2, "once", "count=100"), cluster.rank("b", "odd", 1, 2, "once", "count=101")]
            for process in ranks:
                self.expect(process, "MISMATCH", "100", "101", within_s=10)
            self.check_new_communicator(cluster, "ab", "odd")


if __name__ == "__main__":
    unittest.main()
