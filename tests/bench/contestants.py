"""commd and its peers, for the same work. Each contestant returns the Times of one sweep. The programs that they start are one program with different
communication: peers/contest.h."""
import concurrent.futures
import itertools
import json
import os
import signal
import subprocess
import tempfile

from topology import run  # noqa: F401  (the same way to run what must succeed)

OPERATIONS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv", "barrier"]
COLLECTIVES = OPERATIONS[:5]  # those that ratios of several operations cover
# What follows the name of an operation in a key of Times:
AFTER_COMPUTING = " after computing"
EXPOSED = ", exposed"  # what an operation takes longer than the computing beside it
OF_TWO_JOBS = " of two jobs"


class Times(dict):
    """{(operation, size in bytes): microseconds}: medians. mean_us has the means, cpu_us the processor time that all ranks and commd took for one
    operation together."""

    def __init__(self):
        super().__init__()
        self.mean_us = {}
        self.cpu_us = {}


class Sweep:
    """Operations at growing sizes. compute_us: the ranks compute before each operation. overlaps: they compute beside each. jobs: so many runs at once."""

    def __init__(self, operations, min_bytes, max_bytes, step_factor, seconds_per_size, compute_us=0, overlaps=False, jobs=1):
        self.operations = operations
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.step_factor = step_factor
        self.seconds_per_size = seconds_per_size
        self.compute_us = compute_us
        self.overlaps = overlaps
        self.jobs = jobs

    @property
    def manner(self):
        return AFTER_COMPUTING if self.compute_us else EXPOSED if self.overlaps else OF_TWO_JOBS if self.jobs > 1 else ""

    @property
    def title(self):
        return f"{self.operations[0]}{' …' if len(self.operations) > 1 else ''}{self.manner}"

    def sizes(self):
        size = self.min_bytes
        while size <= self.max_bytes:
            yield size
            size *= self.step_factor

    def key(self, result):
        """Returns the key of a result. Its size is the one that was asked for: the program rounds it to whole blocks."""
        size_bytes = result["size_bytes"]
        size_bytes = min(self.sizes(), key=lambda size: abs(size - size_bytes)) if size_bytes > 0 else 0
        return result["operation"] + self.manner, size_bytes

    def arguments(self):
        return ["--operations", ",".join(self.operations), "--min-bytes", self.min_bytes, "--max-bytes", self.max_bytes, "--step-factor", self.step_factor,
                "--seconds-per-size", self.seconds_per_size, "--compute-us", self.compute_us, *(["--overlap"] if self.overlaps else [])]


class Trace:
    """A training step from a file, replayed `steps` times."""

    jobs = 1

    def __init__(self, path, steps, scale=1):
        self.path = path
        self.steps = steps
        self.scale = scale

    @property
    def title(self):
        return f"trace {self.path.stem}"

    def key(self, result):
        return result["operation"], 0

    def arguments(self):
        return ["--trace", self.path, "--steps", self.steps, "--scale", self.scale]


class Failed(Exception):
    """A run of a contestant failed."""


class TooSlow(Failed):
    """It did not end in time."""


def run_jobs(contestant, topology, sweep, timeout_s):
    """Runs the sweep. With several jobs, they run at once, and the slower one's times count."""
    if sweep.jobs == 1:
        return contestant.sweep(topology, sweep, timeout_s)
    with concurrent.futures.ThreadPoolExecutor(sweep.jobs) as pool:
        jobs = [job.result() for job in [pool.submit(contestant.sweep, topology, sweep, timeout_s) for _ in range(sweep.jobs)]]
    slowest = Times()
    for key in jobs[0]:
        slowest[key] = max(job[key] for job in jobs)
        slowest.mean_us[key] = max(job.mean_us[key] for job in jobs)
        slowest.cpu_us[key] = max(job.cpu_us[key] for job in jobs)
    return slowest


def finish(processes, timeout_s):
    """Returns the outputs of the processes. Ends all of them when one fails."""
    outputs = []
    try:
        for process in processes:
            output, errors = process.communicate(timeout=timeout_s)
            if process.returncode != 0:
                raise Failed(f"{process.args[0]} ended with {process.returncode}: {errors.strip()[-400:]}")
            outputs.append(output)
    except subprocess.TimeoutExpired as late:
        raise TooSlow(f"{late.cmd[0]} did not end within {timeout_s} s") from late
    finally:
        for process in processes:
            end(process)
    return outputs


def start(command, **options):
    """Starts a process in a process group of its own. Then an interrupt of this program reaches it only through end(), which also ends all that it
    started. The session stays: where the kernel groups processes by session (sched_autogroup_enabled), a rank that yields passes its processor on only
    within its session. MPI's ranks share one, their launcher's, so all other ranks must, too."""
    return subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            process_group=0, **options)


def end(process):
    """Ends a process: asks first, then kills. mpirun ends its ranks only when it is asked."""
    for number, wait_s in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        if process.poll() is None:
            try:
                os.killpg(process.pid, number)
                process.wait(wait_s)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass


def lines_to_times(output, sweep):
    """Reads what the program with rank 0 prints. Of two ways to call, the faster one counts."""
    times = Times()
    for line in output.splitlines():
        if line.startswith("{"):
            result = json.loads(line)
            if result["wrong"]:
                raise Failed(f"{result['operation']} of {result['size_bytes']} bytes: {result['wrong']} wrong elements")
            key = sweep.key(result)
            if key not in times or result["time_us"] < times[key]:
                times[key] = result["time_us"]
                times.mean_us[key] = result.get("mean_us", result["time_us"])
                times.cpu_us[key] = result["cpu_us"]
    return times


class Commd:
    """commd. With `plain`, its buffers are ordinary memory in place of comm_mem_alloc's."""

    def __init__(self, build, plain=False):
        self.program = build / "tests/bench/peers/commd_contest"
        self.plain = plain
        self.name = "commd plain" if plain else "commd"
        self.run_numbers = itertools.count(1)

    def is_possible(self, topology):
        return True

    def sweep(self, topology, sweep, timeout_s, *options):
        run_number = next(self.run_numbers)
        processes = []
        for rank in range(topology.size):
            node = topology.node_of_rank(rank)
            environment = {**topology.cluster.environment(node), "CONTEST_RANK": str(rank), "CONTEST_SIZE": str(topology.size),
                           "CONTEST_NAME": f"bench-{'plain-' if self.plain else ''}{run_number}", "CONTEST_SERVICE": str(topology.cluster.daemons[node].pid)}
            processes.append(start(topology.command(node, self.program, *sweep.arguments(), *(["--plain"] if self.plain else []), *options), env=environment))
        return lines_to_times(finish(processes, timeout_s)[0], sweep)


class Gloo:
    """Gloo uses TCP, also within a node: it has no other transport for the CPU."""

    name = "Gloo"

    def __init__(self, peers):
        self.program = peers / "gloo_contest"

    def is_possible(self, topology):
        return self.program.exists()

    def sweep(self, topology, sweep, timeout_s):
        with tempfile.TemporaryDirectory(prefix="commd-bench-") as folder:
            processes = []
            for rank in range(topology.size):
                node = topology.node_of_rank(rank)
                environment = {**os.environ, "CONTEST_RANK": str(rank), "CONTEST_SIZE": str(topology.size), "CONTEST_FOLDER": folder,
                               "CONTEST_ADDRESS": topology.address(node)}
                processes.append(start(topology.command(node, self.program, *sweep.arguments()), env=environment))
            return lines_to_times(finish(processes, timeout_s)[0], sweep)
