#!/usr/bin/env python3
"""One rank of a job that forms its communicator again after failures, for tests: reforming.py NAME RANK SIZE SECONDS [FILE]

Runs all-reduces, and checks each. After any failure it waits for commd, opens it again, and joins the same name again. The
ranks agree at which step to go on. Prints "GAP seconds reason" for each failure: the time from the last right result to the
next one. Prints "DONE steps" at the end: after SECONDS, or as soon as FILE exists. If a result is wrong, prints "WRONG", and
the exit code is 1.
"""
import ctypes
import os
import sys
import time

from client_library import Library

COUNT = 20000
PAUSE_S = 0.02  # between steps, so that the ranks leave processors to what they test
SUM, MIN = 0, 2
WAIT_MS = 10000


class OpenOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("socket_path", ctypes.c_char_p), ("timeout_ms", ctypes.c_uint32), ("wait_ms", ctypes.c_uint32)]


class Job:
    def __init__(self, name, rank, size, seconds, stop=None):
        self.calls = Library()
        self.name, self.rank, self.size = name, rank, size
        self.until, self.stop = time.monotonic() + seconds, stop
        self.client = self.comm = None
        self.step = 0

    def reduce(self, values, redop):
        """Returns the result."""
        size = ctypes.sizeof(values) // 8
        result = self.calls.comm_all_reduce(self.comm, values, values, size, self.calls.DTYPES["i64"], redop, None)
        return result or self.calls.comm_sync(self.comm, 0)

    def form(self):
        """Opens what is closed. Returns the result."""
        if self.client is None:
            client = ctypes.c_void_p()
            options = OpenOptions(ctypes.sizeof(OpenOptions), None, 2000, WAIT_MS)
            result = self.calls.comm_client_open(ctypes.byref(options), ctypes.byref(client))
            if result:
                return result
            self.client = client
        result, comm = self.calls.init(self.client, self.name, self.rank, self.size, timeout_ms=5000, op_timeout_ms=5000)
        if result:
            return result
        self.comm = comm
        step = (ctypes.c_int64 * 1)(self.step)
        result = self.reduce(step, MIN)  # some ranks may have seen the end of a step that others have not
        self.step = step[0] if result == 0 else self.step
        return result

    def close(self):
        self.calls.comm_destroy(self.comm)
        self.calls.comm_client_close(self.client)
        self.client = self.comm = None

    def run(self):
        """Returns the exit code."""
        reason, right_at = "", time.monotonic()
        while True:
            result = self.form() if self.comm is None else 0
            if result == 0:
                ends = time.monotonic() >= self.until or (self.stop is not None and os.path.exists(self.stop))
                # The last word says whether all have time left, so that all ranks end at the same step.
                values = (ctypes.c_int64 * COUNT)(*[(self.rank + 1) * (i + self.step) for i in range(COUNT - 1)], ends)
                result = self.reduce(values, SUM)
            if result:
                reason = reason or f"{self.calls.NAMES[result]} {self.calls.error()}"
                self.close()
                time.sleep(0.02)
                continue
            total = self.size * (self.size + 1) // 2
            if list(values)[:-1] != [total * (i + self.step) for i in range(COUNT - 1)]:
                print("WRONG at step", self.step, flush=True)
                return 1
            now = time.monotonic()
            if reason:
                print(f"GAP {now - right_at:.3f} {reason}", flush=True)
            reason, right_at = "", now
            self.step += 1
            time.sleep(PAUSE_S)
            if values[COUNT - 1] > 0:
                print("DONE", self.step, flush=True)
                self.close()
                return 0


if __name__ == "__main__":
    sys.exit(Job(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), *sys.argv[5:]).run())
