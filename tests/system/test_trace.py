#!/usr/bin/env python3
"""commctl trace, COMMD_TRACE and the probes, on two busy nodes."""
import json
import pathlib
import shutil
import subprocess
import time
import unittest

from cluster import BUILD, Cluster, run

SETTINGS = "rails = 2; slice_bytes = 16384;"
COUNT = 50000  # elements of eight bytes: 25 slices
EVENTS_NEEDED = {"slice 0", "slice 24", "stage in", "round 0", "send", "stage out", "all_reduce", "waiting for local ranks", "queued", "running", "telling"}
NOTED_LATER_US = 20000


class Drawing:
    """A file in Chrome's trace format."""

    def __init__(self, path):
        events = json.loads(pathlib.Path(path).read_text())["traceEvents"]
        self.nodes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.rows = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
        self.bars = [event for event in events if event["ph"] == "X"]

    def row(self, bar):
        return self.rows[bar["pid"], bar["tid"]]

    def named(self, *starts):
        return [bar for bar in self.bars if bar["name"].startswith(starts)]


class Trace(unittest.TestCase):
    def at_work(self, cluster, **options):
        """Starts two ranks on each node, which run until they are killed."""
        more = [f"{key}={value}" for key, value in {"count": COUNT, "seconds": 600, **options}.items()]
        ranks = [cluster.rank(node, "train", rank, 4, "loop", *more) for rank, node in enumerate("aabb")]
        for process in ranks:
            self.assertEqual(process.stdout.readline().strip(), "FORMED")
            self.assertEqual(process.stdout.readline().strip(), "READY")
        return ranks

    def take(self, cluster, node, *arguments):
        path = cluster.folder / f"trace-{node}.json"
        done = cluster.commctl(node, "trace", "-o", path, *arguments)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        return Drawing(path)

    def check_bars(self, drawing):
        """Checks the bars. Each is in a row with a name, and begins before it ends. Two bars of a row do not touch each other, or one contains
        the other."""
        rows = {}
        for bar in drawing.bars:
            self.assertGreaterEqual(bar["dur"], 0)
            rows.setdefault(drawing.row(bar), []).append((round(bar["ts"] * 1000), round((bar["ts"] + bar["dur"]) * 1000), bar["name"]))
        for name, bars in rows.items():
            around = []
            for begin, end, what in sorted(bars, key=lambda bar: (bar[0], -bar[1])):
                while around and around[-1][1] <= begin:
                    around.pop()
                if around:
                    self.assertLessEqual(end, around[-1][1], f"{name}: {what} at {begin} in {around[-1]}")
                around.append((begin, end, what))

    def check_slices(self, drawing):
        slices = drawing.named("slice ")
        for bar in slices:
            arguments = bar["args"]
            self.assertEqual((arguments["communicator"], arguments["kind"]), ("train", "all_reduce"))
            rail = f" (rail {arguments['rail']})" if arguments["rail"] > 0 else ""
            self.assertEqual(drawing.row(bar), f"train lane {arguments['lane']}{rail}")
            self.assertEqual(arguments["slice"] % 2, arguments["rail"])
            self.assertEqual(arguments["bytes"], 16384)
        # An operation that ended in the middle of the trace has all of its slices.
        ended = sorted({bar["args"]["seq"] for bar in drawing.named("all_reduce") if "unfinished" not in bar["args"]})
        self.assertGreater(len(ended), 2)
        middle = ended[len(ended) // 2]
        self.assertEqual(sorted(bar["args"]["slice"] for bar in slices if bar["args"]["seq"] == middle), list(range(25)))

    def test_an_all_reduce_of_two_nodes(self):
        with Cluster("ab", SETTINGS) as cluster:
            ranks = self.at_work(cluster)
            for node in "ab":
                drawing = self.take(cluster, node, "--seconds", "2")
                self.assertEqual(list(drawing.nodes.values()), [node])
                self.check_bars(drawing)
                self.check_slices(drawing)
                self.assertLessEqual(EVENTS_NEEDED, {bar["name"] for bar in drawing.bars})
                rows = {drawing.row(bar) for bar in drawing.named("all_reduce")}
                self.assertEqual(rows, {"train rank 0", "train rank 1"} if node == "a" else {"train rank 2", "train rank 3"})
                bytes_of_ops = {bar["args"]["bytes"] for bar in drawing.named("all_reduce") if bar["args"].get("status") == "OK"}
                self.assertEqual(bytes_of_ops, {8 * COUNT})
            # Recording was on for commctl alone, and ends with it; what was recorded stays.
            other = self.take(cluster, "a", "--seconds", "0.001", cluster.folder / "trace-b.json")
            self.assertEqual(sorted(other.nodes.values()), ["a", "b"])
            self.assertGreater(len({bar["pid"] for bar in other.named("slice ")}), 0)
            for process in ranks:
                process.kill()

    def test_from_the_start_with_the_programs_side(self):
        with Cluster("ab", SETTINGS, daemon_environment={"COMMD_TRACE": "comm,op"}) as cluster:
            cluster.client_environment = {"COMMD_TRACE": "op", "COMMD_TRACE_FILE": str(cluster.folder / "program-%p.json")}
            ranks = [cluster.rank(node, 'tr"ain', rank, 4, "loop", "steps=5", "count=100") for rank, node in enumerate("aabb")]
            for process in ranks:
                process.wait(timeout=60)
            files = sorted(cluster.folder.glob("program-*.json"))
            self.assertEqual([file.name for file in files], sorted(f"program-{process.pid}.json" for process in ranks))
            drawing = self.take(cluster, "a", "--seconds", "60", *files)
            self.check_bars(drawing)
            for rank in range(4):
                programs = [bar for bar in drawing.bars if drawing.row(bar) == f'tr"ain rank {rank} program']
                self.assertGreaterEqual(len(programs), 5)
                self.assertEqual({bar["args"]["status"] for bar in programs}, {"OK"})
                if rank < 2:  # the program's bar encloses commd's
                    inner = {bar["args"]["ticket"]: bar for bar in drawing.named("all_reduce") if drawing.row(bar) == f'tr"ain rank {rank}'}
                    for bar in programs:
                        within = inner[bar["args"]["ticket"]]
                        self.assertLessEqual(bar["ts"], within["ts"])
                        # Results in cells are there just before commd notes the end.
                        self.assertGreaterEqual(bar["ts"] + bar["dur"] + NOTED_LATER_US, within["ts"] + within["dur"])

    def test_messages(self):
        with Cluster("ab", SETTINGS, daemon_environment={"COMMD_TRACE": "op"}) as cluster:
            ranks = [cluster.rank(node, "ring", rank, 2, "messages", "steps=3", "sizes=100,100000") for rank, node in enumerate("ab")]
            for process in ranks:
                process.wait(timeout=60)
            drawing = self.take(cluster, "a", "--seconds", "60")
            self.check_bars(drawing)
            sends, receives = drawing.named("send"), drawing.named("recv")
            self.assertEqual({(bar["args"]["rank"], bar["args"]["peer"], bar["args"]["tag"], bar["args"]["bytes"]) for bar in sends},
                             {(0, 1, 0, 100), (0, 1, 1, 100000)})
            self.assertGreaterEqual(len(sends), 6)
            self.assertEqual(len(sends), len(receives))
            for bar in sends + receives:
                self.assertRegex(drawing.row(bar), r"^ring rank 0 messages")
                self.assertEqual(bar["args"]["status"], "OK")

    def test_operations_on_gpus_alone(self):
        """Each operation has one bar, in a row of its communicator: by kernels where the GPUs reach each other's memory, otherwise by NCCL."""
        for peer, row in (("1", "gpus GPUs"), ("0", "gpus GPUs by NCCL")):
            environment = {"CUDA_DOUBLE_PEER": peer}
            with self.subTest(row), Cluster("a", gpus=2, client_environment=environment, daemon_environment={"COMMD_TRACE": "op", **environment}) as cluster:
                ranks = [cluster.client("a", BUILD / "tests/system/surface", "gpus", rank, 2, 2, rank) for rank in range(2)]
                for process in ranks:
                    output, errors = process.communicate(timeout=120)
                    self.assertEqual(process.returncode, 0, errors)
                drawing = self.take(cluster, "a", "--seconds", "60")
                self.check_bars(drawing)
                bars = [bar for bar in drawing.named("on GPUs") if drawing.row(bar) == row]
                self.assertGreater(len(bars), 0)
                ranks_bars = {(bar["args"]["seq"], bar["args"]["rank"]): bar for bar in drawing.bars if drawing.row(bar).startswith("gpus rank ") and "ticket" in bar["args"]}
                for bar in bars:  # it lies inside the bars of the ranks
                    self.assertNotIn("unfinished", bar["args"])
                    for rank in range(2):
                        around = ranks_bars[bar["args"]["seq"], rank]
                        self.assertEqual(bar["args"]["kind"], around["args"]["kind"])
                        self.assertLessEqual(around["ts"], bar["ts"])
                        self.assertGreaterEqual(around["ts"] + around["dur"], bar["ts"] + bar["dur"])
                started = {bar["args"]["seq"] for bar in drawing.named("running")}
                self.assertLessEqual({bar["args"]["seq"] for bar in bars}, started)

    def test_refusals(self):
        with Cluster("a", namespaces=False) as cluster:
            for arguments in (["--seconds", "0"], ["--seconds", "nan"], ["--seconds", "x"], ["--what"]):
                self.assertEqual(cluster.commctl("a", "trace", *arguments).returncode, 2, arguments)
            kept = cluster.folder / "kept.json"
            kept.write_text("kept")
            began = time.monotonic()  # what would lose the recording is said before it
            for code, arguments in ((1, ("-o", cluster.folder / "no" / "file")), (1, (cluster.folder / "missing.json",)),
                                    (1, ("-o", kept, cluster.folder / "missing.json")), (2, ("-o", kept, kept))):
                self.assertEqual(cluster.commctl("a", "trace", "--seconds", "600", *arguments).returncode, code, arguments)
            self.assertLess(time.monotonic() - began, 60)
            cut = run("bash", "-c", 'ulimit -f 0; exec "$@"', "bash", BUILD / "commctl", "--socket", cluster.socket("a"),
                      "trace", "--seconds", "0.01", "-o", kept, check=False)
            self.assertNotEqual(cut.returncode, 0)
            recording = subprocess.Popen([BUILD / "commctl", "--socket", cluster.socket("a"), "trace", "--seconds", "600", "-o", cluster.folder / "new.json"],
                                         stderr=subprocess.PIPE, text=True)
            self.assertIn("recording", recording.stderr.readline())
            recording.terminate()
            recording.communicate(timeout=20)
            self.assertEqual(kept.read_text(), "kept")
            kept.chmod(0o640)
            self.assertEqual(cluster.commctl("a", "trace", "--seconds", "0.01", "-o", kept).returncode, 0)
            self.assertEqual(list(Drawing(kept).nodes.values()), ["a"])
            self.assertEqual(kept.stat().st_mode & 0o777, 0o640)
            self.assertEqual(list(cluster.folder.glob("kept.json?*")) + list(cluster.folder.glob("new.json*")), [])  # nothing is left beside them
            empty = cluster.commctl("a", "trace", "--seconds", "0.01")
            self.assertEqual({event["ph"] for event in json.loads(empty.stdout)["traceEvents"]}, {"M"})
            # As a user on the clients' socket: tracing is off, and only administrators can turn it on.
            refused = run(BUILD / "commctl", "--socket", cluster.socket("a"), "--admin-socket", cluster.folder / "none", "trace", check=False)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("administrators", refused.stderr)
            done = cluster.in_node("a", "env", "COMMD_TRACE=nonsense", BUILD / "commd", "--config", cluster.config_path("a"))
            self.assertEqual(run(*done, check=False).returncode, 78)

    @unittest.skipUnless(shutil.which("readelf"), "readelf is not installed")
    def test_probes(self):
        """The probes are in builds on machines with systemtap-sdt-dev."""
        if "HAVE_PROBES" not in run("sh", "-c", "printf '#if __has_include(<sys/sdt.h>)\nHAVE_PROBES\n#endif\n' | cc -E -").stdout:
            self.skipTest("sys/sdt.h is not installed")
        daemon = run("readelf", "-n", BUILD / "commd").stdout
        for name in ("op_taken", "op_posted", "op_told", "slice_started", "round_sent", "round_received", "slice_done", "message_matched"):
            self.assertRegex(daemon, rf"Provider: commd\s+Name: {name}\b")
        library = run("readelf", "-n", BUILD / "libcommclient.so").stdout
        for name in ("op_submitted", "op_seen"):
            self.assertRegex(library, rf"Provider: commd\s+Name: {name}\b")


if __name__ == "__main__":
    unittest.main()
