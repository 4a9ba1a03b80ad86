#!/usr/bin/env python3
"""Measures messages and compares them with their bars: 100,000 of 16 KiB one way during collectives, and 1 MiB against a broadcast of 1 MiB.

usage: run_messages.py [--only TOPOLOGY,...] [--count N]

The bars: each message comes at most 100 ms after the one before; messages of 1 MiB have at least half the bandwidth of broadcasts of 1 MiB. Each
kind is measured in three rounds, in turn. The longest wait of all rounds counts, and the median of the bandwidths. Exit code 1: a bar is missed.
Only root can measure several nodes.
"""
import argparse
import json
import os
import platform
import signal
import statistics
import sys
import time

import topology as topologies
from cluster import BUILD
from contestants import Failed, finish, start

MIB = 1 << 20
PLACES = ("local2", "nodes2-9000")
ROUNDS = 3
LARGE_COUNT = 1000
STALL_MAX_MS = 100
BANDWIDTH_RATIO_MIN = 0.5
TIMEOUT_S = 300
ALONE, BESIDE, BROADCASTS = 0, 1, 2


class Place:
    def __init__(self, place):
        self.place = place
        self.runs = 0

    def measure(self, count, size_bytes, how):
        """Returns (MB/s, longest ms) of the rank that receives."""
        self.runs += 1
        processes = []
        for rank in range(2):
            node = self.place.node_of_rank(rank)
            processes.append(start(self.place.command(node, BUILD / "tests/bench/messages", f"messages-{self.runs}", rank, count, size_bytes, how),
                                   env=self.place.cluster.environment(node)))
        received = next(line for line in map(json.loads, finish(processes, TIMEOUT_S)) if line["rank"] == 1)
        return count * size_bytes / received["seconds"] / 1e6, received["longest_ms"]


def measure(place, count):
    """Prints the place's lines. Returns whether it keeps the bars."""
    small, large, broadcasts = [], [], []
    with place:
        here = Place(place)
        for _ in range(ROUNDS):
            broadcasts.append(here.measure(LARGE_COUNT, MIB, BROADCASTS)[0])
            large.append(here.measure(LARGE_COUNT, MIB, ALONE)[0])
            small.append(here.measure(count, 16 << 10, BESIDE))
    longest_ms = max(each[1] for each in small)
    ratio = statistics.median(each / other for each, other in zip(large, broadcasts))
    stalls, slow = longest_ms > STALL_MAX_MS, ratio < BANDWIDTH_RATIO_MIN
    print(f"{place.name:12} {count} x 16 KiB beside broadcasts: {statistics.median(each[0] for each in small):7.0f} MB/s, "
          f"longest wait {longest_ms:.1f} ms of at most {STALL_MAX_MS}{': MISSED' if stalls else ''}")
    print(f"{'':12} 1 MiB: {statistics.median(large):7.0f} MB/s, broadcasts {statistics.median(broadcasts):7.0f} MB/s, "
          f"{ratio:.2f} x of at least {BANDWIDTH_RATIO_MIN}{': MISSED' if slow else ''}", flush=True)
    return not stalls and not slow


def main():
    parser = argparse.ArgumentParser(description="messages beside their bars")
    parser.add_argument("--only", default=",".join(PLACES), help="places: " + ",".join(PLACES))
    parser.add_argument("--count", type=int, default=100_000, help="of messages of 16 KiB")
    options = parser.parse_args()
    if set(options.only.split(",")) - set(PLACES):
        parser.error(f"--only: there is {', '.join(PLACES)}")
    print(f"commd messages, {time.strftime('%Y-%m-%d')}, {os.cpu_count()} processors, Linux {platform.release()}", flush=True)
    fine = True
    for place in (each for each in topologies.ALL if each.name in options.only.split(",")):
        if not place.is_possible():
            print(f"{place.name}: left out, network namespaces cannot be made here")
            continue
        try:
            fine = measure(place, options.count) and fine
        except Failed as failure:
            print(f"{place.name}: {failure}")
            fine = False
    return 0 if fine else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends by an exception, so that everything is removed
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
