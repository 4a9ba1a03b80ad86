#!/usr/bin/env python3
"""Measures commd on the GPU of this machine, beside the kernels alone and NCCL in one process, and compares it with its bars.

usage: bench_gpu.py [--quick] [--double] [--seconds N] [--commit TEXT] [--markdown FILE] [--json FILE]

A measurement that would begin after that many seconds (330) is left out, and the report names it. --double: runs on doubles of GPUs
(tests/cuda_double), as a dry run whose figures mean nothing. $COMMD_BUILD: the folder with the programs, by default build/release. Exit code 1:
something could not be measured, or a bar is missed. Exit code 77: there is no GPU.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import traceback

import machine
from machine import BUILD

machine.use_carried_libraries()

import results  # noqa: E402: what was carried has to be found first
from cluster import Cluster  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20
SMALL = (8, 64, 512, 4 * KIB, 16 * KIB, 64 * KIB)
BUSY = (8, 64 * KIB)
LARGE = (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
PROGRAM_SECONDS = 90  # the most that one program may take
DATAGRAMS = (65000, 8952)
ENGINES = ("kernels", "nccl", "auto")
GPUS_MOST = 8


class Failed(Exception):
    pass


class Scale:
    """How much is measured."""

    def __init__(self, double, quick):
        self.large = ((MIB,) if quick else (MIB, 4 * MIB)) if double else LARGE
        self.mebibytes = 4 if double else 256
        self.times = 30 if double else 500 if quick else 2000
        self.effort = 1 if double else 25 if quick else 100
        self.quic_s = 0.1 if double else 1


class Mps:
    """CUDA's Multi-Process Service, for this run alone. While it is entered, every process that starts uses it."""

    def __init__(self, double):
        self.double = double
        self.control = None if double else machine.find_tool("nvidia-cuda-mps-control")

    def __enter__(self):
        if self.double:
            self.environment = {"CUDA_DOUBLE_MPS": "1"}
            os.environ.update(self.environment)
            return self
        if self.control is None:
            raise Failed("nvidia-cuda-mps-control is not installed")
        self.folder = tempfile.TemporaryDirectory(prefix="commd-mps-")
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": f"{self.folder.name}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{self.folder.name}/log"}
        for path in self.environment.values():
            os.mkdir(path)
        code, output, errors = machine.run(self.control, "-d", timeout_s=20, environment=self.environment)
        if code != 0:
            self.folder.cleanup()
            raise Failed(f"nvidia-cuda-mps-control -d: {(errors or output).strip() or code}")
        os.environ.update(self.environment)
        return self

    def __exit__(self, *_):
        for name in self.environment:
            del os.environ[name]
        if not self.double:
            subprocess.run([self.control], input="quit\n", text=True, capture_output=True, timeout=60, check=False, env=dict(os.environ, **self.environment))
            self.folder.cleanup()


class Bench:
    def __init__(self, arguments, gpu):
        self.double = arguments.double
        self.scale = Scale(arguments.double, arguments.quick)
        self.end_s = time.monotonic() + arguments.seconds
        self.figures = {}  # name: (value, unit)
        self.left_out = []
        self.gpus = 2 if arguments.double else min(gpu.count, GPUS_MOST)
        self.facts = {"card": gpu.name, "driver": gpu.driver, "CUDA": gpu.cuda, "NCCL": "absent", "commit": arguments.commit, "date": time.strftime("%Y-%m-%d", time.gmtime())}

    def seconds(self):
        return min(PROGRAM_SECONDS, self.end_s - time.monotonic())

    # --- Programs ---

    def read(self, place, output):
        for line in output.splitlines():
            if line.startswith("figure\t"):
                _, name, value, unit = line.split("\t")
                self.figures[f"{place}{name}"] = (float(value), unit)
            elif line.startswith("left out: "):
                self.left_out.append(line.removeprefix("left out: "))

    def alone(self, place, *command, doubles=1):
        """Runs a program that needs no daemon. doubles: how many doubles of GPUs it has, if it has any."""
        code, output, errors = machine.run(*command, timeout_s=self.seconds(), environment={"CUDA_DOUBLE_DEVICES": str(doubles)})
        self.read(place, output)
        if code != 0 and "left out: " not in output:
            raise Failed(f"{pathlib.Path(str(command[0])).name} {' '.join(map(str, command[1:]))}: "
                         f"{'out of time' if code is None else (errors.strip() or output.strip() or f'code {code}').splitlines()[-1]}")

    def operation(self, place, mode, *options):
        self.alone(place, BUILD / "tests/gpu/bench_operations", mode, "--effort", self.scale.effort, *options)

    def ranks(self, cluster, layout, place, mode, sizes, *options):
        """Runs bench_operations as the ranks of a communicator. Keeps the figures of rank 0."""
        end_s = time.monotonic() + self.seconds()
        name = f"{mode}-{len(self.figures)}-{len(layout)}"
        processes = [cluster.client(node, BUILD / "tests/gpu/bench_operations", mode, "--effort", self.scale.effort, "--name", name, "--rank", rank, "--size",
                                    len(layout), "--bytes", ",".join(map(str, sizes)), *options) for rank, node in enumerate(layout)]
        for rank, process in enumerate(processes):
            try:
                output, errors = process.communicate(timeout=max(1, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                for each in processes:
                    each.kill()
                raise Failed(f"{mode} of {len(layout)} ranks: out of time") from None
            if process.returncode != 0:
                raise Failed(f"{mode} of {len(layout)} ranks, rank {rank}: {(errors.strip() or output.strip() or str(process.returncode)).splitlines()[-1]}")
            if rank == 0:
                self.read(place, output)

    def section(self, title, function, *arguments):
        if self.seconds() < 5:
            self.left_out.append(f"{title}: no time left (--seconds)")
            return
        print(f"... {title}, {self.end_s - time.monotonic():.0f} s left", flush=True)
        try:
            function(*arguments)
        except (Failed, AssertionError, OSError, subprocess.SubprocessError) as failure:
            self.left_out.append(f"{title}: {str(failure).splitlines()[0]}")
            print(f"    {failure if isinstance(failure, Failed) else traceback.format_exc()}", flush=True)

    def cluster(self, names, settings=""):
        return Cluster(names, settings, namespaces=False, gpus=1)

    # --- What is measured ---

    def device(self):
        self.alone("", BUILD / "tests/gpu/bench_device", self.scale.mebibytes, self.scale.times)

    def kernels(self):
        self.alone("", BUILD / "tests/gpu/bench_kernels", self.scale.mebibytes, "short")

    def in_process(self, place, sizes, *options):
        listed = ",".join(map(str, sizes))
        for size in (1, 2):
            self.operation(place, "kernel", "--size", size, "--bytes", listed, *options)
        self.operation(place, "nccl", "--bytes", listed, *options)

    def local(self, place, sizes, *options):
        with self.cluster(["a"]) as cluster:
            self.facts["NCCL"] = cluster.json("a", "gpus")["nccl_version"] or "absent"
            for size in (1, 2):
                for mode in ("blocking", "stream"):
                    self.ranks(cluster, "a" * size, place, mode, sizes, *options)

    def in_a_row(self):
        with self.cluster(["a"], "gpu_ahead = 8;") as cluster:
            for size in (1, 2):
                self.ranks(cluster, "a" * size, "ahead/", "stream", [64 * KIB, MIB])

    def overlap(self, place, layout):
        with self.cluster(sorted(set(layout))) as cluster:
            self.ranks(cluster, layout, place, "overlap", [max(MIB, self.scale.large[-1] // 4)])

    def quic(self):
        """Measures one connection, both ways at once, with the size of datagrams that is best. Keeps the rate of each way."""
        best = 0
        for datagram in DATAGRAMS:
            code, output, errors = machine.run(BUILD / "tests/bench/bench_quic", "--mode", "both", self.scale.quic_s, datagram, timeout_s=self.seconds())
            rates = re.search(r"bytes: +([\d.]+) Gbit/s.*the other way ([\d.]+) Gbit/s", output)
            if code != 0 or rates is None:
                raise Failed(f"bench_quic: {(errors or output).strip()}")
            best = max(best, min(map(float, rates.groups())))
        self.figures["QUIC, one connection, each way"] = (best / 8, "GB/s")

    def nodes(self, place, settings):
        with self.cluster(["a", "b"], settings) as cluster:
            effort = self.scale.effort
            self.scale.effort = min(effort, 25)
            try:
                for mode in ("blocking", "message"):
                    self.ranks(cluster, "ab", place, mode, self.scale.large)
                    self.ranks(cluster, "ab", f"{place}host/", mode, self.scale.large, "--device", "-1")
            finally:
                self.scale.effort = effort

    def several(self):
        """Measures all-reduces among several GPUs: NCCL in one process, and commd with each engine, which measures them first if it chooses."""
        sizes = ",".join(map(str, (64 * KIB, *self.scale.large)))
        for gpus in sorted({2, self.gpus}):
            command = [BUILD / "tests/gpu/bench_several", "--gpus", gpus, "--bytes", sizes, "--effort", self.scale.effort]
            self.alone("", *command, "--label", "alone", "nccl", doubles=gpus)
            for engine in ENGINES:
                self.several_by_commd(engine, gpus, [*command, "--label", engine, "commd"])

    def several_by_commd(self, engine, gpus, command):
        with tempfile.TemporaryDirectory() as folder:
            settings = f'gpu_engine = "{engine}"; gpu_tuning = "{folder}/gpu-tuning.json";'
            with Cluster(["a"], settings, namespaces=False, gpus=gpus) as cluster:
                for _ in range(2 if engine == "auto" else 1):
                    process = cluster.client("a", *command)
                    try:
                        output, errors = process.communicate(timeout=max(1, self.seconds()))
                    except subprocess.TimeoutExpired:
                        process.kill()
                        raise Failed(f"{gpus} GPUs, {engine}: out of time") from None
                    if process.returncode != 0:
                        raise Failed(f"{gpus} GPUs, {engine}: {(errors.strip() or output.strip() or str(process.returncode)).splitlines()[-1]}")
                    cluster.wait(lambda: cluster.json("a", "gpus", "--tuning")["tunings_wait"] == 0, "the GPUs are measured", timeout_s=60)
                self.read("", output)

    def with_mps(self):
        with Mps(self.double):
            with self.cluster(["a"]) as cluster:
                if not cluster.json("a", "gpus")["gpus"][0]["mps"]:
                    raise Failed("it was started, and the driver does not say that it is on")
            self.in_process("MPS/", SMALL)
            self.local("MPS/", SMALL)
            self.in_process("MPS/", BUSY, "--busy")
            self.local("MPS/", BUSY, "--busy")
            self.overlap("MPS/", "aa")
            self.overlap("MPS/nodes/", "ab")

    def run(self):
        section = self.section
        section("words, copies, handles, what things cost", self.device)
        section("the kernels' rate", self.kernels)
        section("kernels and NCCL in one process", self.in_process, "", SMALL + self.scale.large)
        section("operations on one GPU", self.local, "", SMALL + self.scale.large)
        section("operations in a row, with waits on the GPU", self.in_a_row)
        section("QUIC alone", self.quic)
        section("two nodes on one GPU, one rail", self.nodes, "nodes/", "rails = 1;")
        section("kernels and NCCL of a process that computes", self.in_process, "", BUSY, "--busy")
        section("operations of a process that computes", self.local, "", BUSY, "--busy")
        section("computing beside operations on one GPU", self.overlap, "", "aa")
        section("computing beside operations between two nodes", self.overlap, "nodes/", "ab")
        if self.gpus > 1:
            section("several GPUs of one node", self.several)
        section("with MPS", self.with_mps)
        section("two nodes on one GPU, the usual rails", self.nodes, "nodes, rails/", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--double", action="store_true", help="on doubles of GPUs: a dry run")
    parser.add_argument("--seconds", type=float, default=330, help="after which nothing begins")
    parser.add_argument("--commit", default="unknown", help="of what was built, for the report")
    parser.add_argument("--markdown", type=pathlib.Path, help="file to write the report to")
    parser.add_argument("--json", type=pathlib.Path, help="file to write all figures to")
    arguments = parser.parse_args()
    try:
        gpu = machine.find_gpu(arguments.double)
    except machine.NoGpu as reason:
        print(f"skipped: {reason}")
        machine.tidy()
        return machine.SKIPPED
    Cluster.real_gpus = not arguments.double
    bench = Bench(arguments, gpu)
    try:
        bench.run()
    finally:
        machine.tidy()
        report = results.Report(bench.facts, bench.figures, bench.left_out, arguments.double)
        if arguments.markdown:
            arguments.markdown.write_text(report.text())
        if arguments.json:
            arguments.json.write_text(json.dumps(dict(bench.facts, double=arguments.double, figures=bench.figures, left_out=bench.left_out,
                                                      bars=report.bars()), indent=1) + "\n")
    print(f"\n{report.text()}", flush=True)
    return 1 if bench.left_out or not (arguments.double or report.all_met()) else 0


if __name__ == "__main__":
    sys.exit(main())
