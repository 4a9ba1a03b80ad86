#!/usr/bin/env python3
"""One of two well-behaved ranks: pair.py SOCKET USER NAME RANK FILE PAUSE

The rank runs all-reduces of 64 KiB, PAUSE seconds after each other, and checks each. It ends when standard input ends, or when an all-reduce fails.
Rank 0 writes to FILE when each began and how long it took (class Samples). Prints READY, and at its end OK, WRONG, or the failure's code and text.
"""
import ctypes
import mmap
import os
import pathlib
import select
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "system"))
from client_library import Library  # noqa: E402

COUNT = 8192
PATTERNS = 16
OP_TIMEOUT_MS = 30000
SAMPLES_MAX = 1 << 20


class Samples:
    """(began, took) of each operation, in seconds and in order, in a file that writer and reader map."""

    def __init__(self, path):
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 8 + 16 * SAMPLES_MAX)

    @staticmethod
    def make(path):
        with open(path, "wb") as file:
            file.truncate(8 + 16 * SAMPLES_MAX)

    def count(self):
        return struct.unpack_from("<Q", self.memory, 0)[0]

    def add(self, began_s, took_s):
        count = self.count()
        struct.pack_into("<dd", self.memory, 8 + 16 * (count % SAMPLES_MAX), began_s, took_s)
        struct.pack_into("<Q", self.memory, 0, count + 1)

    def since(self, first):
        return [struct.unpack_from("<dd", self.memory, 8 + 16 * (index % SAMPLES_MAX)) for index in range(first, self.count())]


def become(user):
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def patterns(factor):
    return [struct.pack(f"<{COUNT}q", *range(factor * 7919 * number, factor * (7919 * number + COUNT), factor)) for number in range(PATTERNS)]


def loop(library, comm, buffer, rank, samples, pause_s):
    inputs, sums = patterns(rank + 1), patterns(3)
    step = 0
    while step == 0 or step % 16 or not select.select([sys.stdin], [], [], 0)[0]:
        ctypes.memmove(buffer, inputs[step % PATTERNS], 8 * COUNT)
        began_s = time.monotonic()
        result = library.comm_all_reduce(comm, buffer, buffer, COUNT, library.DTYPES["i64"], 0, None) or library.comm_sync(comm, 0)
        took_s = time.monotonic() - began_s
        if result:
            return f"{library.NAMES[result]} {library.error()}"
        if ctypes.string_at(buffer, 8 * COUNT) != sums[step % PATTERNS]:
            return "WRONG"
        if rank == 0:
            samples.add(began_s, took_s)
        step += 1
        if step == 1:
            print("READY", flush=True)
        if pause_s:
            time.sleep(pause_s)
    return "OK"


def main():
    path, user, name, rank, file, pause_s = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5], float(sys.argv[6])
    os.environ["COMMD_SOCKET"] = path
    library, samples = Library(), Samples(file)
    become(user)
    result, client = library.open()
    comm, buffer = ctypes.c_void_p(), ctypes.c_void_p()
    if not result:
        result, comm = library.init(client, name, rank, 2, op_timeout_ms=OP_TIMEOUT_MS)
    result = result or library.comm_mem_alloc(client, 8 * COUNT, -1, ctypes.byref(buffer))
    said = f"{library.NAMES[result]} {library.error()}" if result else loop(library, comm, buffer, rank, samples, pause_s)
    print(said, flush=True)
    os._exit(0 if said == "OK" else 1)  # the other rank may have ended between two operations; then no agreement is possible


if __name__ == "__main__":
    main()
