#!/usr/bin/env python3
"""Runs the attacks, each beside its control, and prints what the others noticed: check_attacks.py [--only NAME,...] [--seconds S] [--build FOLDER] [--out FILE]

The control is the same pair beside as many processes that only use processor time. The bars are the README's; the exit code is 1 when one is missed.
Takes minutes. Needs root, for users and namespaces.
"""
import argparse
import json
import pathlib
import signal
import sys

from arena import Arena
import registry

P99_FACTOR = 1.5
NEWCOMER_MS = 100
GROWN_MIB = 256


def missed(attack, outcome, control):
    found = []
    if outcome.lost:
        found.append(outcome.lost)
    if outcome.newcomer_failure:
        found.append(f"a newcomer: {outcome.newcomer_failure}")
    if outcome.p99_ms > P99_FACTOR * control.p99_ms:
        found.append(f"p99 is {outcome.p99_ms / control.p99_ms:.2f} x the control's")
    if outcome.newcomer_ms > max(NEWCOMER_MS, P99_FACTOR * control.newcomer_ms):
        found.append(f"a newcomer takes {outcome.newcomer_ms:.0f} ms")
    if outcome.grown_mib > GROWN_MIB:
        found.append(f"commd grew by {outcome.grown_mib:.0f} MiB")
    if attack.expects and not set(attack.expects) & set(outcome.counts):
        found.append(f"the attacker was told {outcome.counts or 'nothing'}, not {' or '.join(attack.expects)}")
    if outcome.errors:
        found.append(f"the attack itself: {outcome.errors[0][-300:]}")
    return found


def main():
    parser = argparse.ArgumentParser(description="attacks beside a well-behaved pair")
    parser.add_argument("--only", default="", help=", ".join(attack.name for attack in registry.LOCAL))
    parser.add_argument("--seconds", type=float, default=registry.FULL_S)
    parser.add_argument("--build", type=pathlib.Path, default=None, help="of another commd")
    parser.add_argument("--out", type=pathlib.Path, default=None)
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name]
    attacks = [attack for attack in registry.LOCAL if not wanted or attack.name in wanted or attack.name.split(".")[0] in wanted]
    rows, failed = [], 0
    print(f"{'attack':34} {'p99 ms':>8} {'control':>8} {'x':>5} {'longest':>8} {'new ms':>7} {'MiB':>6}  the attacker is told")
    arena = None
    try:
        for attack in attacks:
            arena = arena or Arena(build=options.build and options.build.resolve())
            control = arena.run(arena.burners(attack.processes), options.seconds, attack.freeze)
            outcome = arena.run(arena.local(attack.name, attack.processes), options.seconds, attack.freeze)
            found = missed(attack, outcome, control)
            failed += bool(found)
            told = ", ".join(f"{name} {count}" for name, count in sorted(outcome.counts.items())) or "nothing"
            print(f"{attack.name:34} {outcome.p99_ms:8.2f} {control.p99_ms:8.2f} {outcome.p99_ms / control.p99_ms:5.2f} {outcome.longest_ms:8.0f} "
                  f"{outcome.newcomer_ms:7.1f} {outcome.grown_mib:6.1f}  {told}", flush=True)
            for text in found:
                print(f"    MISSED: {text}", flush=True)
            rows.append({"attack": attack.name, "p99_ms": outcome.p99_ms, "control_p99_ms": control.p99_ms, "longest_ms": outcome.longest_ms,
                         "operations": len(outcome.took_s), "newcomer_ms": outcome.newcomer_ms, "grown_mib": outcome.grown_mib, "counts": outcome.counts,
                         "texts": outcome.texts, "missed": found})
            if outcome.lost:  # what is left of it would spoil the next one
                arena.__exit__()
                arena = None
    finally:
        if arena:
            arena.__exit__()
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1))
    print(f"{len(attacks) - failed} of {len(attacks)} attacks within the bars")
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
