#!/usr/bin/env python3
"""One rank of a communicator, for tests: rank.py NAME RANK SIZE MODE [OPTION=VALUE...]

Prints FORMED, READY after the first right result, then, at its end, "CODE text" of the last call.
  once   one all-reduce, checked
  loop   all-reduces until one fails or `seconds` passed (default 60), or `steps` are done
  idle   forms, then only waits for `seconds`, then one all-reduce
  stream one all-reduce in the GPU's legacy stream: POSTED once it is; ends when the stream is done
  kind=broadcast posts a broadcast where the others post an all-reduce
Options: timeout_ms, op_timeout_ms, count, seconds, pattern (a text that fills the payload), device (a GPU, for all-reduces),
memory (cuda, the default: of cuMemAlloc; comm: of comm_mem_alloc; on a GPU).
"""
import ctypes
import sys
import time

from cluster import Library
from gpu import Gpu


class Buffer:
    """Numbers of an all-reduce in place, on the host or on a GPU."""

    def __init__(self, count, device):
        self.count = count
        self.gpu = Gpu(device) if device >= 0 else None
        self.values = (ctypes.c_int64 * count)()
        self.at = self.values

    def alloc(self, library, client, memory):
        """On the GPU; returns a result of the library."""
        self.at = ctypes.c_void_p()
        if memory == "comm":
            return library.comm_mem_alloc(client, 8 * self.count, self.gpu.device.value, ctypes.byref(self.at))
        self.at.value = self.gpu.alloc(8 * self.count)
        return 0

    def fill(self, values):
        self.values[:] = values
        if self.gpu:
            self.gpu.put(self.at.value, self.values)

    def read(self):
        return list(memoryview(self.gpu.get(self.at.value, 8 * self.count)).cast("q")) if self.gpu else list(self.values)


def in_stream(library, comm, buffer):
    """Returns the result of the wait for it."""
    result = library.comm_all_reduce(comm, buffer.at, buffer.at, buffer.count, library.DTYPES["i64"], 0, None)
    if result:
        return result
    print("POSTED", flush=True)
    buffer.gpu.synchronize()
    return library.comm_sync(comm, 0)


def main():
    name, rank, size, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    options = dict(argument.split("=", 1) for argument in sys.argv[5:])
    count = int(options.get("count", 1000))
    seconds = float(options.get("seconds", 60))
    library = Library()

    def end(result):
        print(f"{library.NAMES[result]} {library.error() if result else ''}", flush=True)
        return 0 if result == 0 else 1

    result, client = library.open()
    if result:
        return end(result)
    device = int(options.get("device", -1))
    result, comm = library.init(client, name, rank, size, int(options.get("timeout_ms", 20000)), int(options.get("op_timeout_ms", 0)), device)
    if result:
        return end(result)
    print("FORMED", flush=True)
    if mode == "idle":
        time.sleep(seconds)
    values = ctypes.c_int64 * count
    reduced = Buffer(count, device)
    if device >= 0:
        result = reduced.alloc(library, client, options.get("memory", "cuda"))
        if result:
            return end(result)
    if mode == "stream":
        return end(in_stream(library, comm, reduced))
    started = time.monotonic()
    steps = int(options.get("steps", 1 << 60))
    step = 0
    while result == 0 and (step == 0 or mode == "loop" and step < steps and time.monotonic() - started < seconds):
        if "pattern" in options:
            buffer = ctypes.create_string_buffer((options["pattern"] * (count * 8)).encode()[:count * 8], count * 8)
            result = library.comm_broadcast(comm, buffer, count, library.DTYPES["i64"], 0, None)
            result = result or library.comm_sync(comm, 0)
        elif options.get("kind") == "broadcast":
            buffer = values()
            result = library.comm_broadcast(comm, buffer, count, library.DTYPES["i64"], 0, None)
            result = result or library.comm_sync(comm, 0)
        else:
            reduced.fill([(rank + 1) * (i + step) for i in range(count)])
            result = library.comm_all_reduce(comm, reduced.at, reduced.at, count, library.DTYPES["i64"], 0, None)
            result = result or library.comm_sync(comm, 0)
            total = size * (size + 1) // 2
            if result == 0 and reduced.read() != [total * (i + step) for i in range(count)]:
                print("WRONG", flush=True)
                return 1
        if step == 0 and result == 0:
            print("READY", flush=True)
        step += 1
    code = end(result)
    library.comm_destroy(comm)
    library.comm_client_close(client)
    return code


if __name__ == "__main__":
    sys.exit(main())
