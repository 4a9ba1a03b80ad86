#!/usr/bin/env python3
"""A client gets a new connection in place of a lost one, with all of its memory: comm_client_reopen, with real daemons."""
import ctypes
import mmap
import os
import sys
import threading
import time
import unittest

from cluster import ROOT, Library, StandaloneTest
from failure_case import read_until

WAITS = True
PIECE = 64 << 20  # what the library copies at a time
ALLOCATED = PIECE + 12345
POOLED = 300 << 10
REGISTERED = 40960


def pattern(seed, size):
    return bytes((seed * 31 + i * 7 + (i >> 8) * 3) & 0xFF for i in range(4096)) * (size // 4096) + bytes([seed]) * (size % 4096)


class Reopen(StandaloneTest):
    def setUp(self):
        self.path = self.cluster.socket("solo")
        self.calls = Library()
        self.calls.comm_client_reopen.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.client = ctypes.c_void_p()
        self.expect(0, self.calls.comm_client_open(self.options(), ctypes.byref(self.client)))
        self.addCleanup(lambda: self.calls.comm_client_close(self.client))
        self.places = {}

    def options(self, wait_ms=0):
        return ctypes.byref(Library.OpenOptions(ctypes.sizeof(Library.OpenOptions), self.path.encode(), 0, wait_ms))

    def expect(self, code, result):
        self.assertEqual(Library.NAMES[result], code if isinstance(code, str) else Library.NAMES[code], self.calls.error())

    def reopen(self, wait_ms=0):
        return self.calls.comm_client_reopen(ctypes.byref(self.client), self.options(wait_ms))

    def fill(self):
        """One memory of each kind, each with its own contents."""
        memory = ctypes.c_void_p()
        self.expect(0, self.calls.comm_mem_alloc(self.client, ALLOCATED, -1, ctypes.byref(memory)))
        self.places[memory.value] = pattern(1, ALLOCATED)
        result, self.pool = self.calls.pool(self.client)
        self.expect(0, result)
        for seed in (2, 3):
            self.expect(0, self.calls.comm_pool_alloc(self.pool, POOLED, ctypes.byref(memory)))
            self.places[memory.value] = pattern(seed, POOLED)
        self.register(4)
        for address, contents in self.places.items():
            ctypes.memmove(address, contents, len(contents))

    def register(self, seed):
        fd = os.memfd_create("data", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, REGISTERED)
        mapped = mmap.mmap(fd, REGISTERED)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        self.expect(0, self.calls.comm_mem_register(self.client, self.address, REGISTERED, fd, 0))
        os.close(fd)  # the library has its own
        self.mapped = mapped
        self.places[self.address] = pattern(seed, REGISTERED)

    def check(self, shared=True):
        for address, contents in self.places.items():
            self.assertEqual(ctypes.string_at(address, len(contents)), contents)
            self.assertEqual(self.calls.comm_mem_is_shared(self.client, address, len(contents)), int(shared))

    def reduce(self):
        """commd itself, not a copy of the library, reads and writes the memory: an all-reduce of one rank, out of place."""
        result, comm = self.calls.init(self.client, "after", 0, 1)
        self.expect(0, result)
        allocated, first, second, registered = self.places
        for source, target, size in ((allocated, second, POOLED), (registered, first, REGISTERED), (first, registered, REGISTERED)):
            self.expect(0, self.calls.comm_all_reduce(comm, source, target, size, Library.DTYPES["u8"], 0, None))
            self.expect(0, self.calls.comm_sync(comm, 0))
            self.assertEqual(ctypes.string_at(source, size), ctypes.string_at(target, size))
        self.calls.comm_destroy(comm)

    def kill(self):
        self.cluster.daemons["solo"].kill()
        self.cluster.daemons["solo"].wait(timeout=20)
        # The kernel may close the sockets of a process a moment after it has said that the process is gone. A call that fails changes nothing.
        self.cluster.wait(lambda: self.reopen() != 0, "the library sees the end of commd")

    def start(self, *options):
        self.cluster.start("solo", "--standalone", *options)
        self.cluster.wait_ready()

    def mapped_bytes(self):
        """How much memory of the library this process has mapped, by name of the file."""
        total = 0
        for line in open("/proc/self/maps", encoding="ascii"):
            if "memfd:commd-" in line:
                begin, end = (int(part, 16) for part in line.split()[0].split("-"))
                total += end - begin
        return total

    def test_commd_ends_again_while_it_takes_the_memory(self):
        """wait_ms holds for the whole call. If commd ends after the call, a second call finds what it needs as well."""
        self.fill()
        memory = ctypes.c_void_p()
        for seed in range(5, 7):  # so that it takes a while
            self.expect(0, self.calls.comm_mem_alloc(self.client, ALLOCATED, -1, ctypes.byref(memory)))
            self.places[memory.value] = pattern(seed, ALLOCATED)
            ctypes.memmove(memory.value, self.places[memory.value], ALLOCATED)
        self.kill()

        def end_again():
            self.start()
            self.cluster.wait(lambda: os.getpid() in [each["pid"] for each in self.cluster.json("solo", "clients")["clients"]], "the library is connected")
            self.cluster.daemons["solo"].kill()
            self.cluster.daemons["solo"].wait(timeout=20)
            self.start()

        other = threading.Thread(target=end_again)
        other.start()
        result = self.reopen(wait_ms=20000)
        text = self.calls.error()
        other.join()
        self.assertEqual(Library.NAMES[result], "OK", text)
        self.expect(0, self.reopen(wait_ms=20000))
        self.check()

    def test_all_memory_survives(self):
        self.fill()
        mapped = self.mapped_bytes()
        for how in ("kill", "terminate"):
            getattr(self.cluster.daemons["solo"], how)()
            self.cluster.daemons["solo"].wait(timeout=20)
            later = threading.Timer(0.3, self.start)
            later.start()
            self.expect(0, self.reopen(wait_ms=20000))
            later.join()
            self.check()
            self.assertEqual(self.mapped_bytes(), mapped, "the old files are gone")
        self.reduce()
        memory = ctypes.c_void_p()
        self.expect(0, self.calls.comm_pool_alloc(self.pool, POOLED, ctypes.byref(memory)))
        addresses = list(self.places)
        for address in addresses[1:3]:
            self.expect(0, self.calls.comm_pool_free(self.pool, address))
        self.expect(0, self.calls.comm_pool_free(self.pool, memory))
        self.expect(0, self.calls.comm_mem_free(self.client, addresses[0]))
        self.calls.comm_pool_destroy(self.pool)
        self.expect(0, self.calls.comm_mem_deregister(self.client, ctypes.c_void_p(addresses[3])))
        self.expect("NOT_FOUND", self.calls.comm_mem_free(self.client, addresses[0]))

    def test_while_connected_nothing_happens(self):
        self.fill()
        before = self.client.value
        self.expect(0, self.reopen())
        self.assertEqual(self.client.value, before)
        self.check()

    def test_what_must_be_destroyed_first(self):
        self.fill()
        result, comm = self.calls.init(self.client, "busy", 0, 1)
        self.expect(0, result)
        queue, store = ctypes.c_void_p(), ctypes.c_void_p()
        self.expect(0, self.calls.comm_queue_create(self.client, ctypes.byref(queue)))
        self.expect(0, self.calls.comm_store_open(self.client, b"busy", 0, ctypes.byref(store)))
        self.kill()
        self.start()
        for says, end, handle in (("communicators: comm_destroy", self.calls.comm_destroy, comm), ("completion queues", self.calls.comm_queue_destroy, queue),
                                  ("stores", self.calls.comm_store_close, store)):
            self.expect("BUSY", self.reopen())
            self.assertIn(says, self.calls.error())
            end(handle)
        self.expect(0, self.reopen())
        self.check()
        self.reduce()

    def test_without_a_daemon(self):
        """A call that fails leaves everything as it was, and may be repeated."""
        self.fill()
        before = self.client.value
        self.kill()
        began = time.monotonic()
        self.expect("DAEMON_LOST", self.reopen(wait_ms=300))
        self.assertLess(time.monotonic() - began, 5)
        self.assertEqual(self.client.value, before)
        self.check(shared=True)
        self.start()
        self.expect(0, self.reopen())
        self.check()
        self.reduce()

    def test_a_daemon_that_takes_only_a_part(self):
        """The new commd refuses the second memory. All contents stay, and the next attempt finds room."""
        self.fill()
        self.kill()
        self.start("--set", "user_limit_memories=2")
        self.expect("LIMIT", self.reopen())
        self.assertIn("comm_client_reopen", self.calls.error())
        self.check()
        self.kill()
        self.start()
        self.expect(0, self.reopen())
        self.check()
        self.reduce()

    def test_more_registered_memory_than_files(self):
        kept = 256
        page = mmap.PAGESIZE
        fd = os.memfd_create("many", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, (kept + 1) * page)
        mapped = mmap.mmap(fd, (kept + 1) * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        for i in range(kept + 1):
            self.expect(0, self.calls.comm_mem_register(self.client, base + i * page, page, fd, i * page))
        self.kill()
        self.start()
        self.expect("LIMIT", self.reopen())
        self.assertRegex(self.calls.error(), r"the first 256 registered memories: deregister this one first")
        self.expect(0, self.calls.comm_mem_deregister(self.client, ctypes.c_void_p(base + kept * page)))
        self.expect(0, self.reopen())
        os.close(fd)

    def test_wrong_arguments(self):
        self.expect("INVALID_ARGUMENT", self.calls.comm_client_reopen(None, None))
        null = ctypes.c_void_p()
        self.expect("INVALID_ARGUMENT", self.calls.comm_client_reopen(ctypes.byref(null), None))
        options = ctypes.create_string_buffer(bytes(Library.OpenOptions(1000, None, 0, 0)), 1000)  # of a later version
        options[999] = b"\1"
        self.expect("INVALID_ARGUMENT", self.calls.comm_client_reopen(ctypes.byref(self.client), options))


class ReopenOnGpu(StandaloneTest):
    gpus = 1

    def test_all_memory_survives(self):
        for how in ("kill", "terminate"):
            process = self.cluster.client("solo", sys.executable, ROOT / "tests/system/reopen_gpu.py", self.cluster.socket("solo"))
            read_until(process, "READY")
            daemon = self.cluster.daemons["solo"]
            getattr(daemon, how)()
            daemon.wait(timeout=20)
            self.cluster.start("solo", "--standalone")
            output, errors = process.communicate(timeout=60)
            self.assertEqual((process.returncode, output.strip()), (0, "OK"), errors)
            self.cluster.wait_gpus_idle()


if __name__ == "__main__":
    unittest.main()
