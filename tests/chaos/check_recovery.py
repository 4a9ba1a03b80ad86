#!/usr/bin/env python3
"""Measures how soon a job goes on: kills a rank inside an all-reduce on registered memory, on real daemons. Prints a table.

usage: check_recovery.py [--runs N] [--sizes 8,1M,256M] [--seed N] [--ranks N] [--build FOLDER]

Each run is a line on stderr. There are three nodes with `ranks` ranks each. `told` is from the kill until the last survivor has its error. `ended` is
from the kill until the kernel has ended the process, in the median: it unmaps the memory first. `next` is from the first
survivor's error until all have the right result of an all-reduce of 8 bytes on the communicator that comm_shrink made. The command fails if a
survivor is told something else than the others, or if a result is wrong. It does not fail for times: they depend on what else the machine does.
"""
import argparse
import ctypes
import json
import os
import pathlib
import random
import select
import signal
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))

NODES = "abc"
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
TOLD_BAR_MS = NEXT_BAR_MS = 100
ENDS_WITHIN_S = 120


def bytes_of(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def run_rank(name, rank, size, count):
    """One rank: reduces until that fails, then goes on with the others. It says when it has begun, and at the end what it saw and when."""
    from client_library import Library
    library = Library()
    pointer = ctypes.c_void_p
    library.calls.comm_shrink.argtypes = [pointer, pointer, pointer]
    (opened, client), at = library.open(), pointer()
    formed, comm = library.init(client, name, rank, size) if opened == 0 else (opened, None)
    result = formed or library.comm_mem_alloc(client, 8 * count, -1, ctypes.byref(at))
    if result == 0:
        ctypes.memset(at, 0, 8 * count)
    kind = library.DTYPES["i64"]
    steps = 0
    while result == 0:
        print(f"STEP {time.monotonic()}", flush=True) if count > 1000 or steps < 4 else None
        result = library.comm_all_reduce(comm, at, at, count, kind, 0, None) or library.comm_sync(comm, 0)
        steps += 1
    seen = {"failed": time.monotonic(), "result": library.NAMES[result], "text": library.error()}
    following, mask = pointer(), (ctypes.c_int64 * 1)(1 << rank)
    result = library.comm_shrink(comm, None, ctypes.byref(following))
    seen["shrunk"] = time.monotonic()
    result = result or library.comm_all_reduce(following, mask, mask, 1, kind, 0, None) or library.comm_sync(following, 0)
    seen.update(next=time.monotonic(), mask=mask[0], after="OK" if result == 0 else library.error())
    print("SEEN " + json.dumps(seen), flush=True)
    library.comm_destroy(comm)
    library.comm_destroy(following)
    library.comm_client_close(client)


def next_line(process, word):
    """Returns what follows the word in the rank's next line that begins with it."""
    others = []
    for line in process.stdout:
        if line.startswith(word):
            return line[len(word):].strip()
        others.append(line)
    raise AssertionError(f"a rank has ended without {word}: {''.join(others[-1:])}")


def kill_inside(draw, process):
    """Kills the rank in the middle of an operation. Returns when, and when the kernel had ended the process: it unmaps its memory first."""
    steps = [float(next_line(process, "STEP")) for _ in range(3)]
    took_s = steps[2] - steps[1]
    time.sleep(draw.uniform(0.1, 0.9) * took_s)
    died = os.pidfd_open(process.pid)
    killed = time.monotonic()
    process.send_signal(signal.SIGKILL)
    select.select([died], [], [])
    ended = time.monotonic()
    os.close(died)
    return killed, ended


def run_one(cluster, draw, name, layout, count):
    """Returns (told, ended, next) in milliseconds. Raises AssertionError if the survivors disagree."""
    ranks = [subprocess.Popen([sys.executable, "-S", __file__, "--rank", name, str(rank), str(len(layout)), str(count)], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, text=True, env=cluster.environment(node)) for rank, node in enumerate(layout)]
    cluster.processes += ranks
    victim = draw.randrange(len(ranks))
    for process in ranks:
        next_line(process, "STEP")
    killed, ended = kill_inside(draw, ranks[victim])
    survivors = [process for process in ranks if process is not ranks[victim]]
    seen = [json.loads(next_line(process, "SEEN")) for process in survivors]
    ranks[victim].communicate()
    for process in survivors:
        process.communicate(timeout=ENDS_WITHIN_S)
    assert len({(each["result"], each["text"]) for each in seen}) == 1 and seen[0]["result"] == "RANK_LOST", seen
    assert {each["mask"] for each in seen} == {(1 << len(layout)) - 1 - (1 << victim)}, seen
    told, first = max(each["failed"] for each in seen), min(each["failed"] for each in seen)
    return 1000 * (told - killed), 1000 * (ended - killed), 1000 * (max(each["next"] for each in seen) - first)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10, help="of each size")
    parser.add_argument("--sizes", default="8,1M,256M", help="of the all-reduce, in bytes, with K, M or G")
    parser.add_argument("--ranks", type=int, default=2, help="of each node")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--build", default=os.environ.get("COMMD_BUILD", "build/release"))
    return parser.parse_args()


def main():
    options = arguments()
    os.environ["COMMD_BUILD"] = options.build
    from cluster import Cluster, namespaces_work
    from world import Lateness
    print(f"seed {options.seed}; {len(NODES)} nodes with {options.ranks} ranks each{'' if namespaces_work() else ', without namespaces'}", flush=True)
    print(f"{'bytes':>6} {'runs':>5} {'told, ms: bar':>14} {'median':>7} {'worst':>7} {'ended':>7} {'next, ms: bar':>14} {'median':>7} {'worst':>7} {'late, ms':>9}")
    lateness, wrong = Lateness(), 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces and daemons go
    with Cluster(NODES, 'listen = "0.0.0.0:7400"; rails = 2;' if namespaces_work() else "rails = 2;") as cluster:
        for size in options.sizes.split(","):
            times = []
            lateness.take()
            for run in range(options.runs):
                draw = random.Random(f"{options.seed}/{size}/{run}")
                try:
                    times.append(run_one(cluster, draw, f"{size}-{run}", [node for node in NODES for _ in range(options.ranks)], max(1, bytes_of(size) // 8)))
                    print(f"  {size}, run {run}: told after {times[-1][0]:.1f} ms (ended after {times[-1][1]:.1f} ms), next after {times[-1][2]:.1f} ms", file=sys.stderr, flush=True)
                except AssertionError as found:
                    wrong += 1
                    print(f"WRONG: {size}, run {run}: {found}", flush=True)
            told, ended, following = zip(*times) if times else ([0], [0], [0])
            print(f"{size:>6} {len(times):5} {TOLD_BAR_MS:14} {statistics.median(told):7.1f} {max(told):7.1f} {statistics.median(ended):7.1f} {NEXT_BAR_MS:14} {statistics.median(following):7.1f} "
                  f"{max(following):7.1f} {1000 * lateness.take():9.0f}", flush=True)
    lateness.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        run_rank(sys.argv[2], *(int(each) for each in sys.argv[3:]))
    else:
        sys.exit(main())
