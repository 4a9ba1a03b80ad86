"""Tables and plots of what was measured."""
import html
import math

BUS_FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}
COLOURS = {"commd": "#0b6bcb", "Open MPI": "#d1711c", "Gloo": "#3c8a2e"}


def size_text(size_bytes):
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:g} {unit}"
    return f"{size_bytes} B"


def busbw_gbs(operation, size, size_bytes, time_us):
    return size_bytes / time_us / 1e3 * BUS_FACTORS.get(operation, lambda n: 1)(size)


def table(topology, medians, peers):
    """medians: {contestant: {(operation, size_bytes): us}}"""
    own = medians["commd"]
    head = f"{'operation':15} {'size':>8} {'time us':>10} {'algbw':>7} {'busbw':>7}" + "".join(f"  {'x ' + peer:>10}" for peer in peers)
    lines = [f"-- {topology.title} (GB/s; x: commd's bandwidth over the peer's)", head]
    for (operation, size_bytes), time_us in own.items():
        ratios = ""
        for peer in peers:
            other = medians.get(peer, {}).get((operation, size_bytes))
            ratios += f"  {other / time_us:10.2f}" if other else f"  {'-':>10}"
        algbw = size_bytes / time_us / 1e3
        lines.append(f"{operation:15} {size_text(size_bytes):>8} {time_us:10.1f} {algbw:7.2f} {busbw_gbs(operation, topology.size, size_bytes, time_us):7.2f}{ratios}")
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


def plot(results):
    """Draws one panel for each topology: the bus bandwidth of all_reduce over the size, both axes logarithmic."""
    width, height, margin = 420, 300, 48
    panels = []
    for index, (topology, medians) in enumerate(results):
        series = {name: sorted((size, busbw_gbs(op, topology.size, size, us)) for (op, size), us in times.items() if op == "all_reduce")
                  for name, times in medians.items()}
        points = [point for line in series.values() for point in line]
        if not points:
            continue
        low_x, high_x = min(p[0] for p in points), max(p[0] for p in points)
        low_y, high_y = min(p[1] for p in points), max(p[1] for p in points)

        def place(point):
            x = margin + (math.log2(point[0]) - math.log2(low_x)) / max(math.log2(high_x / low_x), 1) * (width - 2 * margin)
            y = height - margin - (math.log10(point[1]) - math.log10(low_y)) / max(math.log10(high_y / low_y), 0.1) * (height - 2 * margin)
            return f"{x:.1f},{y:.1f}"

        left, top = index % 2 * width, index // 2 * height
        parts = [f'<g transform="translate({left},{top})"><text x="{width / 2}" y="20" text-anchor="middle" font-weight="bold">{html.escape(topology.title)}</text>',
                 f'<rect x="{margin}" y="{margin}" width="{width - 2 * margin}" height="{height - 2 * margin}" fill="none" stroke="#999"/>',
                 f'<text x="{margin}" y="{height - margin + 16}">{size_text(low_x)}</text>',
                 f'<text x="{width - margin}" y="{height - margin + 16}" text-anchor="end">{size_text(high_x)}</text>',
                 f'<text x="{margin - 4}" y="{margin + 4}" text-anchor="end">{high_y:.3g}</text>',
                 f'<text x="{margin - 4}" y="{height - margin}" text-anchor="end">{low_y:.1g}</text>']
        for number, (name, line) in enumerate(series.items()):
            colour = COLOURS.get(name, "#555")
            parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(place(p) for p in line)}"/>')
            parts.append(f'<text x="{margin + 8}" y="{margin + 16 + 14 * number}" fill="{colour}">{html.escape(name)}</text>')
        panels.append("\n".join(parts) + "</g>")
    rows = (len(results) + 1) // 2
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * width}" height="{rows * height + 24}" font-family="sans-serif" font-size="11">'
            f'<rect width="100%" height="100%" fill="white"/>{"".join(panels)}'
            f'<text x="8" y="{rows * height + 16}">all-reduce, f32 sum: bus bandwidth in GB/s over size; both axes logarithmic</text></svg>\n')


def bars_table(bars):
    """bars: (what, measured, limit, met or None)"""
    lines = [f"{'bar':78} {'measured':>16} {'limit':>14}  "]
    for what, measured, limit, met in bars:
        lines.append(f"{what:78} {measured:>16} {limit:>14}  {'-' if met is None else 'met' if met else 'MISSED'}")
    return "\n".join(lines)
