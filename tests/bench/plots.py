"""Plots of what was measured, as SVG: curves over the size, a heat map of ratios, and curves over the number of ranks."""
import html
import math

import comparison
from report import busbw_gbs, size_text

COLOURS = {"commd": "#0b6bcb", "commd plain": "#7fb2e5", "Open MPI": "#d1711c", "MPICH": "#8a4fb3", "Intel MPI": "#b3261e", "Gloo": "#3c8a2e"}
GROWTH_BYTES = (1 << 11, 1 << 17, 1 << 23)  # of these, the smallest and the largest that were measured everywhere are drawn
WIDTH, HEIGHT, MARGIN = 420, 300, 48
CELL_WIDTH, CELL_HEIGHT, LABEL_WIDTH = 58, 24, 320
FARTHEST = 8  # ratios of 8 and 1/8, and those beyond, have the strongest colours


def text(x, y, words, **attributes):
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{html.escape(str(words))}</text>'


def number_text(value):
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def panel(title, series, left, top, x_text):
    """Draws curves in a frame; both axes are logarithmic. series: {name: [(x, y)]}. x_text writes an x value. Returns an empty text without points."""
    points = [point for line in series.values() for point in line]
    if not points:
        return ""
    low_x, high_x = min(p[0] for p in points), max(p[0] for p in points)
    low_y, high_y = min(p[1] for p in points), max(p[1] for p in points)

    def place(point):
        x = MARGIN + math.log(point[0] / low_x) / max(math.log(high_x / low_x), 0.1) * (WIDTH - 2 * MARGIN)
        y = HEIGHT - MARGIN - math.log(point[1] / low_y) / max(math.log(high_y / low_y), 0.1) * (HEIGHT - 2 * MARGIN)
        return f"{x:.1f},{y:.1f}"

    parts = [f'<g transform="translate({left},{top})">', text(WIDTH / 2, 20, title, text_anchor="middle", font_weight="bold"),
             f'<rect x="{MARGIN}" y="{MARGIN}" width="{WIDTH - 2 * MARGIN}" height="{HEIGHT - 2 * MARGIN}" fill="none" stroke="#999"/>',
             text(MARGIN, HEIGHT - MARGIN + 16, x_text(low_x)), text(WIDTH - MARGIN, HEIGHT - MARGIN + 16, x_text(high_x), text_anchor="end"),
             text(MARGIN - 4, MARGIN + 4, number_text(high_y), text_anchor="end"), text(MARGIN - 4, HEIGHT - MARGIN, number_text(low_y), text_anchor="end")]
    for number, (name, line) in enumerate((name, line) for name, line in series.items() if line):
        colour = COLOURS.get(name, "#555")
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(map(place, line))}"/>')
        parts.append(text(MARGIN + 8, MARGIN + 16 + 14 * number, name, fill=colour))
    return "\n".join(parts) + "</g>"


def page(panels, caption):
    """panels: functions of (left, top) that return SVG. Two stand in a row."""
    body = "".join(draw(index % 2 * WIDTH, index // 2 * HEIGHT) for index, draw in enumerate(panels))
    height = (len(panels) + 1) // 2 * HEIGHT
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{height + 24}" font-family="sans-serif" font-size="11">'
            f'<rect width="100%" height="100%" fill="white"/>{body}{text(8, height + 16, caption)}</svg>\n')


def curves(results):
    """One panel for each topology: the bus bandwidth of all_reduce over the size."""
    def draw(place, medians):
        series = {name: sorted((size, busbw_gbs(op, place.size, size, us)) for (op, size), us in times.items() if op == "all_reduce") for name, times in medians.items()}
        return lambda left, top: panel(place.title, series, left, top, size_text)

    return page([draw(place, medians) for place, medians, _ in results], "all-reduce, f32 sum: bus bandwidth in GB/s over size; both axes logarithmic")


def colour_of(ratio):
    """Blue where commd is faster, red where the peer is, white where they are equal."""
    strength = min(abs(math.log(ratio)) / math.log(FARTHEST), 1)
    faded = round(255 * (1 - 0.75 * strength))
    return f"rgb({faded},{faded},255)" if ratio >= 1 else f"rgb(255,{faded},{faded})"


def heat_rows(results):
    """Returns [(title, {size_bytes: ratio})], one row for each place and memory that was measured."""
    rows = []
    for place, medians, _ in results:
        for own, suffix in (("commd", ""), ("commd plain", ", plain memory")):
            sizes = sorted({size for operation, size in medians.get(own, {}) if operation in comparison.COLLECTIVES})
            ratios = {size: comparison.size_ratio(medians, size, own) for size in sizes}
            known = {size: each for size, each in ratios.items() if each}
            rows += [(place.title + suffix, known)] if known else []
    return rows


def heat_map(results):
    """Places by sizes: the best peer's time over commd's, geometric means over the collectives that were measured at that size."""
    rows = heat_rows(results)
    sizes = sorted({size for _, ratios in rows for size in ratios})
    parts = [text(LABEL_WIDTH + CELL_WIDTH * (column + 0.5), 40, size_text(size), text_anchor="middle") for column, size in enumerate(sizes)]
    for number, (title, ratios) in enumerate(rows):
        top = 48 + CELL_HEIGHT * number
        parts.append(text(LABEL_WIDTH - 8, top + 16, title, text_anchor="end"))
        for column, size in enumerate(sizes):
            if size in ratios:
                left = LABEL_WIDTH + CELL_WIDTH * column
                parts.append(f'<rect x="{left}" y="{top}" width="{CELL_WIDTH}" height="{CELL_HEIGHT}" fill="{colour_of(ratios[size])}" stroke="#ccc"/>')
                parts.append(text(left + CELL_WIDTH / 2, top + 16, f"{ratios[size]:.2f}", text_anchor="middle"))
    width, height = LABEL_WIDTH + CELL_WIDTH * max(len(sizes), 4) + 16, 48 + CELL_HEIGHT * len(rows) + 16
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">'
            f'<rect width="100%" height="100%" fill="white"/>'
            f'{text(8, 20, "the best peer" + chr(8217) + "s time over commd" + chr(8217) + "s, geometric means over the collectives: above 1 (blue), commd is faster")}'
            f'{"".join(parts)}</svg>\n')


def growth_series(members, size_bytes):
    """members: [(topology, medians)] of one family. Returns {contestant: [(ranks, us)]} of all_reduce."""
    names = dict.fromkeys(name for _, medians in members for name in medians)
    return {name: sorted((place.size, medians[name]["all_reduce", size_bytes]) for place, medians in members
                         if ("all_reduce", size_bytes) in medians.get(name, {})) for name in names}


def growth(results):
    """For each family of topologies, at two sizes: the time of an all-reduce over the number of ranks."""
    families = {}
    for place, medians, _ in results:
        if place.family:
            families.setdefault(place.family, []).append((place, medians))
    panels = []
    for family, members in families.items():
        measured = [size for size in GROWTH_BYTES if all(("all_reduce", size) in medians.get("commd", {}) for _, medians in members)]
        for size in dict.fromkeys(measured[:1] + measured[-1:]) if len(members) > 1 else ():
            title, series = f"{family}, {size_text(size)}", growth_series(members, size)
            panels.append(lambda left, top, title=title, series=series: panel(title, series, left, top, lambda ranks: f"{ranks} ranks"))
    return page(panels, "all-reduce, f32 sum: time in us over the number of ranks; both axes logarithmic") if panels else None
