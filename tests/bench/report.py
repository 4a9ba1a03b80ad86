"""Tables of what was measured."""
import comparison

BUS_FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}


def size_text(size_bytes):
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:g} {unit}"
    return f"{size_bytes} B"


def busbw_gbs(operation, size, size_bytes, time_us):
    return size_bytes / time_us / 1e3 * BUS_FACTORS.get(operation, lambda n: 1)(size)


def table(topology, medians, cpu, peers):
    """medians, cpu: {contestant: {(operation, size_bytes): us}}. x: the peer's time over commd's, and the same for commd with ordinary memory. cpu:
    processor time of all ranks and commd for one operation."""
    own, plain = medians["commd"], medians.get("commd plain", {})
    head = f"{'operation':30} {'size':>8} {'time us':>10} {'busbw':>7} {'cpu us':>10}" + "".join(f"  {'x ' + peer:>11}" for peer in peers)
    lines = [f"-- {topology.title} (GB/s; x: the peer's time over commd's, with commd's memory and, after the /, with ordinary memory)",
             head + f"  {'best peer':>11} {'its cpu us':>10}"]
    for key, time_us in own.items():
        operation, size_bytes = key
        ratios = ""
        for peer in peers:
            other = medians.get(peer, {}).get(key)
            pair = f"{other / time_us:.2f}" + (f"/{other / plain[key]:.2f}" if key in plain else "") if other else "-"
            ratios += f"  {pair:>11}"
        best = comparison.best_peer(medians, key)
        busbw = f"{busbw_gbs(operation, topology.size, size_bytes, time_us):7.2f}" if size_bytes else f"{'-':>7}"
        best_text = f"  {best:>11} {cpu.get(best, {}).get(key, 0):10.1f}" if best else ""
        lines.append(f"{operation:30} {size_text(size_bytes):>8} {time_us:10.1f} {busbw} {cpu.get('commd', {}).get(key, 0):10.1f}{ratios}{best_text}")
    return "\n".join(lines)


def classes_table(results):
    """One line for each place and memory: geometric means, over the collectives and sizes of a class, of the best peer's time over commd's."""
    lines = ["-- beside the best peer: its time over commd's, geometric means over the collectives (above 1: commd is faster)",
             f"{'place, memory':50}" + "".join(f"{title:>20}" for title, _, _ in comparison.SIZE_CLASSES) + f"{'traces':>12}{'8 B computing':>16}"]
    for title, medians in ((f"{place.title}{suffix}", {**times, "commd": times.get(name, {})}) for place, times, _ in results
                           for name, suffix in (("commd", ""), ("commd plain", ", plain")) if times.get(name)):
        figures = [comparison.class_ratio(medians, low, high) for _, low, high in comparison.SIZE_CLASSES]
        figures += [comparison.traces_ratio(medians), comparison.ratio(medians, comparison.SMALL_AFTER_COMPUTING)]
        cells = ["-" if figure is None else f"{figure:.2f}" for figure in figures]
        lines.append(f"{title:50}" + "".join(f"{cell:>20}" for cell in cells[:-2]) + f"{cells[-2]:>12}{cells[-1]:>16}")
    return "\n".join(lines)


def kernels_table(kernels):
    """kernels: the JSON objects that bench_reduce prints. One line for each kernel and type, one column for each size."""
    sizes = list(dict.fromkeys(each["bytes"] for each in kernels))
    rows = {}
    for each in kernels:
        name = f"{each['kernel']} {each['type']}{' sum' if each['type'] else ''}"
        rows.setdefault((name, each["inputs"], each["outputs"]), {})[each["bytes"]] = each
    lines = ["-- kernels, one thread: ns of 64 bytes; GB/s of touched bytes and, in brackets, its part of a copy's (s: past the caches, both)"]
    lines.append(f"{'bytes of each buffer':36}" + "".join(f"{size_text(size):>18}" for size in sizes))
    for (name, inputs, outputs), of in rows.items():
        cells = ""
        for size in sizes:
            each = of[size]
            cells += f"{each['ns']:15.1f} ns" if size == 64 else f"{each['gbs']:8.1f} ({each['of_copy']:.2f}{'s' if each['streams'] else ' '}) ".rjust(18)
        lines.append(f"{name:28}{f'{inputs} to {outputs}':8}{cells}")
    return "\n".join(lines)


def bars_table(bars):
    """bars: (what, measured, limit, met or None)"""
    lines = [f"{'bar':78} {'measured':>16} {'limit':>14}  "]
    for what, measured, limit, met in bars:
        lines.append(f"{what:78} {measured:>16} {limit:>14}  {'-' if met is None else 'met' if met else 'MISSED'}")
    return "\n".join(lines)
