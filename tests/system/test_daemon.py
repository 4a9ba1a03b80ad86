#!/usr/bin/env python3
"""The life of a daemon: options, signals, systemd's protocols, and what commctl reports of them."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from cluster import BUILD, Cluster, cpu_s, run
from program_case import ProgramCase

WAITS = True

COMMD = BUILD / "commd"
COMMCTL = BUILD / "commctl"


class Options(unittest.TestCase):
    def test_a_file_that_cannot_be_read(self):
        """The exit code is that of a bad file, after which systemd does not start commd again."""
        for path, said in (("/nonexistent/commd.conf", "No such file or directory"), ("/", "Is a directory")):
            for options in ((), ("--check-config",)):
                ended = run(COMMD, "--config", path, *options, check=False, timeout=20)
                self.assertEqual(ended.returncode, 78, ended.stderr)
                self.assertIn(f"{path}: {said}", ended.stderr)

    def test_check_config(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "commd.conf"
            path.write_text('node_name = "a";\nnodes = ( );\n')
            self.assertIn("node a, standalone", run(COMMD, "--check-config", "--config", path).stdout)
            path.write_text(f'node_name = "a";\nnodes = ( {{ name = "a"; address = "127.0.0.1:7400"; }} );\ncertificate = "{folder}/none.crt";\n')
            bad = run(COMMD, "--check-config", "--config", path, check=False)
            self.assertEqual(bad.returncode, 78)
            self.assertIn(f"{folder}/none.crt: No such file", bad.stderr)
            path.write_text('node_name = "a";\nheart_beat = 3;\n')
            bad = run(COMMD, "--check-config", "--config", path, check=False)
            self.assertNotEqual(bad.returncode, 0)
            self.assertRegex(bad.stderr, r"commd\.conf:2: .*heart_beat")
            path.write_text('algorithms = "all_reduce=magic";\nnode_name = "a";\nnodes = ( { name = "a"; address = "127.0.0.1:7400"; } );\n')
            bad = run(COMMD, "--check-config", "--config", path, check=False)
            self.assertNotEqual(bad.returncode, 0)
            self.assertIn("magic", bad.stderr)

    def test_wrong_arguments(self):
        for arguments, code in ((["--frobnicate"], 2), (["surplus"], 2), (["--set", "x"], 78)):
            result = run(COMMD, *arguments, check=False)
            self.assertEqual(result.returncode, code, arguments)
            self.assertTrue(result.stderr)
        self.assertEqual(run(COMMD, "--version").stdout.split()[0], "commd")

    def test_a_full_disk(self):
        for option in ("--help", "--version", "--check-config"):
            with open("/dev/full", "w") as full:
                done = subprocess.run([COMMD, option, "--standalone"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 1, option)
            self.assertIn("the output cannot be written: No space left on device", done.stderr)


class Standalone(unittest.TestCase):
    """One node without configuration or certificates."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.socket = str(pathlib.Path(self.folder.name) / "commd.sock")
        self.processes = []

    def tearDown(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate()
        self.folder.cleanup()

    def start(self, environment=None, **options):
        process = subprocess.Popen([COMMD, "--standalone", "--socket", self.socket], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True, env=dict(os.environ, **(environment or {})), **options)
        self.processes.append(process)
        return process

    def commctl(self, *arguments):
        return run(COMMCTL, "--socket", self.socket, *arguments, check=False)

    def wait(self, condition, what, timeout_s=10):
        deadline = time.monotonic() + timeout_s
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)

    def wait_ready(self):
        self.wait(lambda: self.commctl("status").returncode == 0, "ready")

    def surface(self, rank, size, turns=2):
        process = subprocess.Popen([str(BUILD / "tests/system/surface"), "alone", str(rank), str(size), str(turns)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=dict(os.environ, COMMD_SOCKET=self.socket))
        self.processes.append(process)
        return process

    def test_works_without_anything(self):
        self.start()
        self.wait_ready()
        for rank in [self.surface(rank, 2) for rank in range(2)]:
            output, errors = rank.communicate(timeout=60)
            self.assertEqual(rank.returncode, 0, errors)
        status = json.loads(self.commctl("-f", "json", "status").stdout)
        self.assertTrue(status["standalone"])
        self.assertGreater(status["ops_completed"], 50)

    def start_by_shell(self, command):
        """The shell becomes the daemon by exec, so its pid is the daemon's. The command refers to the daemon's command line as "$@"."""
        daemon = subprocess.Popen(["bash", "-c", command, "bash", COMMD, "--standalone", "--socket", self.socket], stdin=subprocess.DEVNULL)
        self.processes.append(daemon)
        self.wait_ready()
        return daemon

    def test_without_standard_descriptors(self):
        """Another file with the number 2 would get the log."""
        daemon = self.start_by_shell('exec "$@" <&- >&- 2>&-')
        for fd in range(3):
            self.assertEqual(os.readlink(f"/proc/{daemon.pid}/fd/{fd}"), "/dev/null")
        daemon.terminate()
        self.assertEqual(daemon.wait(timeout=10), 0)

    def test_a_limit_of_files(self):
        """The signal of a log that reached the limit, or of a file in memory, does not end it."""
        log = pathlib.Path(self.folder.name) / "log"
        log.write_bytes(b"-" * (64 << 10))
        daemon = self.start_by_shell(f'ulimit -f 64; exec "$@" 2>>"{log}"')
        self.assertEqual(log.stat().st_size, 64 << 10)
        output, errors = self.surface(0, 1).communicate(timeout=60)  # there is no room for rings either
        self.assertIn("operations checked", output, errors)
        self.assertGreater(json.loads(self.commctl("-f", "json", "status").stdout)["log_lines_lost"], 0)
        daemon.terminate()
        self.assertEqual(daemon.wait(timeout=10), 0)

    def test_small_limits(self):
        """A limit that is too small is named. A small stack that commd may raise is no problem."""
        for limits, text in (("ulimit -s 64", "64 KiB (ulimit -s)"), *((f"ulimit -n {number}", f"ulimit -n is {number}") for number in (5, 8, 16, 19, 24))):
            ended = subprocess.run(["bash", "-c", f'{limits}; exec "$@"', "bash", COMMD, "--standalone", "--socket", self.socket],
                                   stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
            self.assertEqual(ended.returncode, 1, (limits, ended.stderr))
            self.assertIn(text, ended.stderr)
        daemon = self.start_by_shell('ulimit -S -s 64; exec "$@"')
        soft = next(line.split()[3] for line in pathlib.Path(f"/proc/{daemon.pid}/limits").read_text().splitlines() if line.startswith("Max stack"))
        self.assertEqual(int(soft), 8 << 20)

    def test_signals_end_it_in_order(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            daemon = self.start()
            self.wait_ready()
            daemon.send_signal(number)
            self.assertEqual(daemon.wait(timeout=10), 0)
            self.assertFalse(os.path.exists(self.socket))
            self.assertEqual(self.commctl("status").returncode, 3)

    def test_a_stale_socket_is_replaced_a_live_one_is_not(self):
        daemon = self.start()
        self.wait_ready()
        second = self.start()
        self.assertNotEqual(second.wait(timeout=10), 0)
        self.assertIn(self.socket, second.stderr.read())
        self.assertEqual(self.commctl("status").returncode, 0)
        daemon.kill()
        daemon.wait()
        self.assertTrue(os.path.exists(self.socket))
        self.start()
        self.wait_ready()

    def test_a_removed_socket_comes_back(self):
        """It does so with its folder. The socket of another commd at this path is left alone."""
        folder = pathlib.Path(self.folder.name)
        self.socket = str(folder / "run" / "commd.sock")
        os.mkdir(folder / "run")
        daemon = self.start()
        self.wait_ready()
        mode = os.stat(self.socket).st_mode
        shutil.rmtree(folder / "run")
        self.assertEqual(self.commctl("status").returncode, 3)
        time.sleep(0.2)
        os.mkdir(folder / "run")
        self.wait(lambda: self.commctl("status").returncode == 0, "the socket is there again", 20)
        self.assertEqual(os.stat(self.socket).st_mode, mode)
        self.wait(lambda: os.path.exists(self.socket + ".admin"), "so is the administrators'", 20)
        output, errors = self.surface(0, 1).communicate(timeout=60)
        self.assertIn("operations checked", output, errors)
        for name in (self.socket, self.socket + ".admin"):
            os.unlink(name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            other.bind(self.socket)
            other.listen(8)
            daemon.terminate()
            self.assertEqual(daemon.wait(timeout=10), 0)
            self.assertTrue(os.path.exists(self.socket))
        self.assertIn("was removed, and is there again", daemon.stderr.read())

    def test_notifications(self):
        path = str(pathlib.Path(self.folder.name) / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(path)
            notify.settimeout(10)
            daemon = self.start({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "400000"})
            said = ""
            while "READY=1" not in said:
                said += notify.recv(4096).decode() + "\n"
            while said.count("WATCHDOG=1") < 3:
                said += notify.recv(4096).decode() + "\n"
            daemon.terminate()
            while "STOPPING=1" not in said:
                said += notify.recv(4096).decode() + "\n"
            self.assertEqual(daemon.wait(timeout=10), 0)

    def test_socket_activation(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.socket)
            listener.listen(8)
            # The shell becomes the daemon by exec, so its pid is the daemon's.
            command = 'exec 3<&%d; LISTEN_PID=$$ LISTEN_FDS=1 exec "%s" --standalone --socket "%s"' % (listener.fileno(), COMMD, self.socket)
            daemon = subprocess.Popen(["bash", "-c", command], pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            self.processes.append(daemon)
            self.wait_ready()
            daemon.terminate()
            self.assertEqual(daemon.wait(timeout=10), 0)
            self.assertTrue(os.path.exists(self.socket))  # the socket belongs to systemd, so the daemon leaves it


class Nodes(ProgramCase):
    def assert_works(self, cluster, layout, name):
        self.check_ranks(cluster, layout, "surface", 1, name=name)

    def last_error(self, cluster, node, other):
        return next(row["last_error"] for row in cluster.json(node, "nodes")["nodes"] if row["name"] == other)

    def test_a_port_that_is_taken(self):
        """The message names the setting."""
        with Cluster("ab", namespaces=False, start=False) as cluster, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            host, port = cluster.addresses["a"].rsplit(":", 1)
            other.bind((host, int(port)))
            done = run(COMMD, "--config", cluster.config_path("a"), check=False)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"a\.conf:?\d*: listen: .*Address already in use")

    def test_killed_restarted_and_killed_again(self):
        with Cluster("ab") as cluster:
            for turn in range(3):
                self.assert_works(cluster, "ab", f"life-{turn}")
                cluster.daemons["b"].kill()
                cluster.daemons["b"].wait()
                cluster.wait(lambda: cluster.commctl("a", "status").returncode == 5, "node a sees that b is gone", 5)
                self.assertNotEqual(self.last_error(cluster, "a", "b"), "")
                cluster.start("b")
                cluster.wait_ready()
                self.assertEqual(self.last_error(cluster, "a", "b"), "", "an error that is cured")
            self.assert_works(cluster, "aab", "after-all")

    def test_a_frozen_node_is_noticed_and_comes_back(self):
        with Cluster("ab") as cluster:
            cluster.daemons["b"].send_signal(signal.SIGSTOP)
            cluster.wait(lambda: cluster.commctl("a", "status").returncode == 5, "node a sees that b is frozen", 6)
            cluster.daemons["b"].send_signal(signal.SIGCONT)
            cluster.wait_ready()
            self.assert_works(cluster, "ab", "thawed")

    def test_idle(self):
        """Heartbeats cost next to no processor time, and disturb no other work."""
        with Cluster("ab") as cluster:
            time.sleep(2)
            before = cpu_s(cluster.daemons["a"].pid)
            time.sleep(6)
            used = cpu_s(cluster.daemons["a"].pid) - before
            self.assertLess(used, 0.12)  # 2 % of a core
            self.assertLess(cluster.json("a", "status")["resident_bytes"], 64 << 20)
            self.assert_works(cluster, "ab", "awake")

    def test_reload(self):
        with Cluster("ab") as cluster:
            good = cluster.config_path("a").read_text()
            cluster.config_path("a").write_text(good + 'log_level = "debug";\n')
            cluster.daemons["a"].send_signal(signal.SIGHUP)
            cluster.wait(lambda: any(row["key"] == "log_level" and row["value"] == "debug" for row in cluster.json("a", "config", "show")["settings"]), "reloaded")
            cluster.config_path("a").write_text(good + "nonsense;\n")
            cluster.daemons["a"].send_signal(signal.SIGHUP)
            cluster.wait(lambda: "nonsense" in cluster.log("a") or "syntax error" in cluster.log("a"), "the log says what is wrong")
            self.assertEqual(cluster.commctl("a", "status").returncode, 0)
            self.assert_works(cluster, "ab", "reloaded")

    def test_drain(self):
        """Running operations end, and new communicators are refused."""
        with Cluster("ab") as cluster:
            ranks = self.start(cluster, "ab", "surface", 4, name="draining")
            cluster.wait(lambda: cluster.json("a", "status")["comms_formed"] == 1, "formed")
            cluster.daemons["a"].terminate()
            self.assertEqual(cluster.daemons["a"].wait(timeout=30), 0)
            for process in ranks:
                process.communicate(timeout=60)  # ended with success or with an error, but ended

    def test_commctl(self):
        with Cluster("ab") as cluster:
            for arguments in ([], ["status"], ["nodes"], ["comms"], ["clients"], ["ops"], ["config", "show"], ["version"], ["help"], ["algorithms"],
                              ["algorithms", "-s", "1m", "all_reduce"], ["ping", "-n", "3", "b"]):
                text = cluster.commctl("a", *arguments)
                self.assertEqual(text.returncode, 0, f"{arguments}: {text.stderr}")
                self.assertTrue(text.stdout.strip(), arguments)
                if arguments and arguments[0] != "help":
                    self.assertIn("schema_version", cluster.json("a", *arguments), arguments)
            pings = cluster.json("a", "ping", "-n", "3", "b")
            self.assertEqual((pings["node"], len(pings["round_trips_ns"])), ("b", 3))
            self.assertGreater(min(pings["round_trips_ns"]), 0)
            watched = cluster.client("a", BUILD / "commctl", "-f", "json", "-w=0.1", "status")
            self.assertEqual([json.loads(watched.stdout.readline())["node_name"] for _ in range(3)], ["a"] * 3)
            watched.kill()
            nodes = {row["name"]: row for row in cluster.json("a", "nodes")["nodes"]}
            self.assertEqual(nodes["b"]["state"], "up")
            for arguments, code in ((["frobnicate"], 2), (["nodes", "x"], 2), (["ping"], 2), (["ping", "-n", "1", "nowhere"], 4), (["algorithms", "-s", "huge"], 2),
                                    (["algorithms", "dance"], 4), (["plan", "-n", "0"], 2), (["plan", "dance"], 4)):
                result = cluster.commctl("a", *arguments)
                self.assertEqual(result.returncode, code, f"{arguments}: {result.stdout}{result.stderr}")
                self.assertTrue(result.stderr.strip(), arguments)
            planned = cluster.json("a", "plan", "-n", "64", "-s", "8", "-m")
            self.assertTrue(planned["formation"]["by_tree"])
            self.assertLess(planned["formation"]["warm_ns"], planned["formation"]["fresh_ns"])
            picked = next(row for row in planned["algorithms"] if row["picked"])
            self.assertLess(picked["links"], 63)
            self.assertGreater(picked["first_ns"], picked["predicted_ns"])
            plot = cluster.folder / "plan.svg"
            self.assertEqual(cluster.commctl("a", "plan", "-n", "1000", "--svg", plot).returncode, 0)
            self.assertIn("</svg>", plot.read_text())
            watch = subprocess.Popen([str(COMMCTL), "--socket", cluster.socket("a"), "--watch=0.1", "status"],
                                     stdout=subprocess.PIPE, text=True,
                                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # a job in the background ignores it
            time.sleep(1)
            watch.send_signal(signal.SIGINT)
            self.assertGreater(watch.communicate(timeout=5)[0].count("uptime"), 3)


if __name__ == "__main__":
    unittest.main()
