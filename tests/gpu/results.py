"""Prints what was measured on a GPU as tables, with the bars that commd must keep."""
KIB, MIB = 1 << 10, 1 << 20
COPY_PART = 0.90  # bar for the kernels: part of the copy's rate
ADDED_US = 10.0  # bar for operations of up to 64 KiB: what commd may add
# Bar for operations of 1 MiB and more: part of the kernel's rate alone. So commd may add a 19th of the kernel's time. An H200 moves some 4.3 TB/s,
# and reduces 1 MiB of two ranks in 1 us; launched and waited for, that takes 6 us or so. A 19th of that is 0.4 us. 10 us are a 19th of 190 us, the
# time for 195 MiB of two ranks.
LARGE_PART = 0.95
NODES_PART = 0.90  # bar for two nodes: part of the rate of the slowest stage alone
SMALL_MAX = 64 * KIB
NODES_BYTES = 256 * MIB
SEVERAL_PART = 0.97  # bar for several GPUs of one node from 16 MiB on: part of NCCL's rate in one process
SEVERAL_LEAST = 16 * MIB
ENGINES = ("kernels", "nccl", "auto")
WAKERS = ("this process's processor", "other process's processor", "this process's other stream", "other process's stream")
BESIDE = "beside another process's kernels"


def size_text(size_bytes):
    for unit, factor in (("GiB", 1 << 30), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:g} {unit}"
    return f"{size_bytes} B"


class Report:
    def __init__(self, facts, figures, left_out, double):
        self.facts, self.figures, self.left_out, self.double = facts, figures, left_out, double

    def value(self, name):
        return self.figures[name][0] if name in self.figures else None

    def cell(self, name, form="{:.1f}"):
        value = self.value(name)
        return "-" if value is None else form.format(value)

    def answer(self, name):
        value = self.value(name)
        return "not measured" if value is None else "yes" if value else "**no**"

    def sizes(self, prefix):
        """Returns the sizes that were measured under names with this prefix, in order."""
        found = {name[len(prefix):].split("/")[0] for name in self.figures if name.startswith(prefix)}
        return sorted(int(size) for size in found if size.isdigit())

    @staticmethod
    def table(head, rows):
        lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
        return lines + ["| " + " | ".join(row) + " |" for row in rows] + [""]

    # --- Bars ---

    def kernel_bars(self):
        copy = self.value("copy rate")
        for dtype in ("f32", "bf16"):
            for size in (2, 4, 8):
                rate = self.value(f"kernel rate/{dtype}/sum/{size}")
                if rate and copy:
                    yield f"all-reduce kernel, {dtype}, k = {size}: part of the copy's rate", f">= {COPY_PART}", f"{rate / copy:.2f}", rate / copy >= COPY_PART

    def pairs(self, ranks, mode):
        """Returns (size, us of the kernel alone, us of the operation) where both were measured."""
        pairs = [(size, self.value(f"kernel/{ranks}/idle/{size}/median"), self.value(f"{mode}/{ranks}/idle/{size}/median"))
                 for size in self.sizes(f"{mode}/{ranks}/idle/")]
        return [pair for pair in pairs if pair[1] and pair[2]]

    def operation_bars(self):
        for ranks in (1, 2):
            for mode in ("blocking", "stream"):
                pairs = self.pairs(ranks, mode)
                added = [(ours - alone, size) for size, alone, ours in pairs if size <= SMALL_MAX]
                parts = [(alone / ours, size) for size, alone, ours in pairs if size >= MIB]
                what = f"{ranks} rank{'s' if ranks > 1 else ''}, {mode}"
                if added:
                    worst, size = max(added)
                    yield f"8 B to 64 KiB, {what}: median added, most at {size_text(size)}", f"<= {ADDED_US:g} us", f"{worst:.1f} us", worst <= ADDED_US
                if parts:
                    worst, size = min(parts)
                    yield f"1 MiB and more, {what}: part of the kernel's rate alone, least at {size_text(size)}", f">= {LARGE_PART}", f"{worst:.2f}", worst >= LARGE_PART

    def row_bars(self):
        """Operations in a row on one stream, with waits on the GPU, beside as many kernels in a row."""
        for ranks in (1, 2):
            alone, ours = self.value(f"kernel/{ranks}/idle/{MIB}/in a row"), self.value(f"ahead/stream/{ranks}/idle/{MIB}/in a row")
            if alone and ours:
                yield (f"1 MiB in a row on one stream, {ranks} rank{'s' if ranks > 1 else ''}, gpu_ahead: part of the kernel's rate alone", f">= {LARGE_PART}",
                       f"{alone / ours:.2f}", alone / ours >= LARGE_PART)

    def stages(self):
        """Returns the rate of each stage alone, in GB/s. For copies, that of large pieces."""
        def copies(where):
            found = [value for name, (value, _) in self.figures.items() if name.startswith(f"copy {where}/") and name.endswith("/alone")]
            return max(found, default=None)

        stages = {"copies to the host": copies("to the host"), "QUIC": self.value("QUIC, one connection, each way"), "copies to the GPU": copies("to the GPU")}
        return {name: rate for name, rate in stages.items() if rate}

    def node_bars(self):
        sizes = self.sizes("nodes/blocking/2/idle/")
        stages = self.stages()
        if sizes and len(stages) == 3:
            size = sizes[-1]
            slowest = min(stages, key=stages.get)
            part = size / self.value(f"nodes/blocking/2/idle/{size}/median") / 1e3 / stages[slowest]
            yield f"two nodes, {size_text(size)}: part of the slowest stage alone ({slowest})", f">= {NODES_PART}", f"{part:.2f}", part >= NODES_PART

    def several_counts(self):
        return sorted({int(name.split("/")[2]) for name in self.figures if name.startswith("several/alone/")})

    def several_bars(self):
        for gpus in self.several_counts():
            parts = []
            for size in self.sizes(f"several/auto/{gpus}/"):
                alone, ours = (self.value(f"several/{who}/{gpus}/{size}/median") for who in ("alone", "auto"))
                if size >= SEVERAL_LEAST and alone and ours:
                    parts.append((alone / ours, size))
            if parts:
                worst, size = min(parts)
                yield f"{gpus} GPUs, 16 MiB and more: part of NCCL's rate in one process, least at {size_text(size)}", f">= {SEVERAL_PART}", f"{worst:.2f}", worst >= SEVERAL_PART

    def bars(self):
        return [*self.kernel_bars(), *self.operation_bars(), *self.row_bars(), *self.node_bars(), *self.several_bars()]

    def other_bars(self):
        """Those that this run has not measured, and those that are counts: tests count on doubles."""
        if not any(self.several_bars()):
            yield "2 to 8 GPUs, 16 MiB and more: part of NCCL's rate in one process", f">= {SEVERAL_PART}", "not measured here", "-"
        yield "driver calls of the client for a captured operation, at replay", "0", "counted on doubles (tests/system/test_gpu_graphs.py)", "-"
        yield ("bytes through pinned memory for an all-reduce of S bytes, g GPUs a node", "2 S a node, S/g each way a GPU",
               "counted on doubles (tests/system/test_gpu_slices.py)", "-")

    def all_met(self):
        return all(met for *_, met in self.bars())

    # --- Tables ---

    def answers(self):
        handles = sorted({name.split("/")[1] for name in self.figures if name.startswith("handle/")})
        yield from ((f"A value written by {'an' * waker.startswith('other')}{waker} wakes a stream",
                     f"{self.answer(f'wake/{waker}/works')}: {self.cell(f'wake/{waker}/median')} us, 99 % below {self.cell(f'wake/{waker}/p99')} us") for waker in WAKERS)
        yield "A value that a stream writes, seen by a processor that looks", f"{self.cell('written value seen/median')} us, 99 % below {self.cell('written value seen/p99')} us"
        yield "The call of cuStreamWriteValue64", f"{self.cell('call of cuStreamWriteValue64/median')} us"
        other = "kernel of the other process"
        yield ("Another process's kernel of 64 KiB runs while a stream of this one waits for a word",
               f"{self.answer(f'{other}/runs while a stream waits here')}: {self.cell(f'{other}/a stream waits here/median')} us, "
               f"99 % below {self.cell(f'{other}/a stream waits here/p99')} us; without the stream {self.cell(f'{other}/alone/median')} us")
        yield ("An all-reduce of NCCL with one rank, which is a copy and no kernel, from and to memory of an opened handle",
               f"{self.answer('NCCL, one rank/copies from what was opened')}, {self.answer('NCCL, one rank/copies to what was opened')}")
        for size in handles:
            yield (f"A handle of {size} opens at the allocation; cuMemGetAddressRange begins there",
                   f"{self.answer(f'handle/{size}/opens at the allocation')}, {self.answer(f'handle/{size}/cuMemGetAddressRange begins there')}; "
                   f"range of {self.cell(f'handle/{size}/cuMemGetAddressRange', '{:.0f}')} B; first {self.cell(f'handle/{size}/first opened')} us, "
                   f"then {self.cell(f'handle/{size}/opened/median')} us")
        for name, (value, unit) in self.figures.items():
            if name.startswith(("cuMemHost", "cuMemFreeHost", "memory of a context", "driver, context")):
                yield name[0].upper() + name[1:] if name.startswith(("memory", "driver")) else name, f"{value:.1f} {unit}"

    def sharing(self):
        sizes = sorted({int(name.split("/")[1].split()[0]) for name in self.figures if name.startswith("copy ") and name.count("/") == 2})
        rows = []
        for way in ("to the host", "to the GPU", "both ways"):
            for size in sizes:
                rows.append((f"copies {way} of {size} KiB, GB/s", self.cell(f"copy {way}/{size} KiB/alone"), self.cell(f"copy {way}/{size} KiB/{BESIDE}")))
                rows.append(("the other process's kernels meanwhile, 1/s", self.cell("kernels of the other process/alone", "{:.0f}"),
                             self.cell(f"kernels of the other process/copy {way}/{size} KiB", "{:.0f}")))
        rows.append(("a kernel of 64 KiB and its end, us", self.cell("kernel of 64 KiB/alone/median"), self.cell("kernel of 64 KiB/beside another process's/median")))
        return self.table(("", "alone", BESIDE), rows)

    def operations(self, place, state, ending="median"):
        sizes = self.sizes(f"{place}kernel/1/{state}/") or self.sizes(f"{place}stream/1/{state}/")
        sizes = [size for size in sizes if size <= MIB] if ending == "in a row" else sizes
        names = ("kernel/1", "nccl/1", "blocking/1", "stream/1", "kernel/2", "blocking/2", "stream/2")
        rows = [(size_text(size), *(self.cell(f"{place}{name}/{state}/{size}/{ending}") for name in names)) for size in sizes]
        head = ("us", "kernel, 1 to 1", "NCCL, 1 rank (a copy)", "commd, 1 rank, blocking", "in a stream", "kernel, 2 to 2", "commd, 2 ranks, blocking", "in a stream")
        return self.table(head, rows) if any(set(row[1:]) != {"-"} for row in rows) else ["Not measured.", ""]

    def beside_the_kernel(self):
        """Shows what commd adds to a kernel that the client launches and waits for, and which part of the kernel's rate is left."""
        columns = [(ranks, mode) for ranks in (1, 2) for mode in ("blocking", "stream")]
        cells = {}
        for column in columns:
            for size, alone, ours in self.pairs(*column):
                cells.setdefault(size, {})[column] = f"{ours - alone:+.1f} us, {alone / ours:.2f}"
        head = ("added, part of the rate", *(f"{ranks} rank{'s' if ranks > 1 else ''}, {mode}" for ranks, mode in columns))
        rows = [(size_text(size), *(cells[size].get(column, "-") for column in columns)) for size in sorted(cells)]
        return [*self.table(head, rows), *self.least_size()] if rows else ["Not measured.", ""]

    def in_a_row(self):
        rows = [(size_text(size), *(self.cell(f"{name}/idle/{size}/in a row") for name in ("kernel/1", "ahead/stream/1", "kernel/2", "ahead/stream/2")))
                for size in self.sizes("ahead/stream/1/idle/")]
        return self.table(("us each", "kernel, 1 to 1", "commd, 1 rank, in a stream", "kernel, 2 to 2", "commd, 2 ranks, in a stream"), rows) if rows else ["Not measured.", ""]

    def least_size(self):
        """Says from which size on the bar for large operations can be met. This follows from the copy's rate, and from what was added to small
        operations."""
        copy, times = self.value("copy rate"), LARGE_PART / (1 - LARGE_PART)
        for ranks in (1, 2) if copy else ():
            added = [ours - alone for size, alone, ours in self.pairs(ranks, "blocking") if size <= SMALL_MAX]
            if added and max(added) > 0:
                size = times * max(added) * copy * 1e3 / (2 * ranks)
                yield (f"{LARGE_PART} of the rate takes a kernel of {times:.0f} times what is added: with the {max(added):.1f} us of small operations, {ranks} in and "
                       f"out, and {copy:.0f} GB/s of the copy, one of {size / MIB:.0f} MiB.")
        yield ""

    def between_nodes(self, mode, what):
        rows = []
        slowest = min(self.stages().values(), default=None)
        for size in self.sizes(f"nodes/{mode}/2/idle/"):
            cells = [size_text(size)]
            for place in ("nodes/", "nodes/host/", "nodes, rails/", "nodes, rails/host/"):
                time_us = self.value(f"{place}{mode}/2/idle/{size}/median")
                cells.append(f"{size / time_us / 1e3:.2f}" if time_us else "-")
            alone_us = self.value(f"nodes/{mode}/2/idle/{size}/median")
            cells.append(f"{size / alone_us / 1e3 / slowest:.2f}" if alone_us and slowest else "-")
            rows.append(tuple(cells))
        head = (f"{what}, GB/s", "GPU, one rail", "host, one rail", "GPU, usual rails", "host, usual rails", "GPU, one rail: part of the slowest stage")
        return self.table(head, rows)

    def nodes(self):
        stages = ", ".join(f"{name} {rate:.2f}" for name, rate in self.stages().items())
        return [f"Stages alone, GB/s: {stages}.", "", *self.between_nodes("blocking", "all-reduce"),
                "A message goes one way at a time; QUIC alone is measured both ways at once.", "", *self.between_nodes("message", "message")]

    def several(self):
        lines = []
        for gpus in self.several_counts():
            rows = [(size_text(size), *(self.cell(f"several/{who}/{gpus}/{size}/median") for who in ("alone", *ENGINES))) for size in self.sizes(f"several/alone/{gpus}/")]
            lines += self.table((f"all-reduce among {gpus} GPUs, us", "NCCL in one process", *(f"commd, {engine}" for engine in ENGINES)), rows)
        return lines or ["Not measured.", ""]

    def overlaps(self):
        rows = []
        for place, what in (("", "2 ranks on one GPU"), ("nodes/", "2 ranks on two nodes"), ("MPS/", "2 ranks on one GPU, MPS"), ("MPS/nodes/", "2 ranks on two nodes, MPS")):
            for size in self.sizes(f"{place}overlap/2/"):
                prefix = f"{place}overlap/2/{size}/"
                rows.append((f"{what}, 4 of {size_text(size)}", *(self.cell(prefix + each, "{:.2f}") for each in ("operations alone", "computing alone", "both")),
                             self.cell(prefix + "hidden", "{:.0f} %")))
        return self.table(("ms", "operations alone", "computing alone", "both", "hidden of the shorter"), rows)

    def text(self):
        lines = ["# commd on a GPU", "", ", ".join(f"{name} {value}" for name, value in self.facts.items()) + ".", ""]
        if self.double:
            lines += ["**On doubles of GPUs: a dry run. These figures mean nothing.**", ""]
        lines += ["## Bars", "", *self.table(("what", "bar", "measured", ""), [(what, bar, got, "met" if met else "**missed**") for what, bar, got, met in self.bars()]
                                           + list(self.other_bars()))]
        lines += ["## First measurements", "", *self.table(("", ""), list(self.answers())), "## Beside another process, without MPS", "", *self.sharing()]
        for place, what in (("", ""), ("MPS/", ", MPS")):
            lines += [f"## Operations, idle client{what}", "", *self.operations(place, "idle"), f"99 % of them below{what}:", "", *self.operations(place, "idle", "p99"),
                      f"32 in a row, each{what}:", "", *self.operations(place, "idle", "in a row"), f"## Operations, client that computes{what}", "", *self.operations(place, "busy")]
        lines += ["## Operations in a row, with waits on the GPU (gpu_ahead)", "", *self.in_a_row()]
        lines += ["## Operations beside the kernel alone, idle client", "", *self.beside_the_kernel()]
        lines += ["## Computing beside operations", "", *self.overlaps(), "## Two nodes on one GPU", "", *self.nodes(),
                  "## Several GPUs of one node", "", *self.several()]
        if self.left_out:
            lines += ["## Left out", "", *(f"- {reason}" for reason in self.left_out), ""]
        return "\n".join(lines)
