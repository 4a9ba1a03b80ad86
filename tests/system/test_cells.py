#!/usr/bin/env python3
"""Small operations of one node, which go through cells: the same results as through commd, and the same failures."""
import itertools
import os
import random
import re
import signal
import time
import unittest

from cluster import BUILD, Cluster, cpu_s

# Steps of tests/system/cells.c: operations that end well after it.
STEPS = (0, 0, 0, 1, 1, 1, 0, 0)
SEED = int(os.environ.get("COMMD_SEED", "1"))


class Cells(unittest.TestCase):
    def start(self, cluster, name, size, *options, off=()):
        """off: the ranks that have no cells."""
        ranks = []
        for rank in range(size):
            cluster.client_environment = {"COMMD_CELLS": "off" if rank in off else "on"}
            program = "cells_faults" if options[0] in ("until", "beside", "scribble", "step") else "cells"
            ranks.append(cluster.client("a", BUILD / "tests/system" / program, name, rank, size, *options))
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

    def test_slices_as_without_cells(self):
        """Long operations too, some of which a rank hands to commd while others have published their first slice."""
        with Cluster("a") as cluster:
            for size in (2, 3, 5):
                for seed in range(SEED, SEED + 2):
                    digests = [self.finish(self.start(cluster, f"slices-{size}-{seed}-{len(off)}", size, "slices", seed, 400, off=off))
                               for off in ((), range(size))]
                    self.assertEqual(digests[0], digests[1], f"size {size}, seed {seed}")

    def test_many_ranks(self):
        """As many ranks as a communicator with cells may have, and one more."""
        with Cluster("a") as cluster:
            for size, uses in ((32, True), (33, False)):
                digests = [self.finish(self.start(cluster, f"many-{size}-{len(off)}", size, "random", SEED, 60, off=off))
                           for off in ((), range(size))]
                self.assertEqual(digests[0], digests[1], f"size {size}")
                text = cluster.commctl("a", "metrics").stdout
                before, count = 0 if uses else count, int(re.search(r"commd_operations_in_cells_total (\d+)", text)[1])
                self.assertEqual(count > before, uses)

    def test_contradictions(self):
        with Cluster("a") as cluster:
            for off in ((), (0, 1, 2)):
                self.assertEqual(self.finish(self.start(cluster, f"odd{len(off)}", 3, "mismatch", off=off)), ["checked"] * 3)

    def check_with_folder(self, program, size):
        """Runs the program's ranks, which tell each other by files how far they are."""
        with Cluster("a") as cluster:
            folder = cluster.folder / program
            folder.mkdir(mode=0o777)
            folder.chmod(0o777)
            ranks = [cluster.client("a", BUILD / f"tests/system/{program}", program, rank, size, folder) for rank in range(size)]
            self.assertEqual(self.finish(ranks), ["checked"] * size)

    def test_chains(self):
        """Operations that share buffers run in the order of the calls, whatever is waited for."""
        with Cluster("a") as cluster:
            for size in (2, 3, 4):
                ranks = [cluster.client("a", BUILD / "tests/system/cells_chains", f"chains{size}", rank, size, 30 + size, 30) for rank in range(size)]
                self.assertEqual(self.finish(ranks), ["checked"] * size)

    def test_calls_that_repeat(self):
        with Cluster("a") as cluster:
            for size in (2, 3, 4):
                ranks = [cluster.client("a", BUILD / "tests/system/cells_again", f"again{size}", rank, size) for rank in range(size)]
                self.assertEqual(self.finish(ranks), ["checked"] * size)

    def test_messages(self):
        """Each receive gets the oldest message of its sender and tag, whichever way messages came."""
        with Cluster("a") as cluster:
            for size in (2, 3, 4):
                for seed in range(SEED, SEED + 2):
                    for cells in ("on", "off"):
                        cluster.client_environment = {"COMMD_CELLS": cells}
                        ranks = [cluster.client("a", BUILD / "tests/system/cells_messages", f"messages{size}-{seed}-{cells}", rank, size, seed, 60)
                                 for rank in range(size)]
                        self.assertEqual(self.finish(ranks), ["checked"] * size)

    def test_messages_behind_events(self):
        """A receive waits for an event; its message has come."""
        with Cluster("a") as cluster:
            for cells in ("on", "off"):
                cluster.client_environment = {"COMMD_CELLS": cells}
                ranks = [cluster.client("a", BUILD / "tests/system/cells_events", f"events-{cells}", rank, 2) for rank in range(2)]
                self.assertEqual(self.finish(ranks), ["checked"] * 2)

    def test_messages_are_counted(self):
        with Cluster("a") as cluster:
            ranks = [cluster.client("a", BUILD / "tests/system/posted", "posted", rank, 2, 70, 100, "plain") for rank in range(2)]
            self.assertEqual(self.finish(ranks), ["140 operations checked"] * 2)
            text = cluster.commctl("a", "metrics").stdout
            for kind in ("send", "recv"):
                self.assertRegex(text, rf'commd_operations_total{{kind="{kind}",size_max_bytes="4096",result="OK"}} 140\n')
            self.assertGreater(int(re.search(r"commd_operations_in_cells_total (\d+)", text)[1]), 100)

    def test_handles_that_end_early(self):
        """Roots that send, those that send to a root, and readers of a root's data wait for nobody else. What they sent stays what it was."""
        self.check_with_folder("cells_roots", 3)

    def test_registered_memory(self):
        """Memory may be withdrawn or freed right after the call; and what goes to commd after all does not depend on where the memory was."""
        self.check_with_folder("cells_memory", 2)

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
        """A deadline ends the same operation on all ranks, and commd and the ranks sleep until then."""
        with Cluster("a") as cluster:
            ranks = self.start(cluster, "stopped", 3, "until", 3000)
            self.await_ready(ranks)
            ranks[1].send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            waiting = (cluster.daemons["a"].pid, ranks[0].pid, ranks[2].pid)
            before = [cpu_s(pid) for pid in waiting]
            time.sleep(2)
            for pid, used in zip(waiting, before):
                self.assertLess(cpu_s(pid) - used, 0.1, "a process works while it has nothing to do")
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

    def test_a_rank_that_dies_at_any_step(self):
        """If the dead rank had written the number into the cell, the operation ends well on all survivors. Otherwise it ends well on none."""
        with Cluster("a") as cluster:
            bystanders = self.start(cluster, "bystanders", 2, "beside")
            self.await_ready(bystanders)
            for step, ended in enumerate(STEPS):
                ranks = self.start(cluster, f"step{step}", 3, "step", step, int(signal.SIGKILL))
                began = time.monotonic()
                lines = self.finish(ranks[1:], within_s=10)
                self.assertLess(time.monotonic() - began, 5)
                for line in lines:
                    self.assertIn("lost", line, f"step {step}")
                    self.assertIn(f"rank 0 (pid {ranks[0].pid})", line)
                    self.assertEqual(int(line.split()[0]), 1000 + ended, f"step {step}")
            for process in bystanders:
                self.assertIsNone(process.poll())

    def test_a_rank_that_stops_at_any_step(self):
        with Cluster("a") as cluster:
            started = [self.start(cluster, f"stop{step}", 3, "step", step, int(signal.SIGSTOP)) for step in range(len(STEPS))]
            for step, ended in enumerate(STEPS):
                ranks = started[step]
                lines = self.finish(ranks[1:], within_s=20)
                for line in lines:
                    self.assertIn("rank 0", line, f"step {step}")
                    self.assertIn("has not posted it", line, f"step {step}")
                    self.assertIn(f"op {1001 + ended} all_reduce", line)
                    self.assertEqual(int(line.split()[0]), 1000 + ended, f"step {step}")
                ranks[0].send_signal(signal.SIGCONT)
                ranks[0].communicate(timeout=20)

    def lend(self, cluster, step, number, way):
        cluster.client_environment = {}
        return [cluster.client("a", BUILD / "tests/system/cells_loans", f"{way}{step}", rank, 3, step, int(number), way) for rank in range(3)]

    def test_a_rank_that_dies_while_memory_is_lent(self):
        """The operation ends well if the dead rank had said that it had read the others' memory. Otherwise it ends well on none. Nor does it if the
        rank's operation had failed, so that its memory could change, while others read it."""
        with Cluster("a") as cluster:
            for way, (step, ended) in itertools.product(("file", "process"), enumerate((0, 0, 1, 0))):
                ranks = self.lend(cluster, step, signal.SIGKILL, way)
                for line in self.finish(ranks[1:], within_s=20):
                    self.assertIn(f"rank 0 (pid {ranks[0].pid})", line, f"{way}, step {step}")
                    self.assertEqual(int(line.split()[0]), ended, f"{way}, step {step}")

    def test_a_rank_that_lies_about_its_memory(self):
        """It says that it lends, and there is nothing. The others read nothing behind its places."""
        with Cluster("a") as cluster:
            for way in "file", "process":
                ranks = self.lend(cluster, 4, signal.SIGKILL, way)
                for line in self.finish(ranks[:2], within_s=20):
                    self.assertIn(f"rank 2 (pid {ranks[2].pid})", line, way)
                    self.assertEqual(int(line.split()[0]), 0, way)

    def test_a_process_that_is_not_the_ranks_any_more(self):
        """What is read of it is nobody's result."""
        with Cluster("a") as cluster:
            ranks = self.lend(cluster, 5, signal.SIGKILL, "process")
            for line in self.finish(ranks[1:], within_s=20):
                self.assertEqual(int(line.split()[0]), 0)

    def test_a_rank_that_stops_while_memory_is_lent(self):
        with Cluster("a") as cluster:
            for way, (step, ended) in itertools.product(("file", "process"), enumerate((0, 0, 1))):
                ranks = self.lend(cluster, step, signal.SIGSTOP, way)
                for line in self.finish(ranks[1:], within_s=20):
                    self.assertIn("rank 0", line, f"{way}, step {step}")
                    self.assertIn("has not posted it", line, f"{way}, step {step}")
                    self.assertEqual(int(line.split()[0]), ended, f"{way}, step {step}")
                ranks[0].send_signal(signal.SIGCONT)
                ranks[0].communicate(timeout=20)

    def test_what_operators_see(self):
        with Cluster("a") as cluster:
            go = os.path.join(cluster.folder, "go")
            ranks = self.start(cluster, "counted", 3, "counts", go)
            self.await_ready(ranks)
            clients = {row["pid"]: row for row in cluster.json("a", "clients")["clients"]}
            for process in ranks:
                row = clients[process.pid]
                self.assertEqual((row["ops_submitted"], row["ops_completed"]), (550, 550))
            comm, = cluster.json("a", "comms")["comms"]
            self.assertEqual((comm["ops_posted"], comm["ops_completed"]), (550, 550))
            self.assertEqual(comm["bytes_reduced"], 300 * 8 + 100 * 1000 + 50 * 20000)
            self.assertEqual(cluster.json("a", "status")["ops_completed"], 3 * 550)
            for left in (False, True):
                text = cluster.commctl("a", "metrics").stdout
                for line in ('commd_operations_in_cells_total 550',
                             'commd_operations_total{kind="all_reduce",size_max_bytes="4096",result="OK"} 300',
                             'commd_operations_total{kind="all_gather",size_max_bytes="4096",result="OK"} 100',
                             'commd_operations_total{kind="barrier",size_max_bytes="4096",result="OK"} 100',
                             'commd_operations_total{kind="broadcast",size_max_bytes="65536",result="OK"} 50',
                             'commd_operation_bytes_total{kind="all_gather",size_max_bytes="4096"} 300000',
                             'commd_operation_bytes_total{kind="broadcast",size_max_bytes="65536"} 1000000'):
                    self.assertIn(line + "\n", text)
                timed = int(re.search(r'commd_operation_duration_seconds_count{kind="all_reduce",size_max_bytes="4096"} (\d+)', text)[1])
                self.assertTrue(0 < timed and abs(timed - 300) <= 61, timed)
                if not left:
                    open(go, "w").close()
                    self.assertEqual(self.finish(ranks), ["counted"] * 3)

    def test_a_call_that_one_rank_is_refused(self):
        with Cluster("a") as cluster:
            for off in ((), (0, 1, 2)):
                self.assertEqual(self.finish(self.start(cluster, f"refused{len(off)}", 3, "refused", off=off)), ["checked"] * 3)

    def test_a_rank_that_left_after_a_deadline(self):
        """A rank whose operations have all ended leaves in order. Who comes late to one of them learns how it ended."""
        with Cluster("a") as cluster:
            for off in ((), (0, 1)):
                self.assertEqual(self.finish(self.start(cluster, f"left{len(off)}", 2, "left", off=off)), ["checked"] * 2)

    def test_cells_after_a_deadline(self):
        """The communicator uses its cells again."""
        with Cluster("a") as cluster:
            self.assertEqual(self.finish(self.start(cluster, "late", 3, "late", 4)), ["checked"] * 3)
            text = cluster.commctl("a", "metrics").stdout
            in_cells = int(re.search(r"commd_operations_in_cells_total (\d+)", text)[1])
            self.assertGreater(in_cells, 4 * 160)  # of 320; the first 128 and a few more go to commd

    def test_the_end_of_commd_is_seen_at_once(self):
        """The ranks notice the end of commd, although their operations do not need it."""
        for number in range(3):
            with Cluster("a") as cluster:
                ranks = self.start(cluster, "orphans", 2, "until")
                self.await_ready(ranks)
                began = time.monotonic()
                cluster.daemons["a"].kill()
                for line in self.finish(ranks, within_s=10):
                    self.assertIn("closed the connection", line)
                self.assertLess(time.monotonic() - began, 0.5)

    def test_a_rank_that_writes_anywhere(self):
        """A rank that scribbles on the cells harms only its own communicator."""
        with Cluster("a") as cluster:
            bystanders = self.start(cluster, "bystanders", 2, "beside")
            self.await_ready(bystanders)
            for seed in range(SEED, SEED + 8):
                ranks = self.start(cluster, f"scribbled{seed}", 3, "scribble", seed)
                for process in ranks:
                    _, errors = process.communicate(timeout=30)
                    self.assertEqual(process.returncode, 0, errors)
                self.assertIsNone(cluster.daemons["a"].poll())
            text = cluster.commctl("a", "metrics").stdout
            self.assertLess(int(re.search(r"commd_operations_in_cells_total (\d+)", text)[1]), 10**9)
            for process in bystanders:
                self.assertIsNone(process.poll())
            bystanders[1].kill()
            line, = self.finish(bystanders[:1], within_s=10)
            self.assertIn("rank 1", line)


if __name__ == "__main__":
    unittest.main()
