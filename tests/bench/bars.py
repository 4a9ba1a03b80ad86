"""The bars that the project sets itself, against what was measured in this run."""
MIB = 1 << 20
LINE_GBS = 0.125  # 1 Gbit/s


class Measured:
    """Looks figures up; a bar whose figures are not there is "not measured"."""

    def __init__(self, document):
        self.results = {}
        for result in document["results"]:
            self.results.setdefault((result["topology"], result["operation"], result["contestant"]), {})[result["size_bytes"]] = result
        self.limits = document["limits"]
        self.counts = document["counts"]

    def of(self, topology, contestant, least=0, operation="all_reduce"):
        sizes = self.results.get((topology, operation, contestant), {})
        return {size: result for size, result in sizes.items() if size >= least}

    def worst_ratio(self, topology, peer, least):
        """(how many times faster commd is where it is so least, the size) or None."""
        own, others = self.of(topology, "commd", least), self.of(topology, peer, least)
        ratios = [(others[size]["time_us"] / own[size]["time_us"], size) for size in own if size in others]
        return min(ratios) if ratios else None

    def limit(self, name):
        return self.limits[name]["value"] if name in self.limits else None


def at_least(name, found, bar, unit=""):
    """found: a number, or (number, size), or None."""
    where = f" at {found[1] / MIB:g} MiB" if isinstance(found, tuple) else ""
    value = found[0] if isinstance(found, tuple) else found
    if value is None:
        return {"bar": name, "measured": "not measured", "limit": f">= {bar:g}{unit}", "met": None}
    return {"bar": name, "measured": f"{value:.3g}{unit}{where}", "limit": f">= {bar:g}{unit}", "met": value >= bar}


def at_most(name, value, bar, unit=""):
    if value is None:
        return {"bar": name, "measured": "not measured", "limit": f"<= {bar:.3g}{unit}" if bar is not None else "not measured", "met": None}
    return {"bar": name, "measured": f"{value:.3g}{unit}", "limit": f"<= {bar:.3g}{unit}", "met": value <= bar}


def on_one_node(measured):
    rows = []
    for ranks in (2, 4):
        topology = f"local{ranks}"
        rows.append(at_least(f"all-reduce, one node, {ranks} ranks, >= 1 MiB, worst: x Open MPI", measured.worst_ratio(topology, "Open MPI", MIB), 1.5))
        rows.append(at_least(f"all-reduce, one node, {ranks} ranks, >= 1 MiB, worst: x Gloo", measured.worst_ratio(topology, "Gloo", MIB), 3))
    own, peer = (measured.of("local4", name).get(128 * MIB) for name in ("commd", "Open MPI"))
    rows.append(at_least("all-reduce, one node, 4 ranks, 128 MiB: x Open MPI", peer["time_us"] / own["time_us"] if own and peer else None, 2.5))
    small = {name: measured.of("local2", name).get(8, {}).get("time_us") for name in ("commd", "Gloo")}
    ping_pong_us = measured.limit("spin ping-pong, there and back")
    if ping_pong_us is not None:
        rows.append(at_most("all-reduce 8 B, one node, 2 ranks: 5 x the spin ping-pong", small["commd"], 5 * ping_pong_us, " us"))
    rows.append(at_most("all-reduce 8 B, one node, 2 ranks, as in the table", small["commd"], 15, " us"))
    busy = measured.counts.get("busy", {}).get("commd", {}).get("all-reduce 8 B, 2 ranks, both processors busy, us")
    rows.append(at_most("the same with two programs that spin beside it", busy, 15, " us"))
    if small["Gloo"] is not None:
        rows.append(at_most("all-reduce 8 B, one node, 2 ranks: below Gloo", small["commd"], small["Gloo"], " us"))
    return rows


def between_nodes(measured):
    topology = "nodes2-9000"
    rows = []
    through_tls = []
    tcp, tls = (measured.limit(f"{kind} one way, MTU 9000") for kind in ("tcp", "tls"))
    for peer, bar in (("Gloo", 1), ("Open MPI", 0.8)):
        worst = measured.worst_ratio(topology, peer, MIB)
        rows.append(at_least(f"all-reduce, 2 nodes, MTU 9000, >= 1 MiB, worst: x {peer} in plain TCP", worst, bar))
        if worst and tcp and tls:
            through_tls.append((worst[0] * tcp / tls, worst[1]))
    rows.append(at_least("the same: x the better of them through TLS (TCP's time x TCP's rate / TLS's rate)", min(through_tls) if through_tls else None, 1.5))
    goodputs = [(result["busbw_gbs"] / LINE_GBS * 100, size) for size, result in measured.of("nodes2-1g", "commd", 4 * MIB).items()]
    rows.append(at_least("all-reduce, 2 nodes, 1 Gbit/s, >= 4 MiB, worst: share of the line", min(goodputs) if goodputs else None, 93, " %"))
    return rows


def bars(document):
    measured = Measured(document)
    rows = on_one_node(measured) + between_nodes(measured)
    for datagram_bytes in (1452, 8952):
        own, minimal = (measured.limit(f"{name}, loopback, datagrams of {datagram_bytes} B")
                        for name in ("QUIC stream of net/", "QUIC stream, minimal ngtcp2 program"))
        rows.append(at_least(f"QUIC stream of net/, datagrams of {datagram_bytes} B: share of the minimal program's", own / minimal * 100 if own and minimal else None, 85, " %"))
    rows.append(at_most("submission to start of execution by rings, median", measured.limit("submission to start of execution"), 3, " us"))
    for topology, of_topology in measured.counts.items():
        own = of_topology.get("commd", {})
        share = own.get("idle daemon, share of a processor")
        if share is not None:
            rows.append(at_most(f"idle daemon, {topology}: share of a processor", share * 100, 0.1, " %"))
            rows.append(at_most(f"idle daemon, {topology}: resident", own["idle daemon, resident MiB"], 32, " MiB"))
        peak = own.get("peak memory of its own, all-reduce of 64 MiB, MiB")
        if peak is not None:
            rows.append(at_most(f"memory of the daemon for an all-reduce of 64 MiB, {topology}", peak, 64 / 8 + 16, " MiB"))
    return rows


def table(rows):
    width = max(len(row["bar"]) for row in rows)
    lines = ["## Bars", "", f"{'bar':{width}} | {'measured':>20} | {'limit':>14} | "]
    words = {True: "met", False: "MISSED", None: "-"}
    lines += [f"{row['bar']:{width}} | {row['measured']:>20} | {row['limit']:>14} | {words[row['met']]}" for row in rows]
    return "\n".join(lines)
