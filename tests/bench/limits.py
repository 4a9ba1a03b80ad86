"""What this machine can do at best, in the units of the tables."""
import json
import re
import statistics
import subprocess
import time

from contestants import Failed, lines_of_json, run_together
from topology import BUILD, Topology

PROGRAM = BUILD / "tests/bench/limits"
PORT = 17999
# QUIC's share of a datagram of that MTU: IPv4 and UDP take 28 bytes.
DATAGRAM_BYTES = {1500: 1452, 9000: 8952}


def add(limits, name, value, unit):
    limits.setdefault(name, {"values": [], "unit": unit})["values"].append(value)


def stream(topology, kind, seconds):
    """{name: (value, unit)} of one transfer from node a to node b."""
    address = topology.address("b")
    receive = topology.cluster.in_node("b", PROGRAM, "receive", kind, address, PORT)
    send = topology.cluster.in_node("a", PROGRAM, "send", kind, address, PORT, seconds, DATAGRAM_BYTES[topology.mtu])
    output = run_together([receive, send], timeout_s=seconds + 20)[0]
    return {line["limit"]: (line["value"], line["unit"]) for line in lines_of_json(output)}


def iperf(topology, seconds):
    """GB/s of iperf3 over TCP from node a to node b."""
    address = topology.address("b")
    server = subprocess.Popen(topology.cluster.in_node("b", "iperf3", "--server", "--one-off", "--bind", address), stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        time.sleep(0.3)
        output = run_together([topology.cluster.in_node("a", "iperf3", "--client", address, "--time", max(1, round(seconds)), "--json")], timeout_s=seconds + 20)
        return json.loads(output[0])["end"]["sum_received"]["bits_per_second"] / 8e9
    finally:
        server.terminate()
        server.wait()


def quic(program, seconds, datagram_bytes, limits, name):
    """A program that prints "datagrams N bytes: X Gbit/s"."""
    output = run_together([[program, seconds, datagram_bytes]], timeout_s=seconds + 30)[0]
    match = re.search(r"([0-9.]+) Gbit/s", output)
    if not match:
        raise Failed(f"{program}: no figure in {output[-200:]!r}")
    add(limits, f"{name}, loopback, datagrams of {datagram_bytes} B", float(match[1]) / 8, "GB/s")


def measure(options, progress, failures):
    """{name: {"value", "unit", "values"}}: medians over the rounds; what is measured between two processes, in turn."""
    limits = {}
    seconds = 0.5 if options.quick else 1
    minimal = BUILD / "tests/bench/quic_minimal"
    for _ in range(options.repeats):
        progress.step("limits: in memory")
        for line in lines_of_json(run_together([[PROGRAM, seconds / 3]])[0]):
            add(limits, line["limit"], line["value"], line["unit"])
        for datagram_bytes in DATAGRAM_BYTES.values():
            progress.step(f"limits: QUIC, {datagram_bytes}")
            for program, name in ((BUILD / "tests/bench/bench_quic", "QUIC stream of net/"), (minimal, "QUIC stream, minimal ngtcp2 program")):
                if program.exists():
                    try:
                        quic(program, seconds, datagram_bytes, limits, name)
                    except Failed as failure:
                        failures.append(f"limits: {failure}")
    if not minimal.exists():
        failures.append("limits: left out: the minimal ngtcp2 program (tests/bench/quic_minimal.c) is not built")
    for name in ("nodes2-9000", "nodes2-1500") if options.have_namespaces else ():
        topology = Topology(name, with_daemons=False)
        try:
            for _ in range(options.repeats):
                progress.step(f"limits: {name}")
                for kind in ("tcp", "tls", "udp"):
                    try:
                        for limit, (value, unit) in stream(topology, kind, seconds).items():
                            add(limits, f"{limit}, MTU {topology.mtu}", value, unit)
                    except Failed as failure:
                        failures.append(f"limits: {name}: {kind}: {failure}")
                try:
                    add(limits, f"tcp one way by iperf3, MTU {topology.mtu}", iperf(topology, seconds), "GB/s")
                except (Failed, OSError, KeyError, ValueError) as failure:
                    failures.append(f"limits: {name}: iperf3: {failure}")
        finally:
            topology.close()
    for limit in limits.values():
        limit["value"] = statistics.median(limit["values"])
    return limits


def table(limits):
    lines = ["## Limits of this machine", ""]
    lines += [f"{name:60} {limit['value']:10.3f} {limit['unit']}" for name, limit in limits.items()]
    return "\n".join(lines)
