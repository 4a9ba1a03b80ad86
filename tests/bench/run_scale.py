#!/usr/bin/env python3
"""Measures many nodes on one machine: how long they take to settle, to form a communicator of a rank each, and for the first operations.

usage: run_scale.py [--nodes N] [--rounds N] [--idle SECONDS] [--build FOLDER]

All daemons run on loopback. The ranks are threads of this process, so the figures of operations include its work. Printed: what was measured, as JSON, and under
"plan" what `commctl plan` says with these measured inputs: latency and rate of the links, processor time of a connection and of a message,
and nodes for each processor.
"""
import argparse
import ctypes
import json
import math
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


def private_mib(cluster):
    """The median of the daemons' private memory."""
    def of(pid):
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
    return round(statistics.median(of(daemon.pid) for daemon in cluster.daemons.values()), 2)


def daemons_cpu_s(cluster):
    return sum(cpu_s(daemon.pid) for daemon in cluster.daemons.values())


def measured_network(cluster):
    """What the nodes have measured of their links, while nothing else runs: the median of latency in us, and rate in Gbit/s."""
    rows = [cluster.json(name, "algorithms", "-s", "8") for name in cluster.names[:9]]
    known = [row for row in rows if row["measured"]] or rows
    return [round(statistics.median(row["latency_ns"] / 1e3 for row in known), 1), round(statistics.median(row["bytes_per_s"] * 8 / 1e9 for row in known), 3)]


def plan(cluster, figures):
    """What commctl plan says, beside what was measured."""
    sharing = max(1, len(cluster.names) / os.cpu_count())
    said = cluster.json(cluster.names[0], "plan", "all_reduce", "-n", len(cluster.names), "-s", "8,1m", "-l", figures["network"][0], "-b", figures["network"][1], "-d", figures["dial_us"], "-t", figures["message_us"], "-p", sharing)
    small, large = (next(row for row in said["algorithms"] if row["picked"] and row["size_bytes"] == size) for size in (8, MIB))
    formation = said["formation"]
    return {"nodes_per_processor": sharing, "init_s": round(formation["fresh_ns"] / 1e9, 3), "init_warm_s": round(formation["warm_ns"] / 1e9, 3), "links_of_a_node": formation["links"],
            "memory_mib": round(formation["memory_bytes"] / MIB, 2), "first_8_bytes_s": round(small["first_ns"] / 1e9, 4),
            "8_bytes_ms": round(small["predicted_ns"] / 1e6, 2), "1_mib_ms": round(large["predicted_ns"] / 1e6, 1), "first_1_mib_s": round(large["first_ns"] / 1e9, 3),
            "algorithms": [small["name"], large["name"]]}


def losses(cluster):
    """The lines with which daemons have said so far that they lost another one."""
    return [f"{name}: {line}" for name in cluster.names for line in cluster.log(name).splitlines() if " is down: " in line]


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
        figures["private_mib_settled"] = private_mib(cluster)
        if options.idle > 0:
            time.sleep(10)
            lost = set(losses(cluster))
            before = daemons_cpu_s(cluster)
            time.sleep(options.idle)
            used = daemons_cpu_s(cluster) - before
            figures["idle_percent_of_a_core_each"] = round(100 * used / options.idle / len(names), 3)
            false = [line for line in losses(cluster) if line not in lost]  # all daemons run
            figures["idle_losses"] = len(false)
            print("\n".join(false[:10]), file=sys.stderr)
            figures["idle_load"] = os.getloadavg()[0]
        time.sleep(5)  # links are measured now
        figures["network"] = measured_network(cluster)
        ranks = Ranks(cluster, Library())
        figures["init_s"] = []
        for round_ in range(options.rounds):
            before = daemons_cpu_s(cluster)
            figures["init_s"].append(round(ranks.form(f"round-{round_}"), 3))
            if round_ == 0:
                used_s = daemons_cpu_s(cluster) - before
                figures["links_formed"] = links(cluster)
                figures["private_mib_formed"] = private_mib(cluster)
                figures["dial_us"] = round(1e6 * used_s / 2 / max(1, figures["links_formed"] - figures["links_settled"]))
                ranks.destroy()
                figures["init_warm_s"] = round(ranks.form("round-0"), 3)  # the same name has the same place, so all connections are there
            if round_ < options.rounds - 1:
                ranks.destroy()
                time.sleep(15)  # connections that nobody needs end
        figures["first_8_bytes_s"] = round(ranks.all_reduce(2), 4)
        before = daemons_cpu_s(cluster)
        figures["8_bytes_ms"] = round(1000 * statistics.median(ranks.all_reduce(2) for _ in range(7)), 2)
        messages = 7 * options.nodes * math.ceil(math.log2(options.nodes))  # recursive doubling
        figures["message_us"] = round(1e6 * (daemons_cpu_s(cluster) - before) / messages, 1)
        figures["first_1_mib_s"] = round(ranks.all_reduce(MIB // 4), 3)
        figures["1_mib_ms"] = round(1000 * statistics.median(ranks.all_reduce(MIB // 4) for _ in range(7)), 1)
        figures["links_used"] = links(cluster)
        figures["private_mib_used"] = private_mib(cluster)
        figures["plan"] = plan(cluster, figures)
        figures["load"] = os.getloadavg()[0]


if __name__ == "__main__":
    main()
