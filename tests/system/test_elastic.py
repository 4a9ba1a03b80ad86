#!/usr/bin/env python3
"""The elastic example in C: ranks, daemons and nodes are lost, and others come, while it trains. The loss of a step depends on the number of ranks only
by rounding. So whatever happens, each step must have the loss that it has in an undisturbed run."""
import os
import random
import re
import threading
import time
import unittest

from cluster import BUILD, ROOT, Cluster, run
from failure_case import read_until

WAITS = True
STEPS = 400
RECOVERY_LINES_MAX = 20
RANDOM_S = 12  # of faults
LOSS_LINE = re.compile(r"rank \d+ of \d+, step (\d+): loss (\S+)")
END_LINE = re.compile(r"rank (\d+) of (\d+), step (\d+): ends with loss (\S+)")


class Rank:
    """A process of the job, whose lines a thread collects."""

    def __init__(self, cluster, node, *options):
        self.node = node
        self.process = cluster.client(node, BUILD / "examples/elastic", "--name", "job", *options)
        self.lines = []
        self.killed = False
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def kill(self):
        self.killed = True
        self.process.kill()

    def end(self, timeout_s):
        """Returns what it wrote to standard error."""
        self.process.wait(timeout=timeout_s)
        self.reader.join(timeout=10)
        return self.process.stderr.read()

    def losses(self):
        return [(int(found[1]), float(found[2])) for found in map(LOSS_LINE.match, self.lines) if found]

    def ended(self):
        found = [END_LINE.match(line) for line in self.lines]
        return next((each.groups() for each in found if each), None)

    def said(self, text):
        return any(text in line for line in self.lines)


class Elastic(unittest.TestCase):
    def undisturbed(self, steps):
        """Returns the loss of some steps, by step, and of the last one as text."""
        with Cluster("a", namespaces=False) as cluster:
            rank = Rank(cluster, "a", "--steps", steps, "--pause-ms", 0)
            self.assertEqual(rank.end(60), "")
            return dict(rank.losses()), float(rank.ended()[3])

    def check_curve(self, ranks, steps):
        expected, last = self.undisturbed(steps)
        compared = 0
        for rank in ranks:
            for step, loss in rank.losses():
                if step in expected:
                    self.assertAlmostEqual(loss, expected[step], delta=2e-6, msg=f"step {step}")
                    compared += 1
        self.assertGreater(compared, 4)
        for rank in ranks:
            if not rank.killed:
                self.assertIsNotNone(rank.ended(), rank.lines[-3:])
                self.assertEqual(int(rank.ended()[2]), steps)
                self.assertAlmostEqual(float(rank.ended()[3]), last, delta=1e-9)

    def test_ranks_come_and_go(self):
        with Cluster("ab", namespaces=False) as cluster:
            def start(node, *options):
                return cluster.client(node, BUILD / "examples/elastic", "--name", "job", "--steps", STEPS, "--least", 4, *options)

            processes = [start(node) for node in "aabb"]
            read_until(processes[0], "rank")
            processes[3].kill()
            while "goes on after" not in (said := read_until(processes[0], "rank")):
                pass
            self.assertRegex(said, rf"the process of rank [23] \(pid {processes[3].pid}\) of node b is gone")
            processes += [start("a"), start("b")]
            ends = []
            for number, process in enumerate(processes):
                output, errors = process.communicate(timeout=90)
                if number != 3:
                    self.assertEqual((process.returncode, errors), (0, ""), number)
                    ends.append(re.search(r"rank (\d) of (\d), step (\d+): ends with loss (\S+)\n$", output).groups())
            self.assertEqual(sorted(end[0] for end in ends), ["0", "1", "2", "3", "4"])
            self.assertEqual({end[1:] for end in ends}, {("5", str(STEPS), ends[0][3])})

    def test_a_rank_a_daemon_and_a_node_are_lost_and_two_ranks_come(self):
        steps = 1000
        with Cluster("abc") as cluster:
            ranks = [Rank(cluster, node, "--steps", steps, "--least", 6) for node in "aabbcc"]
            first = ranks[0]
            cluster.wait(lambda: first.said("rank 0 of 6") or first.losses(), "all train", timeout_s=30)
            # A rank.
            ranks[3].kill()
            cluster.wait(lambda: first.said(f"(pid {ranks[3].process.pid}) of node b is gone"), "a rank is lost")
            # A daemon. Its ranks wait for the next one, and come as newcomers.
            cluster.daemons["c"].kill()
            cluster.wait(lambda: first.said("node c lost"), "a daemon is lost")
            cluster.start("c")
            cluster.wait(lambda: any(re.match(r"rank \d of 5", line) for line in first.lines[-3:]), "the ranks of c are there again", timeout_s=40)
            # A whole node: with namespaces, nothing of it answers any more.
            if cluster.use_namespaces:
                run("ip", "-n", cluster.namespaces["*hub"], "link", "set", "port1", "nomaster")
            ranks[2].kill()
            cluster.daemons["b"].kill()
            cluster.wait(lambda: first.said("node b lost"), "a node is lost")
            # Two ranks come.
            ranks += [Rank(cluster, node, "--steps", steps, "--least", 2) for node in "ac"]
            for rank in ranks:
                errors = rank.end(90)
                if not rank.killed:
                    self.assertEqual(rank.process.returncode, 0, errors)
            ends = [rank.ended() for rank in ranks if not rank.killed]
            self.assertEqual({end[1] for end in ends}, {"6"}, "two of a, two of c, two newcomers")
            self.assertEqual(len({end[3] for end in ends}), 1, "all have the same state")
            for rank in ranks[:2]:
                steps_said = [step for step, _ in rank.losses()]
                self.assertEqual(steps_said, sorted(steps_said), "survivors never go back")
            self.check_curve(ranks, steps)

    def test_killed_at_random(self):
        """Faults that a seed draws, one after the other. COMMD_SEED repeats a seed; when a fault meets the training is not repeated."""
        seed = int(os.environ.get("COMMD_SEED", 0)) or random.SystemRandom().randrange(1, 1 << 32)
        draw = random.Random(seed)
        steps = 900
        with self.subTest(seed=seed), Cluster("abc", namespaces=False) as cluster:
            ranks = [Rank(cluster, node, "--steps", steps, "--least", 2) for node in "aabbcc"]
            cluster.wait(lambda: ranks[0].lines, "it trains", timeout_s=30)
            until = time.monotonic() + RANDOM_S
            while time.monotonic() < until and any(rank.process.poll() is None for rank in ranks):
                node = draw.choice("abc")
                if draw.random() < 0.6:
                    alive = [rank for rank in ranks if rank.process.poll() is None]
                    if len(alive) > 2:
                        draw.choice(alive).kill()
                    ranks.append(Rank(cluster, node, "--steps", steps, "--least", 1))
                else:
                    cluster.daemons[node].kill()
                    cluster.daemons[node].wait()
                    time.sleep(draw.choice((0, 0.3, 1)))
                    cluster.start(node)
                time.sleep(draw.uniform(0.2, 1.2))
            for rank in ranks:
                errors = rank.end(120)
                if not rank.killed:
                    self.assertEqual(rank.process.returncode, 0, errors)
            self.check_curve(ranks, steps)

    def test_recovery_takes_few_lines(self):
        """What a program needs to go on and to grow: the part of the example between two marks, and four lines that call it."""
        text = (ROOT / "client/examples/elastic.c").read_text()
        part, rest = text.split("/* --- Going on --- */")[1].split("/* --- Training --- */")
        part = re.sub(r"/\*.*?\*/", "", part, flags=re.S)
        lines = [line for line in part.splitlines() if line.strip() not in ("", "{", "}")]
        for call in (r"if \(result == COMM_OK && state->step % GROW_STEPS == 0\) \{", r"result = take_in\(comm, state\);", r"while \(is_loss\(result\)\) \{",
                     r"result = go_on\(comm, state\);"):
            lines += re.findall(call, rest)
        self.assertLessEqual(len(lines), RECOVERY_LINES_MAX, "\n".join(lines))
        self.assertGreater(len(lines), 10)

    def test_wrong_arguments(self):
        with Cluster("a", namespaces=False) as cluster:
            for arguments in (["--least", "none"], ["more"], ["--wrong"], ["--least", "3", "--most", "2"]):
                process = cluster.client("a", BUILD / "examples/elastic", *arguments)
                _, errors = process.communicate(timeout=30)
                self.assertIn(process.returncode, (1, 2))
                self.assertRegex(errors, "usage|at least 3 and at most 2 ranks")


if __name__ == "__main__":
    unittest.main()
