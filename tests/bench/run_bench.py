#!/usr/bin/env python3
"""Measures commd and its peers in one run, in turn. Prints the median over the repeats.

usage: run_bench.py [--quick] [--only TOPOLOGY,...] [--contestants NAME,...] [--repeats N] [--minutes M] [--shared-processors] [--out FOLDER]

Only root can measure several nodes. Writes bench.json, bench.svg, heatmap.svg and growth.svg. $COMMD_BUILD names the folder of the build.
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
import comparison
import mpi
import plots
import report
import topology as topologies
from contestants import COLLECTIVES, OPERATIONS, Commd, Failed, Gloo, Sweep, TooSlow, Trace, run_jobs

BUILD = pathlib.Path(os.environ.get("COMMD_BUILD", "build/release")).resolve()
TRACES = pathlib.Path(__file__).resolve().parent / "traces"
TIMEOUT_S = {True: 40, False: 240}  # of one sweep, in a quick and a full run
SAME_STATE = 1.5  # times the shortest ping-pong: a round with a longer one ran in a slower state of the machine
MINUTES = {True: 10, False: 120}  # of a quick and a full run
QUICK_PLACES = ("local2", "local4", "nodes2-9000", "nodes2-1500")
QUICK_TRACES = ("ddp-resnet50", "moe-skew")
COMPUTE_US = 1000


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


def traces(quick):
    paths = sorted(TRACES.glob("*.trace"))
    return [Trace(path, 1 if quick else 2) for path in paths if not quick or path.stem in QUICK_TRACES]


def sweeps_of(place, quick):
    """Yields many sizes for places with bars, and few for others. MINUTES bound the whole run."""
    if place.rate:
        yield Sweep(["all_reduce"], 1 << 22 if place.has_bars else 1 << 10, 1 << 24, 2 if place.has_bars and not quick else 4, 0.1)
        if not quick:
            yield Sweep(OPERATIONS[1:], 1 << 10, 1 << 20, 1 << 5, 0.02)
    elif place.has_bars:
        yield Sweep(["all_reduce"], 8, 1 << 27, 16 if quick else 4, 0.02 if quick else 0.05)
        yield Sweep(COLLECTIVES[1:] if quick else OPERATIONS[1:], 8, 1 << 23, 1 << 4, 0.01 if quick else 0.02)
        yield Sweep(["all_reduce"], 8, 1 << 15, 1 << 12, 0.03 if quick else 0.1, COMPUTE_US)
        yield Sweep(["all_reduce"], 1 << 15, 1 << 23, 1 << 4, 0.05 if quick else 0.1, overlaps=True)
        yield Sweep(["all_reduce"], 1 << 3, 1 << 24, 1 << 7, 0.1 if quick else 0.3, jobs=2)
        yield from traces(quick)
    else:
        yield Sweep(["all_reduce"], 1 << 11, 1 << 23, 1 << 6, 0.05)
        yield Sweep(OPERATIONS[1:], 1 << 11, 1 << 17, 1 << 6, 0.02)


class Samples:
    """What was measured at one place, round by round. `state` of a round is the time of a ping-pong of two processes that spin: on a shared machine,
    it jumps between two values, and figures of different states do not compare."""

    def __init__(self, contestants):
        self.of = {each.name: {} for each in contestants}  # {contestant: {key: [(state, us, processor us)]}}
        self.states = []

    def begin_round(self):
        output = subprocess.run([BUILD / "tests/bench/limits", "ping-pong"], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.states.append(json.loads(output)["value"])

    def add(self, contestant, times):
        for key, time_us in times.items():
            self.of[contestant.name].setdefault(key, []).append((self.states[-1], time_us, times.cpu_us[key]))

    def is_slow(self, state):
        return state > SAME_STATE * min(self.states)

    def states_text(self):
        slow = sum(map(self.is_slow, self.states))
        return (f"spin ping-pong before each of {len(self.states)} rounds: {min(self.states):.2f} to {max(self.states):.2f} us; {slow} rounds in the slow state,"
                " which count only where there is no other")

    def medians(self):
        """Returns ({contestant: {key: median us}}, the same of the processor time). Rounds in the fast state count, where a key has one."""
        def median(rounds, part):
            fast = [each for each in rounds if not self.is_slow(each[0])]
            return statistics.median(each[part] for each in fast or rounds)

        return tuple({name: {key: median(rounds, part) for key, rounds in of.items()} for name, of in self.of.items()} for part in (1, 2))


def measure(place, contestants, options, progress, complaints, until_s):
    """Returns Samples. Begins no sweep after until_s. A contestant that does not end in time is left out of the rest of this place."""
    samples, too_slow = Samples(contestants), set()
    for sweep in sweeps_of(place, options.quick):
        for _ in range(options.repeats):
            samples.begin_round()
            for each in contestants:
                if time.monotonic() > until_s:
                    complaints.append(f"{place.name}: {sweep.title} and what follows is left out or has fewer rounds: the time is over (--minutes)")
                    return samples
                progress.step(f"{place.name}: {each.name}, {sweep.title}")
                if each.name in too_slow:
                    continue
                try:
                    samples.add(each, run_jobs(each, place, sweep, TIMEOUT_S[options.quick]))
                except TooSlow as failure:
                    complaints.append(f"{place.name}: {each.name}, {sweep.title} and what follows: {failure}")
                    too_slow.add(each.name)
                except Failed as failure:
                    complaints.append(f"{place.name}: {each.name}, {sweep.title}: {failure}")
    return samples


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


def parse():
    parser = argparse.ArgumentParser(description="commd and its peers")
    parser.add_argument("--quick", action="store_true", help="fewer topologies, sizes and repeats: within ten minutes")
    parser.add_argument("--only", default="", help="topologies: " + ",".join(each.name for each in topologies.ALL))
    parser.add_argument("--contestants", default="", help='such as "commd,Open MPI"; commd always runs')
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0, help="begin nothing after this time; default: 120, quick: 10")
    parser.add_argument("--settings", default="", help="""more of the daemons' configuration, such as 'bulk_links = "quic";'""")
    parser.add_argument("--shared-processors", action="store_true", help="all nodes run on all processors; default: each on its own, if there are enough")
    parser.add_argument("--out", type=pathlib.Path, default=BUILD / "bench")
    options = parser.parse_args()
    options.repeats = options.repeats or (1 if options.quick else 3)
    options.minutes = options.minutes or MINUTES[options.quick]
    options.only = options.only.split(",") if options.only else [each.name for each in topologies.ALL if each.name in QUICK_PLACES or not options.quick]
    unknown = set(options.only) - {each.name for each in topologies.ALL}
    if unknown:
        parser.error(f"no such topology: {', '.join(sorted(unknown))}")
    peers = BUILD / "tests/bench/peers"
    everybody = [Commd(BUILD), Commd(BUILD, plain=True), *(each(peers) for each in mpi.ALL), Gloo(peers)]
    wanted = options.contestants.split(",") if options.contestants else [each.name for each in everybody]
    unknown = set(wanted) - {each.name for each in everybody}
    if unknown:
        parser.error(f"no such contestant: {', '.join(sorted(unknown))}")
    options.everybody = [each for each in everybody if each.name in wanted or each.name == "commd"]
    return options


def write(options, results, states, machine, local, figures, complaints, rows):
    """Writes the files, and says so."""
    options.out.mkdir(parents=True, exist_ok=True)
    drawings = {"bench.svg": plots.curves(results), "heatmap.svg": plots.heat_map(results), "growth.svg": plots.growth(results)}
    for name, drawing in drawings.items():
        if drawing:
            (options.out / name).write_text(drawing)
    (options.out / "bench.json").write_text(json.dumps({
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "processors": os.cpu_count(), "limits": machine, "kernels": local, "figures": figures, "notes": complaints,
        "ping_pong_us_by_round": states,
        "bars": [dict(zip(("bar", "measured", "limit", "met"), row)) for row in rows],
        "results": [{"topology": place.name, "contestant": name, "operation": operation, "size_bytes": size, "time_us": time_us, "cpu_us": cpu[name][operation, size]}
                    for place, medians, cpu in results for name, times in medians.items() for (operation, size), time_us in times.items()]}, indent=1))
    print(f"written: {', '.join(str(options.out / name) for name in ('bench.json', *(each for each, drawing in drawings.items() if drawing)))}")


def main():
    options = parse()
    until_s = time.monotonic() + 60 * options.minutes
    places = [each for each in topologies.ALL if each.name in options.only]
    for each in places:
        each.settings = options.settings
        each.shares_processors = options.shared_processors
    complaints = [f"{each.title}: left out, network namespaces cannot be made here" for each in places if not each.is_possible()]
    places = [each for each in places if each.is_possible()]
    progress = Progress(1 + sum(len(list(sweeps_of(each, options.quick))) for each in places) * options.repeats * len(options.everybody))

    print(f"commd and its peers, {time.strftime('%Y-%m-%d')}, {os.cpu_count()} processors, Linux {platform.release()}; medians of {options.repeats} runs", flush=True)
    machine = limits(options.repeats)
    for name, (value, unit) in machine.items():
        print(f"  {name:45} {value:8.4g} {unit}")
    local = kernels(options.repeats, options.quick)
    print("\n" + report.kernels_table(local), flush=True)
    results, states, figures = [], {}, bars.measure_quic(BUILD, options.repeats if options.quick else 5)
    for place in places:
        if time.monotonic() > until_s:
            complaints.append(f"{place.name}: left out, the time is over (--minutes)")
            continue
        with place:
            contestants = [each for each in options.everybody if each.is_possible(place)]
            complaints += [f"{each.name} is not installed: left out" for each in options.everybody if each not in contestants]
            samples = measure(place, contestants, options, progress, complaints, until_s)
            medians, cpu = samples.medians()
            states[place.name] = samples.states
            if time.monotonic() < until_s:
                figures.update(bars.measure_beside(place, options.everybody[0], BUILD, options.repeats))
        results.append((place, medians, cpu))
        progress.end()
        print("\n" + report.table(place, medians, cpu, [each.name for each in contestants if comparison.is_peer(each.name)]))
        print(samples.states_text(), flush=True)
    by_place = [{each[0].name: each[part] for each in results} for part in (1, 2)]
    rows = bars.rows(*by_place, machine, figures) + bars.kernel_rows(local)
    print("\n" + report.classes_table(results))
    print("\n" + bars.counts_text(figures))
    print("\n" + report.bars_table(rows))
    for complaint in dict.fromkeys(complaints):
        print(f"note: {complaint}")
    write(options, results, states, machine, local, figures, complaints, rows)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends by an exception, so that everything is removed
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
