#!/usr/bin/env python3
"""One of two ranks on GPUs, with a completion queue for its operations: queue_gpu.py SOCKET RANK DEVICE. Prints OK at its end."""
import ctypes
import sys

from gpu import Gpu
from queue_rank import QueueRank

COUNT = 5000


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def run(rank, device):
    gpu = Gpu(device)
    at = ctypes.c_void_p(gpu.alloc(8 * COUNT))
    numbers = (ctypes.c_int64 * COUNT)()
    for step in range(1, 6):
        # A buffer on the GPU, in the legacy stream: the work before the call counts.
        numbers[:] = [(rank.rank + 1) * step + i for i in range(COUNT)]
        gpu.put(at.value, numbers)
        rank.call("comm_all_reduce", at, at, COUNT, 6, 0, cookie=step)
        ended, = rank.take(1)
        check((ended.cookie, ended.result) == (step, "OK"), ended)
        sums = list(memoryview(gpu.get(at.value, 8 * COUNT)).cast("q"))
        check(sums == [3 * step + 2 * i for i in range(COUNT)], f"step {step}: {sums[:3]}")
    # Host buffers, which are copied, in a group.
    rank.require(rank.calls.comm_group_begin())
    buffers = {cookie: rank.reduce(cookie, COUNT) for cookie in (11, 12)}
    rank.require(rank.calls.comm_group_end())
    for each in rank.take(2):
        check(list(buffers[each.cookie]) == rank.sums(each.cookie, COUNT), each)
    # A failure: the stream goes on. The other rank stays until it is told so.
    byte = (ctypes.c_ubyte * 1)()
    if rank.rank == 1:
        rank.call("comm_recv", byte, 1, 13, 0, 4)
        check(rank.take(1)[0].result == "OK", "a message")
        return
    rank.call("comm_all_reduce", at, at, COUNT, 6, 0, cookie=20, timeout_ms=300)
    ended, = rank.take(1)
    check((ended.result, ended.failure.ranks) == ("TIMED_OUT", [1]), ended)
    gpu.get(at.value, 8)
    rank.call("comm_send", byte, 1, 13, 1, 4)
    check(rank.take(1)[0].result == "OK", "a message")


def main():
    path, rank, device = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    queue_rank = QueueRank(path)
    queue_rank.join("gpus", rank, 2, device=device)
    queue_rank.make_queue()
    run(queue_rank, device)
    queue_rank.close()
    print("OK")


if __name__ == "__main__":
    main()
