#!/usr/bin/env python3
"""Which memory limit pages count towards: always that of the client whose memory it is. A hole in a file ends the operation that meets it."""
import ctypes
import errno
import fcntl
import mmap
import os
import pathlib
import re
import unittest

import cluster
from cluster import Cluster, Library
from raw_client import RawClient, operation, parse

ALL_REDUCE, U8, HOST, SUM = 0, 13, 1, 0  # HOST is -1, encoded as a sint32
TICKET = 7
INVALID_ARGUMENT = Library.NAMES.index("INVALID_ARGUMENT")
MADV_REMOVE = 9
MIB = 1 << 20


class MemoryGroup:
    """A memory cgroup of version 2 or 1 with a limit. Raises SkipTest where none can be made."""

    def __init__(self, limit_bytes):
        name = f"commd-test-{os.getpid()}-{id(self)}"
        mounts = [line.split() for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
        places = [(pathlib.Path(fields[1]), fields[2], fields[3]) for fields in mounts if fields[2] in ("cgroup", "cgroup2")]
        second = [path for path, kind, _ in places if kind == "cgroup2" and "memory" in (path / "cgroup.controllers").read_text().split()]
        first = [path for path, kind, options in places if kind == "cgroup" and "memory" in options.split(",")]
        self.path = None
        try:
            if second:
                (second[0] / "cgroup.subtree_control").write_text("+memory")
            if not second and not first:
                raise unittest.SkipTest("no memory cgroups")
            path = (second or first)[0] / name
            path.mkdir()
            self.path = path
            (path / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(limit_bytes))
            self.used = path / ("memory.current" if second else "memory.usage_in_bytes")
        except OSError as failure:
            self.close()
            raise unittest.SkipTest(f"no memory cgroup may be made: {failure}") from failure

    def add(self, pid):
        (self.path / "cgroup.procs").write_text(str(pid))

    def used_bytes(self):
        return int(self.used.read_text())

    def close(self):
        if self.path is not None:
            cluster.Cluster.wait(type("No", (), {"names": []})(), self._remove, "the cgroup is empty")
            self.path = None

    def _remove(self):
        try:
            self.path.rmdir()
            return True
        except OSError as failure:
            if failure.errno != errno.EBUSY:
                raise
            return False


def shared_kib(pid):
    return int(re.search(r"RssShmem:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1))


class SparseClient(RawClient):
    """A client that registers files of which it has written nothing, or only the beginning."""

    def __init__(self, path):
        super().__init__(path)
        self.fds = []

    def register(self, memory, size, written=0):
        fd = os.memfd_create("sparse", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        os.pwrite(fd, bytes(written), 0)
        fcntl.fcntl(fd, 1033, 2)  # F_ADD_SEALS, F_SEAL_SHRINK
        self.fds.append(fd)
        return self.ask(self.REGISTER, {1: memory, 2: size}, fd)

    def all_reduce(self, handle, count, memory, output=0):
        self.post(operation(handle, TICKET, ALL_REDUCE, U8, count, SUM, input=(memory, 0), output=(memory, output)))

    def joined(self, request):
        """Waits for the reply to a COMM_INIT request."""
        while True:
            event = self.event()
            reply = parse(event[1]) if 1 in event else {}
            if reply.get(1) == request:
                return 2 not in reply
            self.others.append(event)

    def pages(self):
        return sum(os.fstat(fd).st_blocks for fd in self.fds) // 8

    def close(self):
        super().close()
        for fd in self.fds:
            os.close(fd)


def reduce_together(clients, size):
    requests = [client.tell(client.COMM_INIT, {1: 1, 2: "two", 3: rank, 4: len(clients), 5: HOST, 6: 20000}) for rank, client in enumerate(clients)]
    assert all([client.joined(request) for client, request in zip(clients, requests)])
    for client in clients:
        client.all_reduce(1, size, 5)


class Holes(unittest.TestCase):
    """One node."""

    LIMIT_BYTES = 96 * MIB

    def setUp(self):
        self.cluster = Cluster(["solo"], namespaces=False, start=False)
        self.addCleanup(self.cluster.close)
        self.cluster.config_path("solo").write_text(f'node_name = "solo";\nsocket_path = "{self.cluster.socket("solo")}";\n')
        self.daemon = self.cluster.start("solo", "--standalone")
        self.cluster.wait_ready()
        if "userfaultfd:" in self.cluster.log("solo"):
            self.skipTest("commd has no userfaultfd here")
        os.environ["COMMD_SOCKET"] = self.cluster.socket("solo")

    def check_works(self):
        rank = self.cluster.rank("solo", "after", 0, 1, "once")
        self.assertEqual(rank.communicate(timeout=30)[0].splitlines()[-1].strip(), "OK")
        self.assertIsNone(self.daemon.poll(), "commd lives")

    def test_sparse_files_are_not_charged_to_commd(self):
        group = MemoryGroup(self.LIMIT_BYTES)
        self.addCleanup(lambda: (self.cluster.close(), group.close()))
        group.add(self.daemon.pid)
        used_bytes, shared = group.used_bytes(), shared_kib(self.daemon.pid)
        for turn in range(3):
            client = SparseClient(self.cluster.socket("solo"))
            self.addCleanup(client.close)
            status, text = client.register(1, 512 * MIB)
            self.assertEqual(status, 0, text)
            status, text = client.ask(client.COMM_INIT, {1: 1, 2: f"sparse{turn}", 3: 0, 4: 1, 5: HOST, 6: 20000})
            self.assertEqual(status, 0, text)
            client.all_reduce(1, 256 * MIB, 1, output=256 * MIB)
            status, text = client.complete(TICKET)
            self.assertEqual(status, INVALID_ARGUMENT, text)
            self.assertIn(f"rank 0, node solo: memory 1 of process {os.getpid()} had no page at offset ", text)
            self.assertEqual(client.pages(), 0)
        self.assertLess(group.used_bytes(), used_bytes + 24 * MIB)
        self.assertLess(shared_kib(self.daemon.pid), shared + 1024)
        self.check_works()

    def test_all_ranks_hear_of_it_and_a_broken_memory_is_refused(self):
        sparse, whole = (SparseClient(self.cluster.socket("solo")) for _ in range(2))
        for client in (sparse, whole):
            self.addCleanup(client.close)
            size = 4 * MIB
            self.assertEqual(client.register(5, size, written=size if client is whole else size // 2)[0], 0)
        reduce_together((sparse, whole), size)
        for client in (sparse, whole):
            status, text = client.complete(TICKET)
            self.assertEqual(status, INVALID_ARGUMENT, text)
            self.assertIn(f"rank 0, node solo: memory 5 of process {os.getpid()} had no page at offset ", text)
            self.assertGreaterEqual(int(re.search(r"at offset (\d+)", text).group(1)), size // 2)
        self.assertEqual(sparse.pages(), size // 2 // 4096)
        self.assertEqual(sparse.ask(sparse.COMM_INIT, {1: 2, 2: "one", 3: 0, 4: 1, 5: HOST, 6: 20000})[0], 0)
        sparse.all_reduce(2, 16, 5)
        status, text = sparse.complete(TICKET)
        self.assertEqual(status, INVALID_ARGUMENT, text)
        self.assertIn("register it anew", text)
        self.check_works()

    def test_a_page_taken_out_later(self):
        calls = Library()
        result, client = calls.open()
        self.assertEqual(result, 0)
        memory, size = ctypes.c_void_p(), 8 * MIB
        self.assertEqual(calls.comm_mem_alloc(client, size, -1, ctypes.byref(memory)), 0)
        result, comm = calls.init(client, "punched", 0, 1)
        self.assertEqual(result, 0, calls.error())
        other = memory.value + size // 2
        self.assertEqual(calls.comm_all_reduce(comm, memory, other, size // 2, U8, 0, None), 0)
        self.assertEqual(calls.comm_sync(comm, 0), 0, calls.error())
        libc = ctypes.CDLL(None, use_errno=True)
        self.assertEqual(libc.madvise(ctypes.c_void_p(memory.value + MIB), ctypes.c_size_t(4096), MADV_REMOVE), 0)
        other = memory.value + size // 2
        self.assertEqual(calls.comm_all_reduce(comm, memory, other, size // 2, U8, 0, None), 0)
        self.assertEqual(calls.comm_sync(comm, 0), INVALID_ARGUMENT)
        self.assertIn(f"of process {os.getpid()} had no page at offset {MIB}", calls.error())
        calls.comm_destroy(comm)
        self.assertEqual(calls.comm_mem_free(client, memory), 0)
        calls.comm_client_close(client)
        self.check_works()

    def test_a_file_of_a_program_is_filled_when_it_is_registered(self):
        calls = Library()
        calls.comm_mem_register.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint64]
        result, client = calls.open()
        self.assertEqual(result, 0)
        size = 2 * MIB
        fd = os.memfd_create("sparse", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 2 * size)
        mapped = mmap.mmap(fd, size, offset=size)
        at = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        self.assertEqual(calls.comm_mem_register(client, at, size, fd, size), 0, calls.error())
        self.assertEqual(os.fstat(fd).st_blocks * 512, size)  # only the blocks of its own part
        result, comm = calls.init(client, "filled", 0, 1)
        self.assertEqual(result, 0, calls.error())
        self.assertEqual(calls.comm_all_reduce(comm, at, at, size, U8, 0, None), 0)
        self.assertEqual(calls.comm_sync(comm, 0), 0, calls.error())
        calls.comm_destroy(comm)
        calls.comm_client_close(client)
        os.close(fd)


class HolesOfTwoNodes(unittest.TestCase):
    def test_the_other_node_hears_of_it(self):
        with Cluster(["a", "b"]) as both:
            if "userfaultfd:" in both.log("a"):
                self.skipTest("commd has no userfaultfd here")
            sparse, whole = (SparseClient(both.socket(name)) for name in ("a", "b"))
            size = 4 * MIB
            for rank, client in enumerate((sparse, whole)):
                self.addCleanup(client.close)
                self.assertEqual(client.register(5, size, written=size * rank)[0], 0)
            reduce_together((sparse, whole), size)
            for client in (sparse, whole):
                status, text = client.complete(TICKET)
                self.assertEqual(status, INVALID_ARGUMENT, text)
                self.assertIn("rank 0, node a: memory 5 of process", text)
            self.assertEqual(sparse.pages(), 0)
            ranks = [both.rank(name, "after", rank, 2, "once") for rank, name in enumerate("ab")]
            for rank in ranks:
                self.assertEqual(rank.communicate(timeout=30)[0].splitlines()[-1].strip(), "OK")


if __name__ == "__main__":
    unittest.main()
