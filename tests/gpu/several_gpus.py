"""Checks on several GPUs of one machine: NCCL and commd's kernels as engines, on one node, and among the GPUs of two nodes that share the machine."""
import contextlib
import pathlib
import tempfile

from cluster import Cluster
from machine import BUILD

GPUS_MOST = 8
MEASURED_WITHIN_S = 120


class SeveralGpus:
    """checks: the GpuChecks, which run them."""

    def __init__(self, checks, count):
        self.checks = checks
        self.count = min(count, GPUS_MOST)

    @contextlib.contextmanager
    def cluster(self, layout, settings):
        with Cluster(sorted(set(layout)), settings, namespaces=False, gpus=self.count) as cluster:
            yield cluster
            cluster.wait_gpus_idle()

    def run_ranks(self, cluster, layout, program, *options):
        """Each rank has a GPU of its own, also those of different nodes."""
        command = [BUILD / "tests/system" / program, program]
        outputs = self.checks.wait_for(cluster, [cluster.client(node, *command, rank, len(layout), *options, rank) for rank, node in enumerate(layout)])
        if not any("operations checked" in output for output in outputs):
            raise AssertionError(f"no rank has checked its results: {outputs}")

    def by_engine(self, engine, layout, program, *options):
        """Returns who carried the operations out."""
        with self.cluster(layout, f'gpu_engine = "{engine}"; gpu_tuning = "off";') as cluster:
            self.run_ranks(cluster, layout, program, *options)
            shown = cluster.json("a", "gpus")
            if engine == "nccl" and shown["nccl_version"] and not shown["operations_by_nccl"]:
                raise AssertionError(f"NCCL {shown['nccl_version']} carried nothing out: {shown['nccl_error']}")
            return ", ".join(f"{shown['operations_by_' + who]} by {who}" for who in ("nccl", "kernels", "host"))

    def registered(self, layout, how):
        """Returns how much memory NCCL has registered. All of it is freed again."""
        with self.cluster(layout, f'gpu_engine = "nccl"; gpu_tuning = "off"; gpu_nccl_register = "{how}";') as cluster:
            self.run_ranks(cluster, layout, "matrix")
            cluster.wait(lambda: not cluster.json("a", "gpus")["nccl_registered"], "NCCL has dropped the memory of all clients")
            shown = cluster.json("a", "gpus")
            if shown["nccl_version"] and not shown["nccl_registered_ever"]:
                raise AssertionError("NCCL has registered nothing; see the daemon's log with log_level = \"debug\"")
            windows = "refused" if shown["nccl_windows_refused"] else shown["nccl_windows_ever"]
            return f"{shown['nccl_registered_ever']} registrations, windows: {windows}, {shown['operations_by_nccl']} operations by nccl"

    def messages(self, layout):
        """Returns who moved messages between two GPUs. Each rank checks what it receives."""
        with self.cluster(layout, 'gpu_engine = "nccl"; gpu_tuning = "off";') as cluster:
            options = ("messages", "sizes=20000,3000001", "steps=20")
            outputs = self.checks.wait_for(cluster, [cluster.rank("a", "messages", rank, len(layout), *options, f"device={rank}") for rank in range(len(layout))])
            if not all(output.strip().endswith("OK") for output in outputs):
                raise AssertionError(f"a rank failed: {outputs}")
            shown = cluster.json("a", "gpus")
            if shown["nccl_version"] and not shown["messages_by_nccl"]:
                raise AssertionError(f"NCCL {shown['nccl_version']} moved nothing: {shown['nccl_error']}")
            return f"{shown['messages_by_nccl']} by nccl, {shown['messages_by_copies']} by copies"

    def measured(self):
        """commd measures operations with and without NCCL. Returns for each kind at which sizes NCCL is faster."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "gpu-tuning.json"
            layout = "a" * self.count
            with self.cluster(layout, f'gpu_tuning = "{path}";') as cluster:
                self.run_ranks(cluster, layout, "surface", 1)
                shown = cluster.json("a", "gpus", "--tuning")
                if shown["tuning_off"]:
                    return "nothing: no NCCL"
                cluster.wait(lambda: cluster.json("a", "gpus", "--tuning")["tunings"], "the GPUs are measured", timeout_s=MEASURED_WITHIN_S)
                if not path.exists():
                    cluster.wait(path.exists, "the table is written", timeout_s=10)
                return "; ".join(faster_from(cluster.json("a", "gpus", "--tuning")["tunings"][0]["rows"]))

    def run(self):
        run = self.checks.checks.run
        here, half = "a" * self.count, self.count // 2
        there = "a" * (self.count - half) + "b" * half
        for engine in ("kernels", "nccl"):
            run(f"several GPUs of one node, {engine}: everything that the library offers", self.by_engine, engine, here, "surface", 2)
            run(f"several GPUs of one node, {engine}: all types and operators", self.by_engine, engine, here, "matrix")
            if self.count > 2:
                run(f"several GPUs of two nodes, {engine}: everything that the library offers", self.by_engine, engine, there, "surface", 2)
        run("several GPUs of one node: NCCL registers clients' memory", self.registered, here, "on")
        run("several GPUs of one node: NCCL registers windows", self.registered, here, "windows")
        run("several GPUs of one node: messages by NCCL", self.messages, here)
        run("several GPUs of one node: measured with and without NCCL", self.measured)


def faster_from(rows):
    for kind in dict.fromkeys(row["kind"] for row in rows):
        sizes = [row["size_bytes"] for row in rows if row["kind"] == kind and row["nccl_ns"] < row["without_ns"]]
        yield f"{kind}: NCCL at {', '.join(f'{size >> 10} KiB' for size in sizes)}" if sizes else f"{kind}: without NCCL"
