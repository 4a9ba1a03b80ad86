#!/usr/bin/env python3
"""commctl and a commd that does not answer: every verb gives up when told to, with 124."""
import json
import os
import signal
import socket
import subprocess
import tempfile
import unittest

from cluster import BUILD, StandaloneTest

VERBS = [[], ["status"], ["nodes"], ["comms"], ["clients"], ["ops"], ["users"], ["ping", "-n", "1", "other"], ["algorithms"], ["config", "show"], ["version"],
         ["bench", "--max-bytes", "8"]]


def commctl(path, *arguments):
    return subprocess.run([BUILD / "commctl", "--socket", path, "-t", "0.1", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=20, check=False)


class Silent(unittest.TestCase):
    """A socket that nobody answers on."""

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

    def test_help_needs_nobody(self):
        for verb in ("status", "nodes", "ping", "plan", "bench", "gpus", "users", "pki", "config", "help"):
            done = commctl(self.path, verb, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""), verb)
            self.assertIn(f"commctl [OPTION...] {verb}", done.stdout)

    def test_a_time_that_is_none(self):
        for text in ("0", "-1", "x", "", "nan", "3601", "1s"):
            done = subprocess.run([BUILD / "commctl", "--socket", self.path, "-t", text, "status"], stderr=subprocess.PIPE, text=True, timeout=20, check=False)
            self.assertEqual(done.returncode, 2, text)
            self.assertIn("expected seconds", done.stderr)


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
        bench = subprocess.Popen([BUILD / "commctl", "--socket", path, "-t", "0.5", "bench", "--min-bytes", "8", "--max-bytes", "64", "--seconds-per-size", "30"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
