#!/usr/bin/env python3
"""Small operations of one node, which go through cells: the same results as through commd, and the same failures."""
import os
import random
import signal
import time
import unittest

from cluster import BUILD, Cluster, cpu_s

SEED = int(os.environ.get("COMMD_SEED", "1"))


class Cells(unittest.TestCase):
    def start(self, cluster, name, size, *options, off=()):
        """off: the ranks without cells."""
        ranks = []
        for rank in range(size):
            cluster.client_environment = {"COMMD_CELLS": "off" if rank in off else "on"}
            ranks.append(cluster.client("a", BUILD / "tests/system/cells", name, rank, size, *options))
        return ranks

    def finish(self, ranks, within_s=120):
        lines = []
        for rank, process in enumerate(ranks):
            output, errors = process.communicate(timeout=within_s)
            self.assertEqual(process.returncode, 0, f"rank {rank}: {errors}")
            lines.append(output.splitlines()[-1])
        return lines

    def await_ready(self, ranks):
        for process in ranks:
            self.assertEqual(process.stdout.readline(), "READY\n")

    def test_random_operations_as_without_cells(self):
        with Cluster("a") as cluster:
            for size in (2, 3, 4):
                for seed in range(SEED, SEED + 3):
                    digests = [self.finish(self.start(cluster, f"random-{size}-{seed}-{len(off)}", size, "random", seed, 1500, off=off))
                               for off in ((), range(size), (0,))]
                    self.assertEqual(digests[0], digests[1], f"size {size}, seed {seed}")
                    self.assertEqual(digests[0], digests[2], f"size {size}, seed {seed}")

    def test_contradictions(self):
        with Cluster("a") as cluster:
            for off in ((), (0, 1, 2)):
                self.assertEqual(self.finish(self.start(cluster, f"odd{len(off)}", 3, "mismatch", off=off)), ["checked"] * 3)

    def test_a_killed_rank(self):
        """Every survivor has the same last operation that ended well."""
        chance = random.Random(SEED)
        with Cluster("a") as cluster:
            for number in range(12):
                ranks = self.start(cluster, f"killed{number}", 3, "until")
                self.await_ready(ranks)
                time.sleep(chance.random() * 0.02)
                lost = ranks.pop(number % 3)
                lost.kill()
                began = time.monotonic()
                lines = self.finish(ranks, within_s=10)
                self.assertLess(time.monotonic() - began, 2)
                self.assertEqual(*[line.split()[0] for line in lines])
                for line in lines:
                    self.assertIn("lost", line)
                    self.assertIn(f"rank {number % 3} (pid {lost.pid})", line)

    def test_a_stopped_rank(self):
        """The deadline ends the same operation on all ranks, and commd sleeps meanwhile."""
        with Cluster("a") as cluster:
            ranks = self.start(cluster, "stopped", 3, "until", 3000)
            self.await_ready(ranks)
            ranks[1].send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            before = cpu_s(cluster.daemons["a"].pid)
            time.sleep(2)
            self.assertLess(cpu_s(cluster.daemons["a"].pid) - before, 0.1, "commd works while it has nothing to do")
            op, = cluster.json("a", "ops")["ops"]
            self.assertEqual((op["kind"], op["missing_ranks"]), ("all_reduce", f"1 (pid {ranks[1].pid})"))
            comm, = cluster.json("a", "comms")["comms"]
            self.assertEqual((comm["ops_posted"], comm["ops_completed"] >= 1000), (op["seq"], True))
            lines = self.finish([ranks[0], ranks[2]], within_s=10)
            ranks[1].send_signal(signal.SIGCONT)
            lines += self.finish([ranks[1]], within_s=10)
            self.assertEqual(len({line.split()[0] for line in lines}), 1, lines)
            for line in lines:
                self.assertIn("rank 1", line)
                self.assertIn(f"op {int(line.split()[0]) + 1} all_reduce on", line)

    def test_an_aborted_communicator(self):
        with Cluster("a") as cluster:
            for number in range(6):
                ranks = self.start(cluster, f"aborted{number}", 3, "until")
                self.await_ready(ranks)
                cluster.commctl("a", "abort", f"aborted{number}", "--reason", "a test")
                lines = self.finish(ranks, within_s=10)
                self.assertEqual(len({line.split()[0] for line in lines}), 1, lines)
                for line in lines:
                    self.assertIn("a test", line)

    def test_a_killed_commd(self):
        with Cluster("a") as cluster:
            ranks = self.start(cluster, "orphans", 2, "until")
            self.await_ready(ranks)
            cluster.daemons["a"].kill()
            ranks[1].kill()
            line, = self.finish(ranks[:1], within_s=10)
            self.assertIn("closed the connection", line)

    def test_a_rank_that_writes_anywhere(self):
        """It harms its own communicator alone."""
        with Cluster("a") as cluster:
            bystanders = self.start(cluster, "bystanders", 2, "until")
            self.await_ready(bystanders)
            for seed in range(SEED, SEED + 8):
                ranks = self.start(cluster, f"scribbled{seed}", 3, "scribble", seed)
                for process in ranks:
                    process.communicate(timeout=30)
                self.assertIsNone(cluster.daemons["a"].poll())
            for process in bystanders:
                self.assertIsNone(process.poll())
            bystanders[1].kill()
            line, = self.finish(bystanders[:1], within_s=10)
            self.assertIn("rank 1", line)


if __name__ == "__main__":
    unittest.main()
