#!/usr/bin/env python3
"""What `make bench` concludes and draws, checked with invented times whose answer is known."""
import argparse
import math
import pathlib
import sys
import threading
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import bars  # noqa: E402
import comparison  # noqa: E402
import contestants  # noqa: E402
import plots  # noqa: E402
import report  # noqa: E402
import run_bench  # noqa: E402
import topology  # noqa: E402

KEY = ("all_reduce", 8)
SVG = "{http://www.w3.org/2000/svg}"


def place(name):
    return next(each for each in topology.ALL if each.name == name)


def results(factor=2.0):
    """commd's time is 10 us everywhere; MPICH takes `factor` times as long, Gloo 4 times as long as MPICH."""
    keys = [(operation, size) for operation in contestants.COLLECTIVES for size in (8, 2048, 1 << 17, 1 << 20, 8 << 20)] + [("trace x", 0), comparison.SMALL_AFTER_COMPUTING]
    times = {"commd": dict.fromkeys(keys, 10.0), "commd plain": dict.fromkeys(keys, 20.0), "MPICH": dict.fromkeys(keys, 10.0 * factor),
             "Gloo": dict.fromkeys(keys, 40.0 * factor)}
    return [(place(name), times, times) for name in ("local2", "local4", "local8")]


class Comparison(unittest.TestCase):
    def test_the_best_peer_of_each_size(self):
        medians = {"commd": {KEY: 4.0}, "commd plain": {KEY: 1.0}, "Gloo": {KEY: 3.0}, "MPICH": {KEY: 2.0}, "Open MPI": {}}
        self.assertEqual(comparison.best_peer(medians, KEY), "MPICH")
        self.assertEqual(comparison.ratio(medians, KEY), 0.5)
        self.assertEqual(comparison.ratio(medians, KEY, "commd plain"), 2.0)

    def test_unknown_figures_have_no_ratio(self):
        self.assertIsNone(comparison.best_peer({"commd": {KEY: 4.0}}, KEY))
        self.assertIsNone(comparison.ratio({"commd": {}, "Gloo": {KEY: 1.0}}, KEY))
        self.assertIsNone(comparison.class_ratio({"commd": {KEY: 4.0}}, 1, 100))
        self.assertIsNone(comparison.traces_ratio({}))

    def test_each_collective_has_the_same_weight(self):
        """all_reduce has two sizes with 2 and 8: mean 4. broadcast has one size with 1. The geometric mean of 4 and 1 is 2."""
        medians = {"commd": {("all_reduce", 8): 1.0, ("all_reduce", 16): 1.0, ("broadcast", 8): 1.0, ("barrier", 0): 1.0, ("all_reduce", 1 << 20): 1.0},
                   "MPICH": {("all_reduce", 8): 2.0, ("all_reduce", 16): 8.0, ("broadcast", 8): 1.0, ("barrier", 0): 99.0, ("all_reduce", 1 << 20): 99.0}}
        self.assertAlmostEqual(comparison.class_ratio(medians, 1, 2048), 2.0)
        self.assertAlmostEqual(comparison.size_ratio(medians, 8), math.sqrt(2.0))

    def test_bars_know_what_was_not_measured(self):
        rows = {what: (measured, met) for what, measured, _, met in bars.beside_best({"local2": results()[0][1]})}
        self.assertEqual(rows["local2, commd: x the best peer, <= 2 KiB"], ("2", True))
        self.assertEqual(rows["local2, commd plain: x the best peer, >= 8 MiB"], ("1", False))
        self.assertEqual(rows["local2: x the best peer, 8 B after 1 ms of computing"], ("2", True))
        self.assertEqual(rows["nodes2-9000, commd: x the best peer, traces of training steps"], ("not measured", None))

    def test_the_worst_single_ratio(self):
        """Of 8 bytes the ratio is 0.25 and the limit 0.5, of 16 bytes 0.75 and 0.5, of 1 MiB 0.3 and 1.0. A barrier does not count."""
        medians = {"commd": {("all_reduce", 8): 4.0, ("broadcast", 16): 4.0, ("all_reduce", 1 << 20): 10.0, ("barrier", 0): 100.0},
                   "MPICH": {("all_reduce", 8): 1.0, ("broadcast", 16): 3.0, ("all_reduce", 1 << 20): 3.0, ("barrier", 0): 1.0}}
        self.assertAlmostEqual(comparison.worst_of_bars(medians, (0.5, 1.0, 1.0, 1.0)), 0.3)
        self.assertAlmostEqual(comparison.worst_of_bars(medians, (0.5, 1.0, 0.1, 1.0)), 0.5)
        self.assertIsNone(comparison.worst_of_bars({}, (1, 1, 1, 1)))

    def test_processor_time_beside_the_fastest_peer(self):
        key = ("all_reduce", 1 << 20)
        medians = {"commd": {key: 1.0, KEY: 1.0}, "MPICH": {key: 2.0, KEY: 2.0}, "Gloo": {key: 3.0, KEY: 3.0}}
        cpu = {"commd": {key: 10.0, KEY: 1.0}, "MPICH": {key: 5.0, KEY: 9.0}, "Gloo": {key: 100.0, KEY: 100.0}}
        self.assertAlmostEqual(comparison.processor_ratio(medians, cpu, 1 << 20), 0.5)
        self.assertIsNone(comparison.processor_ratio(medians, cpu, 1 << 30))

    def test_times_through_tls_are_computed(self):
        """Every ratio is 2. TLS takes half of TCP's rate, so through TLS the peers take twice as long."""
        machine = {"TCP, one way": (20.0, "Gbit/s"), "TLS 1.3 over TCP, one way": (10.0, "Gbit/s")}
        rows = {what: (measured, met) for what, measured, _, met in bars.through_tls({"nodes2-9000": results()[0][1]}, machine)}
        self.assertEqual(rows["nodes2-9000: x the best peer through TLS (computed), >= 8 MiB"], ("4", True))
        self.assertEqual(rows["nodes2-1500: x the best peer through TLS (computed), >= 8 MiB"], ("not measured", None))


class Sweeps(unittest.TestCase):
    def test_the_faster_way_counts(self):
        line = '{{"operation": "all_gather", "size_bytes": {}, "way": "{}", "time_us": {}, "cpu_us": {}, "wrong": 0}}\n'
        sweep = contestants.Sweep(["all_gather"], 8, 1 << 20, 4, 0.1)
        times = contestants.lines_to_times(line.format(504, "blocking", 5, 50) + "noise\n" + line.format(504, "nonblocking", 4, 70), sweep)
        self.assertEqual((dict(times), times.cpu_us), ({("all_gather", 512): 4}, {("all_gather", 512): 70}))

    def test_a_wrong_element_fails_the_sweep(self):
        with self.assertRaisesRegex(contestants.Failed, "all_reduce of 8 bytes: 3 wrong elements"):
            contestants.lines_to_times('{"operation": "all_reduce", "size_bytes": 8, "time_us": 1, "cpu_us": 1, "wrong": 3}', contestants.Sweep(["all_reduce"], 8, 8, 2, 0.1))

    def test_every_class_of_the_bars_is_measured(self):
        for quick in (False, True):
            for name in {place_name for place_name, _, _ in bars.BESIDE_BEST}:
                keys = {(operation, size) for sweep in run_bench.sweeps_of(place(name), quick) if isinstance(sweep, contestants.Sweep) and not sweep.manner
                        for operation in sweep.operations for size in sweep.sizes()}
                for title, low, high in comparison.SIZE_CLASSES:
                    for collective in contestants.COLLECTIVES:
                        self.assertTrue(any(operation == collective and low <= size <= high for operation, size in keys), f"{name}, quick {quick}: {collective}, {title}")

    def test_no_sweep_begins_when_the_time_is_over(self):
        complaints = []
        options = argparse.Namespace(quick=False, repeats=3)
        samples = run_bench.measure(place("local2"), [contestants.Commd(topology.BUILD)], options, run_bench.Progress(1), complaints, until_s=0)
        self.assertEqual(samples.medians(), ({"commd": {}}, {"commd": {}}))
        self.assertIn("the time is over", complaints[0])

    def test_a_contestant_that_does_not_end_is_left_out(self):
        """Of two contestants, one fails in every sweep, and one does not end in the first: it is asked once alone."""
        complaints, asked = [], []

        class Contestant:
            def __init__(self, name, failure):
                self.name = name
                self.failure = failure

            def sweep(self, *_):
                asked.append(self.name)
                raise self.failure("no")

        pair = [Contestant("slow", contestants.TooSlow), Contestant("wrong", contestants.Failed)]
        run_bench.measure(place("local2"), pair, argparse.Namespace(quick=True, repeats=1), run_bench.Progress(1), complaints, until_s=math.inf)
        sweeps = list(run_bench.sweeps_of(place("local2"), True))
        self.assertEqual(asked.count("wrong"), sum(each.jobs for each in sweeps))
        self.assertEqual(asked.count("slow"), 1)
        self.assertEqual(len(complaints), 1 + len(sweeps))

    def test_rounds_in_the_slow_state_count_only_where_there_is_no_other(self):
        samples = run_bench.Samples([contestants.Commd(topology.BUILD)])
        for state, keys in ((0.1, ["a"]), (0.31, ["a", "b"]), (0.12, ["a"])):
            samples.states.append(state)
            times = contestants.Times()
            for key in keys:
                times[key] = 100 * state
                times.cpu_us[key] = 200 * state
            samples.add(contestants.Commd(topology.BUILD), times)
        medians, cpu = samples.medians()
        self.assertAlmostEqual(medians["commd"]["a"], 11)
        self.assertAlmostEqual(medians["commd"]["b"], 31)
        self.assertAlmostEqual(cpu["commd"]["a"], 22)
        self.assertIn("1 rounds in the slow state", samples.states_text())

    def test_of_two_jobs_the_slower_one_counts(self):
        class Contestant:
            lock = threading.Barrier(2, timeout=20)  # passes only if both jobs run at once

            def sweep(self, *_):
                times = contestants.Times()
                number = self.lock.wait()
                for of in (times, times.mean_us, times.cpu_us):
                    of[KEY] = 1.0 + number
                return times

        times = contestants.run_jobs(Contestant(), place("local2"), contestants.Sweep(["all_reduce"], 8, 8, 2, 0.1, jobs=2), 1)
        self.assertEqual((dict(times), times.mean_us), ({KEY: 2.0}, {KEY: 2.0}))


class Plots(unittest.TestCase):
    def texts(self, drawing):
        return [each.text for each in xml.etree.ElementTree.fromstring(drawing).iter(SVG + "text")]

    def test_numbers_at_the_axes(self):
        self.assertEqual([plots.number_text(value) for value in (0.01234, 3, 999.4, 45500.2)], ["0.0123", "3", "999", "45500"])

    def test_colours(self):
        self.assertEqual(plots.colour_of(1), "rgb(255,255,255)")
        self.assertEqual(plots.colour_of(8), plots.colour_of(100))
        self.assertEqual(plots.colour_of(1 / 8), "rgb(255,64,64)")
        self.assertEqual(plots.colour_of(8), "rgb(64,64,255)")

    def test_heat_map(self):
        drawing = plots.heat_map(results())
        texts = self.texts(drawing)
        self.assertEqual(texts.count("2.00"), 3 * 5)  # registered
        self.assertEqual(texts.count("1.00"), 3 * 5)  # plain
        self.assertIn("one node, 4 ranks, plain memory", texts)
        self.assertEqual([each for each in texts if each.endswith("iB") or each.endswith(" B")], ["8 B", "2 KiB", "128 KiB", "1 MiB", "8 MiB"])

    def test_growth(self):
        drawing = plots.growth(results())
        texts = self.texts(drawing)
        self.assertIn("one node, 2 KiB", texts)
        self.assertIn("one node, 8 MiB", texts)
        self.assertIn("8 ranks", texts)
        self.assertEqual(drawing.count("<polyline"), 2 * 4)
        self.assertIsNone(plots.growth(results()[:1]), "one topology shows no growth")
        self.assertEqual(plots.growth_series([(each, medians) for each, medians, _ in results()], 2048)["commd"], [(2, 10.0), (4, 10.0), (8, 10.0)])

    def test_curves_have_a_panel_for_each_topology(self):
        drawing = plots.curves(results())
        self.assertEqual(drawing.count("<g "), 3)
        xml.etree.ElementTree.fromstring(drawing)

    def test_nothing_measured_draws_nothing_wrong(self):
        empty = [(place("local2"), {"commd": {}}, {"commd": {}})]
        for drawing in (plots.heat_map(empty), plots.curves(empty)):
            xml.etree.ElementTree.fromstring(drawing)
        self.assertIn("one node, 2 ranks", report.table(*empty[0], []))
        self.assertIn("beside the best peer", report.classes_table(empty))

    def test_tables(self):
        text = report.table(*results()[0], ["MPICH", "Gloo"])
        line = next(each for each in text.splitlines() if each.startswith("all_reduce  ") and "2 KiB" in each)
        self.assertEqual(line.split(), ["all_reduce", "2", "KiB", "10.0", "0.20", "10.0", "2.00/1.00", "8.00/4.00", "MPICH", "20.0"])
        self.assertEqual(report.classes_table(results()).splitlines()[2].split()[-6:], ["2.00"] * 6)


if __name__ == "__main__":
    unittest.main()
