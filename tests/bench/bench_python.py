#!/usr/bin/env python3
"""Compares the Python package commd with the C library: an all_reduce of 8 bytes by numpy. Also measures the time to import the package.

usage: bench_python.py [--rounds N] [--processes N]    run by an interpreter that has numpy. C and Python run in turn, with the same daemon. Prints
the medians over the rounds. Exits with 1 if a bar is missed: 15 us more than C, and 50 ms for the import.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/system"), str(ROOT / "client/python")]
from cluster import BUILD, Cluster  # noqa: E402

DIFFERENCE_BAR_US = 15
IMPORT_BAR_MS = 50
CALLS = 4000


def rank(name, number, size, calls):
    """One rank of the measurement in Python. Prints the median in microseconds."""
    import numpy
    import commd
    with commd.init(name, rank=number, size=size) as comm:
        array = numpy.ones(1)
        clock = time.perf_counter
        for _ in range(2):
            times = []
            for _ in range(calls):
                array[0] = 1
                began = clock()
                comm.all_reduce(array, out=array)
                times.append(clock() - began)
        print(statistics.median(times) * 1e6)


def run_ranks(command, name, processes, environment):
    """Runs the ranks at once. Returns the mean of their medians."""
    started = [subprocess.Popen([*command, name, str(number), str(processes), str(CALLS)], env=environment, stdout=subprocess.PIPE, text=True)
               for number in range(processes)]
    outputs = [process.communicate(timeout=100)[0] for process in started]
    return statistics.mean(float(output) for output in outputs)


def import_ms(environment):
    """Returns what `import commd` adds to an interpreter that has started."""
    text = "import time; began = time.perf_counter(); import commd; print((time.perf_counter() - began) * 1e3)"
    subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, env=environment)  # it writes the compiled files
    done = [subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True, env=environment) for _ in range(11)]
    return statistics.median(float(each.stdout) for each in done)


def main():
    if sys.argv[1:2] == ["--rank"]:
        return rank(sys.argv[2], *map(int, sys.argv[3:6]))
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    cluster = Cluster(["solo"], namespaces=False, start=False)
    try:
        cluster.config_path("solo").write_text(f'node_name = "solo";\nsocket_path = "{cluster.socket("solo")}";\n')
        cluster.start("solo", "--standalone")
        cluster.wait_ready()
        environment = dict(cluster.environment("solo"), COMMD_LIBRARY=str(BUILD / "libcommclient.so"), PYTHONPATH=str(ROOT / "client/python"),
                           PYTHONPYCACHEPREFIX=str(cluster.folder / "compiled"), PYTHONDONTWRITEBYTECODE="")
        commands = {"C": [str(BUILD / "tests/bench/bench_small")], "Python": [sys.executable, os.path.abspath(__file__), "--rank"]}
        times = {name: [] for name in commands}
        for number in range(options.rounds):
            for name, command in commands.items():
                times[name].append(run_ranks(command, f"{name}-{number}", options.processes, environment))
        medians = {name: statistics.median(values) for name, values in times.items()}
        difference = medians["Python"] - medians["C"]
        imported = import_ms(environment)
    finally:
        cluster.close()
    print(f"all_reduce of 8 B, {options.processes} processes: C {medians['C']:.1f} us, Python {medians['Python']:.1f} us: {difference:.1f} us more "
          f"(bar: {DIFFERENCE_BAR_US})")
    print(f"import commd: {imported:.1f} ms (bar: {IMPORT_BAR_MS})")
    return 0 if difference <= DIFFERENCE_BAR_US and imported <= IMPORT_BAR_MS else 1


if __name__ == "__main__":
    sys.exit(main())
