#!/usr/bin/env python3
"""Data-parallel training that goes on when ranks, daemons or nodes are lost, and takes in processes that come later.

usage: elastic.py JOB [STEPS [SECONDS [LEAST]]]

Start as many as you like, on any node, at any time. Each rank fits the same line to its own part of the data. When
ranks are lost, the others shrink their communicator; newcomers are taken in every ten steps. All take the state of
rank 0, which was there before. A process whose daemon is lost comes back as a newcomer. Each line of the output has
the step, the number of ranks and the loss. A step lasts SECONDS at least.
"""
import sys
import time

import numpy

import commd

GROW_STEPS = 10


def gradient(weights, rank, size):
    """Of the squared error on this rank's part of the data; its last element is the error itself."""
    x = numpy.arange(rank, 240, size) / 240
    error = weights[0] * x + weights[1] - (3 * x - 1)
    return numpy.array([(error * x).sum(), error.sum(), (error ** 2).sum()]) / 240



def train(comm, state, steps, pause_s):
    shared = False  # whether all ranks of comm have the state of rank 0, which was there before
    while True:
        following = None
        try:
            if not shared:
                comm.broadcast(state, root=0)
                shared = True
            if state[2] == steps:
                break
            total = comm.all_reduce(gradient(state[:2], comm.rank, comm.size))
            state[:2] -= 0.5 * total[:2]
            state[2] += 1
            print(f"step {int(state[2])} ranks {comm.size} loss {total[2]:.6f}", flush=True)
            if state[2] % GROW_STEPS == 0:
                following = comm.grow()
        except (commd.RankLost, commd.NodeLost):
            following = comm.shrink(timeout=30)
            print(f"lost {comm.lost}: {following.size} ranks go on", flush=True)
        if following is not None:
            comm.destroy()
            comm, shared = following, False
        time.sleep(pause_s)
    comm.destroy()


def main():
    if not 2 <= len(sys.argv) <= 5:
        sys.exit(__doc__)
    job, steps, pause_s, least = (sys.argv[1:] + ["200", "0.01", "1"][len(sys.argv) - 2:])[:4]
    state = numpy.array([0.0, 0.0, 0.0])  # two weights, and the number of steps that are done
    while state[2] < int(steps):
        try:
            train(commd.join(job, least=int(least), op_timeout=30, daemon_wait=60), state, int(steps), float(pause_s))
        except (commd.DaemonLost, commd.Aborted) as error:
            print(f"comes back after: {error}", flush=True)


if __name__ == "__main__":
    main()
