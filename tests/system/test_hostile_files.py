#!/usr/bin/env python3
"""Clients pass files of a file system whose server does not answer. commd waits for none of these files, and no other client notices."""
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

import cluster
import fuse
from cluster import Cluster, Library

NOTICED_S = 1.0
ATTACK_S = 2 * NOTICED_S  # a call that commd or another user holds up lasts to the end of the attack
END_S = 10
USERS = (65533, 65534)
KERNEL = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
KEEPS_DESCRIPTORS = (6, 16)  # from this version on, kernels leave descriptors with the sender if the receiver wants none


def why_not():
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "only root, with /dev/fuse, mounts a file system of its own"
    try:
        fuse.own_namespace()
        fuse.FileSystem().close()
    except OSError as error:
        return f"no file system of its own: {error}"
    return None


class Client:
    """A client of another user than the hostile ones. It keeps the longest time that one of its calls has taken."""

    def __init__(self):
        self.calls = Library()
        self.longest_s = 0

    def work(self, duration_s):
        end = time.monotonic() + duration_s
        while time.monotonic() < end:
            client, comm = self.connect()
            for _ in range(20):
                self.once(client, comm)
            self.leave(client, comm)

    def connect(self):
        client = self.timed("open", self.calls.open, pair=True)
        return client, self.timed("init", lambda: self.calls.init(client, f"works-{os.getpid()}", 0, 1), pair=True)

    def leave(self, client, comm):
        self.timed("destroy", self.calls.comm_destroy, comm)
        self.calls.comm_client_close(client)

    def work_on(self, duration_s, client, comm):
        """Runs operations for that long, without opening a new session."""
        end = time.monotonic() + duration_s
        while time.monotonic() < end:
            self.once(client, comm)

    def once(self, client, comm):
        buffer = ctypes.c_void_p()
        self.timed("alloc", self.calls.comm_mem_alloc, client, 65536, -1, ctypes.byref(buffer))
        self.timed("all_reduce", self.calls.comm_all_reduce, comm, buffer, buffer, 1024, Library.DTYPES["f32"], 0, None)
        self.timed("sync", self.calls.comm_sync, comm, 0)
        self.timed("free", self.calls.comm_mem_free, client, buffer)

    def timed(self, name, call, *arguments, pair=False):
        before = time.monotonic()
        result = call(*arguments)
        self.longest_s = max(self.longest_s, time.monotonic() - before)
        result, value = result if pair else (result, None)
        if result != 0:
            raise AssertionError(f"{name}: {Library.NAMES[result]}: {self.calls.error()}")
        return value


@unittest.skipIf(WHY_NOT := why_not(), WHY_NOT)
class HostileFiles(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(["solo"], namespaces=False, start=False, gpus=1)
        self.addCleanup(self.cluster.close)
        self.cluster.folder.chmod(0o755)
        self.cluster.config_path("solo").write_text(f'node_name = "solo";\nsocket_path = "{self.cluster.socket("solo")}";\n')
        self.start()
        os.environ["COMMD_SOCKET"] = self.cluster.socket("solo")
        self.client = Client()
        self.hostile = []
        self.addCleanup(self.end_hostile)

    def start(self):
        self.daemon = self.cluster.start("solo", "--standalone")
        self.cluster.wait_ready()

    def mount(self, writeback):
        self.files = fuse.FileSystem(writeback)
        self.addCleanup(self.files.close)  # registered so that it runs before the other cleanups: a process that waits for the file system cannot end

    def connect(self, mode):
        uuid = re.sub("[^0-9a-f]", "", self.cluster.json("solo", "gpus")["gpus"][0]["uuid"].removeprefix("GPU"))
        for user in USERS:
            command = [sys.executable, pathlib.Path(__file__).with_name("hostile_files.py"), self.cluster.socket("solo"), self.files.path, str(user), mode, uuid]
            self.hostile.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        self.await_all(b"connected\n")

    def await_all(self, line):
        for process in self.hostile:
            self.assertEqual(process.stdout.readline(), line)

    def go(self):
        for process in self.hostile:
            process.stdin.write(b"\n")
            process.stdin.flush()

    def prepare(self):
        self.go()
        self.await_all(b"ready\n")
        self.files.hold()

    def attack(self):
        self.connect("all")
        self.prepare()
        self.go()
        self.await_all(b"refused\n")

    def end_hostile(self):
        for process in self.hostile:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()

    def nobody_notices(self, session=None):
        if session is None:
            self.client.work(ATTACK_S)
        else:
            self.client.work_on(ATTACK_S, *session)
        self.assertLess(self.client.longest_s, NOTICED_S)
        self.assertGreater(self.files.waiting(), 0, "somebody waits for the file system")
        self.cluster.wait_logged("solo", "file descriptors wait to be closed")

    def ends_in_time(self):
        self.daemon.send_signal(signal.SIGTERM)
        self.daemon.wait(timeout=END_S)
        self.assertEqual(self.daemon.returncode, 0)

    def works_anew(self):
        self.start()
        self.client.work(0.5)

    def test_with_every_request(self):
        self.mount(writeback=False)
        self.attack()
        self.nobody_notices()
        self.ends_in_time()
        self.works_anew()

    def test_nobody_else_has_the_file(self):
        self.mount(writeback=True)
        self.connect("unread")
        # Older kernels may wait when they drop data that nobody has read. Then new clients may have to wait, too (daemon/base/fd_reaper.h).
        session = None if KERNEL >= KEEPS_DESCRIPTORS else self.client.connect()
        self.daemon.send_signal(signal.SIGSTOP)
        try:
            self.prepare()
        finally:
            self.daemon.send_signal(signal.SIGCONT)
        self.go()
        self.nobody_notices(session)
        self.ends_in_time()
        self.works_anew()

    def test_killed_meanwhile(self):
        self.mount(writeback=False)
        self.attack()
        result, client = self.client.calls.open()
        self.assertEqual(result, 0)
        self.nobody_notices()
        self.daemon.kill()
        self.daemon.wait(timeout=END_S)
        buffer = ctypes.c_void_p()
        result = self.client.calls.comm_mem_alloc(client, 65536, -1, ctypes.byref(buffer))
        self.assertEqual(Library.NAMES[result], "DAEMON_LOST", "what its table keeps open tells nobody that it lives")
        self.client.calls.comm_client_close(client)
        self.works_anew()

    def test_closed_once_it_answers(self):
        self.mount(writeback=False)
        self.attack()
        self.nobody_notices()
        self.end_hostile_soon()
        self.cluster.wait(lambda: self.open_files() < 40, "commd has closed what it was passed", timeout_s=20)

    def open_files(self):
        return len(os.listdir(f"/proc/{self.daemon.pid}/fd"))

    def end_hostile_soon(self):
        for process in self.hostile:
            process.kill()
        self.files.server.kill()  # everybody who waits is told that the file system is gone
        for process in self.hostile:
            process.wait()


if __name__ == "__main__":
    unittest.main()
