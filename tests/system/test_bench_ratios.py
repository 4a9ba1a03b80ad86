#!/usr/bin/env python3
"""What `make bench-ab` concludes from its rounds, checked with invented times whose answer is known."""
import math
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import ratios  # noqa: E402


def rounds_of(speed_up, count=20, scatter=0.15, keys=8, seed=7):
    """Each round is faster or slower as a whole, as on a shared machine, and all figures vary."""
    lot = random.Random(seed)
    found = []
    for _ in range(count):
        pace = math.exp(lot.gauss(0, 0.5))
        found.append(tuple({key: (key + 1) * pace * factor * math.exp(lot.gauss(0, scatter)) for key in range(keys)} for factor in (1, 1 / speed_up, 1)))
    return found


class Ratios(unittest.TestCase):
    def test_interval_by_hand(self):
        """The logarithms are 0.1, 0.2 and 0.3: their mean is 0.2, their standard deviation 0.1, and t with 2 degrees of freedom 4.303."""
        found = ratios.interval([0.1, 0.2, 0.3])
        half = 4.303 * 0.1 / math.sqrt(3)
        self.assertAlmostEqual(found.mean, math.exp(0.2))
        self.assertAlmostEqual(found.low, math.exp(0.2 - half))
        self.assertAlmostEqual(found.high, math.exp(0.2 + half))

    def test_one_round_says_nothing(self):
        found = ratios.interval([0.5])
        self.assertEqual((found.low, found.high), (0.0, math.inf))

    def test_the_tables_gaps_are_on_the_wide_side(self):
        self.assertEqual(ratios.student_95(24), ratios.student_95(20))
        self.assertEqual(ratios.student_95(1000), 1.980)
        widths = [ratios.student_95(degrees) for degrees in range(1, 200)]
        self.assertEqual(widths, sorted(widths, reverse=True))

    def test_identical_programs_are_no_slower(self):
        ours, control = ratios.compare(rounds_of(1))
        self.assertTrue(ours.low < 1 < ours.high, ours.text())
        self.assertTrue(control.low < 1 < control.high, control.text())
        self.assertEqual(ratios.verdict(ours, control), "no slower")

    def test_a_tenth_slower_is_seen(self):
        ours, control = ratios.compare(rounds_of(0.9))
        self.assertTrue(ours.low < 0.9 < ours.high, ours.text())
        self.assertFalse(ratios.is_no_slower(ours), ours.text())
        self.assertEqual(ratios.verdict(ours, control), "SLOWER")

    def test_faster_is_no_slower(self):
        ours, control = ratios.compare(rounds_of(1.5))
        self.assertGreater(ours.low, 1.3)
        self.assertEqual(ratios.verdict(ours, control), "no slower")

    def test_intervals_hold_what_they_say(self):
        """For identical programs the true ratio is within the interval in 95 of 100 runs; the test leaves room for chance."""
        held = sum(found.low <= 1 <= found.high for found in (ratios.compare(rounds_of(1, count=10, seed=seed))[0] for seed in range(200)))
        self.assertGreater(held, 180)

    def test_a_run_that_cannot_tell_says_so(self):
        ours, control = ratios.compare(rounds_of(1, count=3, scatter=1.5, keys=1))
        self.assertIn("more rounds", ratios.verdict(ours, control))

    def test_a_disturbed_control_is_named(self):
        self.assertIn("differs from itself", ratios.verdict(ratios.interval([0.0, 0.01]), ratios.interval([0.5, 0.51, 0.5])))

    def test_only_figures_of_both_count(self):
        self.assertAlmostEqual(ratios.mean_log_ratio({"a": 2.0, "b": 5.0}, {"a": 1.0, "c": 9.0}), math.log(2))
        self.assertIsNone(ratios.mean_log_ratio({"a": 1.0}, {"b": 1.0}))
        self.assertIsNone(ratios.compare([({}, {}, {})]))

    def test_places_are_merged_round_by_round(self):
        merged = ratios.merge({"x": [({"a": 1.0}, {"a": 2.0}, {"a": 3.0})] * 2, "y": [({"a": 4.0}, {"a": 5.0}, {"a": 6.0})]})
        self.assertEqual(len(merged), 2)
        self.assertEqual(merged[0][1], {("x", "a"): 2.0, ("y", "a"): 5.0})
        self.assertEqual(merged[1][2], {("x", "a"): 3.0})


if __name__ == "__main__":
    unittest.main()
