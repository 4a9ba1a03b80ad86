#!/usr/bin/env python3
"""A short chaos run: a few short faults of one seed ($COMMD_SEED, or 1) on three nodes. `make check-chaos` runs long ones."""
import itertools
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))

import chaos
import check_outages
import schedule
import verdicts
from cluster import BUILD, namespaces_work
from job import Event

SECONDS = 15
ALONE = True  # it has limits of time


class Schedules(unittest.TestCase):
    def test_a_seed_has_one_schedule(self):
        shape = chaos.shape_of(3, 2)
        first, again = ([str(schedule.fault(7, index, shape)) for index in range(200)] for _ in range(2))
        self.assertEqual(first, again)
        self.assertNotEqual(first, [str(schedule.fault(8, index, shape)) for index in range(200)])
        self.assertGreaterEqual({text.split(":")[0].split(" ")[0] for text in first}, {"kill-rank", "long-partition", "move", "several"})

    def test_harmless_faults_are_shorter_than_the_patience(self):
        shape = chaos.shape_of(5, 2)
        for make in schedule.SINGLE:
            fault = schedule.fault(3, 0, shape, kinds=[schedule.name_of(make)])
            if fault.kind.startswith("short-"):
                self.assertTrue(fault.harmless)
                self.assertLess(fault.ends_s, schedule.PATIENCE_S - 1)
            elif fault.kind.startswith("long-"):
                self.assertFalse(fault.harmless)
                self.assertGreater(fault.ends_s, schedule.PATIENCE_S + 1)

    def test_bars(self):
        shape = chaos.shape_of(3, 2)
        for kind in check_outages.KINDS:
            for run in range(20):
                fault = check_outages.fault(5, kind, run, shape)
                self.assertEqual(fault.harmless, kind not in check_outages.LOSSES, kind)
                self.assertEqual(fault.bar_s is not None, kind in check_outages.LOSSES, kind)
        self.assertNotEqual(str(check_outages.fault(5, "blackhole", 0, shape)), str(check_outages.fault(5, "blackhole", 1, shape)))

    def test_who_is_harmed(self):
        fault = schedule.Fault("x", [(0, "cut")], pairs=[("a", "b")])
        self.assertTrue(fault.harms("all", {0: "a", 1: "b", 2: "c"}))
        self.assertFalse(fault.harms("all", {0: "a", 2: "c"}))
        fault = schedule.Fault("x", [(0, "kill_rank")], ranks=[("pair", 1)])
        self.assertTrue(fault.harms("pair", {0: "a", 1: "c"}))
        self.assertFalse(fault.harms("pair", {0: "a"}))
        self.assertFalse(fault.harms("all", {0: "a", 1: "b"}))


def told(rank, text="node c lost", lost=(2,), may_shrink=1, result="NODE_LOST", last=7):
    return Event(kind="FAILED", rank=rank, local=rank, text=text, lost=lost, may_shrink=may_shrink, result=result, known=0, last=last)


class Verdicts(unittest.TestCase):
    """What the check of verdicts accepts, and what it finds."""

    def wrong(self, *reports):
        return verdicts.of_one("x/0", reports)

    def test_survivors_agree(self):
        self.assertEqual(self.wrong(told(0), told(1), told(2, "minority: only 1 of 3", (0, 1), 0, "ABORTED")), [])
        self.assertEqual(self.wrong(told(0), told(2, "commd is gone", (), 0, "DAEMON_LOST")), [])

    def test_survivors_disagree(self):
        for other in (told(1, text="node b lost"), told(1, lost=(0,)), told(1, result="RANK_LOST"), told(1, last=8)):
            self.assertEqual(len(self.wrong(told(0), other)), 1)

    def test_a_survivor_without_a_reason(self):
        self.assertEqual(len(self.wrong(told(0), told(1, "node c lost", (2,), 0))), 1)

    def test_who_goes_on(self):
        for nodes, pairs, group in (("aabbcc", ["ac", "bc"], "ab"), ("abc", ["ab", "ac"], "bc"), ("ac", ["ac"], "a"), ("ca", ["ac"], "c"),
                                    ("abcd", ["ac", "ad", "bc", "bd"], "ab"), ("bcda", ["ac", "ad", "bc", "bd"], "ab"), ("abc", ["ab", "ac", "bc"], "")):
            self.assertEqual(verdicts.goes_on(nodes, pairs), set(group))
        fine = [told(0), told(1, "minority", (0,), 0, "ABORTED")]
        self.assertEqual(verdicts.of_partition("x/0", fine, {0: "a", 1: "b"}, ["ab"]), [])
        self.assertEqual(len(verdicts.of_partition("x/0", [told(0), told(1)], {0: "a", 1: "b"}, ["ab"])), 1)
        self.assertEqual(len(verdicts.of_partition("x/0", fine, {0: "b", 1: "a"}, ["ab"])), 0)

    def test_the_next_communicator(self):
        after = [Event(rank=0, local=0, size=2), Event(rank=1, local=1, size=2)]
        self.assertEqual(verdicts.of_next("x/1", [told(0), told(1)], after), [])
        self.assertEqual(len(verdicts.of_next("x/1", [told(0), told(1)], [after[0], Event(rank=1, local=0, size=2)])), 1)
        self.assertEqual(len(verdicts.of_next("x/1", [told(0), told(1)], [after[0], Event(rank=1, local=1, size=3)])), 1)
        self.assertEqual(len(verdicts.of_next("x/1", [told(0), told(1)], [Event(rank=0, local=1, size=2), Event(rank=1, local=0, size=2)])), 1)


class Drains(unittest.TestCase):
    """A rank is refused while its node drains. Another rank comes after that, and waits in vain. All others wait for it in the next operation."""

    def judge(self, *another):
        run = chaos.Chaos(1, say=lambda _: None)
        fault = schedule.Fault("several (drain, short-hole)", [(0, "drain", "c", 60)], outage_s=1.8)
        run.another = [("pair", Event(comm="pair.1/0", rank=rank, result=result, text=f'communicator "{name}": it ended')) for rank, result, name in another]
        run.ages = {"pair": 5.2 + fault.outage_s}
        run.check_failures(fault, {}, 0)
        run.check_stalls(fault, {}, 0, 0)

    def test_a_rank_that_waits_in_vain(self):
        self.judge((1, "SHUTTING_DOWN", "pair.1/0/5"), (0, "TIMED_OUT", "pair.1/0/5"))

    def test_other_stalls_are_wrong(self):
        with self.assertRaises(chaos.Violation):
            self.judge((1, "SHUTTING_DOWN", "pair.1/0/5"), (0, "SHUTTING_DOWN", "pair.1/0/5"))
        with self.assertRaises(chaos.Violation):
            self.judge((1, "SHUTTING_DOWN", "pair.1/0/5"), (0, "TIMED_OUT", "pair.1/0/6"))


@unittest.skipUnless(namespaces_work(), "network namespaces cannot be made here")
class Chaos(unittest.TestCase):
    def test_a_table_of_bars(self):
        done = subprocess.run([sys.executable, "-B", check_outages.__file__, "--runs", "1", "--kinds", "rank-killed,blackhole", "--seed", "2", "--build", BUILD],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = [line.split() for line in done.stdout.splitlines()[-2:]]
        self.assertEqual([(row[0], row[4], row[-1]) for row in rows], [("rank-killed", "1", "0"), ("blackhole", "1", "0")])

    def test_a_short_run(self):
        lines = []
        seed = int(os.environ.get("COMMD_SEED", "1"))
        run = chaos.Chaos(seed, quick=True, say=lines.append)
        self.addCleanup(run.close)
        try:
            run.run(itertools.count(), SECONDS)
        except (chaos.Violation, AssertionError) as found:
            self.fail("\n".join([*lines, *run.summary(), str(found), f"to run it again: make check-chaos QUICK=1 SEED={seed} SECONDS={SECONDS}"]))
        self.assertGreater(len(run.faults), 2)
        self.assertGreater(run.counts["elements"], 1000)


if __name__ == "__main__":
    unittest.main()
