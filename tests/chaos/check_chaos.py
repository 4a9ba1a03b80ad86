#!/usr/bin/env python3
"""Runs real daemons in network namespaces under faults that a seed draws, as long as asked, and checks what must hold (tests/README.md).

usage: check_chaos.py [--seconds N] [--seed N] [--nodes N] [--ranks N] [--faults 3,7-9] [--kinds long-hole,move]
                      [--quick] [--slow N] [--build FOLDER] [--logs FOLDER] [--list]

The schedule of a seed, a number of nodes and a number of ranks is always the same. --faults makes only these of its faults.
--kinds draws only faults of these kinds, which is another schedule.
"""
import argparse
import itertools
import os
import pathlib
import random
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))


def numbers(text):
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2, help="of each node in the job of all nodes")
    parser.add_argument("--faults", type=numbers, help="numbers of faults, such as 3,7-9; otherwise all, from 0")
    parser.add_argument("--kinds", type=lambda text: text.split(","), help="the only kinds of faults that are drawn")
    parser.add_argument("--quick", action="store_true", help="short faults and small buffers")
    parser.add_argument("--slow", type=float, default=1, help="how much slower the programs are, because of a sanitizer: bars are longer by that")
    parser.add_argument("--build", default=os.environ.get("COMMD_BUILD", "build/release"))
    parser.add_argument("--logs", help="where the logs go after a violation")
    parser.add_argument("--list", action="store_true", help="print the first 40 faults of the schedule, and do nothing")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 30)
    if not 2 <= options.nodes <= 26 or not 1 <= options.ranks <= 16:
        parser.error("--nodes: 2 to 26; --ranks: 1 to 16")
    import schedule
    unknown = set(options.kinds or []) - set(schedule.KINDS)
    if unknown:
        parser.error(f"--kinds: {', '.join(sorted(unknown))}: expected some of {', '.join(schedule.KINDS)}")
    return options


def main():
    options = arguments()
    os.environ["COMMD_BUILD"] = options.build
    import chaos  # it looks for the programs in COMMD_BUILD
    import schedule
    from cluster import namespaces_work
    if options.list:
        for index in options.faults or range(40):
            print(f"{index:3}  {schedule.fault(options.seed, index, chaos.shape_of(options.nodes, options.ranks), options.quick, options.kinds)}")
        return 0
    if not namespaces_work():
        print("check-chaos: needs root, and network namespaces")
        return 77
    again = f"make check-chaos SEED={options.seed} SECONDS={options.seconds:g} NODES={options.nodes} RANKS={options.ranks}" + (" QUICK=1" if options.quick else "") + \
        (f" KINDS={','.join(options.kinds)}" if options.kinds else "")
    print(f"seed {options.seed}: {again}", flush=True)
    run = chaos.Chaos(options.seed, options.nodes, options.ranks, options.quick, options.kinds, options.slow, say=lambda text: print(text, flush=True))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces and daemons go
    violation = None
    try:
        run.run(options.faults or itertools.count(), options.seconds)
    except (chaos.Violation, AssertionError) as found:
        violation = found
        run.log(f"VIOLATION: {found}")
        if hasattr(run, "world"):
            folder = pathlib.Path(options.logs or pathlib.Path(options.build) / "chaos" / f"seed-{options.seed}")
            run.keep_logs(folder)
            print(f"the logs of daemons and ranks are in {folder}", flush=True)
    finally:
        run.close()
    print("\n".join(run.summary()))
    if violation is None:
        print(f"seed {options.seed}: nothing was wrong")
        return 0
    print(f"seed {options.seed}: {violation}\nthe faults before it:")
    for at, index, fault in run.faults:
        print(f"{at:8.2f}  fault {index}: {fault}")
    print(f"to run it again: {again}\nthe last fault alone: {again} FAULTS={run.faults[-1][1] if run.faults else 0}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
