#!/usr/bin/env python3
"""Measures commd and its peers in one run, in turn. Prints the median over the repeats.

usage: run_bench.py [--quick] [--only TOPOLOGY,...] [--repeats N] [--out FOLDER]

Only root can measure several nodes. Writes bench.json and bench.svg. $COMMD_BUILD names the folder of the build.
"""
import argparse
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import time

import bars
import report
import topology as topologies
from contestants import OPERATIONS, Commd, Failed, Gloo, OpenMpi, Sweep

BUILD = pathlib.Path(os.environ.get("COMMD_BUILD", "build/release")).resolve()
TIMEOUT_S = 240


class Progress:
    """A progress line on the terminal. Prints nothing if standard error is no terminal."""

    def __init__(self, total):
        self.total = total
        self.done = 0
        self.began_s = time.monotonic()

    def step(self, what):
        if sys.stderr.isatty():
            filled = 30 * self.done // self.total
            sys.stderr.write(f"\r[{'#' * filled}{'.' * (30 - filled)}] {self.done}/{self.total} {time.monotonic() - self.began_s:4.0f} s  {what:45.45}")
            sys.stderr.flush()
        self.done += 1

    def end(self):
        if sys.stderr.isatty():
            sys.stderr.write("\r" + " " * 100 + "\r")


def sweeps_of(place, quick):
    """Yields many sizes for places with bars, and fewer for others, so that the whole run takes a quarter of an hour."""
    others = [name for name in OPERATIONS if name != "all_reduce"]
    if place.rate:
        yield Sweep(["all_reduce"], 1 << 22 if place.has_bars else 1 << 10, 1 << 24, 2 if place.has_bars and not quick else 4, 0.1)
        if not quick:
            yield Sweep(others, 1 << 10, 1 << 20, 1 << 5, 0.02)
    elif place.has_bars:
        yield Sweep(["all_reduce"], 8, 1 << 27 if quick else 1 << 28, 4 if quick else 2, 0.05)
        if not quick:
            yield Sweep(others, 8, 1 << 26, 8, 0.02)
    else:
        yield Sweep(["all_reduce"], 8, 1 << 26, 8, 0.05)
        yield Sweep(others, 1 << 6, 1 << 22, 1 << 8, 0.02)


def measure(place, contestants, repeats, quick, progress, complaints):
    """Returns {contestant: {(operation, size): median us}}."""
    samples = {each.name: {} for each in contestants}
    for sweep in sweeps_of(place, quick):
        for _ in range(repeats):
            for each in contestants:
                progress.step(f"{place.name}: {each.name}, {sweep.operations[0]}{' …' if len(sweep.operations) > 1 else ''}")
                try:
                    for key, time_us in each.sweep(place, sweep, TIMEOUT_S).items():
                        samples[each.name].setdefault(key, []).append(time_us)
                except Failed as failure:
                    complaints.append(f"{place.name}: {each.name}: {failure}")
    return {name: {key: statistics.median(times) for key, times in of.items()} for name, of in samples.items()}


def limits(repeats):
    """Returns {name: (median, unit)}."""
    values, units = {}, {}
    for _ in range(repeats):
        output = subprocess.run([BUILD / "tests/bench/limits", "0.4"], stdout=subprocess.PIPE, text=True, check=True).stdout
        for line in map(json.loads, output.splitlines()):
            values.setdefault(line["limit"], []).append(line["value"])
            units[line["limit"]] = line["unit"]
    return {name: (statistics.median(of), units[name]) for name, of in values.items()}


def kernels(repeats, quick):
    """Returns what bench_reduce prints, as a list of objects."""
    command = [BUILD / "tests/bench/bench_reduce", *(["--quick"] if quick else []), str(2 * repeats + 1)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def main():
    parser = argparse.ArgumentParser(description="commd beside its peers")
    parser.add_argument("--quick", action="store_true", help="fewer topologies, sizes and repeats: three minutes")
    parser.add_argument("--only", default="", help="topologies: " + ",".join(each.name for each in topologies.ALL))
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--settings", default="", help="""more of the daemons' configuration, such as 'bulk_links = "quic";'""")
    parser.add_argument("--out", type=pathlib.Path, default=BUILD / "bench")
    arguments = parser.parse_args()
    repeats = arguments.repeats or (1 if arguments.quick else 3)
    wanted = arguments.only.split(",") if arguments.only else [each.name for each in topologies.ALL if each.has_bars or not arguments.quick]
    unknown = set(wanted) - {each.name for each in topologies.ALL}
    if unknown:
        parser.error(f"no such topology: {', '.join(sorted(unknown))}")
    peers = BUILD / "tests/bench/peers"
    everybody = [Commd(BUILD), OpenMpi(peers), Gloo(peers)]
    places = [each for each in topologies.ALL if each.name in wanted]
    for each in places:
        each.settings = arguments.settings
    complaints = [f"{each.title}: left out, network namespaces cannot be made here" for each in places if not each.is_possible()]
    places = [each for each in places if each.is_possible()]
    progress = Progress(1 + sum(len(list(sweeps_of(each, arguments.quick))) for each in places) * repeats * len(everybody))

    print(f"commd and its peers, {time.strftime('%Y-%m-%d')}, {os.cpu_count()} processors, Linux {platform.release()}; medians of {repeats} runs", flush=True)
    machine = limits(repeats)
    for name, (value, unit) in machine.items():
        print(f"  {name:45} {value:8.4g} {unit}")
    local = kernels(repeats, arguments.quick)
    print("\n" + report.kernels_table(local), flush=True)
    results, figures = [], bars.measure_quic(BUILD, repeats if arguments.quick else 5)
    for place in places:
        with place:
            contestants = [each for each in everybody if each.is_possible(place)]
            complaints += [f"{each.name} is not installed: left out" for each in everybody if each not in contestants]
            medians = measure(place, contestants, repeats, arguments.quick, progress, complaints)
            figures.update(bars.measure_beside(place, everybody[0], BUILD, medians))
        results.append((place, medians))
        progress.end()
        print("\n" + report.table(place, medians, [each.name for each in contestants if each.name != "commd"]), flush=True)
    rows = bars.rows({place.name: medians for place, medians in results}, machine, figures) + bars.kernel_rows(local)
    print("\n" + bars.counts_text(figures))
    print("\n" + report.bars_table(rows))
    for complaint in dict.fromkeys(complaints):
        print(f"note: {complaint}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "bench.svg").write_text(report.plot(results))
    (arguments.out / "bench.json").write_text(json.dumps({
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "processors": os.cpu_count(), "limits": machine, "kernels": local, "figures": figures, "notes": complaints,
        "bars": [dict(zip(("bar", "measured", "limit", "met"), row)) for row in rows],
        "results": [{"topology": place.name, "contestant": name, "operation": operation, "size_bytes": size, "time_us": time_us}
                    for place, medians in results for name, times in medians.items() for (operation, size), time_us in times.items()]}, indent=1))
    print(f"written: {arguments.out / 'bench.json'}, {arguments.out / 'bench.svg'}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends by an exception, so that everything is removed
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
