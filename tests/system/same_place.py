#!/usr/bin/env python3
"""A process with two connections that frees memory of a GPU and then gets the same address again.

Usage: same_place.py NAME. It prints DONE, or what is wrong.

In the first part, both connections have used the old memory. In the second part, an operation still uses the old memory, and waits for its other
rank, when that memory is freed. An operation on the new memory must wait until the first operation has ended. Or it must fail, and say for which
operation it waited.
"""
import ctypes
import sys
import threading
import time

from client_library import Library
from gpu import UNIT, Gpu

COUNT = UNIT // 8


class CallOptions(ctypes.Structure):
    """The first members of comm_call_options_t."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("timeout_ms", ctypes.c_uint32), ("factor", ctypes.c_double), ("stream", ctypes.c_void_p)]


class Wrong(Exception):
    pass


class SamePlace:
    def __init__(self, name):
        self.calls, self.gpu, self.name = Library(), Gpu(0), name
        self.clients = [self.calls.open()[1] for _ in range(2)]
        self.alone = [self.init(client, f"{name}-alone-{i}", 0, 1) for i, client in enumerate(self.clients)]

    def init(self, client, name, rank, size):
        result, comm = self.calls.init(client, name, rank, size, device=0)
        self.expect(result, "OK")
        return comm

    def expect(self, result, wanted, *texts):
        said = self.calls.error() if result else ""
        if self.calls.NAMES[result] != wanted or any(text not in said for text in texts):
            raise Wrong(f"{self.calls.NAMES[result]} {said}; expected {wanted} {texts}")

    def submit(self, comm, pointer):
        """Submits an operation that is ordered against no stream, because freeing memory waits for the GPU's streams."""
        options = CallOptions(ctypes.sizeof(CallOptions), 0, 1.0, ctypes.c_void_p(-1))
        return self.calls.comm_all_reduce(comm, pointer, pointer, COUNT, self.calls.DTYPES["i64"], 0, ctypes.byref(options))

    def reduce(self, comm, pointer, value):
        """With one rank, the result equals the input."""
        self.gpu.put(pointer, value.to_bytes(8, "little") * COUNT)
        result = self.submit(comm, pointer) or self.calls.comm_sync(comm, 0)
        if result == 0 and self.gpu.get(pointer, UNIT) != value.to_bytes(8, "little") * COUNT:
            raise Wrong("other numbers")
        return result

    def again(self, pointer):
        self.gpu.free(pointer)
        if self.gpu.alloc(UNIT) != pointer:
            raise Wrong("another address")

    def both_used_it(self):
        pointer = self.gpu.alloc(UNIT)
        for turn in range(5):
            for i in (turn % 2, 1 - turn % 2, turn % 2):
                self.expect(self.reduce(self.alone[i], pointer, 100 * turn + i), "OK")
            self.again(pointer)
        self.gpu.free(pointer)

    def pair(self, name):
        """Makes a communicator of both connections."""
        comms = [None, None]

        def join(rank):
            comms[rank] = self.init(self.clients[rank], name, rank, 2)
        threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return comms

    def an_operation_uses_it(self):
        first, second = self.pair(f"{self.name}-slow")
        pointer, other = self.gpu.alloc(UNIT), self.gpu.alloc(UNIT)
        self.expect(self.submit(first, pointer), "OK")
        self.again(pointer)
        self.expect(self.submit(self.alone[0], pointer), "BUSY", f'operation on "{self.name}-slow"', "comm_all_reduce")

        def come_late():
            time.sleep(0.5)
            self.gpu.make_current()
            self.submit(second, other)
        late = threading.Thread(target=come_late)
        late.start()
        self.expect(self.reduce(self.alone[0], pointer, 7), "OK")
        late.join()
        for comm in (first, second):
            self.expect(self.calls.comm_sync(comm, 0), "OK")
        self.again(pointer)
        self.expect(self.reduce(self.alone[1], pointer, 8), "OK")


def main():
    try:
        test = SamePlace(sys.argv[1])
        test.both_used_it()
        test.an_operation_uses_it()
    except Wrong as wrong:
        print(wrong, flush=True)
        return 1
    print("DONE", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
