#!/usr/bin/env python3
"""k-means (Lloyd 1982) with numpy. Each rank has points of its own; a group of all-reduces sums those of each cluster.

    python -m commd.run -n 4 kmeans.py [--points N]
"""
import argparse

import numpy

import commd

DIMENSIONS, CLUSTERS, STEPS_MAX = 2, 5, 100


def make_points(rank: int, count: int) -> numpy.ndarray:
    """Returns points around five places, the same on each run."""
    random = numpy.random.default_rng(rank)
    angles = 2 * numpy.pi * random.integers(CLUSTERS, size=count) / CLUSTERS
    places = 10 * numpy.stack([numpy.cos(angles), numpy.sin(angles)], axis=1)
    return places + random.normal(size=(count, DIMENSIONS))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=100_000, help="points of each rank")
    options = parser.parse_args()
    with commd.init() as comm:
        points = make_points(comm.rank, options.points)
        # Arrays of comm.empty are in shared memory: commd works on them without a copy.
        sums = comm.empty((CLUSTERS, DIMENSIONS))
        counts = comm.empty(CLUSTERS, "int64")
        centres = comm.broadcast(points[:CLUSTERS].copy(), root=0)
        for step in range(1, STEPS_MAX + 1):
            distances = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
            nearest = distances.argmin(axis=1)
            for cluster in range(CLUSTERS):
                sums[cluster] = points[nearest == cluster].sum(axis=0)
            counts[:] = numpy.bincount(nearest, minlength=CLUSTERS)
            with comm.group():
                comm.all_reduce(sums, out=sums)
                comm.all_reduce(counts, out=counts)
            moved = sums / numpy.maximum(counts, 1)[:, None]
            if numpy.array_equal(moved, centres):  # results have the same bits on all ranks, so all of them stop
                break
            centres = moved
        if comm.rank == 0:
            print(f"{comm.size} ranks, {counts.sum()} points: {step} steps to these centres")
            for centre, count in sorted(zip(centres.round(3).tolist(), counts.tolist())):
                print(f"  {centre[0]:8.3f} {centre[1]:8.3f}  {count} points")


if __name__ == "__main__":
    main()
