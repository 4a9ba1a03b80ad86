#!/usr/bin/env python3
"""Runs commd and its peers on the same work, interleaved, and reports medians; README.md says what is measured and how."""
import argparse
import dataclasses
import datetime
import json
import math
import os
import pathlib
import platform
import signal
import statistics
import sys

import bars
import contestants
import counts
import limits
import report
from topology import BUILD, Topology, namespaces_work

MIB = 1 << 20
OTHERS = ["all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv", "barrier"]
TOPOLOGIES = ["local2", "local4", "nodes2-9000", "nodes2-1500", "nodes2-1g", "nodes3-9000", "nodes3-1500", "nodes3-1g", "nodes4-9000",
              "nodes4-1500", "nodes4-1g"]
CLOSEST = ["local2", "local4", "nodes2-9000"]  # where the bars are: every power of two


@dataclasses.dataclass
class Sweep:
    operations: list
    min_bytes: int
    max_bytes: int
    step_factor: int
    seconds_per_size: float


def sweeps_of(topology, options):
    """What is measured there, so that all of it fits a quarter of an hour; --sizes says otherwise."""
    if options.sizes:
        low, high, factor = options.sizes
        return [Sweep(options.operations, low, high, factor, options.seconds_per_size)]
    seconds = 0.02 if options.quick else options.seconds_per_size
    limited = topology.endswith("1g")
    if topology in CLOSEST:
        reduce = Sweep(["all_reduce"], 8, 128 * MIB if options.quick else 256 * MIB, 16 if options.quick else 2, seconds)
    elif limited:
        reduce = Sweep(["all_reduce"], 16, 16 * MIB, 16, seconds)
        if topology == "nodes2-1g":
            reduce = Sweep(["all_reduce"], 4 * MIB, 16 * MIB if options.quick else 64 * MIB, 4, seconds)
    else:
        reduce = Sweep(["all_reduce"], 16, 16 * MIB, 16, seconds)
    large = 256 * MIB if topology == "local2" and not options.quick else 16 * MIB
    others = Sweep(OTHERS, 16, MIB if limited or options.quick else large, 256 if options.quick else 16, seconds)
    sweeps = [reduce, others]
    for sweep in sweeps:
        sweep.operations = [name for name in sweep.operations if name in options.operations]
    return [sweep for sweep in sweeps if sweep.operations]


class Progress:
    """One line that is written over, on a terminal alone."""

    def __init__(self, steps):
        self.steps = steps
        self.done = 0
        self.shown = sys.stderr.isatty()

    def step(self, text):
        if self.shown:
            width = 30
            filled = width * self.done // max(self.steps, 1)
            print(f"\r[{'#' * filled}{'.' * (width - filled)}] {self.done}/{self.steps} {text:50.50}", end="", file=sys.stderr, flush=True)
        self.done += 1

    def end(self):
        if self.shown:
            print("\r" + " " * 100 + "\r", end="", file=sys.stderr, flush=True)


def medians(runs):
    """runs: {(topology, contestant, operation, size class): [one result a repeat]}."""
    results = []
    for (topology, contestant, operation, size_class), repeats in runs.items():
        ranks = int(topology[5])
        time_us = statistics.median(result["time_us"] for result in repeats)
        size = repeats[0]["size_bytes"]
        algorithm, bus = report.bandwidths(operation, ranks, size, time_us)
        results.append({"topology": topology, "ranks": ranks, "contestant": contestant, "operation": operation, "size_bytes": size,
                        "size_class": size_class, "time_us": time_us, "algbw_gbs": algorithm, "busbw_gbs": bus,
                        "wrong": sum(result["wrong"] for result in repeats), "times_us": [result["time_us"] for result in repeats]})
    return results


def measure(name, options, progress, runs, failures):
    """All contestants on one topology, in turn, `repeats` times."""
    topology = Topology(name)
    try:
        for repeat in range(options.repeats):
            for sweep in sweeps_of(name, options):
                for contestant in options.contestants:
                    progress.step(f"{name}: {contestant.name}, round {repeat + 1}")
                    try:
                        results = contestant.run(topology, sweep)
                    except contestants.Failed as failure:
                        failures.append(f"{name}: {contestant.name}: {failure}")
                        continue
                    for result in results:
                        # Sizes of whole blocks differ by a few bytes from the power of two that was asked for.
                        size_class = round(math.log2(result["size_bytes"])) if result["size_bytes"] else 0
                        key = (name, contestant.name, result["operation"], size_class)
                        runs.setdefault(key, [])
                        if len(runs[key]) <= repeat:
                            runs[key].append(result)
    finally:
        topology.close()


def model_name():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return names[0] if names else "unknown"


def read_size(text):
    units = {"K": 1 << 10, "M": MIB, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def read_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="TOPOLOGY,...", help=f"of {', '.join(TOPOLOGIES)}, limits, counts")
    parser.add_argument("--operations", metavar="NAME,...", help="of all_reduce, " + ", ".join(OTHERS))
    parser.add_argument("--contestants", metavar="NAME,...", default="commd,mpi,gloo")
    parser.add_argument("--sizes", metavar="MIN:MAX:FACTOR", help="such as 8:256M:2, for every operation")
    parser.add_argument("--seconds-per-size", type=float, default=0.05)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--quick", action="store_true", help="few sizes, few topologies, one round: three minutes")
    parser.add_argument("--output", metavar="FOLDER", type=pathlib.Path, default=BUILD / "bench")
    options = parser.parse_args()
    known = [*TOPOLOGIES, "limits", "counts"]
    quick = [*CLOSEST, "nodes2-1g", "limits", "counts"]
    options.only = options.only.split(",") if options.only else quick if options.quick else known
    options.operations = options.operations.split(",") if options.operations else ["all_reduce", *OTHERS]
    names = {"commd": contestants.Commd, "mpi": contestants.OpenMpi, "gloo": contestants.Gloo}
    options.contestants = [names[name] for name in options.contestants.split(",")]
    options.repeats = options.repeats or (1 if options.quick else 3)
    if options.sizes:
        low, high, factor = options.sizes.split(":")
        options.sizes = (read_size(low), read_size(high), int(factor))
    return options


def write(document, topologies, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(document, indent=1) + "\n")
    written = [folder / "bench.json"]
    if document["results"]:
        (folder / "bench.svg").write_text(report.plot(document["results"], topologies))
        written.append(folder / "bench.svg")
    print(f"written: {', '.join(str(path) for path in written)}")


def print_report(document, topologies, names):
    for name in topologies:
        print(report.table(document["results"], name, names) + "\n")
    if document["limits"]:
        print(limits.table(document["limits"]) + "\n")
    if document["counts"]:
        print(counts.table(document["counts"]) + "\n")
    for failure in document["failures"]:
        print(f"not measured: {failure}")
    print("\n" + bars.table(document["bars"]) + "\n")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that everything is removed
    options = read_options()
    topologies = [name for name in options.only if name not in ("limits", "counts")]
    failures = []
    options.have_namespaces = namespaces_work()
    if not options.have_namespaces:
        left_out = [name for name in topologies if name.startswith("nodes")]
        failures += [f"{name}: left out: it takes root and network namespaces" for name in left_out]
        topologies = [name for name in topologies if name not in left_out]
    runs = {}
    steps = sum(len(sweeps_of(name, options)) for name in topologies) * options.repeats * len(options.contestants)
    steps += options.repeats * 5 if "limits" in options.only else 0
    steps += 2 * (3 + len(options.contestants)) + 1 if "counts" in options.only else 0
    progress = Progress(steps)
    document = {"schema_version": 1, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "machine": {**platform.uname()._asdict(), "processors": os.cpu_count(), "model": model_name()},
                "repeats": options.repeats, "results": [], "limits": {}, "counts": {}, "failures": failures}
    try:
        for name in topologies:
            measure(name, options, progress, runs, failures)
        if "limits" in options.only:
            document["limits"] = limits.measure(options, progress, failures)
        if "counts" in options.only:
            document["counts"] = counts.measure(options, progress, failures)
    finally:
        progress.end()
    document["results"] = medians(runs)
    document["bars"] = bars.bars(document)
    print_report(document, topologies, [contestant.name for contestant in options.contestants])
    write(document, topologies, options.output)
    return 1 if any(result["wrong"] for result in document["results"]) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
