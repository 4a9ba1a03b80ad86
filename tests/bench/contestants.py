"""commd and its peers, for the same work. Each contestant returns {(operation, size_bytes): microseconds} for one sweep."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

from topology import run  # noqa: F401  (the same way to run what must succeed)

OPERATIONS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv", "barrier"]


class Sweep:
    def __init__(self, operations, min_bytes, max_bytes, step_factor, seconds_per_size):
        self.operations = operations
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.step_factor = step_factor
        self.seconds_per_size = seconds_per_size

    def sizes(self):
        size = self.min_bytes
        while size <= self.max_bytes:
            yield size
            size *= self.step_factor

    def nearest(self, size_bytes):
        """Returns the size that was asked for. A result has a size that is rounded to whole blocks."""
        return min(self.sizes(), key=lambda size: abs(size - size_bytes)) if size_bytes > 0 else 0

    def arguments(self):
        return [",".join(self.operations), str(self.min_bytes), str(self.max_bytes), str(self.step_factor), str(self.seconds_per_size)]


class Failed(Exception):
    pass


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
        raise Failed(f"{late.cmd[0]} did not end within {timeout_s} s") from late
    finally:
        for process in processes:
            end(process)
    return outputs


def start(command, **options):
    """Starts a process in a process group of its own. Then an interrupt of this program reaches it only through end(), which also ends all that it
    started."""
    return subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            start_new_session=True, **options)


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
    times = {}
    wrong = 0
    for line in output.splitlines():
        if line.startswith("{"):
            result = json.loads(line)
            times[result["operation"], sweep.nearest(result["size_bytes"])] = result["time_us"]
            wrong += result["wrong"]
    if wrong:
        raise Failed(f"{wrong} wrong elements")
    return times


class Commd:
    name = "commd"

    def __init__(self, build):
        self.commctl = build / "commctl"
        self.run_number = 0

    def is_possible(self, topology):
        return True

    def sweep(self, topology, sweep, timeout_s, *options):
        self.run_number += 1
        processes = []
        for index, node in enumerate(topology.nodes):
            processes.append(start(topology.command(
                node, self.commctl, "--socket", topology.cluster.socket(node), "bench", "-f", "json", "--communicator", f"bench{self.run_number}",
                "--size", topology.size, "--first-rank", index * topology.ranks_per_node, "--ranks", topology.ranks_per_node,
                "--operation", ",".join(sweep.operations), "--min-bytes", sweep.min_bytes, "--max-bytes", sweep.max_bytes,
                "--step-factor", sweep.step_factor, "--seconds-per-size", sweep.seconds_per_size, *options)))
        results = json.loads(finish(processes, timeout_s)[0])["results"]
        times = {}
        for result in results:
            if result["wrong"]:
                raise Failed(f"{result['operation']} of {result['size_bytes']} bytes: {result['wrong']} wrong elements")
            key = result["operation"], sweep.nearest(result["size_bytes"])
            if not result["in_place"] or key not in times:  # the peers' calls use separate buffers, so results out of place are preferred
                times[key] = result["time_us"]
        return times


class OpenMpi:
    """Open MPI uses shared memory within a node, and its TCP transport between nodes. Idle ranks yield if there are more ranks than processors."""

    name = "Open MPI"

    def __init__(self, peers):
        self.program = peers / "mpi_bench"

    def is_possible(self, topology):
        return self.program.exists() and shutil.which("mpirun") is not None

    def sweep(self, topology, sweep, timeout_s):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="commd-bench-"))
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", topology.size, "--mca", "mpi_yield_when_idle",
                   "1" if topology.size > os.cpu_count() else "0"]
        if topology.node_count == 1:
            command += ["--mca", "btl", "vader,self"]
        else:
            hosts = ",".join(f"{topology.address(node)}:{topology.ranks_per_node}" for node in topology.nodes)
            command += ["--host", hosts, "--mca", "plm_rsh_agent", self._agent(folder, topology), "--mca", "btl", "tcp,self", "--mca", "pml", "ob1",
                        # Open MPI's daemons all have the same host name, whatever their namespace. With three nodes or more, they would look for each
                        # other by that name.
                        "--mca", "plm_rsh_no_tree_spawn", "1", "--mca", "routed", "direct",
                        "--mca", "btl_tcp_if_include", "veth0", "--mca", "oob_tcp_if_include", "veth0"]
        try:
            environment = {**os.environ, "TMPDIR": str(folder)}
            process = start(topology.command(topology.nodes[0], *command, self.program, *sweep.arguments()), env=environment)
            return lines_to_times(finish([process], timeout_s)[0], sweep)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def _agent(folder, topology):
        """Writes the script by which mpirun starts its daemons on other hosts. The address tells the namespace."""
        cases = "\n".join(f"{topology.address(node)}) namespace={topology.cluster.namespaces[node]} ;;" for node in topology.nodes)
        agent = folder / "agent.sh"
        agent.write_text(f'#!/bin/bash\ncase $1 in\n{cases}\nesac\nshift\nexec ip netns exec "$namespace" /bin/bash -c "$*"\n')
        agent.chmod(0o755)
        return agent


class Gloo:
    """Gloo uses TCP, also within a node: it has no other transport for the CPU."""

    name = "Gloo"

    def __init__(self, peers):
        self.program = peers / "gloo_bench"

    def is_possible(self, topology):
        return self.program.exists()

    def sweep(self, topology, sweep, timeout_s):
        with tempfile.TemporaryDirectory(prefix="commd-bench-") as folder:
            processes = [start(topology.command(topology.node_of_rank(rank), self.program, rank, topology.size, folder,
                                                topology.address(topology.node_of_rank(rank)), *sweep.arguments()))
                         for rank in range(topology.size)]
            return lines_to_times(finish(processes, timeout_s)[0], sweep)
