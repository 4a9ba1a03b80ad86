#!/usr/bin/env python3
"""commctl bench: every operation is right, the figures are consistent, and the program always ends."""
import json
import os
import signal
import subprocess
import time
import unittest

from cluster import BUILD, Cluster

COMMCTL = BUILD / "commctl"
OPERATIONS = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv", "barrier"}


def bench(cluster, node, *arguments, **options):
    return subprocess.Popen(cluster.in_node(node, COMMCTL, "--socket", cluster.socket(node), "bench", *arguments),
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


class Bench(unittest.TestCase):
    def check(self, text, size):
        results = json.loads(text)["results"]
        self.assertEqual({result["operation"] for result in results}, OPERATIONS)
        for result in results:
            self.assertEqual(result["wrong"], 0, result)
            self.assertLessEqual(result["time_min_us"], result["time_us"])
            self.assertLessEqual(result["time_us"], result["time_max_us"])
            self.assertGreaterEqual(result["iterations"], 3)
            if result["size_bytes"]:
                self.assertAlmostEqual(result["algbw_gbs"], result["size_bytes"] / result["time_us"] / 1e3, places=6)
                factor = {"all_reduce": 2 * (size - 1) / size, "broadcast": 1, "reduce": 1, "send_recv": 1}.get(result["operation"], (size - 1) / size)
                self.assertAlmostEqual(result["busbw_gbs"], result["algbw_gbs"] * factor, places=6)

    def test_one_node(self):
        with Cluster(["a"], namespaces=False) as cluster:
            for ranks, dtype in ((1, "f32"), (2, "bf16"), (4, "i64"), (3, "u8"), (10, "f8e5m2"), (3, "complex64")):
                process = bench(cluster, "a", "-f", "json", "--operation", "all", "--ranks", str(ranks), "--dtype", dtype, "--min-bytes", "3",
                                "--max-bytes", "700k", "--step-factor", "61", "--seconds-per-size", "0.01")
                output, errors = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 0, f"{ranks} ranks, {dtype}: {errors}")
                self.check(output, ranks)
            process = bench(cluster, "a", "--unregistered", "--reduce", "max", "--max-bytes", "64k", "--step-factor", "16", "--seconds-per-size", "0.01")
            output, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)
            self.assertIn("# 0 wrong", output)
            self.assertEqual(len([line for line in output.splitlines() if not line.startswith("#")]), 4)
            for process in [bench(cluster, "a", "--max-bytes", "8", "--seconds-per-size", "0.1") for _ in range(2)]:  # at the same time
                output, errors = process.communicate(timeout=60)
                self.assertEqual((process.returncode, errors), (0, ""))

    def test_the_time_bounds(self):
        """A small operation goes on for as long as was asked. Far more than 65,536 iterations fit, unless the machine is busy."""
        with Cluster(["a"], namespaces=False) as cluster:
            began_s = time.monotonic()
            process = bench(cluster, "a", "-f", "json", "--ranks", "1", "--max-bytes", "8", "--in-place", "--seconds-per-size", "2")
            output, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)
            self.assertGreater(time.monotonic() - began_s, 2)
            self.assertLess(time.monotonic() - began_s, 10)
            (result,) = json.loads(output)["results"]
            self.assertEqual(result["wrong"], 0)
            self.assertTrue(0 < result["time_min_us"] <= result["time_us"] <= result["time_max_us"], result)

    def test_two_nodes(self):
        with Cluster(["a", "b"]) as cluster:
            for dtype in ("f32", "f8e4m3", "bool"):
                arguments = ["-f", "json", "--operation", "all", "--size", "4", "--ranks", "2", "--dtype", dtype, "--min-bytes", "40", "--max-bytes", "3m",
                             "--step-factor", "90", "--seconds-per-size", "0.02"]
                first = bench(cluster, "a", *arguments)
                second = bench(cluster, "b", *arguments, "--first-rank", "2")
                output, errors = first.communicate(timeout=60)
                self.assertEqual(first.returncode, 0, errors)
                self.assertEqual(second.communicate(timeout=60)[0], "", "the process with rank 0 prints")
                self.assertEqual(second.returncode, 0)
                self.check(output, 4)

    def test_wrong_arguments(self):
        with Cluster(["a"], namespaces=False) as cluster:
            for arguments in (["--dtype", "f8"], ["--operation", "dance"], ["--ranks", "0"], ["--min-bytes", "0"], ["--min-bytes", "2k", "--max-bytes", "1k"],
                              ["--size", "2", "--first-rank", "1", "--ranks", "2"], ["--root", "9"], ["--step-factor", "1"], ["nonsense"], ["--nonsense"],
                              ["--reduce", "avg"], ["--dtype", "complex64", "--reduce", "max"], ["-f", "xml"], ["--in-place", "--out-of-place"]):
                process = bench(cluster, "a", *arguments)
                errors = process.communicate(timeout=20)[1]
                self.assertEqual(process.returncode, 2, f"{arguments}: {errors}")
                self.assertTrue(errors.strip(), arguments)
        nobody = subprocess.run([COMMCTL, "--socket", "/nonexistent/commd.sock", "bench"], stderr=subprocess.PIPE, text=True, timeout=20, check=False)
        self.assertEqual(nobody.returncode, 3, nobody.stderr)

    def assert_ended(self, name, expected, process):
        """Expects the program to exit with that code, and none of its processes to remain. Processes that it forked have the same command line."""
        errors = process.communicate(timeout=10)[1]
        self.assertIn(process.returncode, expected, errors)
        self.assertFalse([pid for pid in os.listdir("/proc") if pid.isdigit() and name.encode() in command_line(pid)], name)

    def test_a_rank_killed(self):
        with Cluster(["a"], namespaces=False) as cluster:
            process = bench(cluster, "a", "--communicator", "test-killed", "--ranks", "3", "--seconds-per-size", "5")
            os.kill(ranks_of(process, 3)[1], signal.SIGKILL)
            self.assert_ended("test-killed", [1], process)

    def test_commd_killed(self):
        """If commd ends, every rank reports that, whatever it was doing, and no rank crashes."""
        with Cluster(["a"], namespaces=False) as cluster:
            for _ in range(5):
                process = bench(cluster, "a", "--communicator", "test-lost", "--ranks", "1", "--min-bytes", "8", "--max-bytes", "8", "--seconds-per-size", "30")
                ranks_of(process, 1)
                cluster.wait(lambda: any(comm["ops_completed"] > 0 for comm in cluster.json("a", "comms")["comms"]), "operations")
                cluster.daemons["a"].kill()
                cluster.daemons["a"].wait()
                errors = process.communicate(timeout=10)[1]
                self.assertEqual(process.returncode, 3, errors)  # commd is not running
                self.assertRegex(errors, "rank 0: .*commd")
                cluster.start("a")
                cluster.wait_ready()

    def test_interrupted(self):
        with Cluster(["a"], namespaces=False) as cluster:
            for number in (signal.SIGINT, signal.SIGTERM):
                process = bench(cluster, "a", "--communicator", "test-interrupted", "--ranks", "3", "--seconds-per-size", "5", preexec_fn=default_signals)
                ranks = ranks_of(process, 3)
                os.kill(ranks[2], signal.SIGSTOP)  # a stopped rank does not keep the others from ending
                process.send_signal(number)
                self.assert_ended("test-interrupted", [128 + number], process)
            # A terminal signals all processes: whichever ends first, it counts as an interruption.
            process = bench(cluster, "a", "--communicator", "test-terminal", "--seconds-per-size", "5", preexec_fn=default_signals, start_new_session=True)
            ranks_of(process, 2)
            os.killpg(process.pid, signal.SIGINT)
            self.assert_ended("test-terminal", [130], process)
            cluster.wait(lambda: cluster.json("a", "status")["clients"] == 1, "commd has given back what the ranks held")

    def test_interrupted_at_any_moment(self):
        """Interrupts it before the ranks exist, while they are started, and before anybody waits for them."""
        with Cluster(["a"], namespaces=False) as cluster:
            process = bench(cluster, "a", "--communicator", "test-pending", "--ranks", "8", "--seconds-per-size", "5", preexec_fn=pending_signal)
            self.assert_ended("test-pending", [143], process)
            for moment in range(30):
                process = bench(cluster, "a", "--communicator", "test-moment", "--ranks", "8", "--seconds-per-size", "5", preexec_fn=default_signals)
                time.sleep(moment * 0.0005)
                process.send_signal(signal.SIGTERM)
                self.assert_ended("test-moment", [143, -signal.SIGTERM], process)

    def test_ranks_that_do_not_come(self):
        with Cluster(["a"], namespaces=False) as cluster:
            process = subprocess.Popen([COMMCTL, "--socket", cluster.socket("a"), "-t", "0.5", "bench", "--communicator", "test-late", "--size", "3", "--ranks", "2"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assert_ended("test-late", [124], process)


def default_signals():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores it in processes that it starts in the background


def pending_signal():
    """A blocked signal takes effect as soon as it is no longer blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def ranks_of(process, count):
    """Returns the processes of a run, once all of them exist."""
    for _ in range(500):
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
            ranks = [int(pid) for pid in file.read().split()]
        if len(ranks) == count:
            return ranks
        time.sleep(0.01)
    raise AssertionError(f"{len(ranks)} processes, not {count}")


if __name__ == "__main__":
    unittest.main()
