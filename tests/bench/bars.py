"""The bars that commd must meet. Also the measurements that the sweeps do not make: idle cost, memory, processor time, packets."""
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import threading
import time

import comparison
from contestants import Failed, Sweep, end, finish, start

MIB = 1 << 20


# ---- measurements beside the sweeps; the topology must be up

def cpu_s(pid):
    """Returns the processor time of a process's live threads. Reads schedstat, which counts nanoseconds. stat counts ticks of 10 ms, and one tick
    in 10 s is already the bar of an idle daemon."""
    total_ns = 0
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total_ns += int(path.read_text().split()[0])
        except OSError:
            pass  # a thread that ended just now
    return total_ns / 1e9


def memory_kib(pid, field):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return 0


def pid_of_daemon(place, node):
    """Returns the process number of commd itself. In a namespace, `ip netns exec` has become commd."""
    return place.cluster.daemons[node].pid


class PrivateMemory(threading.Thread):
    """Measures the most private memory that a process has until end(). Memory that it maps of its clients does not count."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid = pid
        self.most_kib = 0
        self.going = True
        self.start()

    def run(self):
        while self.going:
            self.most_kib = max(self.most_kib, memory_kib(self.pid, "RssAnon"))
            time.sleep(0.002)

    def end(self):
        self.going = False
        self.join()
        return self.most_kib / 1024


def packets(place):
    return sum(int(place.cluster.read_in_node(node, "/sys/class/net/veth0/statistics/tx_packets")) for node in place.nodes)


def measure_large(place, commd):
    """An all-reduce of 256 MiB: private memory, processor time and packets."""
    pids = [pid_of_daemon(place, node) for node in place.nodes]
    size = 256 * MIB
    iterations = 4
    began_s = sum(map(cpu_s, pids))
    began_packets = packets(place) if place.node_count > 1 else 0
    watch = PrivateMemory(pids[0])
    children_before = os.times()
    commd.sweep(place, Sweep(["all_reduce"], size, size, 2, 0), 240, "--iterations", iterations, "--no-check")
    children = os.times()
    runs = iterations + 3  # + 3: the warm-up
    gib = runs * size * place.size / (1 << 30)
    figures = {f"{place.name}: private memory of commd, MiB, all-reduce of 256 MiB": watch.end(),
               f"{place.name}: processor seconds of commd per GiB of ranks' data": (sum(map(cpu_s, pids)) - began_s) / gib,
               f"{place.name}: processor seconds of the ranks per GiB (with making their buffers)":
               (children.children_user + children.children_system - children_before.children_user - children_before.children_system) / gib}
    if place.node_count > 1:
        figures[f"{place.name}: packets per MiB of ranks' data, GSO batches counted as the interface does"] = (packets(place) - began_packets) / gib / 1024
    return figures


def measure_system_calls(place, commd):
    """Counts system calls of one daemon per MiB of ranks' data."""
    if shutil.which("strace") is None:
        return {}
    pid = pid_of_daemon(place, place.nodes[0])
    trace = subprocess.Popen(["strace", "-c", "-f", "-q", "-p", str(pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(0.5)
    commd.sweep(place, Sweep(["all_reduce"], 64 * MIB, 64 * MIB, 2, 0), 240, "--iterations", 5, "--no-check")
    trace.send_signal(2)
    table = trace.communicate(timeout=20)[1]
    calls = sum(int(line.split()[3]) for line in table.splitlines() if len(line.split()) >= 5 and line.split()[3].isdigit() and line.split()[-1] not in ("total", "sched_yield"))
    return {f"{place.name}: system calls of commd per MiB of ranks' data": calls / (8 * 64 * place.size)}


def measure_idle(place):
    pid = pid_of_daemon(place, place.nodes[0])
    time.sleep(0.5)
    before_s, began_s = cpu_s(pid), time.monotonic()
    time.sleep(10)
    return {"idle: % of a processor": 100 * (cpu_s(pid) - before_s) / (time.monotonic() - began_s)}


def measure_submission(place, build):
    environment = {**os.environ, "COMMD_SOCKET": place.cluster.socket(place.nodes[0])}
    output = finish([start(place.command(place.nodes[0], build / "tests/bench/bench_submit"), env=environment)], 60)[0]
    return {f"submission, {key}": value for key, value in json.loads(output).items()}


def measure_pool(place, build):
    environment = {**os.environ, "COMMD_SOCKET": place.cluster.socket(place.nodes[0])}
    output = finish([start(place.command(place.nodes[0], build / "tests/bench/bench_pool"), env=environment)], 60)[0]
    return {f"pool, ns for alloc and free, {key}": value for key, value in json.loads(output).items()}


def measure_busy(place, commd, repeats):
    """Measures all-reduces of 8 bytes while another process computes, and while one computes on each processor. Medians of `repeats` runs: single
    ones vary from 0.1 to 210 us."""
    found = {}
    for _ in range(repeats):
        for count, what in ((1, "one computing process"), (os.cpu_count(), "as many computing processes as processors")):
            burners = [start(["sh", "-c", "while :; do :; done"]) for _ in range(count)]
            try:
                times = commd.sweep(place, Sweep(["all_reduce"], 8, 8, 2, 0.3), 60)
            finally:
                for burner in burners:
                    burner.kill()
                    burner.wait()
            found.setdefault(f"8 B beside {what}, us, median", []).append(times["all_reduce", 8])
            found.setdefault(f"8 B beside {what}, us, mean", []).append(times.mean_us["all_reduce", 8])
    return {figure: statistics.median(values) for figure, values in found.items()}


def measure_quic(build, repeats):
    """Measures one connection of daemon/net and the minimal ngtcp2 program, in turn. The ratio is that of the worst datagram size. Also measures a bulk
    link: TLS over TCP."""
    bulk = [subprocess.run([build / "tests/bench/bench_quic", "--mode", "bulk", "1"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[0]
            for _ in range(repeats)]
    figures = {"one bulk link, TLS over TCP, Gbit/s": statistics.median(float(re.search(r"([\d.]+) Gbit/s", line).group(1)) for line in bulk)}
    for size in (1452, 8952, 65000):
        rates = {"bench_quic": [], "quic_minimal": []}
        for _ in range(repeats):
            for program, of in rates.items():
                output = subprocess.run([build / "tests/bench" / program, "1", str(size)], stdout=subprocess.PIPE, text=True, check=True).stdout
                of.append(float(re.search(r"([\d.]+) Gbit/s", output).group(1)))
        medians = {program: statistics.median(of) for program, of in rates.items()}
        figures[f"one QUIC connection, datagrams of {size}, Gbit/s"] = medians["bench_quic"]
        figures[f"the minimal ngtcp2 program, datagrams of {size}, Gbit/s"] = medians["quic_minimal"]
        ratio = medians["bench_quic"] / medians["quic_minimal"]
        figures["bare QUIC, of the minimal program"] = min(ratio, figures.get("bare QUIC, of the minimal program", ratio))
    return figures


def measure_iperf(place):
    """Measures TCP in plain text from the first node to the second, over the same link as the sweeps."""
    if shutil.which("iperf3") is None:
        return {}
    address = place.address(place.nodes[1])
    server = start(place.command(place.nodes[1], "iperf3", "--server", "--one-off", "--bind", address))
    time.sleep(0.3)
    try:
        client = start(place.command(place.nodes[0], "iperf3", "--client", address, "--time", "2", "--json"))
        report = json.loads(finish([client], 20)[0])
        return {f"{place.name}: TCP, one way, by iperf3, Gbit/s": report["end"]["sum_received"]["bits_per_second"] / 1e9}
    except (Failed, KeyError, ValueError):
        return {}
    finally:
        end(server)


def measure_beside(place, commd, build, repeats):
    figures = {}
    if place.name == "local2":
        figures["idle: resident MiB, before anything ran"] = place.idle_kib / 1024
        figures.update(measure_submission(place, build))
        figures.update(measure_pool(place, build))
        figures.update(measure_busy(place, commd, repeats))
        figures.update(measure_idle(place))
    if place.node_count == 2:
        figures.update(measure_iperf(place))
    if place.name == "nodes2-9000":
        measured = {**measure_busy(place, commd, repeats), **measure_idle(place)}
        figures.update({f"{place.name}: {name}": value for name, value in measured.items()})
    if place.name in ("local2", "local4", "nodes2-9000"):
        figures.update(measure_large(place, commd))
        try:
            figures.update(measure_system_calls(place, commd))
        except (Failed, subprocess.TimeoutExpired):
            pass  # the tracer is not allowed here, so this figure is left out
    return figures


def counts_text(figures):
    lines = ["-- counts"] + [f"  {name:95} {value:10.3f}" for name, value in figures.items()]
    lines.append("  bytes touched, by construction: on one node k ranks' inputs read and outputs written once; between nodes each sent byte is read once")
    lines.append("  (into the packet, as it is encrypted) and each received one decrypted and stored or reduced once where it belongs")
    return "\n".join(lines)


# ---- the bars

# The best peer's time over commd's, at least, for each class of comparison.SIZE_CLASSES. Peers send plain text, commd is encrypted.
BESIDE_BEST = (
    ("local2", "commd", (1.0, 1.1, 1.3, 2.0)), ("local4", "commd", (1.0, 1.1, 1.3, 2.0)),
    ("local2", "commd plain", (1.0, 0.7, 1.0, 1.2)), ("local4", "commd plain", (1.0, 1.0, 1.0, 1.2)),
    ("nodes2-9000", "commd", (0.35, 0.4, 0.6, 0.8)), ("nodes2-1500", "commd", (0.35, 0.4, 0.5, 0.55)),
)
# The same of the last two classes, if the peers' times are scaled by what TLS takes off TCP's rate.
THROUGH_TLS = (("nodes2-9000", (0.9, 1.0)), ("nodes2-1500", (0.9, 1.0)))
SINGLE_OF_BAR = 0.5  # no single collective and size is under this part of its class's bar
TRACES_BESIDE_BEST = (("local2", "commd plain", 1.2), ("local4", "commd plain", 1.2), ("nodes2-9000", "commd", 0.8), ("nodes2-1500", "commd", 0.5))
AFTER_COMPUTING_BESIDE_BEST = (("local2", 1 / 1.2), ("local4", 1 / 1.2), ("nodes2-9000", 0.5), ("nodes2-1500", 0.5))


def beside_best(results):
    found = []
    for place, own, limits in BESIDE_BEST:
        medians = results.get(place, {})
        for (title, low, high), limit in zip(comparison.SIZE_CLASSES, limits):
            found.append(row(f"{place}, {own}: x the best peer, {title}", comparison.class_ratio(medians, low, high, own), limit))
        found.append(row(f"{place}, {own}: worst single ratio, as a part of its bar", comparison.worst_of_bars(medians, limits, own), SINGLE_OF_BAR))
    for place, own, limit in TRACES_BESIDE_BEST:
        found.append(row(f"{place}, {own}: x the best peer, traces of training steps", comparison.traces_ratio(results.get(place, {}), own), limit))
    for place, limit in AFTER_COMPUTING_BESIDE_BEST:
        found.append(row(f"{place}: x the best peer, 8 B after 1 ms of computing", comparison.ratio(results.get(place, {}), comparison.SMALL_AFTER_COMPUTING), limit))
    return found


def through_tls(results, machine):
    """machine: the limits, {name: (value, unit)}."""
    tcp, tls = machine.get("TCP, one way", (None,))[0], machine.get("TLS 1.3 over TCP, one way", (None,))[0]
    found = []
    for place, limits in THROUGH_TLS:
        for (title, low, high), limit in zip(comparison.SIZE_CLASSES[-len(limits):], limits):
            ratio = comparison.class_ratio(results.get(place, {}), low, high)
            found.append(row(f"{place}: x the best peer through TLS (computed), {title}", ratio * tcp / tls if ratio and tcp and tls else None, limit))
    return found


def processor_rows(results, cpu):
    """results, cpu: {place: {contestant: {(operation, size): us}}}"""
    return [row(f"{place}, commd: the best peer's processor time for an operation over commd's, >= 1 MiB",
                comparison.processor_ratio(results[place], cpu[place], MIB) if place in results else None, 1) for place in ("local2", "local4")]


def worst_ratio(medians, peer, at_least, exactly=None):
    """Returns the smallest ratio of commd's bandwidth to the peer's, over the sizes of an all-reduce."""
    own, other = medians.get("commd", {}), medians.get(peer, {})
    ratios = [other["all_reduce", size] / time_us for (operation, size), time_us in own.items()
              if operation == "all_reduce" and ("all_reduce", size) in other and (size == exactly if exactly else size >= at_least)]
    return min(ratios) if ratios else None


def row(what, value, limit, at_least=True, unit=""):
    met = None if value is None else value >= limit if at_least else value <= limit
    return what, "not measured" if value is None else f"{value:.3g}{unit}", f"{'>=' if at_least else '<='} {limit:.3g}{unit}", met


def rows(results, cpu, machine, figures):
    found = beside_best(results) + through_tls(results, machine) + processor_rows(results, cpu)
    found.append(row("local2: 8 B beside one computing process, us, mean", figures.get("8 B beside one computing process, us, mean"), 20, False))
    for name, ranks in (("local2", 2), ("local4", 4)):
        medians = results.get(name, {})
        found.append(row(f"one node, {ranks} ranks, all-reduce >= 1 MiB: x Open MPI, worst size", worst_ratio(medians, "Open MPI", MIB), 1.5))
        found.append(row(f"one node, {ranks} ranks, all-reduce >= 1 MiB: x Gloo, worst size", worst_ratio(medians, "Gloo", MIB), 3))
    found.append(row("one node, 4 ranks, all-reduce of 128 MiB: x Open MPI", worst_ratio(results.get("local4", {}), "Open MPI", 0, 128 * MIB), 2.5))
    eight = results.get("local2", {}).get("commd", {}).get(("all_reduce", 8))
    ping_pong = machine.get("spin ping-pong", (None,))[0]
    found.append(row("one node, 2 ranks, all-reduce of 8 B: times the spin ping-pong", eight / ping_pong if eight and ping_pong else None, 5, False))
    found.append(row("the same, us, with the ranks on both processors", eight, 15, False))
    gloo = results.get("local2", {}).get("Gloo", {}).get(("all_reduce", 8))
    found.append(row("the same, of Gloo's time", eight / gloo if eight and gloo else None, 1, False))
    medians = results.get("nodes2-9000", {})
    found.append(row("2 nodes, MTU 9000, encrypted, all-reduce >= 1 MiB: x Gloo in plain TCP, worst size", worst_ratio(medians, "Gloo", MIB), 1))
    found.append(row("the same: x Open MPI in plain TCP, worst size", worst_ratio(medians, "Open MPI", MIB), 0.8))
    tcp, tls = machine.get("TCP, one way", (None,))[0], machine.get("TLS 1.3 over TCP, one way", (None,))[0]
    peers = [ratio for ratio in (worst_ratio(medians, "Gloo", MIB), worst_ratio(medians, "Open MPI", MIB)) if ratio]
    found.append(row("the same: x either through TLS (its time x TCP's rate / TLS's rate), worst size", min(peers) * tcp / tls if peers and tcp and tls else None, 1.5))
    line = [size * 8 / time_us / 1e3 for (operation, size), time_us in results.get("nodes2-1gbit", {}).get("commd", {}).items() if operation == "all_reduce" and size >= 4 * MIB]
    found.append(row("2 nodes over 1 Gbit/s, all-reduce >= 4 MiB: share of the line, worst size", min(line) if line else None, 0.93))
    found.append(row("one QUIC stream of daemon/net: of a minimal ngtcp2 program's rate", figures.get("bare QUIC, of the minimal program"), 0.85))
    found.append(row("submission to its execution, as the caller sees the output change, us", figures.get("submission, started_us"), 3, False))
    found.append(row("comm_pool_alloc and comm_pool_free, sizes mixed, ns", figures.get("pool, ns for alloc and free, mixed"), 1000, False))
    found.append(row("idle daemon, % of a processor", figures.get("idle: % of a processor"), 0.1, False))
    found.append(row("the same, one of two connected nodes", figures.get("nodes2-9000: idle: % of a processor"), 0.1, False))
    found.append(row("idle daemon, resident MiB", figures.get("idle: resident MiB, before anything ran"), 32, False))
    for name in ("local2", "nodes2-9000"):
        found.append(row(f"{name}: private memory for an all-reduce of 256 MiB, MiB", figures.get(f"{name}: private memory of commd, MiB, all-reduce of 256 MiB"), 48, False))
    return found


def kernel_rows(kernels):
    """kernels: the JSON objects that bench_reduce prints."""
    large = [each["of_copy"] for each in kernels if each["type"] == "f32" and each["kernel"] == "host_reduce" and each["streams"]]
    small = [each["ns"] for each in kernels if each["type"] == "f32" and each["bytes"] == 64 and each["inputs"] == 2]
    return [row("f32 sums past the caches: of a copy's rate in touched bytes, median of the shapes", statistics.median(large) if large else None, 0.9),
            row("the same, worst shape", min(large, default=None), 0.9),
            row("f32 sums of 64 bytes, 2 inputs, ns, worst", max(small, default=None), 30, False)]
