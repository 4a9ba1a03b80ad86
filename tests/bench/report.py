"""Tables, on standard output, and the SVG plot."""
import math

COLOURS = {"commd": "#0b6", "Open MPI": "#d60", "Gloo": "#36c"}
OPERATION_FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}


def bandwidths(operation, ranks, size_bytes, time_us):
    """algbw and busbw in GB/s, as nccl-tests define them."""
    algorithm = size_bytes / time_us / 1e3
    return algorithm, algorithm * OPERATION_FACTORS.get(operation, lambda _: 1)(ranks)


def bytes_text(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}" if size % unit == 0 else f"{size / unit:.1f} {name}"
    return f"{size} B"


def table(results, topology, contestants):
    """One line for each operation and size: of each contestant time and bandwidths, and how many times faster commd is."""
    rows = {}
    for result in results:
        if result["topology"] == topology:
            rows.setdefault((result["operation"], result["size_class"]), {})[result["contestant"]] = result
    lines = [f"## {topology}", ""]
    head = f"{'operation':14} {'size':>9}"
    for name in contestants:
        head += f" | {name + ' us':>12} {'algbw':>7} {'busbw':>7}"
    peers = [name for name in contestants if name != "commd"]
    head += " | " + " ".join(f"{'x ' + name:>10}" for name in peers) + "  #wrong"
    lines += [head, "-" * len(head)]
    for (operation, _), row in rows.items():
        size = max(result["size_bytes"] for result in row.values())
        line = f"{operation:14} {bytes_text(size) if size else '-':>9}"
        for name in contestants:
            result = row.get(name)
            line += f" | {result['time_us']:12.2f} {result['algbw_gbs']:7.3f} {result['busbw_gbs']:7.3f}" if result else f" | {'-':>12} {'-':>7} {'-':>7}"
        ratios = []
        for name in peers:
            both = "commd" in row and name in row
            ratios.append(f"{row[name]['time_us'] / row['commd']['time_us']:10.2f}" if both else f"{'-':>10}")
        lines.append(f"{line} | {' '.join(ratios)}  {sum(result['wrong'] for result in row.values()):.0f}")
    return "\n".join(lines)


def panel(results, x, y, width, height, title):
    """Bandwidth over size, both logarithmic, of each contestant."""
    points = [(result["contestant"], result["size_bytes"], result["busbw_gbs"]) for result in results if result["size_bytes"] > 0]
    sizes = [math.log2(point[1]) for point in points]
    rates = [math.log10(max(point[2], 1e-6)) for point in points]
    left, right = math.floor(min(sizes)), max(math.ceil(max(sizes)), math.floor(min(sizes)) + 1)
    bottom, top = math.floor(min(rates)), max(math.ceil(max(rates)), math.floor(min(rates)) + 1)
    across = lambda size: x + 45 + (math.log2(size) - left) / (right - left) * (width - 60)
    up = lambda rate: y + height - 30 - (math.log10(max(rate, 1e-6)) - bottom) / (top - bottom) * (height - 60)
    parts = [f'<text x="{x + 45}" y="{y + 18}" font-weight="bold">{title}</text>']
    for power in range(bottom, top + 1):
        at = up(10 ** power)
        parts.append(f'<path d="M{x + 45} {at:.1f}H{x + width - 15}" stroke="#ddd"/><text x="{x + 40}" y="{at + 4:.1f}" text-anchor="end">1e{power}</text>')
    for power in range(left, right + 1, max(4, (right - left) // 5)):
        parts.append(f'<text x="{across(2 ** power):.1f}" y="{y + height - 14}" text-anchor="middle">{bytes_text(2 ** power)}</text>')
    for name, colour in COLOURS.items():
        line = sorted((size, rate) for who, size, rate in points if who == name)
        if line:
            path = " ".join(f"{across(size):.1f},{up(rate):.1f}" for size, rate in line)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return "\n".join(parts)


def plot(results, topologies):
    operations = [name for name in dict.fromkeys(result["operation"] for result in results) if name != "barrier"]
    width, height = 330, 230
    parts = []
    for column, topology in enumerate(topologies):
        for row, operation in enumerate(operations):
            here = [result for result in results if result["topology"] == topology and result["operation"] == operation]
            if here:
                parts.append(panel(here, column * width, 40 + row * height, width, height, f"{operation}, {topology}"))
    legend = "".join(f'<text x="{20 + index * 120}" y="22" fill="{colour}" font-weight="bold">{name}</text>' for index, (name, colour) in enumerate(COLOURS.items()))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width * len(topologies)}" height="{40 + height * len(operations)}" '
            f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>{legend}'
            f'<text x="420" y="22">busbw in GB/s over size</text>\n' + "\n".join(parts) + "\n</svg>\n")
