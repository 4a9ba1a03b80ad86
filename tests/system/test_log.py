#!/usr/bin/env python3
"""If nobody reads standard error, or its reader is gone, only the log suffers."""
import fcntl
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest

from cluster import BUILD, run

WAITS = True
CONNECTIONS = 6000  # each makes a line in the debug log; together they are more than the pipe and commd's queue hold


class UnreadLog(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.socket = str(pathlib.Path(self.folder.name) / "commd.sock")
        self.reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        self.daemon = subprocess.Popen([BUILD / "commd", "--standalone", "--socket", self.socket, "--log-level", "debug"], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=writer)
        os.close(writer)

    def tearDown(self):
        if self.reader is not None:
            os.close(self.reader)
        self.daemon.kill()
        self.daemon.wait()
        self.folder.cleanup()

    def status(self):
        answer = run(BUILD / "commctl", "--socket", self.socket, "-f", "json", "status", check=False, timeout=20)
        return json.loads(answer.stdout) if answer.returncode == 0 else None

    def wait(self, condition, what, timeout_s=20):
        deadline = time.monotonic() + timeout_s
        while not condition():
            self.assertIsNone(self.daemon.poll(), what)
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)

    def connect_often(self):
        for _ in range(CONNECTIONS):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 20, 0))  # wait for a place in the queue
                client.connect(self.socket)

    def check_that_it_serves(self):
        ranks = [subprocess.Popen([str(BUILD / "tests/system/surface"), "unread", str(rank), "2", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                  text=True, env=dict(os.environ, COMMD_SOCKET=self.socket)) for rank in range(2)]
        for rank in ranks:
            try:
                _, errors = rank.communicate(timeout=60)
            finally:
                rank.kill()
            self.assertEqual(rank.returncode, 0, errors)

    def test_a_log_that_nobody_reads(self):
        self.wait(self.status, "ready")
        self.connect_often()
        self.wait(lambda: self.status()["log_lines_lost"] > 0, "lines are lost, and counted")
        self.check_that_it_serves()
        # When a process reads again, the log says how many lines are missing.
        os.set_blocking(self.reader, False)
        text = b""

        def read_report():
            nonlocal text
            try:
                text += os.read(self.reader, 65536)
            except BlockingIOError:
                self.status()  # makes something more to log
            return b"log lines were lost: nobody read standard error" in text

        self.wait(read_report, "the log says what is missing")
        self.daemon.terminate()
        self.wait_for_end(lambda: os.read(self.reader, 65536))

    def test_its_end_waits_for_nobody(self):
        self.wait(self.status, "ready")
        self.connect_often()
        self.daemon.terminate()
        self.assertEqual(self.daemon.wait(timeout=20), 0)

    def test_a_log_whose_reader_is_gone(self):
        self.wait(self.status, "ready")
        os.close(self.reader)
        self.reader = None
        for _ in range(20):
            self.assertIsNotNone(self.status())
        self.wait(lambda: self.status()["log_lines_lost"] > 0, "lines are lost, and counted")
        self.check_that_it_serves()
        self.assertIsNone(self.daemon.poll())
        self.daemon.send_signal(signal.SIGTERM)
        self.assertEqual(self.daemon.wait(timeout=20), 0)

    def wait_for_end(self, read):
        deadline = time.monotonic() + 20
        while self.daemon.poll() is None:
            self.assertLess(time.monotonic(), deadline, "it ends")
            try:
                read()
            except BlockingIOError:
                time.sleep(0.02)
        self.assertEqual(self.daemon.returncode, 0)


if __name__ == "__main__":
    unittest.main()
