#!/usr/bin/env python3
"""A rank on a GPU whose commd ends and comes back: reopen_gpu.py SOCKET. Its memory of comm_mem_alloc, of a pool, and of its own works again."""
import ctypes
import sys

from client_library import Library
from gpu import Gpu

COUNT = 5000
I64 = Library.DTYPES["i64"]


class Rank:
    def __init__(self, path):
        self.path, self.gpu, self.calls = path, Gpu(0), Library()
        self.calls.comm_client_reopen.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.client = ctypes.c_void_p()
        self.fine(self.calls.comm_client_open(self.options(), ctypes.byref(self.client)))

    def options(self, wait_ms=0):
        return ctypes.byref(Library.OpenOptions(ctypes.sizeof(Library.OpenOptions), self.path.encode(), 0, wait_ms))

    def fine(self, result):
        if result != 0:
            raise AssertionError(f"{Library.NAMES[result]}: {self.calls.error()}")

    def memories(self):
        allocated, pooled = ctypes.c_void_p(), ctypes.c_void_p()
        self.fine(self.calls.comm_mem_alloc(self.client, 8 * COUNT, 0, ctypes.byref(allocated)))
        result, self.pool = self.calls.pool(self.client, device=0)
        self.fine(result)
        self.fine(self.calls.comm_pool_alloc(self.pool, 8 * COUNT, ctypes.byref(pooled)))
        return allocated.value, pooled.value, self.gpu.alloc(8 * COUNT)

    def reduce(self, comm, places, step):
        """One rank: the sum is what the rank puts in. Each memory is read, and another one is written."""
        for i, source in enumerate(places):
            numbers = (ctypes.c_int64 * COUNT)(*(step * COUNT + i + at for at in range(COUNT)))
            target = places[(i + 1) % len(places)]
            self.gpu.put(source, numbers)
            self.fine(self.calls.comm_all_reduce(comm, source, target, COUNT, I64, 0, None))
            self.fine(self.calls.comm_sync(comm, 0))
            if self.gpu.get(target, 8 * COUNT) != bytes(numbers):
                raise AssertionError(f"step {step}: memory {i}")

    def until_lost(self, comm):
        result = 0
        while Library.NAMES[result] != "DAEMON_LOST":
            self.fine(result)
            result = self.calls.comm_barrier(comm, None) or self.calls.comm_sync(comm, 0)


def main():
    rank = Rank(sys.argv[1])
    places = rank.memories()
    for step in (1, 2):
        result, comm = rank.calls.init(rank.client, "reopen", 0, 1, device=0)
        rank.fine(result)
        rank.reduce(comm, places, step)
        kept = [rank.gpu.get(place, 8 * COUNT) for place in places]
        if step == 1:
            print("READY", flush=True)
            rank.until_lost(comm)
        rank.calls.comm_destroy(comm)
        rank.fine(rank.calls.comm_client_reopen(ctypes.byref(rank.client), rank.options(20000)))
        if kept != [rank.gpu.get(place, 8 * COUNT) for place in places]:
            raise AssertionError("the contents have changed")
    rank.fine(rank.calls.comm_pool_free(rank.pool, places[1]))
    rank.calls.comm_pool_destroy(rank.pool)
    rank.fine(rank.calls.comm_mem_free(rank.client, places[0]))
    rank.gpu.free(places[2])
    rank.calls.comm_client_close(rank.client)
    print("OK")


if __name__ == "__main__":
    main()
