#!/usr/bin/env python3
"""One rank of a job that spans an honest node and one that lies: job.py SOCKET USER RANK SECONDS KIND PATIENCE.

The rank forms a communicator, works until an operation fails, and forms a new one, for SECONDS. If none has formed by then, it goes on trying
for up to PATIENCE seconds more. KIND: reduce, messages, or form (forms and leaves at once). Prints what commd told it, as JSON. It never hangs.
"""
import ctypes
import os
import sys
import time

from wire import SAID, become
from client_library import Library

COUNT = 8192
TIMEOUT_MS = 1500
PAUSE_S = 0.02


def note(library, result):
    if result:
        SAID.add(result, library.error())
    return result


def work(library, comm, buffers, rank, kind):
    out, into = buffers
    if kind == "messages":
        library.comm_group_begin()
        result = library.comm_send(comm, out, COUNT * 8, library.DTYPES["u8"], 1 - rank, 1, None)
        result = library.comm_recv(comm, into, COUNT * 8, library.DTYPES["u8"], 1 - rank, 1, None) or result
        result = library.comm_send(comm, out, 100, library.DTYPES["u8"], 1 - rank, 2, None) or result
        result = library.comm_recv(comm, into, 100, library.DTYPES["u8"], 1 - rank, 2, None) or result
        return library.comm_group_end() or result or library.comm_sync(comm, 0)
    return library.comm_all_reduce(comm, out, into, COUNT, library.DTYPES["i64"], 0, None) or library.comm_sync(comm, 0)


def main():
    path, user, rank, seconds, kind, patience = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5], float(sys.argv[6])
    os.environ["COMMD_SOCKET"] = path
    library = Library()
    become(user)
    end_s = time.monotonic() + seconds
    patient_s = end_s + patience
    buffers = [(ctypes.c_int64 * COUNT)(), (ctypes.c_int64 * COUNT)()]
    formed = False

    def goes_on():
        return time.monotonic() < (end_s if formed else patient_s)

    while goes_on():
        result, client = library.open()
        while goes_on() and not note(library, result):
            result, comm = library.init(client, "job", rank, 2, TIMEOUT_MS, TIMEOUT_MS)
            if note(library, result):
                result = 0
                time.sleep(PAUSE_S)
                continue
            formed = True
            SAID.counts["formed"] += 1
            while kind != "form" and not note(library, work(library, comm, buffers, rank, kind)) and goes_on():
                pass
            library.comm_destroy(comm)
        library.comm_client_close(client)
        time.sleep(PAUSE_S)
    SAID.print()
    os._exit(0)


if __name__ == "__main__":
    main()
