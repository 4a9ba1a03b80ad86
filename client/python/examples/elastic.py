#!/usr/bin/env python3
"""Data-parallel training that goes on when ranks are lost, also whole nodes.

usage: elastic.py NAME RANK SIZE [STEPS [SECONDS]]

Each rank fits the same line to its own part of the data. When a rank, a node or a daemon ends, the others shrink
their communicator, take the state of the first survivor, and go on with the next step. A step lasts SECONDS at least.
Each line of the output has the step, the number of ranks and the loss.
"""
import sys
import time

import numpy

import commd


def gradient(weights, rank, size):
    """Of the squared error on this rank's part of the data; its last element is the error itself."""
    x = numpy.arange(rank, 240, size) / 240
    error = weights[0] * x + weights[1] - (3 * x - 1)
    return numpy.array([(error * x).mean(), error.mean(), (error ** 2).mean()])


def recover(comm, state):
    """Returns the survivors' communicator. `state` becomes the first survivor's."""
    while True:
        survivors = comm.shrink(timeout=30)
        print(f"lost {comm.lost}: {survivors.size} ranks go on", flush=True)
        comm.destroy()
        comm = survivors
        try:
            comm.broadcast(state, root=0)
            return comm
        except (commd.RankLost, commd.NodeLost):
            pass  # another loss: shrink again


def train(comm, steps, pause_s):
    state = numpy.array([0.0, 0.0, 0.0])  # two weights, and the number of steps that are done
    while state[2] < steps:
        try:
            total = comm.all_reduce(gradient(state[:2], comm.rank, comm.size))
        except (commd.RankLost, commd.NodeLost):
            comm = recover(comm, state)
            continue
        state[:2] -= 0.5 * total[:2] / comm.size
        state[2] += 1
        print(f"step {int(state[2])} ranks {comm.size} loss {total[2] / comm.size:.6f}", flush=True)
        time.sleep(pause_s)
    comm.destroy()


if __name__ == "__main__":
    arguments = sys.argv[1:] + ["200", "0.01"][len(sys.argv) - 4:]
    train(commd.init(arguments[0], int(arguments[1]), int(arguments[2]), op_timeout=30), int(arguments[3]), float(arguments[4]))
