#!/usr/bin/env python3
"""Counts the calls from file to file in one operation. It is an all-reduce of 8 bytes by two ranks on one node, from comm_all_reduce to its end.

    make hops        # builds VARIANT=hops, runs this, and compares the list in daemon/README.md

Two real processes and a real commd run the operation many times. tracer.c records each function that they enter and leave. This program looks
at the rank that calls last. It follows three parts: the rank's call, the work of commd's main thread from the packet in the ring to the
doorbells, and the rank's comm_sync. It prints the path that most operations took.

A hop is a call from one .c file into another, where the called function calls on into a further file. Other calls from file to file only ask a
question (how many bytes has an f64?). They are marked with a dot and counted separately. Functions in headers belong to the file that calls
them.
"""
import argparse
import collections
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "system"))
from cluster import BUILD, Cluster  # noqa: E402

TOP = pathlib.Path(__file__).resolve().parents[2]
TRACER = BUILD / "tests/hops/tracer.so"
RANK = BUILD / "tests/hops/hops_rank"
OPERATIONS = 150
RUNS_MAX = 10  # runs at most, until nothing else happened during an operation
WARM_UP = 10  # of OPERATIONS, not counted: commd first adapts how long it polls for requests
HEADER, RECORD = struct.Struct("<QQQ"), struct.Struct("<QqQ")  # as tracer.c writes them
ELF_ENTRY_OFFSET = 24


class Call:
    """One call of a function. `caller` is the call that made it; functions of libraries in between are skipped."""

    __slots__ = ("file", "function", "caller", "thread", "begin_ns", "end_ns", "goes_on")

    def __init__(self, place, caller, thread, begin_ns):
        self.file, self.function = place
        self.caller, self.thread, self.begin_ns, self.end_ns = caller, thread, begin_ns, None
        self.goes_on = False  # it calls into another file, directly or through others

    def crosses(self):
        return self.caller is not None and self.caller.file != self.file

    def callers(self):
        call = self.caller
        while call is not None:
            yield call
            call = call.caller

    def within(self, names):
        return self.function in names or any(call.function in names for call in self.callers())


def in_tree(line):
    """Returns a file's path from the top folder. `line` is the compiler's path:line; a compiler cache may have stored the path of another copy of
    the tree."""
    parts = pathlib.PurePath(line.rsplit(":", 1)[0]).parts
    return next(("/".join(parts[i:]) for i in range(1, len(parts)) if TOP.joinpath(*parts[i:]).exists()), "/".join(parts))


def places(binary, addresses):
    """{address: (file, function)}"""
    addresses = sorted(addresses)
    done = subprocess.run(["addr2line", "-f", "-e", binary], input="\n".join(map(hex, addresses)), capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    return dict(zip(addresses, zip(map(in_tree, lines[1::2]), lines[0::2])))


def read_calls(path, binary):
    """Returns all calls of a process, in the order in which they began."""
    data = path.read_bytes()
    count, entry, _ = HEADER.unpack_from(data)
    end = HEADER.size + count * RECORD.size
    if end > len(data):
        sys.exit("hops: more was called than tracer.c has room for")
    with open(binary, "rb") as file:
        moved = entry - struct.unpack_from("<Q", file.read(64), ELF_ENTRY_OFFSET)[0]
    records = list(RECORD.iter_unpack(data[HEADER.size:end]))
    known = places(binary, {abs(function) - moved for _, function, _ in records})
    stacks, calls = collections.defaultdict(list), []
    for time_ns, function, thread in records:
        stack, place = stacks[thread], known[abs(function) - moved]
        if function > 0:
            call = Call(place, stack[-1] if stack else None, thread, time_ns)
            if call.crosses():
                for above in call.callers():
                    above.goes_on = True
            stack.append(call)
            calls.append(call)
        elif stack:
            while (stack[-1].file, stack[-1].function) != place:
                stack.pop()
            stack.pop().end_ns = time_ns
    return calls


def run(folder, memory):
    """Returns the calls of the rank that calls last, and those of commd."""
    environment = {"COMMD_HOPS_FOLDER": str(folder), "LD_PRELOAD": str(TRACER)}
    cluster = Cluster(["solo"], namespaces=False, start=False, daemon_environment=environment, client_environment=dict(environment, COMMD_CELLS="off"))
    try:
        cluster.config_path("solo").write_text(f'node_name = "solo";\nsocket_path = "{cluster.socket("solo")}";\n')
        daemon = cluster.start("solo", "--standalone")
        cluster.wait_ready()
        ranks = [cluster.client("solo", RANK, "hops", rank, OPERATIONS, memory) for rank in range(2)]
        for process in ranks:
            _, errors = process.communicate(timeout=120)
            if process.returncode != 0:
                sys.exit(f"hops: {errors}")
    finally:
        cluster.close()
    return read_calls(folder / str(ranks[1].pid), RANK), read_calls(folder / str(daemon.pid), BUILD / "commd")


def of_commd(calls, begin_ns, end_ns):
    """Returns the calls from the packet's turn to the doorbells, and the calls that lead to that turn. Returns None if commd did more or less than
    one operation in that time."""
    meanwhile = [call for call in calls if begin_ns <= call.begin_ns <= end_ns]
    submits = [call for call in meanwhile if call.function == "api_submit"]
    answers = [call for call in meanwhile if call.function == "comm_completed"]
    if len(answers) != 2:
        return None
    submits = [call for call in submits if call.begin_ns < answers[0].begin_ns]  # the other rank submits its next call at once
    if len(submits) != 1:
        return None
    turn = next(call for call in submits[0].callers() if call.function == "api_session_turn")
    bells = next((call for call in meanwhile if call.function == "api_ring_bells" and call.begin_ns > answers[-1].begin_ns), None)
    if bells is None or bells.end_ns is None:
        return None
    way = [call for call in turn.callers() if call.within({"daemon_work"})][::-1]
    return way + [call for call in meanwhile if turn.begin_ns <= call.begin_ns <= bells.end_ns and call.thread == turn.thread]


def ways(rank_calls, daemon_calls):
    """Yields, for each operation, its calls in the three parts."""
    begins = [call for call in rank_calls if call.function == "comm_all_reduce"]
    ends = [call for call in rank_calls if call.function == "comm_sync" and not call.within({"comm_barrier"})]
    for begin, end in list(zip(begins, ends))[WARM_UP:]:
        inside = [call for call in rank_calls if begin.begin_ns <= call.begin_ns <= end.end_ns]
        served = of_commd(daemon_calls, begin.begin_ns, end.end_ns)
        if served is not None:
            yield ([call for call in inside if call.within({"comm_all_reduce"})], served, [call for call in inside if call.within({"comm_sync"})])


def crossing(part):
    """Returns what is printed and counted: (hop?, file, function, depth). Calls from the test program into the API are left out."""
    for call in part:
        if call.crosses() and not call.caller.file.startswith("tests/") and call.function != "daemon_work":
            yield call.goes_on, call.file, call.function, sum(1 for above in call.callers() if above.crosses())


def unlisted(document, hops, count):
    """Returns the hops that the document's list lacks, and their number if the document has another one."""
    text = document.read_text()
    lacking = sorted({function for function in hops if not re.search(rf"\b{function}\b", text)})
    return lacking if f"There are {count}:" in text else [*lacking, f"their number, {count}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", choices=("shared", "plain"), default="plain", help="of comm_mem_alloc, or the program's own, which is copied")
    parser.add_argument("--most", type=int, help="fails where there are more hops")
    parser.add_argument("--listed-in", type=pathlib.Path, metavar="FILE", help="fails where this document's list is not the same")
    parser.add_argument("--hops", action="store_true", help="leaves out what is no hop")
    options = parser.parse_args()
    seen = collections.Counter()
    for _ in range(RUNS_MAX):
        with tempfile.TemporaryDirectory(prefix="commd-hops-") as folder:
            seen.update(tuple(tuple(crossing(part)) for part in way) for way in ways(*run(pathlib.Path(folder), options.memory)))
        if seen:
            break
    if not seen:
        sys.exit("hops: no operation ran undisturbed: is the machine too busy?")
    (way, times), = seen.most_common(1)
    for title, part in zip(("the program calls", "commd", "the program looks"), way):
        print(title)
        top = min(depth for _, _, _, depth in part)
        for goes_on, file, function, depth in part:
            if goes_on or not options.hops:
                print(f"  {'>' if goes_on else '.'} {'  ' * (depth - top)}{file} {function}")
    hops = [sum(goes_on for goes_on, *_ in part) for part in way]
    calls = [len(part) for part in way]
    print(f"{sum(hops)} hops ({' + '.join(map(str, hops))}) of {sum(calls)} calls from file to file ({' + '.join(map(str, calls))}); "
          f"{times} of {sum(seen.values())} operations went this way")
    if options.most is not None and sum(hops) > options.most:
        sys.exit(f"hops: {sum(hops)}; at most {options.most} were expected")
    lacking = [] if options.listed_in is None else unlisted(options.listed_in, (function for part in way for is_hop, _, function, _ in part if is_hop), sum(hops))
    if lacking:
        sys.exit(f"hops: {options.listed_in} lacks: {', '.join(lacking)}")


if __name__ == "__main__":
    main()
