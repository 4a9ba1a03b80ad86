#!/usr/bin/env python3
"""Memory pools of a client, with a real daemon: limits, growing and trimming, fork, huge pages, and collectives on their memory."""
import ctypes
import mmap
import os
import pathlib
import threading
import unittest

from cluster import Library, StandaloneTest

U8, SUM = 13, 0
KIB, MIB = 1 << 10, 1 << 20
CHUNK = 1 * MIB
INVALID_ARGUMENT, NOT_FOUND, LIMIT, NO_MEMORY = (Library.NAMES.index(name) for name in ("INVALID_ARGUMENT", "NOT_FOUND", "LIMIT", "NO_MEMORY"))
AUTO, NONE, HUGE_2M, HUGE_1G = range(4)
RESERVED = 8  # huge pages
RESERVE = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")


class Reserve:
    """Reserves some huge pages. Raises SkipTest if the machine has none. close() gives them back."""

    def __init__(self, pages):
        try:
            self.before = int(RESERVE.read_text())
            RESERVE.write_text(str(self.before + pages))
        except OSError as failure:
            raise unittest.SkipTest(f"no huge pages may be reserved: {failure}") from failure
        if int(RESERVE.read_text()) < self.before + pages:
            self.close()
            raise unittest.SkipTest("the kernel finds no memory for huge pages")

    def close(self):
        RESERVE.write_text(str(self.before))


class PoolTest(StandaloneTest):
    def setUp(self):
        os.environ["COMMD_SOCKET"] = self.cluster.socket("solo")
        self.calls = Library()
        self.expect(0, "comm_client_open", (opened := self.calls.open())[0])
        self.client = opened[1]
        self.addCleanup(lambda: self.calls.comm_client_close(self.client))

    def expect(self, code, what, result):
        self.assertEqual(Library.NAMES[result], Library.NAMES[code], f"{what}: {self.calls.error()}")

    def pool(self, **options):
        result, pool = self.calls.pool(self.client, **options)
        self.expect(0, "comm_pool_create", result)
        return pool

    def alloc(self, pool, size, code=0):
        memory = ctypes.c_void_p(1)
        self.expect(code, f"comm_pool_alloc({size})", self.calls.comm_pool_alloc(pool, size, ctypes.byref(memory)))
        self.assertEqual(memory.value is None, code != 0)
        return memory.value

    def free(self, pool, memory, code=0):
        self.expect(code, "comm_pool_free", self.calls.comm_pool_free(pool, memory))

    def registered_bytes(self):
        return self.cluster.json("solo", "status")["memory_registered_bytes"]

    def reduce(self, at, count, name="pool"):
        """One rank: the sum is the input."""
        result, comm = self.calls.init(self.client, name, 0, 1)
        self.expect(0, "comm_init", result)
        data = bytes((each * 7 + each // 251) % 256 for each in range(count))
        ctypes.memmove(at, data, count)
        ctypes.memset(at + count, 0xa5, count)
        self.expect(0, "comm_all_reduce", self.calls.comm_all_reduce(comm, at, at + count, count, U8, SUM, None))
        result = self.calls.comm_sync(comm, 0)
        self.assertTrue(result != 0 or ctypes.string_at(at + count, count) == data, "the output")
        self.calls.comm_destroy(comm)
        return result


class Pools(PoolTest):
    def test_alignment_and_sharing(self):
        pool = self.pool(chunk_bytes=CHUNK)
        for size in (0, 1, 63, 64, 65, 4000, 4096, 4097, 100000, CHUNK, 3 * CHUNK):
            at = self.alloc(pool, size)
            self.assertEqual(at % (4096 if size >= 4096 else 64), 0)
            ctypes.memset(at, 0x5a, size)
            self.assertEqual(self.calls.comm_mem_is_shared(self.client, at, size), 1)
        self.assertEqual(self.calls.comm_mem_is_shared(self.client, at, 64 * MIB), 0)
        stack = ctypes.create_string_buffer(64)
        self.assertEqual(self.calls.comm_mem_is_shared(self.client, ctypes.addressof(stack), 64), 0)
        self.assertEqual(self.calls.comm_mem_is_shared(None, at, 1), 0)
        self.assertEqual(self.reduce(self.alloc(pool, 200000), 100000), 0)

    def test_freeing(self):
        pool, other = self.pool(chunk_bytes=CHUNK), self.pool(chunk_bytes=CHUNK)
        first, second = self.alloc(pool, 1000), self.alloc(pool, 1000)
        self.free(pool, first + 64, NOT_FOUND)
        self.free(other, first, NOT_FOUND)
        self.free(pool, None)
        self.free(pool, first)
        self.free(pool, first, NOT_FOUND)
        self.assertEqual(self.alloc(pool, 1000), first, "freed memory is used again")
        self.expect(NOT_FOUND, "comm_mem_free of a chunk", self.calls.comm_mem_free(self.client, min(first, second)))
        self.assertEqual(self.calls.comm_mem_is_shared(self.client, second, 1000), 1)

    def test_growing_and_trimming(self):
        self.cluster.wait(lambda: self.registered_bytes() == 0, "no memory is registered")
        pool = self.pool(chunk_bytes=CHUNK, huge_pages=NONE)
        self.assertEqual(self.registered_bytes(), 0)
        self.expect(0, "reserve", self.calls.comm_pool_reserve(pool, 3 * CHUNK))
        self.assertEqual(self.registered_bytes(), 3 * CHUNK)
        pieces = [self.alloc(pool, 256 * KIB) for _ in range(12)]
        self.assertEqual(self.registered_bytes(), 3 * CHUNK, "nothing was asked of commd")
        more = self.alloc(pool, 256 * KIB)
        self.assertEqual(self.registered_bytes(), 4 * CHUNK)
        self.assertEqual(self.calls.comm_pool_trim(pool), 0)
        for piece in pieces:
            self.free(pool, piece)
        self.assertEqual(self.calls.comm_pool_trim(pool), 3 * CHUNK)
        self.assertEqual(self.calls.comm_mem_is_shared(self.client, pieces[0], 1), 0)
        self.cluster.wait(lambda: self.registered_bytes() == CHUNK, "commd has let go of the chunks")
        ctypes.memset(more, 1, 256 * KIB)
        self.calls.comm_pool_destroy(pool)
        self.cluster.wait(lambda: self.registered_bytes() == 0, "commd has let go of the pool")
        self.calls.comm_pool_destroy(None)

    def test_the_limit_of_a_pool(self):
        pool = self.pool(chunk_bytes=CHUNK, most_bytes=2 * CHUNK + 512 * KIB, huge_pages=NONE)
        pieces = [self.alloc(pool, 512 * KIB) for _ in range(5)]
        self.alloc(pool, 1, LIMIT)
        self.assertIn("the pool has 2621440 bytes, and its limit is 2621440", self.calls.error())
        self.expect(LIMIT, "reserve", self.calls.comm_pool_reserve(pool, 1))
        self.free(pool, pieces[0])
        self.alloc(pool, 512 * KIB)
        self.alloc(pool, 1 << 60, INVALID_ARGUMENT)

    def test_wrong_arguments(self):
        for options in ({"device": -2}, {"huge_pages": 4}, {"huge_pages": -1}, {"chunk_bytes": 1 << 60}):
            self.expect(INVALID_ARGUMENT, str(options), self.calls.pool(self.client, **options)[0])
        self.expect(INVALID_ARGUMENT, "no client", self.calls.pool(None)[0])
        self.expect(INVALID_ARGUMENT, "no pool", self.calls.comm_pool_alloc(None, 1, ctypes.byref(ctypes.c_void_p())))
        self.expect(INVALID_ARGUMENT, "no address", self.calls.comm_pool_alloc(self.pool(), 1, None))

    def test_threads(self):
        pool, failures = self.pool(chunk_bytes=CHUNK), []

        def work(number):
            try:
                for turn in range(300):
                    size = (turn * 7919 + number * 104729) % 60000 + 1
                    kept = [self.alloc(pool, size) for _ in range(3)]
                    for at in kept:
                        ctypes.memset(at, number, size)
                    for at in kept:
                        assert ctypes.string_at(at, size) == bytes([number]) * size, "another thread has the same memory"
                        self.free(pool, at)
                    if turn % 16 == number:
                        self.calls.comm_pool_trim(pool)
            except BaseException as failure:
                failures.append(failure)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_fork(self):
        """A child reads and writes the memory, but cannot use the pool. It can make one of its own."""
        pool = self.pool(chunk_bytes=CHUNK)
        at = self.alloc(pool, 4096)
        ctypes.memset(at, 7, 4096)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(read)
                memory = ctypes.c_void_p()
                results = [self.calls.comm_pool_alloc(pool, 64, ctypes.byref(memory)), self.calls.comm_pool_free(pool, at), self.calls.comm_pool_reserve(pool, 1)]
                text = self.calls.error()
                trimmed = self.calls.comm_pool_trim(pool)
                self.calls.comm_pool_destroy(pool)
                seen = ctypes.string_at(at, 4096) == b"\x07" * 4096
                ctypes.memset(at + 100, 8, 1)
                _, own_client = self.calls.open()
                own = self.calls.pool(own_client)[1]
                result = self.calls.comm_pool_alloc(own, 64, ctypes.byref(memory))
                shared = self.calls.comm_mem_is_shared(self.client, at, 64)
                self.calls.comm_client_close(own_client)
                os.write(write, f"{results} {trimmed} {seen} {result} {shared} {text}".encode())
            finally:
                os._exit(0)
        os.close(write)
        with open(read, encoding="ascii") as said:
            self.assertRegex(said.read(), rf"^\[2, 2, 2\] 0 True 0 0 comm_pool_reserve: this pool was made by process {os.getpid()}, before a fork: process {child} must make its own")
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(ctypes.string_at(at + 99, 3), b"\x07\x08\x07", "the memory is shared with the child")
        self.free(pool, at)
        self.assertEqual(self.calls.comm_pool_trim(pool), CHUNK)

    def test_closing_the_client_frees_its_pools(self):
        pool = self.pool(chunk_bytes=CHUNK)
        self.alloc(pool, 100)
        _, other = self.calls.open()
        self.expect(0, "a second client", self.calls.pool(other)[0])
        self.calls.comm_client_close(other)
        self.alloc(pool, 100)

    def test_transparent_huge_pages(self):
        """The system decides whether there are huge pages. The memory must work, and consist of whole huge pages where they are allowed."""
        modes = pathlib.Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        allowed = modes.exists() and "[never]" not in modes.read_text() and "[deny]" not in modes.read_text()
        at = self.alloc(self.pool(chunk_bytes=3 * MIB), 4 * MIB)
        if allowed:
            self.assertEqual(at % (2 * MIB), 0)
        self.assertEqual(self.reduce(at, 2 * MIB), 0)


class HugePages(PoolTest):
    def setUp(self):
        reserve = Reserve(RESERVED)
        self.addCleanup(reserve.close)  # after the client is closed
        super().setUp()
        self.cluster.wait(lambda: self.free_pages() >= RESERVED, "commd has let go of the last test's pages")

    def free_pages(self):
        return int(RESERVE.with_name("free_hugepages").read_text())

    def test_collectives(self):
        before, pool = self.free_pages(), self.pool(huge_pages=HUGE_2M, chunk_bytes=3 * MIB)
        at = self.alloc(pool, 3 * MIB)
        self.assertEqual(at % (2 * MIB), 0)
        self.assertEqual(self.free_pages(), before - 2, "the chunk is of two huge pages")
        self.assertEqual(self.reduce(at, 1 * MIB + 4096), 0)
        self.free(pool, at)
        self.assertEqual(self.calls.comm_pool_trim(pool), 4 * MIB)
        self.cluster.wait(lambda: self.free_pages() == before, "the huge pages are free again")

    def test_too_few(self):
        pool = self.pool(huge_pages=HUGE_2M)
        self.alloc(pool, 1 << 40, NO_MEMORY)
        self.assertIn("huge pages of 2 MiB", self.calls.error())
        self.assertEqual(self.reduce(self.alloc(pool, 4096), 2048), 0)
        self.alloc(self.pool(huge_pages=HUGE_1G), 1 << 42, NO_MEMORY)

    def test_a_page_taken_out_later(self):
        """A hole ends only the operation that meets it."""
        if "userfaultfd:" in self.cluster.log("solo"):
            self.skipTest("commd has no userfaultfd here")
        pool, before = self.pool(huge_pages=HUGE_2M, chunk_bytes=4 * MIB), self.free_pages()
        at = self.alloc(pool, 4 * MIB)
        libc = ctypes.CDLL(None, use_errno=True)
        self.assertEqual(libc.madvise(ctypes.c_void_p(at + 2 * MIB), ctypes.c_size_t(2 * MIB), 9), 0)  # MADV_REMOVE
        result, comm = self.calls.init(self.client, "hole", 0, 1)
        self.expect(0, "comm_init", result)
        self.expect(0, "comm_all_reduce", self.calls.comm_all_reduce(comm, at, at + 2 * MIB, 4096, U8, SUM, None))
        self.expect(INVALID_ARGUMENT, "comm_sync", self.calls.comm_sync(comm, 0))
        self.assertIn(f"of process {os.getpid()} had no page at offset {2 * MIB}", self.calls.error())
        self.calls.comm_destroy(comm)
        self.assertEqual(self.reduce(self.alloc(self.pool(), 4096), 2048), 0, "commd goes on")
        self.calls.comm_pool_destroy(pool)
        self.cluster.wait(lambda: self.free_pages() == before, "the huge pages are free again")

    def test_a_file_of_a_program(self):
        fd = os.memfd_create("huge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | os.MFD_HUGETLB | os.MFD_HUGE_2MB)
        os.ftruncate(fd, 4 * MIB)
        mapped = mmap.mmap(fd, 4 * MIB)
        at = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        self.expect(0, "comm_mem_register", self.calls.comm_mem_register(self.client, at, 4 * MIB, fd, 0))
        self.assertEqual(self.reduce(at + 5, 2 * MIB - 64), 0)
        self.expect(0, "comm_mem_deregister", self.calls.comm_mem_deregister(self.client, ctypes.c_void_p(at)))
        os.close(fd)


class OnTheSocketAlone(Pools):
    def setUp(self):
        os.environ["COMMD_RINGS"] = "0"
        self.addCleanup(lambda: os.environ.pop("COMMD_RINGS"))
        super().setUp()


if __name__ == "__main__":
    unittest.main()
