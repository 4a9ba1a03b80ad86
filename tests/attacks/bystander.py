#!/usr/bin/env python3
"""A newcomer of another user, who connects again and again: bystander.py SOCKET USER SECONDS.

Each time the newcomer connects, forms a communicator, runs an all-reduce, checks it, and leaves. Prints as JSON the seconds that each time
took, and the text of the first failure, if any.
"""
import ctypes
import json
import os
import sys
import time

from pair import become
from client_library import Library

COUNT = 8192
PAUSE_S = 0.02


def once(library, name):
    began_s = time.monotonic()
    result, client = library.open()
    if result:
        raise RuntimeError(f"open: {library.NAMES[result]} {library.error()}")
    result, comm = library.init(client, name, 0, 1)
    buffer = (ctypes.c_int64 * COUNT)(*range(COUNT))
    result = result or library.comm_all_reduce(comm, buffer, buffer, COUNT, library.DTYPES["i64"], 0, None) or library.comm_sync(comm, 0)
    if result:
        raise RuntimeError(f"run: {library.NAMES[result]} {library.error()}")
    took_s = time.monotonic() - began_s
    if list(buffer) != list(range(COUNT)):
        raise RuntimeError("WRONG")
    library.comm_destroy(comm)
    library.comm_client_close(client)
    return took_s


def main():
    path, user, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    os.environ["COMMD_SOCKET"] = path
    library = Library()
    become(user)
    end_s, took = time.monotonic() + seconds, []
    while not took or time.monotonic() < end_s:
        try:
            took.append(once(library, "newcomer"))
        except RuntimeError as failure:
            print(json.dumps({"failure": str(failure), "took": took}))
            return 1
        time.sleep(PAUSE_S)
    print(json.dumps({"took": took}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
