#!/usr/bin/env python3
"""The elastic example in C: ranks are lost, and others come, while it trains."""
import re
import unittest

from cluster import BUILD, Cluster
from failure_case import read_until

STEPS = 400
WAITS = True


class Elastic(unittest.TestCase):
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

    def test_wrong_arguments(self):
        with Cluster("a", namespaces=False) as cluster:
            for arguments in (["--least", "none"], ["more"], ["--wrong"], ["--least", "3", "--most", "2"]):
                process = cluster.client("a", BUILD / "examples/elastic", *arguments)
                _, errors = process.communicate(timeout=30)
                self.assertIn(process.returncode, (1, 2))
                self.assertRegex(errors, "usage|at least 3 and at most 2 ranks")


if __name__ == "__main__":
    unittest.main()
