#!/usr/bin/env python3
"""Measures many nodes on one machine: how long they take to settle, to form a communicator of a rank each, and for the first operations.

usage: run_scale.py [--nodes N] [--rounds N] [--idle SECONDS] [--build FOLDER]

All daemons run on loopback. The ranks are threads of this process, so the figures of operations include its work. Printed: what was measured, as JSON.
"""
import argparse
import ctypes
import json
import os
import pathlib
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "system"))
from cluster import BUILD, Cluster, Library, cpu_s

MIB = 1 << 20
F32, SUM = 1, 0


class Ranks:
    """One rank on each node, each on a thread of its own."""

    def __init__(self, cluster, library):
        self.calls = library
        self.clients = []
        for name in cluster.names:
            result, client = library.open(cluster.socket(name))
            if result != 0:
                raise SystemExit(f"{name}: {library.error()}")
            self.clients.append(client)
        self.comms = [None] * len(self.clients)

    def together(self, what, work):
        """Runs work(rank) for all ranks at once. Returns the seconds until the last one is done."""
        failures = []
        barrier = threading.Barrier(len(self.clients) + 1)

        def run(rank):
            barrier.wait()
            result = work(rank)
            if result != 0:
                failures.append(f"rank {rank}: {result}: {self.calls.error()}")

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(self.clients))]
        for thread in threads:
            thread.start()
        barrier.wait()
        begin = time.monotonic()
        for thread in threads:
            thread.join()
        if failures:
            raise SystemExit("\n".join([what, *failures[:5]]))
        return time.monotonic() - begin

    def form(self, name):
        def init(rank):
            result, self.comms[rank] = self.calls.init(self.clients[rank], name, rank, len(self.clients), 60000, 60000)
            return result

        return self.together("comm_init", init)

    def all_reduce(self, count):
        size = len(self.clients)
        inputs = [(ctypes.c_float * count)(*[rank + 1] * count) for rank in range(size)]
        outputs = [(ctypes.c_float * count)(*[-1] * count) for _ in range(size)]

        def call(rank):
            result = self.calls.comm_all_reduce(self.comms[rank], inputs[rank], outputs[rank], count, F32, SUM, None)
            return result or self.calls.comm_sync(self.comms[rank], 60000)

        seconds = self.together(f"all_reduce of {count}", call)
        expected = size * (size + 1) / 2
        if any(output[i] != expected for output in outputs for i in (0, count // 2, count - 1)):
            raise SystemExit("a wrong sum")
        return seconds

    def destroy(self):
        self.together("comm_destroy", lambda rank: self.calls.comm_destroy(self.comms[rank]))


def links(cluster):
    return sum(node["state"] == "up" for name in cluster.names for node in cluster.json(name, "nodes")["nodes"]) // 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=0)
    parser.add_argument("--build", default=str(BUILD))
    options = parser.parse_args()
    names = [f"n{i:03d}" for i in range(options.nodes)]
    figures = {"nodes": options.nodes}
    try:
        measure(options, names, figures)
    finally:  # also what was measured before a failure
        print(json.dumps(figures))


def measure(options, names, figures):
    with Cluster(names, namespaces=False, start=False, build=pathlib.Path(options.build)) as cluster:
        begin = time.monotonic()
        for name in names:
            cluster.start(name)
        cluster.wait(lambda: all(os.path.exists(cluster.socket(name)) for name in names), "sockets", 60)
        for name in names:
            cluster.wait(lambda: cluster.commctl(name, "status").returncode == 0, f"node {name} ready", 120)
        figures["settled_s"] = round(time.monotonic() - begin, 2)
        figures["links_settled"] = links(cluster)
        if options.idle > 0:
            time.sleep(10)
            before = sum(cpu_s(cluster.daemons[name].pid) for name in names)
            time.sleep(options.idle)
            used = sum(cpu_s(cluster.daemons[name].pid) for name in names) - before
            figures["idle_percent_of_a_core_each"] = round(100 * used / options.idle / len(names), 3)
        ranks = Ranks(cluster, Library())
        figures["init_s"] = []
        for round_ in range(options.rounds):
            figures["init_s"].append(round(ranks.form(f"round-{round_}"), 3))
            if round_ == 0:
                figures["links_formed"] = links(cluster)
            if round_ < options.rounds - 1:
                ranks.destroy()
                time.sleep(15)  # connections that nobody needs end
        figures["first_8_bytes_s"] = round(ranks.all_reduce(2), 4)
        figures["8_bytes_ms"] = round(1000 * statistics.median(ranks.all_reduce(2) for _ in range(7)), 2)
        figures["first_1_mib_s"] = round(ranks.all_reduce(MIB // 4), 3)
        figures["1_mib_ms"] = round(1000 * statistics.median(ranks.all_reduce(MIB // 4) for _ in range(7)), 1)
        figures["links_used"] = links(cluster)
        figures["load"] = os.getloadavg()[0]


if __name__ == "__main__":
    main()
