#!/usr/bin/env python3
"""Small operations between nodes, which go through cells on each node: the same results as without cells, and the same failures."""
import os
import random
import re
import signal
import time
import unittest

from cluster import BUILD, Cluster, cpu_s

SEED = int(os.environ.get("COMMD_SEED", "1"))


class NodeCells(unittest.TestCase):
    def start(self, cluster, name, layout, *options, off=()):
        """layout: the node of each rank. off: the ranks that have no cells."""
        ranks = []
        for rank, node in enumerate(layout):
            cluster.client_environment = {"COMMD_CELLS": "off" if rank in off else "on"}
            program = "cells_faults" if options[0] in ("until", "beside", "scribble", "step") else "cells"
            ranks.append(cluster.client(node, BUILD / "tests/system" / program, name, rank, len(layout), *options))
        return ranks

    def finish(self, ranks, within_s=120):
        ends = [(process, *process.communicate(timeout=within_s)) for process in ranks]
        failed = [f"pid {process.pid}: {process.returncode}: {errors}" for process, _, errors in ends if process.returncode != 0]
        self.assertEqual(failed, [])
        return [output.splitlines()[-1] for _, output, _ in ends]

    def await_ready(self, ranks):
        for process in ranks:
            self.assertEqual(process.stdout.readline(), "READY\n")

    def in_cells(self, cluster, node):
        return int(re.search(r"commd_operations_in_cells_total (\d+)", cluster.commctl(node, "metrics").stdout)[1])

    def test_random_operations_as_without_cells(self):
        """With cells on all ranks, on none, on one node alone, and on all but one rank."""
        for layout, steps in (("ab", 1200), ("aabb", 500), ("abaab", 300)):
            with Cluster(sorted(set(layout))) as cluster:
                size = len(layout)
                first_node = [rank for rank in range(size) if layout[rank] == "a"]
                for seed in (SEED, SEED + 1):
                    digests = [self.finish(self.start(cluster, f"random-{seed}-{number}", layout, "random", seed, steps, off=off))
                               for number, off in enumerate(((), range(size), first_node, (size - 1,)))]
                    for other in digests[1:]:
                        self.assertEqual(digests[0], other, f"layout {layout}, seed {seed}")
                for node in sorted(set(layout)):
                    self.assertGreater(self.in_cells(cluster, node), steps // 4, f"node {node} of {layout} has hardly used its cells")

    def test_contradictions(self):
        with Cluster("ab") as cluster:
            for layout in ("aab", "abb"):
                for off in ((), (0, 1, 2), (1,)):
                    self.assertEqual(self.finish(self.start(cluster, f"odd-{layout}-{len(off)}", layout, "mismatch", off=off)), ["checked"] * 3)

    def test_a_call_that_one_rank_is_refused(self):
        with Cluster("ab") as cluster:
            for off in ((), (0, 1, 2)):
                self.assertEqual(self.finish(self.start(cluster, f"refused{len(off)}", "aab", "refused", off=off)), ["checked"] * 3)

    def test_cells_after_a_deadline(self):
        """Only the operation that is late ends, and the communicator goes on to use its cells."""
        with Cluster("ab") as cluster:
            self.assertEqual(self.finish(self.start(cluster, "late", "aab", "late", 4)), ["checked"] * 3)
            self.assertGreater(self.in_cells(cluster, "a"), 4 * 150)

    def test_chains(self):
        """Operations that share buffers run in the order of the calls, whatever is waited for."""
        for seed, layout in enumerate(("ab", "aab", "abcc")):
            with Cluster(sorted(set(layout))) as cluster:
                ranks = [cluster.client(node, BUILD / "tests/system/cells_chains", "chains", rank, len(layout), seed, 30) for rank, node in enumerate(layout)]
                self.assertEqual(self.finish(ranks), ["checked"] * len(layout))

    def test_handles_that_end_early(self):
        """Roots that send, those that send to a root, and readers of a root's data wait for nobody else, wherever they are."""
        for layout in ("abc", "aab", "abb"):
            with Cluster(sorted(set(layout))) as cluster:
                folder = cluster.folder / "roots"
                folder.mkdir(mode=0o777)
                folder.chmod(0o777)
                ranks = [cluster.client(node, BUILD / "tests/system/cells_roots", f"roots-{layout}", rank, 3, folder) for rank, node in enumerate(layout)]
                self.assertEqual(self.finish(ranks), ["checked"] * 3)

    def test_a_killed_rank(self):
        """Every survivor has the same last operation that ended well."""
        chance = random.Random(SEED)
        with Cluster("ab") as cluster:
            for number in range(8):
                ranks = self.start(cluster, f"killed{number}", "aab", "until")
                self.await_ready(ranks)
                time.sleep(chance.random() * 0.02)
                lost = ranks.pop(number % 3)
                lost.kill()
                for line in self.finish(ranks, within_s=15):
                    self.assertIn("lost", line)
                    self.assertIn(f"rank {number % 3} (pid {lost.pid})", line)

    def test_a_rank_that_stops(self):
        with Cluster("ab") as cluster:
            for stopped in (0, 2):
                ranks = self.start(cluster, f"stopped{stopped}", "aab", "until", 1500)
                self.await_ready(ranks)
                ranks[stopped].send_signal(signal.SIGSTOP)
                time.sleep(0.3)
                before = [cpu_s(daemon.pid) for daemon in cluster.daemons.values()]
                time.sleep(0.8)
                for daemon, used in zip(cluster.daemons.values(), before):
                    self.assertLess(cpu_s(daemon.pid) - used, 0.08, "commd works while it has nothing to do")
                if stopped == 0:
                    op, = cluster.json("a", "ops")["ops"]
                    self.assertEqual((op["kind"], op["missing_ranks"]), ("all_reduce", f"0 (pid {ranks[0].pid})"))
                lines = self.finish([each for rank, each in enumerate(ranks) if rank != stopped], within_s=20)
                self.assertEqual(len({line.split()[0] for line in lines}), 1, lines)
                for line in lines:
                    self.assertIn(f"rank {stopped}", line)
                    self.assertIn(f"op {int(line.split()[0]) + 1} all_reduce on", line)
                ranks[stopped].send_signal(signal.SIGCONT)
                ranks[stopped].communicate(timeout=20)

    def test_an_aborted_communicator(self):
        with Cluster("ab") as cluster:
            for number in range(4):
                ranks = self.start(cluster, f"aborted{number}", "aabb", "until")
                self.await_ready(ranks)
                cluster.commctl("ab"[number % 2], "abort", f"aborted{number}", "--reason", "a test")
                for line in self.finish(ranks, within_s=15):
                    self.assertIn("a test", line)

    def test_a_killed_commd(self):
        with Cluster("ab") as cluster:
            ranks = self.start(cluster, "orphans", "aabb", "until")
            self.await_ready(ranks)
            cluster.daemons["b"].kill()
            for line in self.finish(ranks[2:], within_s=10):
                self.assertIn("closed the connection", line)
            for line in self.finish(ranks[:2], within_s=15):
                self.assertIn("node b", line)

    def test_a_rank_that_writes_anywhere(self):
        """A rank that scribbles on the cells harms only its own communicator."""
        with Cluster("ab") as cluster:
            bystanders = self.start(cluster, "bystanders", "ab", "beside")
            self.await_ready(bystanders)
            for seed in range(SEED, SEED + 6):
                for process in self.start(cluster, f"scribbled{seed}", "aab", "scribble", seed):
                    _, errors = process.communicate(timeout=40)
                    self.assertEqual(process.returncode, 0, errors)
                for daemon in cluster.daemons.values():
                    self.assertIsNone(daemon.poll())
            for process in bystanders:
                self.assertIsNone(process.poll())
            bystanders[1].kill()
            line, = self.finish(bystanders[:1], within_s=15)
            self.assertIn("rank 1", line)


if __name__ == "__main__":
    unittest.main()
