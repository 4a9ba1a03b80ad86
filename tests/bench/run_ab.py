#!/usr/bin/env python3
"""Measures two builds of commd in turn, and the first one twice. It answers the question: is the current build no slower than the base?

usage: run_ab.py BASE_BUILD CURRENT_BUILD [--rounds N | --minutes M] [--quick] [--only TOPOLOGY,...] [--sizes CLASS,...] [--plain] [--seed N] [--out FILE]

Each round runs base, current and control in a random order, for every place and size class. The control is the base a second time, with daemons
of its own. Each ratio comes from one round alone, so other work on the machine affects all three alike. Only root can measure several nodes.
"""
import argparse
import contextlib
import copy
import json
import os
import pathlib
import platform
import random
import signal
import sys
import time

import ratios
import topology as topologies
from contestants import Failed, finish, start
from run_bench import Progress

KINDS = "all_reduce,all_gather,reduce_scatter,all_to_all,broadcast,send_recv"
ROLES = ("base", "current", "control")
TIMEOUT_S = 120
CALLS = "calls"
CALL_REPEATS = 10
LARGEST = "64m"  # only on demand: a round of it takes long
ROUNDS_LEAST = 3
# name: (title, sizes in bytes). Each round takes the next one of the sizes: many short rounds tell more than few long ones.
SIZE_CLASSES = {
    "2k": ("<= 2 KiB", (64, 2 << 10)),
    "128k": ("8 to 128 KiB", (8 << 10, 128 << 10, 32 << 10)),
    "2m": ("512 KiB to 2 MiB", (512 << 10, 2 << 20)),
    "8m": (">= 8 MiB", (8 << 20, 16 << 20)),
    "64m": ("24 and 64 MiB", (24 << 20, 64 << 20)),
    CALLS: ("comm_init, comm_mem_alloc, ...", ()),
}
CHECKED_BYTES = 2 << 20  # results of larger operations are not checked: the check would take longer than the operation
PLACES = ("local2", "local4", "nodes2-9000", "nodes2-1500")
QUICK_PLACES = ("local2", "local4", "nodes2-9000")


class Contestant:
    """One build at one place. Its daemons stay up and idle while the other builds run."""

    runs = 0

    def __init__(self, place, build, environment, options=()):
        """options: of commctl bench."""
        self.options = options
        self.place = copy.copy(place)
        self.place.build = build
        self.place.daemon_environment = environment
        self.commctl = build / "commctl"

    def measure(self, size_class, number, seconds_per_size):
        """Returns {what: microseconds} of one round."""
        Contestant.runs += 1
        name = f"ab{Contestant.runs}"
        sizes = SIZE_CLASSES[size_class][1]
        return self._operations(name, sizes[number % len(sizes)], seconds_per_size) if sizes else self._calls(name)

    def _operations(self, name, size_bytes, seconds_per_size):
        place, processes = self.place, []
        for index, node in enumerate(place.nodes):
            processes.append(start(place.command(
                node, self.commctl, "--socket", place.cluster.socket(node), "bench", "-f", "json", "--communicator", name, "--size", place.size,
                "--first-rank", index * place.ranks_per_node, "--ranks", place.ranks_per_node, "--operation", KINDS, "--min-bytes", size_bytes,
                "--max-bytes", size_bytes, "--seconds-per-size", seconds_per_size, *self.options, *(["--no-check"] if size_bytes > CHECKED_BYTES else []))))
        results = json.loads(finish(processes, TIMEOUT_S)[0])["results"]
        wrong = sum(each["wrong"] for each in results)
        if wrong:
            raise Failed(f"{wrong} wrong elements")
        return {f"{each['operation']} {each['size_bytes']}{' in place' if each['in_place'] else ''}": each["time_us"] for each in results}

    def _calls(self, name):
        place, processes = self.place, []
        program = pathlib.Path(__file__).resolve().with_name("calls.py")
        for rank in range(place.size):
            node = place.node_of_rank(rank)
            environment = {**place.cluster.environment(node), "COMMD_BUILD": str(place.build)}
            processes.append(start(place.command(node, sys.executable, "-B", program, name, rank, place.size, CALL_REPEATS), env=environment))
        return json.loads(finish(processes, TIMEOUT_S)[0])


def run_round(contestants, number, options, progress, complaints):
    """Returns {(place, size class): (base, current, control)}, without those where a run failed."""
    found = {}
    for place, of_place in contestants.items():
        for size_class in options.sizes:
            order = list(ROLES)
            options.lot.shuffle(order)
            times = {}
            for role in order:
                progress.step(f"round {number + 1}: {place}, {size_class}, {role}")
                try:
                    times[role] = of_place[role].measure(size_class, number, options.seconds_per_size)
                except Failed as failure:
                    complaints.append(f"{place}, {size_class}, {role}: {failure}")
            if len(times) == len(ROLES):
                found[place, size_class] = tuple(times[role] for role in ROLES)
    return found


def run_rounds(places, builds, options, complaints):
    """Returns {place: {size class: [(base, current, control)]}}. Each round visits all places. Rounds go on until their number is reached or the
    time is over."""
    found = {place.name: {each: [] for each in options.sizes} for place in places}
    progress = Progress(len(places) * (options.rounds or 1) * len(options.sizes) * len(ROLES))
    with contextlib.ExitStack() as stack:
        environments = {role: dict(options.environment if role == "current" else ()) for role in ROLES}
        contestants = {place.name: {role: Contestant(place, builds[role], environments[role], options.bench) for role in ROLES} for place in places}
        for of_place in contestants.values():
            for each in of_place.values():
                stack.enter_context(each.place)
        began_s = time.monotonic()
        number = 0
        while number < options.rounds if options.rounds else number < ROUNDS_LEAST or time.monotonic() - began_s < 60 * options.minutes:
            progress.total = max(progress.total, progress.done + 1)
            for (place, size_class), times in run_round(contestants, number, options, progress, complaints).items():
                found[place][size_class].append(times)
            number += 1
    progress.end()
    return found, number


def table(found, sizes):
    """Returns (text, rows for JSON, whether every size class is no slower). found: {place: {size class: rounds}}"""
    lines = [f"{'size class':32} {'place':14} {'base/current':>24} {'base/itself':>24}  verdict"]
    rows, all_fine = [], True
    for size_class in sizes:
        groups = {place: of[size_class] for place, of in found.items()}
        for place, rounds in [*groups.items(), ("all", ratios.merge(groups))]:
            pair = ratios.compare(rounds)
            title = SIZE_CLASSES[size_class][0]
            if pair is None:
                lines.append(f"{title:32} {place:14} {'not measured':>24}")
                all_fine = False
                continue
            ours, control = pair
            words = ratios.verdict(ours, control) if place == "all" else ""
            all_fine = all_fine and (place != "all" or ratios.is_no_slower(ours))
            lines.append(f"{title:32} {place:14} {ours.text():>24} {control.text():>24}  {words}")
            rows.append({"size_class": title, "place": place, "rounds": ours.rounds, "verdict": words,
                         **{f"{name}_{field}": getattr(each, field) for name, each in (("ratio", ours), ("control", control)) for field in ("mean", "low", "high")}})
    return "\n".join(lines), rows, all_fine


def parse():
    parser = argparse.ArgumentParser(description="two builds in turn, with a control")
    parser.add_argument("base", type=pathlib.Path)
    parser.add_argument("current", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0, help="how long, where no --rounds are given: 8, --quick 2.5")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="places: " + ",".join(each.name for each in topologies.ALL))
    parser.add_argument("--sizes", default="", help=",".join(SIZE_CLASSES))
    parser.add_argument("--plain", action="store_true", help="ordinary memory in place of comm_mem_alloc")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--environment", default=[], action="append", type=lambda text: text.split("=", 1), help="NAME=VALUE, of the current one's daemons")
    parser.add_argument("--names", default="base,current", help="what the builds are called")
    parser.add_argument("--out", type=pathlib.Path, default=None)
    options = parser.parse_args()
    options.minutes = options.minutes or (2.5 if options.quick else 8)
    options.sizes = options.sizes.split(",") if options.sizes else [each for each in SIZE_CLASSES if each != LARGEST]
    options.bench = ["--unregistered"] if options.plain else []
    options.only = options.only.split(",") if options.only else list(QUICK_PLACES if options.quick else PLACES)
    options.seconds_per_size = 0.005 if options.quick else 0.01
    options.lot = random.Random(options.seed)
    for given, known in ((options.sizes, SIZE_CLASSES), (options.only, [each.name for each in topologies.ALL])):
        unknown = set(given) - set(known)
        if unknown:
            parser.error(f"unknown: {', '.join(sorted(unknown))}; there is {', '.join(known)}")
    if options.rounds == 1:
        parser.error("--rounds: at least 2")
    return options


def main():
    options = parse()
    builds = {"base": options.base.resolve(), "current": options.current.resolve(), "control": options.base.resolve()}
    places = [each for each in topologies.ALL if each.name in options.only]
    complaints = [f"{each.title}: left out, network namespaces cannot be made here" for each in places if not each.is_possible()]
    places = [each for each in places if each.is_possible()]
    base_name, current_name = options.names.split(",")
    print(f"commd {base_name} (base) and {current_name} (current), {time.strftime('%Y-%m-%d')}, {os.cpu_count()} processors, Linux {platform.release()}", flush=True)
    found, rounds = run_rounds(places, builds, options, complaints)
    print(f"{rounds} rounds; above 1: current is faster")
    text, rows, all_fine = table(found, options.sizes)
    print(text)
    for complaint in dict.fromkeys(complaints):
        print(f"note: {complaint}")
    print(f"{'no slower' if all_fine else 'SLOWER'}: in {'every' if all_fine else 'not every'} size class the interval over all places reaches {ratios.BAR}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "base": base_name, "current": current_name, "seed": options.seed, "rows": rows, "notes": complaints,
            "rounds": {place: {size_class: [dict(zip(ROLES, each)) for each in of] for size_class, of in by_class.items()}
                       for place, by_class in found.items()}}, indent=1))
        print(f"written: {options.out}")
    return 0 if all_fine else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends by an exception, so that everything is removed
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
