#!/usr/bin/env python3
"""Holds the bars for losses and outages: makes each kind of fault a number of times on real daemons in network namespaces, and prints a table.

usage: check_outages.py [--runs N] [--only 3,7-9] [--kinds daemon-killed,blackhole] [--seed N] [--nodes N] [--ranks N] [--slow N] [--build FOLDER]
                        [--logs FOLDER] [--lock FILE]

The runs of a seed are always the same. --only makes only these of them, so it repeats one that was wrong.

With --lock, measurements of others may have turns: after a run that ends later than 10 s, the jobs end. The daemons idle until this program has the lock again.

Every run has all jobs at work. `worst` is the longest time until a survivor was told, or by which an operation waited longer than the outage. `late`
counts runs that missed the bar by more than the machine was late. `wrong` counts runs in which something that must hold did not.
"""
import argparse
import collections
import dataclasses
import fcntl
import itertools
import os
import pathlib
import random
import signal
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))

import schedule
from check_chaos import numbers

STALL_BAR_S = 1.0
TEN_PERCENT = 10
TURN_S = 10  # of a lock


@dataclasses.dataclass
class Row:
    """What was seen of one kind."""
    bar_s: float
    told: bool             # the bar is for who is told; otherwise for how long operations wait after the outage
    runs: int = 0
    judged: int = 0
    late: int = 0
    wrong: int = 0
    times: list = dataclasses.field(default_factory=list)  # the worst of each judged run


def ten_percent(draw, shape):
    hold = round(draw.uniform(2, 6), 2)
    return schedule.Fault("lossy", [(0, "loss", shape.nodes, TEN_PERCENT), (hold, "loss", shape.nodes, 0)], outage_s=hold)


def rebound(node, draw):
    """The others see the node at other ports, and some seconds later at the first ones again."""
    return schedule.Fault("rebound", [(0, "rebind", node), (round(draw.uniform(3, 6), 2), "rebind", node)])


def rebound_dialler(draw, shape):
    """The first node dials all others."""
    return rebound(shape.nodes[0], draw)


def rebound_dialled(draw, shape):
    """All others dial the last node. Only this node can dial now."""
    return rebound(shape.nodes[-1], draw)


# By name: how the fault is drawn. The daemon of a silent host stands still, and all processes of a paused one.
LOSSES = {"rank-killed": schedule.kill_rank, "daemon-killed": schedule.kill_daemon, "host-silent": schedule.long_stop_daemon, "host-paused": schedule.pause_host,
          "host-cut-off": schedule.long_hole, "partition": schedule.long_partition, "one-way-partition": schedule.long_one_way}
OUTAGES = {"blackhole": schedule.short_hole, "link-down": schedule.short_down, "cut": schedule.short_partition, "one-way-cut": schedule.short_one_way,
           "mtu-9000-1500": schedule.narrow, "new-address": schedule.move, "loss-10": ten_percent}
# Relays are between the nodes.
REBINDINGS = {"rebound-dialler": rebound_dialler, "rebound-dialled": rebound_dialled}
KINDS = {**LOSSES, **OUTAGES, **REBINDINGS}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10, help="of each kind")
    parser.add_argument("--only", type=numbers, help="the numbers of the runs that are made, such as 3,7-9; otherwise all, from 0")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2, help="of each node in the job of all nodes")
    parser.add_argument("--slow", type=float, default=1, help="how much slower the programs are, because of a sanitizer: bars are longer by that")
    parser.add_argument("--build", default=os.environ.get("COMMD_BUILD", "build/release"))
    parser.add_argument("--logs", help="where the logs go if something is wrong")
    parser.add_argument("--lock", type=argparse.FileType("w"), help="hold an exclusive lock of this file (flock) while jobs run")
    options = parser.parse_args()
    unknown = [kind for kind in options.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"--kinds: {', '.join(unknown)}: expected some of {', '.join(KINDS)}")
    if options.runs < 1 or not 2 <= options.nodes <= 26 or not 1 <= options.ranks <= 16:
        parser.error("--runs: at least 1; --nodes: 2 to 26; --ranks: 1 to 16")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 30)
    return options


def fault(seed, kind, run, shape):
    return KINDS[kind](random.Random(f"{seed}/{kind}/{run}"), shape)


class Turn:
    """A file's lock, and since when it is held. Without a file, the turn never ends."""

    def __init__(self, file):
        self.file = file
        self.began = None

    def take(self):
        if self.file and self.began is None:
            fcntl.flock(self.file, fcntl.LOCK_EX)
            self.began = time.monotonic()

    def is_over(self):
        return self.began is not None and time.monotonic() >= self.began + TURN_S

    def give(self):
        if self.began is not None:
            fcntl.flock(self.file, fcntl.LOCK_UN)
            self.began = None


class Outages:
    """Makes the runs. After one in which something was wrong, all daemons and jobs are new."""

    def __init__(self, options, say):
        import chaos  # it looks for the programs in COMMD_BUILD
        import world

        class Judged(chaos.Chaos):
            """Keeps how late the machine was; None: the last fault was not judged."""
            late_s = None

            def check_told(self, fault, harmed, began, late_s):
                self.late_s = late_s
                super().check_told(fault, harmed, began, late_s)

        self.violations = (chaos.Violation, AssertionError)
        self.contradiction, self.starved_s = chaos.Contradiction, chaos.STARVED_S
        self.shape = chaos.shape_of(options.nodes, options.ranks)
        relays = {"relays": {pair: (0, 0) for pair in itertools.combinations(self.shape.nodes, 2)}, "rails": world.RAILS}
        self.new = lambda relayed: Judged(options.seed, options.nodes, options.ranks, slow=options.slow, say=say, **(relays if relayed else {}))
        self.options, self.say = options, say
        self.chaos = None
        self.turn = Turn(options.lock)
        self.fine = True
        self.rows = {kind: Row(self.bar_s(kind), kind in LOSSES) for kind in options.kinds}

    def bar_s(self, kind):
        return fault(self.options.seed, kind, 0, self.shape).bar_s if kind in LOSSES else STALL_BAR_S

    def seen(self, told):
        """How many times of each kind of fault are known so far."""
        return collections.Counter({name: len(times) for name, times in (self.chaos.told if told else self.chaos.stalls).items()})

    def run(self, kind, number):
        row = self.rows[kind]
        what = fault(self.options.seed, kind, number, self.shape)
        self.turn.take()
        self.say(f"--- {kind}, run {number}")
        row.runs += 1
        try:
            self.begin(kind)
            self.chaos.late_s = None
            before = self.seen(row.told)
            self.chaos.make(number, what)
            self.judge(row, f"{kind}, run {number}", what, before)
            self.chaos.renew()
        except self.violations as found:
            if self.starved(found):
                self.say(f"not judged, as the machine stood still: {kind}, run {number}: {found}")
            else:
                row.wrong += 1
                self.say(f"WRONG: {kind}, run {number}: {what}: {found}")
                self.keep_logs(kind, number)
            self.close()
        if self.turn.is_over():
            self.rest()

    def begin(self, kind):
        if self.chaos is None:
            self.chaos = self.new(kind in REBINDINGS)
            self.chaos.begin()
        else:
            self.chaos.renew()

    def rest(self):
        """The jobs end, so that nothing but idle daemons runs while others have their turn. The next run starts the jobs again."""
        try:
            if self.chaos is not None:
                self.chaos.end(self.chaos.jobs)
        except self.violations as found:
            self.say(f"WRONG: while the jobs end: {found}")
            self.fine = False
            self.close()
        self.turn.give()

    def starved(self, found):
        """Whether the machine was so late that operations may have missed their deadlines. That excuses no contradiction."""
        lateness = getattr(self.chaos, "lateness", None)
        return lateness is not None and lateness.worst > self.starved_s and not isinstance(found, self.contradiction)

    def judge(self, row, name, what, before):
        table = self.chaos.told if row.told else self.chaos.stalls
        times = table[what.kind][before[what.kind]:]
        if self.chaos.late_s is None or not times:
            return
        row.judged += 1
        row.times.append(max(times))
        if max(times) > (row.bar_s + self.chaos.late_s) * self.options.slow:
            row.late += 1
            self.say(f"LATE: {name}: {max(times):.3f} s, and the machine was {self.chaos.late_s:.3f} s late")

    def keep_logs(self, kind, number):
        if self.chaos is not None and hasattr(self.chaos, "world"):
            folder = pathlib.Path(self.options.logs or pathlib.Path(self.options.build) / "outages") / f"{kind}-{number}"
            self.chaos.keep_logs(folder)
            self.say(f"the logs of daemons and ranks are in {folder}")

    def finish(self):
        """Ends everything in order. Returns whether nothing was wrong, then or before."""
        self.turn.take()
        try:
            if self.chaos is not None:
                self.chaos.end_all()
        except self.violations as found:
            self.say(f"WRONG: at the end: {found}")
            return False
        finally:
            self.close()
            self.turn.give()
        return self.fine and not any(row.wrong for row in self.rows.values())

    def close(self):
        if self.chaos is not None:
            self.chaos.close()
            self.chaos = None

    def table(self):
        lines = [f"{'kind':18} {'what':>13} {'bar s':>6} {'runs':>5} {'judged':>6} {'median':>7} {'worst':>7} {'late':>5} {'wrong':>5}"]
        for kind, row in self.rows.items():
            middle, worst = (f"{value:.3f}" for value in (statistics.median(row.times), max(row.times))) if row.times else ("-", "-")
            lines.append(f"{kind:18} {'told after' if row.told else 'waited longer':>13} {row.bar_s:6.1f} {row.runs:5} {row.judged:6} {middle:>7} {worst:>7} "
                         f"{row.late:5} {row.wrong:5}")
        return lines


def main():
    options = arguments()
    os.environ["COMMD_BUILD"] = options.build
    from cluster import namespaces_work
    if not namespaces_work():
        print("check-outages: needs root, and network namespaces")
        return 77
    print(f"seed {options.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces and daemons go
    outages = Outages(options, lambda text: print(text, flush=True))
    fine = True
    try:
        for group in (LOSSES | OUTAGES, REBINDINGS):
            for number in options.only or range(options.runs):
                for kind in (kind for kind in options.kinds if kind in group):
                    outages.run(kind, number)
            fine = outages.finish() and fine
    finally:
        outages.close()
        print("\n".join(outages.table()), flush=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
