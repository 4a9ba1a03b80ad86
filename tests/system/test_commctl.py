#!/usr/bin/env python3
"""commctl with a commd that does not answer. Every verb gives up at its deadline, and exits with 124."""
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from cluster import BUILD, ROOT, StandaloneTest

WAITS = True

VERBS = [[], ["status"], ["nodes"], ["comms"], ["clients"], ["ops"], ["users"], ["ping", "-n", "1", "other"], ["algorithms"], ["config", "show"], ["version"],
         ["health"], ["events"], ["metrics"],
         ["bench", "--max-bytes", "8"]]


def commctl(path, *arguments):
    return subprocess.run([BUILD / "commctl", "--socket", path, "-t", "0.1", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=20, check=False)


class Silent(unittest.TestCase):
    """A socket on which no process answers."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="commd-test-")
        self.path = os.path.join(self.folder.name, "commd.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)

    def tearDown(self):
        self.listener.close()
        self.folder.cleanup()

    def check_all(self, says):
        for arguments in VERBS:
            done = commctl(self.path, *arguments)
            self.assertEqual(done.returncode, 124, f"{arguments}: {done.stderr}")
            self.assertRegex(done.stderr, says, arguments)

    def test_no_answer(self):
        self.listener.listen(100)
        self.check_all("not? answer.* within")

    def test_no_room_in_its_queue(self):
        self.listener.listen(0)
        other = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        other.connect(self.path)
        self.check_all("did not accept the connection within 100 ms")
        other.close()

    def test_stopped_while_it_waits(self):
        self.listener.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            other.connect(self.path)
            waiting = subprocess.Popen([BUILD / "commctl", "--socket", self.path, "-t", "1", "health"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(5):
                time.sleep(0.1)
                waiting.send_signal(signal.SIGSTOP)
                waiting.send_signal(signal.SIGCONT)
            errors = waiting.communicate(timeout=20)[1]
            self.assertEqual(waiting.returncode, 124, errors)
            self.assertIn("did not accept the connection", errors)

    def test_help_needs_nobody(self):
        for verb in ("health", "events", "metrics", "status", "nodes", "ping", "plan", "bench", "gpus", "users", "pki", "config", "reload", "log-level", "help"):
            done = commctl(self.path, verb, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""), verb)
            self.assertIn(f"commctl [OPTION...] {verb}", done.stdout)

    def test_help_is_complete(self):
        """Returns every verb, with every option that its source accepts."""
        verbs = re.findall(r"^  ([a-z]+) .*", commctl(self.path, "help").stdout.split("\n\n")[1], re.MULTILINE)
        self.assertGreater(len(verbs), 20)
        for verb in verbs:
            text = commctl(self.path, verb, "--help").stdout
            self.assertNotIn("...\n\n", text.replace("PROGRAM ...", ""), verb)
            files = {"bench": ["bench_options.c"], "abort": ["control.c"], "run": ["run_options.c"], "drain": ["drain.c"], "plan": ["plan.c"], "trace": ["trace.c"]}.get(verb, [])
            for option in (name for file in files for name in re.findall(r'\{"([a-z-]+)", (?:no|required)_argument', (ROOT / "client/commctl" / file).read_text())):
                if option != "agent":  # between one commctl and another
                    self.assertIn(f"--{option}", text, verb)

    def test_usage_lines_end_with_their_last_word(self):
        for verb in ("status", "users", "undrain", "drain", "nodes"):
            for line in commctl(self.path, "help", verb).stdout.splitlines():
                self.assertEqual(line, line.rstrip(), verb)

    def test_what_is_wrong_with_a_call(self):
        """The error names the option or argument, what was given, and what is allowed."""
        sizes = "sizes like 8 or 64k, with commas between"
        for arguments, says in (
                (["-f", "xml"], "--format xml: expected text or json"),
                (["--watch=never"], "--watch never: expected seconds, 0.1 to 86400"), (["-w=x"], "--watch =x: expected seconds"),
                (["--socket", "", "status"], '--socket "": expected a path'),
                (["trace", "--seconds", "x"], "trace: --seconds x: expected seconds, more than 0 and at most 3600"),
                (["trace", "-s", "0"], "trace: --seconds 0: expected seconds"), (["trace", "-s", "nan"], "--seconds nan: expected"),
                (["trace", "-s", "3601"], "--seconds 3601: expected"), (["trace", "-s", ""], '--seconds "": expected'),
                (["trace", "--bogus"], "commctl: trace: unrecognized option '--bogus'"), (["trace", "--seconds"], "requires an argument"),
                (["algorithms", "-s", "8,x"], f"algorithms: -s 8,x: expected 1 to 8 {sizes}"),
                (["algorithms", "-s", "1,,2"], f"algorithms: -s 1,,2: expected 1 to 8 {sizes}"), (["algorithms", "-s", "8,"], "-s 8,: expected 1 to 8"),
                (["algorithms", "-n", "a,,b"], "algorithms: -n a,,b: expected 1 to 1000000 nodes, or names with commas between"),
                (["plan", "-s", ",8"], f"plan: -s ,8: expected 1 to 32 {sizes}"),
                (["drain", "--reason", "a\nb"], "drain: --reason: expected one line of printable text"),
                (["abort", "x", "--reason", "a\x1b[31mb"], "abort: --reason: expected one line"), (["disconnect", "1", "-r", "\x7f"], "disconnect: --reason: expected one line"),
                (["algorithms", "-s", "1,2,3,4,5,6,7,8,9"], "expected 1 to 8 sizes"), (["algorithms", "-s", ","], f"-s ,: expected 1 to 8 {sizes}"),
                (["algorithms", "-n", "0"], "algorithms: -n 0: expected 1 to 1000000 nodes, or names with commas between"),
                (["algorithms", "-n", "1000001"], "-n 1000001: expected 1 to"), (["algorithms", "-n", ""], '-n "": expected 1 to'),
                (["algorithms", "all_reduce", "barrier"], "algorithms: barrier: expected one operation"),
                (["plan", "-n", "1.5"], "plan: -n 1.5: expected a whole number of nodes, 1 to 16384"), (["plan", "-n", "-1"], "-n -1: expected a whole"), (["plan", "-n", "16385"], "-n 16385: expected a whole"),
                (["plan", "-s", "8,x"], f"plan: -s 8,x: expected 1 to 32 {sizes}"),
                (["plan", "-l", "0"], "plan: -l 0: expected microseconds, more than 0"), (["plan", "-d", "0"], "plan: -d 0: expected microseconds"),
                (["plan", "-t", "x"], "plan: -t x: expected microseconds"), (["plan", "-p", "0.5"], "plan: -p 0.5: expected how many nodes share a processor, 1 to 16384"),
                (["plan", "-b", "fast"], "plan: -b fast: expected Gbit/s, more than 0"),
                (["plan", "--slice", "0"], "plan: --slice 0: expected a size like 64k or 1m"), (["plan", "all_reduce", "x"], "plan: x: expected one operation"),
                (["ping"], "ping: NODE: expected a node's name"), (["ping", "-n", "0", "b"], "ping: -n 0: expected how often, 1 to 1000000"),
                (["ping", "-n", "", "b"], 'ping: -n "": expected how often'), (["ping", "b", "c"], "ping: c: expected one node"),
                (["ping", "-x", "b"], "ping: -x: expected one node"), (["ping", "b", "-n"], "ping: -n: expected one node, and perhaps -n COUNT"),
                (["health", "a", "b"], "health: b: expected the name of one check at most"), (["--watch", "events"], "events cannot be watched"),
                (["events", "x"], "events: x: expected options alone"), (["events", "--after", "x"], "events: --after x: expected the sequence number"),
                (["events", "--after", "-1"], "--after -1: expected the sequence"),
                (["events", "--after", "99999999999999999999"], "--after 99999999999999999999: expected the sequence"), (["events", "--bogus"], "commctl: events: unrecognized option '--bogus'"),
                (["metrics", "x"], "metrics: x: expected no argument, or --open-metrics"), (["metrics", "--open-metrics", "x"], "metrics: x: expected"),
                (["abort"], "abort: nothing: expected the name of one communicator"), (["abort", "a", "b"], "abort: b: expected the name of one"),
                (["abort", "a", "--uid", "no such user"], "abort: --uid no such user: expected a user's number or name"),
                (["disconnect"], "disconnect: nothing: expected the number of one process"),
                (["disconnect", "x"], "disconnect: PID x: expected the number of one process, 1 to 2147483647"),
                (["disconnect", "0"], "PID 0: expected the number"), (["disconnect", "--uid", "0", "1"], "disconnect: --uid 0: expected only PID and --reason"),
                (["config"], "config: nothing: expected show or check"), (["config", "x"], "config: x: expected show or check"),
                (["config", "show", "x"], "config: x: expected no argument after show"), (["config", "check", "x", "y"], "config: y: expected one file"),
                (["reload", "x"], "unexpected argument: x"), (["status", "-f", "json"], "unexpected argument: -f (options of commctl stand before the verb)"), (["log-level"], "log-level: nothing: expected one level: error, warning, info or debug"),
                (["log-level", "debug", "x"], "log-level: x: expected one level"),
                (["pki"], "pki: nothing: expected init, request, issue, renew, revoke, show, admit or join"), (["pki", "x"], "pki: x: expected init"),
                (["pki", "init", "x"], "pki init: x: expected only options"), (["pki", "init", "--days", "x"], "pki init: --days x: expected days, 1 to 36500"),
                (["pki", "init", "--days", "0"], "--days 0: expected days"), (["pki", "init", "--days", "36501"], "--days 36501: expected days"),
                (["pki", "init", "--dir"], "pki init: --dir: expected an option of this command, with its argument"),
                (["pki", "request", "a", "--days", "5"], "pki request: --days: expected one name at most, and options of this command"),
                (["pki", "issue"], "pki issue: nothing: expected a node's name"), (["pki", "issue", "ca"], "pki issue: ca: expected a node's name"),
                (["pki", "revoke"], "pki revoke: nothing: expected a node's name, a serial number or a file"),
                (["pki", "renew", "a", "--new-key", "--request", "x"], "pki renew: --new-key and --request: expected one of them"),
                (["bench", "--min-bytes", "0"], "bench: --min-bytes 0: expected a size"), (["bench", "-f", "xml"], "bench: --format xml: expected text or json"),
                (["nodes", "x"], "nodes: x: expected no argument, --down or --summary"), (["nodes", "--down", "--summary"], "nodes: --summary: expected"), (["users", "x"], "unexpected argument: x"), (["gpus", "x"], "unexpected argument: x"),
                (["version", "x"], "unexpected argument: x"), (["help", "x"], "unknown verb: x"), (["--watch", "ping", "b"], "ping cannot be watched"),
                (["frobnicate"], "unknown verb: frobnicate")):
            done = commctl(self.path, *arguments)
            self.assertEqual(done.returncode, 2, f"{arguments}: {done.stderr}")
            self.assertIn(says, done.stderr, arguments)

    def test_a_time_that_is_none(self):
        for text in ("0", "-1", "x", "", "nan", "3601", "1s"):
            done = subprocess.run([BUILD / "commctl", "--socket", self.path, "-t", text, "status"], stderr=subprocess.PIPE, text=True, timeout=20, check=False)
            self.assertEqual(done.returncode, 2, text)
            self.assertIn("expected seconds", done.stderr)


class Full(StandaloneTest):
    """If commctl cannot write its output, it fails."""

    def test_a_full_disk(self):
        for arguments in (["status"], ["nodes"], ["-f", "json", "comms"], ["help"], ["--version"], ["bench", "--help"], ["--watch=0.1", "status"],
                          ["bench"], ["-f", "json", "bench", "--max-bytes", "8", "--seconds-per-size", "0"], ["trace", "--seconds", "0.01"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([BUILD / "commctl", "--socket", self.cluster.socket("solo"), *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=20)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn("the output cannot be written: No space left on device", done.stderr)

    def test_arguments_that_are_too_long(self):
        done = commctl(self.cluster.socket("solo"), "abort", "x" * 70000)
        self.assertEqual((done.returncode, done.stderr), (2, "commctl: the arguments are too long: a request has at most 65536 bytes\n"))

    def test_no_standard_output(self):
        """The connection does not get its number, so nothing is written there."""
        for arguments in (["status"], ["events"], ["bench", "--max-bytes", "8", "--seconds-per-size", "0"], ["trace", "--seconds", "0.01"]):
            done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", BUILD / "commctl", "--socket", self.cluster.socket("solo"), *arguments],
                                  stderr=subprocess.PIPE, text=True, timeout=20)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn("the output cannot be written: Bad file descriptor", done.stderr)


class Frozen(StandaloneTest):
    def test_stopped_and_going_on(self):
        path, commd = self.cluster.socket("solo"), self.cluster.daemons["solo"]
        commd.send_signal(signal.SIGSTOP)
        try:
            for arguments in VERBS:
                done = commctl(path, *arguments)
                self.assertEqual(done.returncode, 124, f"{arguments}: {done.stderr}")
        finally:
            commd.send_signal(signal.SIGCONT)
        self.assertEqual(commctl(path, "status").returncode, 0)

    def test_stopped_while_operations_run(self):
        path, commd = self.cluster.socket("solo"), self.cluster.daemons["solo"]
        # Without commd, the ranks would go on for longer than the nodes' patience.
        bench = subprocess.Popen([BUILD / "commctl", "--socket", path, "bench", "--ranks", "4", "--min-bytes", "262144", "--max-bytes", "1048576",
                                  "--seconds-per-size", "30"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(500):
            comms = json.loads(subprocess.run([BUILD / "commctl", "--socket", path, "-f", "json", "comms"], stdout=subprocess.PIPE, check=True).stdout)["comms"]
            if [comm for comm in comms if comm["ops_completed"] > 0]:
                break
        commd.send_signal(signal.SIGSTOP)
        try:
            errors = bench.communicate(timeout=30)[1]
            self.assertEqual(bench.returncode, 3, errors)
            self.assertIn("commd is stopped", errors)
        finally:
            commd.send_signal(signal.SIGCONT)


if __name__ == "__main__":
    unittest.main()
