#!/usr/bin/env python3
"""The benchmark's traces of training steps: what the files contain, what bad files get, and that commd replays them with right results."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from cluster import BUILD, Cluster

BENCH = pathlib.Path(__file__).resolve().parent.parent / "bench"
sys.path.insert(0, str(BENCH))
sys.path.insert(0, str(BENCH / "traces"))
import make_traces  # noqa: E402
from contestants import AFTER_COMPUTING, EXPOSED, OF_TWO_JOBS, Commd, Sweep, Trace, run_jobs  # noqa: E402

PROGRAM = BUILD / "tests/bench/peers/commd_contest"


def describe(path, *options):
    return subprocess.run([PROGRAM, "--describe", path, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=20)


class Place:
    """What Commd.sweep needs of a topology."""

    def __init__(self, cluster, size):
        self.cluster, self.size = cluster, size

    def node_of_rank(self, rank):
        return self.cluster.names[rank * len(self.cluster.names) // self.size]

    def command(self, node, *command):
        return self.cluster.in_node(node, *command)


class Traces(unittest.TestCase):
    def described(self, text, *options):
        with tempfile.NamedTemporaryFile("w", suffix=".trace") as file:
            file.write(text)
            file.flush()
            result = describe(file.name, *options)
            return result, result.stderr.replace(file.name, "FILE").strip()

    def test_the_models_have_their_known_sizes(self):
        self.assertEqual(sum(make_traces.resnet50()), 25_557_032)
        self.assertEqual(sum(make_traces.gpt2()), 124_439_808)

    def test_buckets(self):
        mib = 1 << 20
        self.assertEqual(make_traces.ddp_buckets([mib] * 20, element_bytes=4), [4 * mib, 28 * mib, 28 * mib, 20 * mib])
        self.assertEqual(make_traces.ddp_buckets([1, 2], first_bytes=4, bytes_each=100, element_bytes=4), [8, 4])

    def test_the_files_are_what_the_program_writes(self):
        for name, (title, lines) in make_traces.TRACES.items():
            text = (BENCH / "traces" / f"{name}.trace").read_text()
            self.assertEqual(text.splitlines()[1:], lines, name)
            self.assertIn(title, text)
        self.assertEqual({path.stem for path in (BENCH / "traces").glob("*.trace")}, set(make_traces.TRACES))

    def test_all_bytes_of_ddp_are_there(self):
        for name, sizes in (("ddp-resnet50", make_traces.resnet50()), ("ddp-gpt2", make_traces.gpt2())):
            described = json.loads(describe(BENCH / "traces" / f"{name}.trace").stdout)
            self.assertEqual(described["operations"]["all_reduce"][1], 4 * sum(sizes))
            self.assertEqual(described["started"], described["operations"]["all_reduce"][0])

    def test_repeats_and_places(self):
        result, _ = self.described("repeat 3\nstart all_reduce 4000\nstart all_gather 8000 # at once\ncompute 5\nwait\nbroadcast 400\nend\nbarrier\n", "--ranks", "2")
        self.assertEqual(json.loads(result.stdout), {"compute_us": 15, "started": 6, "buffer_bytes": 4 * (5 * 208 + 10 * 208),
                                                     "operations": {"all_reduce": [3, 12000], "all_gather": [3, 24000], "broadcast": [3, 1200], "barrier": [1, 0]}})

    def test_scale_and_whole_blocks(self):
        result, _ = self.described("compute 100\nall_gather 4000\nall_reduce 3\n", "--scale", "0.1", "--ranks", "3")
        self.assertEqual(json.loads(result.stdout)["operations"], {"all_gather": [1, 396], "all_reduce": [1, 4]})
        self.assertEqual(json.loads(result.stdout)["compute_us"], 10)

    def test_bad_files(self):
        for text, message in (
                ("", "FILE:0: the trace is empty"), ("dance 5\n", "FILE:1: unknown word: dance"), ("\nall_reduce\n", "FILE:2: expected bytes, at most 4e9, after: all_reduce"),
                ("all_reduce 5x\n", "FILE:1: expected bytes, at most 4e9, after: all_reduce"), ("all_reduce -4\n", "FILE:1: expected bytes, at most 4e9, after: all_reduce"),
                ("all_reduce 5e9\n", "FILE:1: expected bytes, at most 4e9, after: all_reduce"), ("all_reduce 4 4\n", "FILE:1: too many words after: all_reduce"),
                ("barrier 4\n", "FILE:1: too many words after: barrier"), ("start\n", "FILE:1: unknown word: nothing follows start"),
                ("start all_reduce 4\n", "FILE:1: an operation is started and not waited for"), ("repeat 2\nbarrier\n", "FILE:2: repeat without end"),
                ("repeat 2\nrepeat 2\n", "FILE:2: repeat within a repeat, or with operations that are not waited for"),
                ("end\n", "FILE:1: end without repeat, or with operations that are not waited for"), ("repeat 0\n", "FILE:1: expected a number of repeats after repeat"),
                ("repeat 8000\nbarrier\nbarrier\nend\n", "FILE:4: too many steps"), ("compute\n", "FILE:1: expected microseconds, at most 1e7, after compute"),
                ("compute nan\n", "FILE:1: expected microseconds, at most 1e7, after compute"), ("wait for\n", "FILE:1: too many words after: wait"),
                ("all_to_all_v 400\n", "FILE:1: expected 1 to 16 weights after the bytes"), ("all_to_all_v 400 back\n", "FILE:1: expected 1 to 16 weights after the bytes"),
                ("all_to_all_v 400 1 0\n", "FILE:1: expected a weight of 0.001 to 1000: 0"), ("all_to_all_v 400" + 17 * " 1" + "\n", "FILE:1: expected 1 to 16 weights after the bytes"),
                ("start barrier\n" * 65, "FILE:65: too many operations are started before a wait"), ("#" + "x" * 600 + "\n", "FILE:1: the line is too long")):
            result, errors = self.described(text)
            self.assertEqual((result.returncode, errors), (2, message), text[:60])
        self.assertIn("No such file", describe("/nonexistent.trace").stderr)

    def test_bad_arguments(self):
        for arguments in (["--operations", "dance"], ["--operations", "all_to_all_v"], ["--min-bytes", "0"], ["--step-factor", "1"], ["--scale", "0"], ["--ranks", "65"],
                          ["--nonsense"], ["word"]):
            result = subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=20)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn("usage:", result.stderr)


class Replays(unittest.TestCase):
    """The program checks all results of the first step, and exits with 1 if any is wrong."""

    def replay_all(self, cluster, size, plain):
        contestant = Commd(BUILD, plain=plain)
        for path in sorted((BENCH / "traces").glob("*.trace")):
            times = contestant.sweep(Place(cluster, size), Trace(path, 1, scale=0.003), 60)
            self.assertEqual(list(times), [(f"trace {path.stem}", 0)])
            self.assertGreater(times[f"trace {path.stem}", 0], 0)

    def test_one_node(self):
        with Cluster(["a"], namespaces=False) as cluster:
            self.replay_all(cluster, 3, plain=False)
            self.replay_all(cluster, 2, plain=True)

    def test_two_nodes(self):
        with Cluster(["a", "b"]) as cluster:
            self.replay_all(cluster, 4, plain=False)

    def test_a_sweep_counts_processor_time_without_computing(self):
        with Cluster(["a"], namespaces=False) as cluster:
            sweep = Sweep(["all_reduce", "barrier"], 8, 512, 64, 0.01, compute_us=20000)
            times = Commd(BUILD).sweep(Place(cluster, 2), sweep, 60)
            self.assertEqual(set(times), {("all_reduce" + AFTER_COMPUTING, 8), ("all_reduce" + AFTER_COMPUTING, 512), ("barrier" + AFTER_COMPUTING, 0)})
            for key, cpu_us in times.cpu_us.items():
                self.assertGreater(cpu_us, 0, key)
                self.assertLess(cpu_us, 20000, key)  # two ranks computed 20 ms each

    def test_what_an_operation_takes_beside_computing(self):
        with Cluster(["a"], namespaces=False) as cluster:
            times = Commd(BUILD).sweep(Place(cluster, 2), Sweep(["all_reduce"], 8, 1 << 20, 1 << 17, 0.05, overlaps=True), 60)
            self.assertEqual(set(times), {("all_reduce" + EXPOSED, 8), ("all_reduce" + EXPOSED, 1 << 20)})
            self.assertGreaterEqual(min(times.values()), 0.1)

    def test_two_jobs_at_once(self):
        with Cluster(["a"], namespaces=False) as cluster:
            times = run_jobs(Commd(BUILD), Place(cluster, 2), Sweep(["all_reduce"], 8, 1 << 16, 1 << 13, 0.05, jobs=2), 60)
            self.assertEqual(set(times), {("all_reduce" + OF_TWO_JOBS, 8), ("all_reduce" + OF_TWO_JOBS, 1 << 16)})
            self.assertEqual(set(times.mean_us), set(times))

    def test_a_wrong_result_is_found(self):
        """A rank that believes to be another one of another size contributes other values."""
        with Cluster(["a"], namespaces=False) as cluster:
            with tempfile.NamedTemporaryFile("w", suffix=".trace") as file:
                file.write("all_to_all_v 4000 1 3\n")
                file.flush()
                processes = [subprocess.Popen([PROGRAM, "--trace", file.name, "--scale", scale, "--steps", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                              env={**cluster.environment("a"), "CONTEST_RANK": str(rank), "CONTEST_SIZE": "2", "CONTEST_NAME": "wrong"})
                             for rank, scale in enumerate(("1", "1.5"))]
                errors = "".join(process.communicate(timeout=60)[1] for process in processes)
                self.assertTrue(all(process.returncode == 1 for process in processes))
                self.assertIn("all_to_all_v", errors)


if __name__ == "__main__":
    unittest.main()
