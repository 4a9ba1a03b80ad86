#!/usr/bin/env python3
"""A rank on a GPU whose memory is of CUDA memory pools: memory_pools_gpu.py SOCKET RANK SIZE DEVICE. Prints OK, or what is wrong.

The memory is registered, used in the order of a stream, deregistered, freed, and made again at the same address. After READY commd ends and comes
back; the memory that is registered then works on.
"""
import ctypes
import os
import sys

from client_library import Library
from gpu import Gpu

COUNT = 3000
SIZE = 8 * COUNT
I64 = Library.DTYPES["i64"]


class CallOptions(ctypes.Structure):
    """The first members of comm_call_options_t."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("timeout_ms", ctypes.c_uint32), ("factor", ctypes.c_double), ("stream", ctypes.c_void_p)]


class Wrong(Exception):
    pass


class Rank:
    def __init__(self, path, rank, size, device):
        self.path, self.rank, self.size, self.device = path, rank, size, device
        self.gpu, self.calls = Gpu(device), Library()
        self.stream = self.gpu.new_stream()
        self.calls.comm_client_reopen.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.calls.comm_mem_deregister.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.client = ctypes.c_void_p()
        self.expect(self.calls.comm_client_open(self.options(), ctypes.byref(self.client)))

    def options(self, wait_ms=0):
        return ctypes.byref(Library.OpenOptions(ctypes.sizeof(Library.OpenOptions), self.path.encode(), 0, wait_ms))

    def expect(self, result, wanted="OK", *texts):
        said = self.calls.error() if result else ""
        if Library.NAMES[result] != wanted or any(text not in said for text in texts):
            raise Wrong(f"{Library.NAMES[result]} {said}; expected {wanted} {texts}")

    def init(self, name):
        result, comm = self.calls.init(self.client, name, self.rank, self.size, device=self.device)
        self.expect(result)
        return comm

    def submit(self, comm, source, target, count=COUNT):
        options = CallOptions(ctypes.sizeof(CallOptions), 0, 1.0, ctypes.c_void_p(self.stream))
        return self.calls.comm_all_reduce(comm, source, target, count, I64, 0, ctypes.byref(options))

    def numbers(self, step, rank):
        return [(step * 7 + rank + 1) * 1000003 * (at + 1) for at in range(COUNT)]

    def reduce(self, comm, step, source, target):
        self.gpu.put(target, b"\xa5" * SIZE)
        self.gpu.put(source, (ctypes.c_int64 * COUNT)(*self.numbers(step, self.rank)))
        self.expect(self.submit(comm, source, target))
        self.gpu.synchronize(self.stream)
        self.expect(self.calls.comm_sync(comm, 0))
        sums = [sum(each) for each in zip(*(self.numbers(step, rank) for rank in range(self.size)))]
        if self.gpu.get(target, SIZE) != bytes((ctypes.c_int64 * COUNT)(*sums)):
            raise Wrong(f"step {step}: other numbers")

    def make(self, pool, size=SIZE):
        pointer = self.gpu.alloc_from(pool, size, self.stream)
        self.gpu.synchronize(self.stream)
        return pointer

    def register(self, pointer, size=SIZE):
        return self.calls.comm_mem_register(self.client, pointer, size, -1, 0)

    def free(self, pointer):
        self.expect(self.calls.comm_mem_deregister(self.client, pointer))
        self.gpu.free_async(pointer, self.stream)

    def refusals(self, comm):
        """Each names the way out."""
        for pool in (None, self.gpu.new_pool(0)):
            pointer = self.make(pool)
            for result in (self.submit(comm, pointer, pointer), self.register(pointer)):
                self.expect(result, "UNSUPPORTED", "CUDA memory pool (cudaMallocAsync)", "it is the default pool, has no POSIX descriptors", "comm_mem_alloc", "cudaMemPoolCreate")
            self.gpu.free_async(pointer, self.stream)
        pointer = self.make(self.gpu.new_pool())
        self.expect(self.submit(comm, pointer, pointer), "UNSUPPORTED", "is not registered", "comm_mem_register", "comm_mem_deregister")
        self.expect(self.register(pointer, SIZE + 1), "INVALID_ARGUMENT", f"exceed the allocation, of {SIZE} bytes")
        self.gpu.free_async(pointer, self.stream)
        self.gpu.synchronize(self.stream)

    def reuse(self, comm, pool):
        """In every round the memory is made anew. With the double it has the address of the round before, but nobody takes it for that memory."""
        last = None
        for step in range(4):
            pair = [self.make(pool) for _ in range(2)]
            if last not in (None, pair) and "CUDA_DOUBLE_FOLDER" in os.environ:
                raise Wrong("the addresses do not come again")
            self.expect(self.submit(comm, pair[0], pair[1]), "UNSUPPORTED", "is not registered")
            for pointer in pair:
                self.expect(self.register(pointer))
            self.expect(self.register(pair[0]))  # again, in vain
            self.reduce(comm, 2 * step, *pair)
            self.reduce(comm, 2 * step + 1, pair[1], pair[1])
            for pointer in pair:
                self.free(pointer)
            self.expect(self.calls.comm_mem_deregister(self.client, pair[0]), "NOT_FOUND")
            self.gpu.synchronize(self.stream)
            last = pair

    def until_lost(self, comm):
        result = 0
        while Library.NAMES[result] not in ("DAEMON_LOST", "RANK_LOST"):
            self.expect(result)
            result = self.calls.comm_barrier(comm, None) or self.calls.comm_sync(comm, 0)


def main():
    rank = Rank(sys.argv[1], *map(int, sys.argv[2:5]))
    comm = rank.init("pools")
    pool = rank.gpu.new_pool()
    rank.refusals(comm)
    rank.reuse(comm, pool)
    kept, freed = [rank.make(pool), rank.make(pool, 3 << 20)], rank.make(pool)
    for pointer in (*kept, freed):
        rank.expect(rank.register(pointer))
    rank.reduce(comm, 20, *kept)
    print("READY", flush=True)
    rank.until_lost(comm)
    rank.calls.comm_destroy(comm)
    rank.gpu.free_async(freed, rank.stream)
    rank.gpu.synchronize(rank.stream)
    rank.expect(rank.calls.comm_client_reopen(ctypes.byref(rank.client), rank.options(20000)))
    comm = rank.init("pools-again")
    rank.reduce(comm, 21, *kept)
    rank.calls.comm_destroy(comm)
    rank.gpu.destroy_pool(pool)  # its allocations live on
    for pointer in kept:
        rank.free(pointer)
    rank.gpu.synchronize(rank.stream)
    rank.calls.comm_client_close(rank.client)
    print("OK")


if __name__ == "__main__":
    main()
