#!/usr/bin/env python3
"""Measures calls that are not operations: calls.py NAME RANK SIZE REPEATS, one process for each rank. Rank 0 prints the medians:
{"call": microseconds}.

comm_init forms a communicator of all ranks, with a new name each time. An all-reduce comes before it, so that all ranks begin comm_init at
once. Otherwise the first rank would also wait for ranks that still do earlier work. comm_mem_alloc makes memory that is shared with commd. Its
time includes the first write to all of the memory, because pages may come with the call or later.
"""
import ctypes
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "system"))
from cluster import Library  # noqa: E402


class Failed(Exception):
    pass


def timed(times, name, call, *arguments):
    began_s = time.perf_counter()
    result = call(*arguments)
    times.setdefault(name, []).append(1e6 * (time.perf_counter() - began_s))
    if result != 0:
        raise Failed(f"{name}: {result}")


def alloc_and_write(library, client, size, memory):
    result = library.comm_mem_alloc(client, size, -1, ctypes.byref(memory))
    if result == 0:
        ctypes.memset(memory, 1, size)
    return result


def meet(library, comm, size):
    value = ctypes.c_int64(1)
    result = library.comm_all_reduce(comm, ctypes.byref(value), ctypes.byref(value), 1, library.DTYPES["i64"], 0, None) or library.comm_sync(comm, 0)
    if result != 0 or value.value != size:
        raise Failed(f"all_reduce: {result}, {value.value}")


def measure(library, name, rank, size, repeats):
    times = {}
    for repeat in range(repeats):
        client = ctypes.c_void_p()
        timed(times, "comm_client_open", library.comm_client_open, None, ctypes.byref(client))
        met, comm = ctypes.c_void_p(), ctypes.c_void_p()
        if library.comm_init(client, f"{name}-{repeat}-met".encode(), rank, size, -1, None, ctypes.byref(met)) != 0:
            raise Failed("comm_init")
        meet(library, met, size)
        timed(times, "comm_init", library.comm_init, client, f"{name}-{repeat}".encode(), rank, size, -1, None, ctypes.byref(comm))
        meet(library, comm, size)
        for bytes_each in (1 << 16, 1 << 23):
            memory = ctypes.c_void_p()
            timed(times, f"comm_mem_alloc {bytes_each >> 10} KiB", alloc_and_write, library, client, bytes_each, memory)
            timed(times, f"comm_mem_free {bytes_each >> 10} KiB", library.comm_mem_free, client, memory)
        library.comm_destroy(comm)
        library.comm_destroy(met)
        library.comm_client_close(client)
    return {call: statistics.median(of) for call, of in times.items()}


def main():
    name, rank, size, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    library = Library()
    library.comm_mem_free.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    try:
        times = measure(library, name, rank, size, repeats)
    except Failed as failure:
        print(f"calls: rank {rank}: {failure}: {library.error()}", file=sys.stderr)
        return 1
    if rank == 0:
        print(json.dumps(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
