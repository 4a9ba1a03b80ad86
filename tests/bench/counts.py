"""What an operation costs besides time: processor, packets, system calls, memory; and what an idle daemon costs."""
import os
import pathlib
import re
import resource
import shutil
import subprocess
import tempfile
import threading
import time
import types

import contestants
from contestants import Failed
from topology import Topology

MIB = 1 << 20
GIB = 1 << 30
SIZE_BYTES = 16 * MIB
MEMORY_SIZE_BYTES = 64 * MIB
# sweep.c runs this many of a size before those that it counts, when they take longer than 10 ms or not.
WARM_UP = {True: 2, False: 4}


def cpu_s(pid):
    """Of all its threads that still live; in nanoseconds inside, where stat counts ticks of 10 ms."""
    total_ns = 0
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total_ns += int(path.read_text().split()[0])
        except OSError:  # ended just now
            pass
    return total_ns / 1e9


def memory(pid):
    """{"VmHWM", "VmRSS", "RssAnon", …} in bytes."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return {name: int(value) * 1024 for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def own_memory(status):
    """Without the clients' shared memory, which the daemon maps and works in."""
    return status["RssAnon"] + status["RssFile"]


def children_cpu_s():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class PeakMemory:
    """The most memory of its own that a process held while this ran, looked at every few milliseconds."""

    def __init__(self, pids):
        self.pids = pids
        self.peak = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch)

    def _watch(self):
        while not self.ended.wait(0.003):
            self.peak = max([self.peak, *(own_memory(memory(pid)) for pid in self.pids)])

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def operations_of(result):
    return result["iterations"] + WARM_UP[result["time_us"] > 10000]


def sweep_of(size, seconds):
    return types.SimpleNamespace(operations=["all_reduce"], min_bytes=size, max_bytes=size, step_factor=2, seconds_per_size=seconds)


def processor_and_packets(topology, contestant, seconds):
    daemons = [process.pid for process in topology.cluster.daemons.values()] if contestant is contestants.Commd else []
    # What starting and ending costs is measured by a run of the least, and taken off.
    costs = []
    for size, duration in ((4096, 0.0), (SIZE_BYTES, seconds)):
        before = (sum(cpu_s(pid) for pid in daemons), children_cpu_s(), topology.packets())
        own_before = children_cpu_s()
        result = contestant.run(topology, sweep_of(size, duration))[0]
        clients_s = children_cpu_s() - own_before
        costs.append((result, sum(cpu_s(pid) for pid in daemons) - before[0], clients_s, topology.packets() - before[2]))
    (_, daemons_0, clients_0, packets_0), (result, daemons_1, clients_1, packets_1) = costs
    operations = operations_of(result)
    gibibytes = operations * SIZE_BYTES / GIB
    counts = {"processor seconds per GiB": (max(daemons_1 - daemons_0, 0) + max(clients_1 - clients_0, 0)) / gibibytes}
    if daemons:
        counts["of these in the daemons"] = max(daemons_1 - daemons_0, 0) / gibibytes
    if not topology.is_local:
        counts["packets per MiB"] = (packets_1 - packets_0) / (operations * SIZE_BYTES / MIB)
    return counts


def system_calls(topology, seconds):
    """Of the daemons, by strace, each MiB; None without strace."""
    if shutil.which("strace") is None:
        return None
    tracers = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for index, process in enumerate(topology.cluster.daemons.values()):
                tracers.append(subprocess.Popen(["strace", "-c", "-f", "-o", f"{folder}/{index}", "-p", str(process.pid)], stdin=subprocess.DEVNULL,
                                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            time.sleep(0.5)
            result = contestants.Commd.run(topology, sweep_of(SIZE_BYTES, seconds))[0]
        finally:
            for tracer in tracers:
                tracer.send_signal(2)
                tracer.wait()
        calls = 0
        for index in range(len(tracers)):
            match = re.search(r"^\s*100[.,]00\s+\S+\s+(?:\S+\s+)?(\d+)\s.*total$", pathlib.Path(f"{folder}/{index}").read_text(), re.MULTILINE)
            calls += int(match[1]) if match else 0
    return calls / (operations_of(result) * SIZE_BYTES / MIB) if calls else None


def idle(topology, seconds):
    """Share of a processor and resident bytes of the daemon that takes most, with nobody connected."""
    pids = [process.pid for process in topology.cluster.daemons.values()]
    time.sleep(1)
    before = [cpu_s(pid) for pid in pids]
    start = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - start
    return {"idle daemon, share of a processor": max(cpu_s(pid) - earlier for pid, earlier in zip(pids, before)) / elapsed,
            "idle daemon, resident MiB": max(memory(pid)["VmRSS"] for pid in pids) / MIB}


def busy(seconds):
    """Microseconds of an all-reduce of 8 B among two ranks of a node while as many other programs spin as there are processors."""
    topology = Topology("local2")
    spinners = [subprocess.Popen(["sh", "-c", "while :; do :; done"], stdin=subprocess.DEVNULL) for _ in range(os.cpu_count())]
    try:
        return contestants.Commd.run(topology, sweep_of(8, seconds))[0]["time_us"]
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
        topology.close()


def measure(options, progress, failures):
    """{topology: {contestant: {what: value}}}"""
    counts = {}
    seconds = 0.3 if options.quick else 1.5
    for name in ("local2", "nodes2-9000") if options.have_namespaces else ("local2",):
        of_topology = counts.setdefault(name, {})
        topology = Topology(name)
        try:
            progress.step(f"counts: {name}: idle")
            own = of_topology.setdefault("commd", {})
            own.update(idle(topology, 4 if options.quick else 10))
            progress.step(f"counts: {name}: memory")
            pids = [process.pid for process in topology.cluster.daemons.values()]
            # Of the daemon as it is: code, tables, connections, which are there without the operation.
            with PeakMemory(pids) as peak:
                contestants.Commd.run(topology, sweep_of(MEMORY_SIZE_BYTES, seconds))
            own["peak memory of its own, all-reduce of 64 MiB, MiB"] = peak.peak / MIB
            own["VmHWM, clients' memory included, MiB"] = max(memory(pid)["VmHWM"] for pid in pids) / MIB
            for contestant in options.contestants:
                progress.step(f"counts: {name}: {contestant.name}")
                of_topology.setdefault(contestant.name, {}).update(processor_and_packets(topology, contestant, seconds))
            progress.step(f"counts: {name}: system calls")
            calls = system_calls(topology, seconds)
            if calls is None:
                failures.append(f"counts: {name}: system calls: left out: strace is missing or may not attach")
            else:
                own["system calls of the daemons per MiB"] = calls
        except Failed as failure:
            failures.append(f"counts: {name}: {failure}")
        finally:
            topology.close()
    progress.step("counts: both processors busy")
    try:
        counts["busy"] = {"commd": {"all-reduce 8 B, 2 ranks, both processors busy, us": busy(seconds)}}
    except Failed as failure:
        failures.append(f"counts: both processors busy: {failure}")
    return counts


def table(counts):
    lines = ["## Counts (all-reduce of 16 MiB, blocking calls one after another; per MiB and GiB of the vector)", ""]
    for topology, of_topology in counts.items():
        for contestant, values in of_topology.items():
            lines += [f"{topology:12} {contestant:10} {what:52} {value:12.4f}" for what, value in values.items()]
    return "\n".join(lines)
