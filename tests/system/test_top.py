#!/usr/bin/env python3
"""commctl top, on a terminal and without one."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unittest

from cluster import BUILD, StandaloneTest

LEAVE = b"\x1b[?1049l"  # xterm's way back from the other screen
TIMEOUT_S = 20


class Terminal:
    """commctl top on a pseudo-terminal of 40 lines of 160 columns."""

    def __init__(self, socket, *arguments, term="xterm"):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.process = subprocess.Popen([BUILD / "commctl", "--socket", socket, "top", *arguments], stdin=slave, stdout=slave, stderr=slave,
                                        env={**os.environ, "TERM": term}, start_new_session=True)
        self.said = b""

    def read(self, until_s):
        ready, _, _ = select.select([self.master], [], [], max(0, until_s - time.monotonic()))
        if ready:
            try:
                self.said += os.read(self.master, 65536)
            except OSError:
                return False
        return bool(ready)

    def wait_for(self, pattern, what=""):
        """Reads on until what was drawn since the last call matches."""
        until_s = time.monotonic() + TIMEOUT_S
        while not re.search(pattern, self.said):
            if not self.read(until_s):
                raise AssertionError(f"{what or pattern} did not come: {self.said[-2000:]!r}")
        found, self.said = self.said, b""
        return found

    def press(self, keys):
        os.write(self.master, keys)

    def end(self):
        """Waits for the end, and returns the exit code. Checks that the terminal is as it was."""
        until_s = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < until_s:
            self.read(time.monotonic() + 0.05)
        code = self.process.wait(timeout=1)
        while self.read(time.monotonic() + 0.1):
            pass
        assert termios.tcgetattr(self.slave) == self.before, "the terminal's modes are not as they were"
        return code

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


class Top(StandaloneTest):
    def setUp(self):
        self.path = self.cluster.socket("solo")

    def terminal(self, *arguments, **options):
        terminal = Terminal(self.path, *arguments, **options)
        self.addCleanup(terminal.close)
        return terminal

    def job(self, name="training"):
        ranks = [self.cluster.rank("solo", name, rank, 2, "loop") for rank in range(2)]
        for rank in ranks:
            self.addCleanup(rank.communicate, timeout=20)
            self.addCleanup(rank.kill)
            while rank.stdout.readline().strip() != "READY":
                self.assertIsNone(rank.poll())
        return ranks

    def test_tables_and_keys(self):
        self.job()
        terminal = self.terminal("-d", "0.2")
        terminal.wait_for(rb"training")
        terminal.press(b"4")
        terminal.wait_for(rb"PROGRAM")
        terminal.press(b"\t")
        terminal.press(b">r<-+ ")
        terminal.press(b"3")
        terminal.wait_for(rb"HEARTBEAT")
        terminal.press(b"q")
        self.assertEqual(terminal.end(), 0)
        self.assertIn(LEAVE, terminal.said)

    def test_signals_leave_the_terminal_as_it_was(self):
        for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, 128 + 15), (signal.SIGHUP, 128 + 1)):
            terminal = self.terminal()
            terminal.wait_for(rb"q quit")
            terminal.process.send_signal(number)
            self.assertEqual(terminal.end(), code, number)
            self.assertIn(LEAVE, terminal.said, number)

    def test_a_small_terminal_and_one_that_changes(self):
        self.job("a_communicator_with_quite_a_long_name")
        terminal = self.terminal("-d", "0.1")
        terminal.wait_for(rb"q quit")
        for lines, columns in ((3, 10), (1, 1), (6, 40), (50, 200)):
            fcntl.ioctl(terminal.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            terminal.process.send_signal(signal.SIGWINCH)
            terminal.read(time.monotonic() + 0.5)
            terminal.press(b"2>1\t\x1b[B\x1b[6~\x1b[H")
            terminal.read(time.monotonic() + 0.5)
            self.assertIsNone(terminal.process.poll(), (lines, columns))
        terminal.press(b"q")
        self.assertEqual(terminal.end(), 0)

    def test_what_others_named_cannot_steer_the_terminal(self):
        program = os.path.join(self.cluster.folder, "evil\x1b]0;title\x07")
        os.symlink("/usr/bin/python3", program)
        rank = self.cluster.client("solo", program, "-B", os.path.join(os.path.dirname(__file__), "rank.py"), "strange", 0, 1, "loop")
        self.addCleanup(rank.communicate, timeout=20)
        self.addCleanup(rank.kill)
        while rank.stdout.readline().strip() != "READY":
            self.assertIsNone(rank.poll())
        terminal = self.terminal("-d", "0.1", "--table", "processes")
        drawn = terminal.wait_for(rb"PROGRAM[\s\S]*q quit")
        terminal.press(b"q")
        terminal.end()
        self.assertNotIn(b"\x1b]0;", drawn + terminal.said)

    def test_without_a_terminal(self):
        self.job()
        done = subprocess.run([BUILD / "commctl", "--socket", self.path, "top", "-n", "2", "-d", "0.3"], stdout=subprocess.PIPE, text=True, timeout=20, check=True)
        self.assertEqual(done.stdout.count("communicators:\n"), 2)
        self.assertIn("training", done.stdout)
        self.assertNotIn("\x1b", done.stdout)
        rate = int(re.findall(r"^(\d+) operations/s", done.stdout, re.M)[-1])
        self.assertGreater(rate, 0)

    def test_json_lines(self):
        self.job()
        done = subprocess.run([BUILD / "commctl", "--socket", self.path, "-f", "json", "top", "-n", "3", "-d", "0.2"], stdout=subprocess.PIPE, text=True,
                              timeout=20, check=True)
        looks = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(looks), 3)
        for look in looks:
            self.assertEqual(look["schema_version"], 1)
            row = next(row for row in look["communicators"] if row["name"] == "training")
            self.assertGreater(row["ops_per_s"], 0)
            self.assertEqual({"communicators", "operations", "links", "processes", "schema_version", "status"}, set(look))

    def test_a_terminal_that_nobody_knows(self):
        terminal = self.terminal("-d", "0.1", term="no-such-terminal")
        terminal.wait_for(rb"processes:", "the text")
        terminal.process.send_signal(signal.SIGTERM)
        terminal.end()

    def test_nobody_answers(self):
        done = subprocess.run([BUILD / "commctl", "--socket", "/nonexistent/commd.sock", "top", "-n", "1"], stderr=subprocess.PIPE, text=True, timeout=20,
                              check=False)
        self.assertEqual(done.returncode, 3)
        self.assertIn("is commd running?", done.stderr)

    def test_wrong_arguments(self):
        for arguments, says in ((["-d", "0"], "top: -d 0: expected seconds"), (["-n", "x"], "top: -n x: expected how many"),
                                (["--table", "x"], "--table x: expected communicators, operations, links or processes"), (["x"], "top: x: expected options alone")):
            done = subprocess.run([BUILD / "commctl", "--socket", self.path, "top", *arguments], stderr=subprocess.PIPE, text=True, timeout=20, check=False)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(says, done.stderr)


class CommdGoes(StandaloneTest):
    def test_commd_stops_and_comes_again(self):
        terminal = Terminal(self.cluster.socket("solo"), "-d", "0.1")
        self.addCleanup(terminal.close)
        terminal.wait_for(rb"q quit")
        commd = self.cluster.daemons["solo"]
        commd.send_signal(signal.SIGTERM)
        commd.wait(timeout=20)
        terminal.wait_for(rb"commctl: ", "the reason")
        self.cluster.start("solo")
        self.cluster.wait_ready()
        terminal.wait_for(rb"q quit")
        terminal.press(b"q")
        self.assertEqual(terminal.end(), 0)


if __name__ == "__main__":
    unittest.main()
