"""Runs daemons and ranks for the tests of the Python package."""
import inspect
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/system"), str(ROOT / "client/python")]

from cluster import BUILD, Cluster  # noqa: E402

RANK = pathlib.Path(__file__).parent / "rank.py"
LIMIT_S = 90
_job = 0


def new_job():
    """Returns a name that no other job of this machine has."""
    global _job
    _job += 1
    return f"pytest-{os.getpid()}-{_job}"


class Daemons:
    """The daemons of one test file: a single daemon, or a cluster of several nodes."""

    def __init__(self, names=("solo",), gpus=0):
        if len(names) > 1:
            self.cluster = Cluster(names)
            return
        self.cluster = Cluster(names, namespaces=False, start=False, gpus=gpus)
        name = names[0]
        self.cluster.config_path(name).write_text(f'node_name = "{name}";\nsocket_path = "{self.cluster.socket(name)}";\n')
        self.cluster.start(name, "--standalone")
        self.cluster.wait_ready()

    def close(self):
        self.cluster.close()

    @property
    def names(self):
        return self.cluster.names

    def environment(self, node=None, **more):
        environment = self.cluster.environment(node or self.names[0])
        environment.update({"COMMD_LIBRARY": str(BUILD / "libcommclient.so"), "PYTHONPATH": str(ROOT / "client/python"), **more})
        return environment

    def start(self, command, node=None, **more):
        """Starts a process that may use commd."""
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=self.environment(node, **more))
        self.cluster.processes.append(process)
        return process

    def start_ranks(self, function, size, *arguments, job=None, **more):
        """Starts `size` processes that call a function of a test file with a communicator."""
        job = job or new_job()
        file = inspect.getsourcefile(function)
        return [self.start([sys.executable, "-B", RANK, file, function.__name__, json.dumps(arguments)],
                           self.names[rank % len(self.names)], COMMD_RANK=str(rank), COMMD_SIZE=str(size), COMMD_JOB=job,
                           COMMD_LOCAL_RANK=str(rank // len(self.names)), **more) for rank in range(size)]

    def run_ranks(self, function, size, *arguments, **more):
        """Runs a function on `size` ranks. All must end well. Returns what they have printed."""
        return [finish(process)[1] for process in self.start_ranks(function, size, *arguments, **more)]

    def run(self, text, check=True, **more):
        """Runs a Python program in one process. Returns (exit code, output, errors)."""
        process = self.start([sys.executable, "-B", "-c", text], **more)
        return finish(process, check)


def finish(process, check=True):
    """Waits for a process. Returns (exit code, output, errors)."""
    try:
        output, problems = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, problems = process.communicate()
        problems += f"\nkilled after {LIMIT_S} s"
    if check and process.returncode != 0:
        raise AssertionError(f"exit code {process.returncode}\n{output[-4000:]}\n{problems[-8000:]}")
    return process.returncode, output, problems
