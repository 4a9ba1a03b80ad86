#!/usr/bin/env python3
"""Computing and communication at the same time, with asyncio: while commd reduces one array, the rank computes the next.

    python -m commd.run -n 2 overlap.py [--steps N]
"""
import argparse
import asyncio
import time

import numpy

import commd

ELEMENTS = 1 << 20


def compute(array: numpy.ndarray, step: int, rank: int) -> None:
    """Fills the array. It takes about as long as its all-reduce."""
    numpy.multiply(numpy.arange(ELEMENTS, dtype="float32"), step + rank, out=array)
    numpy.sqrt(array, out=array)


def one_after_the_other(comm: commd.Communicator, arrays: list[numpy.ndarray], steps: int) -> float:
    total = 0.0
    for step in range(steps):
        array = arrays[step % 2]
        compute(array, step, comm.rank)
        comm.all_reduce(array, out=array)
        total += float(array[-1])
    return total


async def overlapped(comm: commd.Communicator, arrays: list[numpy.ndarray], steps: int) -> float:
    total, pending = 0.0, None
    for step in range(steps):
        array = arrays[step % 2]
        compute(array, step, comm.rank)
        request = comm.all_reduce(array, out=array, wait=False)
        if pending is not None:
            total += float((await pending)[-1])  # other tasks of the loop run meanwhile
        pending = request
    return total + float((await pending)[-1]) if pending is not None else total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    with commd.init() as comm:
        arrays = [comm.empty(ELEMENTS, "float32") for _ in range(2)]
        comm.barrier()
        began = time.perf_counter()
        expected = one_after_the_other(comm, arrays, options.steps)
        plain_s = time.perf_counter() - began
        comm.barrier()
        began = time.perf_counter()
        total = asyncio.run(overlapped(comm, arrays, options.steps))
        overlapped_s = time.perf_counter() - began
        assert total == expected
        if comm.rank == 0:
            print(f"{options.steps} steps: {plain_s * 1e3:.1f} ms one after the other, {overlapped_s * 1e3:.1f} ms overlapped")


if __name__ == "__main__":
    main()
