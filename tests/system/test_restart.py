#!/usr/bin/env python3
"""commd drains, ends and starts again: what clients are told, what they can wait for, and jobs that form their communicator again."""
import ctypes
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from cluster import BUILD, ROOT, Cluster, Library, StandaloneTest, run
from reforming import OpenOptions

GAP_MAX_S = 3.0


def open_client(library, path, wait_ms, timeout_ms=0):
    client = ctypes.c_void_p()
    options = OpenOptions(ctypes.sizeof(OpenOptions), str(path).encode(), timeout_ms, wait_ms)
    return library.comm_client_open(ctypes.byref(options), ctypes.byref(client)), client


class Waiting(unittest.TestCase):
    """comm_client_open waits for a commd that does not run yet."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="commd-test-")
        self.addCleanup(self.folder.cleanup)
        self.calls = Library()
        self.path = pathlib.Path(self.folder.name) / "run" / "commd.sock"
        self.daemon = None

    def tearDown(self):
        if self.daemon:
            self.daemon.kill()
            self.daemon.wait()

    def start_later(self, seconds):
        def start():
            time.sleep(seconds)
            self.path.parent.mkdir(exist_ok=True)
            self.daemon = subprocess.Popen([BUILD / "commd", "--standalone", "--socket", self.path], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        thread = threading.Thread(target=start)
        thread.start()
        self.addCleanup(thread.join)

    def check_opens(self):
        began = time.monotonic()
        self.start_later(0.5)
        result, client = open_client(self.calls, self.path, 10000)
        self.assertEqual(result, 0, self.calls.error())
        self.assertGreater(time.monotonic() - began, 0.4)
        self.calls.comm_client_close(client)

    def test_a_missing_folder(self):
        self.check_opens()

    def test_a_stale_socket(self):
        self.path.parent.mkdir()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
            dead.bind(str(self.path))
        self.check_opens()

    def test_in_vain(self):
        for wait_ms in (0, 300):
            began = time.monotonic()
            result, _ = open_client(self.calls, self.path, wait_ms)
            self.assertEqual(self.calls.NAMES[result], "DAEMON_LOST")
            self.assertEqual("waited 300 ms for commd: " in self.calls.error(), wait_ms > 0, self.calls.error())
            self.assertTrue(wait_ms / 1000 <= time.monotonic() - began < wait_ms / 1000 + 2)

    def test_what_is_not_worth_waiting_for(self):
        began = time.monotonic()
        result, _ = open_client(self.calls, "x" * 200, 5000)
        self.assertEqual(self.calls.NAMES[result], "INVALID_ARGUMENT")
        self.assertLess(time.monotonic() - began, 1)

    def test_the_environment(self):
        self.start_later(0.5)
        program = f"import sys; sys.path.insert(0, {str(ROOT / 'tests/system')!r}); from cluster import Library; l = Library(); r, c = l.open(); print(r, l.error() if r else '')"
        for wait, says in (("20000", "0 \n"), ("soon", "COMMD_WAIT_MS=soon: expected milliseconds, 0 to 86400000"), ("86400001", "expected milliseconds"),
                           ("99999999999999999999999", "expected milliseconds")):
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30,
                                  env=dict(os.environ, COMMD_SOCKET=str(self.path), COMMD_WAIT_MS=wait))
            self.assertIn(says, done.stdout)


class Restart(StandaloneTest):
    def ranks(self, name, mode="loop", *options):
        ranks = [self.cluster.rank("solo", name, rank, 2, mode, *options) for rank in range(2)]
        for process in ranks:
            while "READY" not in process.stdout.readline():
                self.assertIsNone(process.poll(), process.stderr)
        return ranks

    def test_clients_are_told(self):
        """Clients that wait for an operation, and clients that call later."""
        for reason, options, rings in (("commd is stopping", [], "on"), ("commd is stopping", [], "off"), ("commd is stopping: new kernel", ["--reason", "new kernel"], "on")):
            self.cluster.client_environment = {"COMMD_RINGS": rings}
            ranks = self.ranks("told", "loop")
            if options:
                self.assertEqual(self.cluster.commctl("solo", "drain", *options).returncode, 0)
            self.cluster.daemons["solo"].terminate()
            for process in ranks:
                last = process.communicate(timeout=30)[0].splitlines()[-1]
                self.assertRegex(last, rf"^DAEMON_LOST .*: commd says: node solo: {reason}$")
            self.assertEqual(self.cluster.daemons["solo"].wait(timeout=20), 0)
            self.cluster.start("solo", "--standalone")
            self.cluster.wait_ready()

    def test_who_comes_while_it_stops(self):
        """commd accepts no client any more, but has not ended. A client that waits gets a connection to the next commd."""
        self.cluster.daemons["solo"].terminate()
        self.cluster.daemons["solo"].wait(timeout=20)
        self.cluster.start("solo", "--standalone", "--set", "drain_timeout_ms=1500")
        self.cluster.wait_ready()
        ranks = self.ranks("slow", "loop")
        ranks[1].send_signal(signal.SIGSTOP)  # so an operation is under way until the deadline
        time.sleep(0.2)
        first, drained = self.cluster.daemons["solo"], self.cluster.log("solo").count("draining")
        first.terminate()
        self.cluster.wait(lambda: self.cluster.log("solo").count("draining") > drained, "it drains")
        library, opened = Library(), []
        thread = threading.Thread(target=lambda: opened.append(open_client(library, self.cluster.socket("solo"), 15000)))
        thread.start()
        time.sleep(0.3)
        self.assertIsNone(first.poll(), "it still waits for the operation")
        self.assertEqual(opened, [])
        self.assertEqual(first.wait(timeout=10), 0)
        ranks[1].send_signal(signal.SIGCONT)
        self.cluster.start("solo", "--standalone")
        thread.join(timeout=15)
        self.assertEqual(opened[0][0], 0)
        library.comm_client_close(opened[0][1])
        for process in ranks:
            self.assertIn("commd is stopping", process.communicate(timeout=20)[0])

    def test_debug_log(self):
        program = [sys.executable, ROOT / "tests/system/rank.py", "debug", "0", "1", "once"]
        for wish, lines in (("1", ["connected to commd", '"debug": rank 0 of 1, local rank 0 of 1, 1 nodes', '"debug": rank 0 leaves', "closing the connection"]), ("0", []), ("", [])):
            done = subprocess.run(program, capture_output=True, text=True, timeout=30, env=dict(self.cluster.environment("solo"), COMM_DEBUG=wish))
            self.assertEqual(done.returncode, 0)
            found = done.stderr.splitlines()
            self.assertEqual(len(found), len(lines), done.stderr)
            for line, says in zip(found, lines):
                self.assertRegex(line, r"^commclient\[\d+/\d+\] \d+\.\d{6} ")
                self.assertIn(says, line)


class Drain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster("abc")
        cls.addClassCleanup(cls.cluster.close)

    def tearDown(self):
        self.cluster.commctl("a", "undrain")

    def drain(self, *arguments):
        done = self.cluster.commctl("a", "drain", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def last(self, process):
        return process.communicate(timeout=30)[0].splitlines()[-1]

    def draining_nodes(self, node):
        return [row["name"] for row in self.cluster.json(node, "nodes")["nodes"] if row["draining"]]

    def test_new_ones_are_refused_everywhere(self):
        self.drain("--reason", "new kernel")
        status = self.cluster.json("a", "status")
        self.assertEqual((status["draining"], status["drain_reason"], status["drain_left_ms"]), (True, "new kernel", 0))
        shown = self.cluster.commctl("a", "status")
        self.assertEqual(shown.returncode, 5)
        self.assertIn("draining      new kernel", shown.stdout)
        self.cluster.wait(lambda: self.draining_nodes("b") == ["a"], "node b knows that node a drains")
        self.assertEqual(self.draining_nodes("a"), ["a"])
        self.assertIn("up (draining)", self.cluster.commctl("b", "nodes").stdout)
        self.assertIn("1 of them draining", self.cluster.commctl("b", "nodes", "--summary").stdout)
        waiting = [self.cluster.rank(node, "late", rank, 3, "once") for rank, node in ((1, "b"), (2, "c"))]
        self.cluster.wait(lambda: all(self.cluster.json(node, "comms")["comms"] for node in "bc"), "ranks wait")
        began = time.monotonic()
        refused = self.cluster.rank("a", "late", 0, 3, "once")
        for process in (refused, *waiting):
            self.assertEqual(self.last(process), 'SHUTTING_DOWN communicator "late": node a is draining: new kernel')
        self.assertLess(time.monotonic() - began, 3)
        self.assertEqual(self.last(self.cluster.rank("b", "late", 1, 2, "once", "timeout_ms=8000")), 'SHUTTING_DOWN communicator "late": node a is draining: new kernel')
        fine = [self.cluster.rank(node, "fine", rank, 2, "once") for rank, node in enumerate("bc")]
        self.assertEqual([self.last(process).strip() for process in fine], ["OK", "OK"])
        self.assertEqual(self.cluster.commctl("a", "undrain").returncode, 0)
        self.cluster.wait(lambda: not self.draining_nodes("b") and not self.draining_nodes("a"), "no node drains")
        again = [self.cluster.rank(node, "again", rank, 2, "once") for rank, node in enumerate("ab")]
        self.assertEqual([self.last(process).strip() for process in again], ["OK", "OK"])
        self.assertEqual(self.cluster.commctl("a", "status").returncode, 0)

    def test_the_deadline(self):
        ranks = [self.cluster.rank(node, "runs", rank, 2, "loop") for rank, node in enumerate("ab")]
        self.cluster.wait(lambda: self.cluster.json("a", "status")["ops_completed"] > 20, "at work")
        before = self.cluster.commctl("a", "wait", "idle", "--timeout", "0.3")
        self.assertEqual((before.returncode, before.stderr), (124, "commctl: wait: after 0.3 s, 1 communicators are left\n"))
        self.drain("--timeout", "1.5", "--reason", "maintenance")
        began = time.monotonic()
        self.assertIn("existing communicators end in", self.cluster.commctl("a", "status").stdout)
        done = self.cluster.json("a", "status")["ops_completed"]
        time.sleep(0.3)
        self.assertGreater(self.cluster.json("a", "status")["ops_completed"], done, "it goes on")
        self.assertEqual(self.cluster.commctl("a", "wait", "idle", "--timeout", "20").returncode, 0)
        self.assertGreater(time.monotonic() - began, 1.3)
        for process in ranks:
            self.assertEqual(self.last(process), 'SHUTTING_DOWN communicator "runs": node a is draining: maintenance')
        self.assertEqual(self.cluster.json("a", "status")["drain_left_ms"], 0)
        self.assertIsNone(self.cluster.daemons["a"].poll(), "commd stays")

    def test_the_other_nodes_are_told(self):
        """A node that stops says why. The ranks of other nodes are told, too."""
        ranks = [self.cluster.rank(node, "told", rank, 2, "loop") for rank, node in enumerate("ab")]
        for process in ranks:
            while "READY" not in process.stdout.readline():
                self.assertIsNone(process.poll(), process.stderr)
        self.cluster.daemons["b"].terminate()
        self.assertRegex(self.last(ranks[0]), r"(NODE_LOST|SHUTTING_DOWN) .*node b: commd is stopping")
        self.assertRegex(self.last(ranks[1]), "DAEMON_LOST .*commd is stopping")
        self.assertEqual(self.cluster.daemons["b"].wait(timeout=20), 0)
        self.cluster.start("b")
        self.assertEqual(self.cluster.commctl("a", "wait", "nodes", "--timeout", "20").returncode, 0)

    def test_who_may_and_what_is_wrong(self):
        self.assertIn("not draining", self.cluster.commctl("a", "undrain").stderr)
        done = run(BUILD / "commctl", "--socket", self.cluster.socket("a"), "--admin-socket", "/nonexistent", "drain", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("only administrators drain a node", done.stderr)
        for arguments, says in ((["drain", "--timeout", "0"], "drain: --timeout 0: expected seconds"), (["drain", "x"], "drain: x: expected options alone"),
                                (["wait"], "wait: nothing: expected nodes or idle"), (["wait", "x"], "wait: x: expected nodes or idle"),
                                (["wait", "idle", "--timeout", "x"], "wait: --timeout x: expected seconds")):
            done = self.cluster.commctl("a", *arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(says, done.stderr)


class Rolling(unittest.TestCase):
    def test_wait_nodes(self):
        with Cluster("ab", start=False) as cluster:
            done = cluster.commctl("a", "wait", "nodes", "--timeout", "0.5")
            self.assertEqual(done.returncode, 124)
            self.assertIn("no commd answers", done.stderr)
            waiting = subprocess.Popen([BUILD / "commctl", "--socket", cluster.socket("a"), "wait", "nodes", "--timeout", "30"])
            cluster.start("a")
            time.sleep(0.5)
            self.assertIsNone(waiting.poll())
            down = next(row for row in cluster.json("a", "nodes")["nodes"] if row["name"] == "b")
            self.assertNotEqual(down["state"], "up")
            self.assertLess(down["since_ms"], 10000, "not down since the machine started")
            done = cluster.commctl("a", "wait", "nodes", "--timeout", "0.5")
            self.assertEqual((done.returncode, done.stderr), (124, "commctl: wait: after 0.5 s, 0 of 1 other nodes are up\n"))
            cluster.start("b")
            self.assertEqual(waiting.wait(timeout=20), 0)
            self.assertEqual(cluster.json("a", "status")["nodes_up"], 1)

    def test_rolling_restart(self):
        """Three nodes restart under a job that forms its communicator again; the last is not drained. No byte is wrong, and gaps are short."""
        with Cluster("abc") as cluster:
            stop = cluster.folder / "stop"
            ranks = [cluster.client(node, sys.executable, ROOT / "tests/system/reforming.py", "rolling", rank, 4, 120, stop) for rank, node in enumerate("aabc")]
            cluster.wait(lambda: cluster.json("a", "status")["ops_completed"] > 50, "at work")
            for node in "abc":
                if node != "c":
                    self.assertEqual(cluster.commctl(node, "drain", "--timeout", "0.5", "--reason", "upgrade").returncode, 0)
                    self.assertEqual(cluster.commctl(node, "wait", "idle", "--timeout", "20").returncode, 0)
                cluster.daemons[node].terminate()
                self.assertEqual(cluster.daemons[node].wait(timeout=20), 0)
                cluster.start(node)
                self.assertEqual(cluster.commctl(node, "wait", "nodes", "--timeout", "20").returncode, 0)
                time.sleep(1.5)
            stop.touch()  # the job outlives the restarts
            steps = set()
            for rank, process in enumerate(ranks):
                output, errors = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 0, f"rank {rank}: {output}{errors}")
                gaps = re.findall(r"^GAP ([0-9.]+) (.*)$", output, re.MULTILINE)
                print(f"# rank {rank}: " + "; ".join(f"{gap} s ({reason})" for gap, reason in gaps))
                self.assertGreaterEqual(len(gaps), 3, output)
                self.assertLessEqual(max(float(gap) for gap, _ in gaps), GAP_MAX_S, output)
                steps.add(output.splitlines()[-1])
            self.assertEqual(len(steps), 1, steps)


if __name__ == "__main__":
    unittest.main()
