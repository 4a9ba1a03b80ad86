"""How commd, Open MPI and Gloo are run on a topology; each prints one line of JSON for each operation and size."""
import json
import os
import signal
import subprocess
import tempfile

from topology import BUILD

PEERS = BUILD / "bench"
# On one machine four ranks share two cores: a rank that waits must let the others run.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
# The namespaces share the machine's memory: TCP alone may carry the messages, as between machines.
MPIRUN_NODES = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "10.97.0.0/24",
                "--mca", "oob_tcp_if_include", "10.97.0.0/24", "--map-by", "node"]
TIMEOUT_S = 240


class Failed(Exception):
    """A contestant did not do it; the text says why."""


def sweep_arguments(sweep):
    return ["--operation", ",".join(sweep.operations), "--min-bytes", sweep.min_bytes, "--max-bytes", sweep.max_bytes,
            "--step-factor", sweep.step_factor, "--seconds-per-size", sweep.seconds_per_size]


def run_together(commands, timeout_s=TIMEOUT_S, environment=None):
    """Runs them at once, each in a process group of its own; returns their outputs when all have ended well. None outlives this."""
    processes = []
    try:
        with tempfile.TemporaryFile("w+") as errors:
            outputs = []
            for command in commands:
                output = tempfile.TemporaryFile("w+")
                outputs.append(output)
                processes.append(subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                                                  start_new_session=True, env=environment))
            for process in processes:
                try:
                    process.wait(timeout_s)
                except subprocess.TimeoutExpired:
                    raise Failed(f"{commands[0][0]}: not within {timeout_s} s") from None
            texts = []
            for output in outputs:
                output.seek(0)
                texts.append(output.read())
                output.close()
            errors.seek(0)
            if any(process.returncode for process in processes):
                lines = errors.read().strip().splitlines() or ["no message"]
                raise Failed(f"{commands[0][0]}: {' / '.join(lines[-3:])[-400:]}")
            return texts
    finally:
        for process in processes:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGTERM)
                    process.wait(5)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def lines_of_json(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


class Commd:
    name = "commd"

    @staticmethod
    def run(topology, sweep, prefix=()):
        topology.runs += 1
        commands = []
        for index, node in enumerate(topology.nodes):
            commands.append([*prefix, *topology.cluster.in_node(node, PEERS / "commd_bench"), topology.cluster.socket(node), f"bench-{topology.runs}",
                             topology.ranks, index * topology.ranks_of_node, topology.ranks_of_node, *sweep_arguments(sweep)])
        return lines_of_json(run_together(commands)[0])


class OpenMpi:
    name = "Open MPI"

    @staticmethod
    def run(topology, sweep):
        if topology.is_local:
            command = [*MPIRUN, "-n", topology.ranks, PEERS / "mpi_bench", *sweep_arguments(sweep)]
            return lines_of_json(run_together([command])[0])
        folder = topology.folder()
        agent = folder / "agent"
        cases = "\n".join(f"{topology.address(node)}) namespace={topology.cluster.namespaces[node]} ;;" for node in topology.nodes)
        # Each node has a host name of its own: Open MPI tells nodes apart by it.
        agent.write_text(f'#!/bin/sh\nhost=$1\nshift\ncase $host in\n{cases}\nesac\n'
                         f'exec ip netns exec "$namespace" unshare --uts sh -c "hostname node-$(echo "$host" | tr . -); $*"\n')
        agent.chmod(0o755)
        hosts = ",".join(topology.address(node) for node in topology.nodes)
        command = [*MPIRUN, *MPIRUN_NODES, "--mca", "plm_rsh_agent", agent, "--host", hosts, "-n", topology.ranks, PEERS / "mpi_bench",
                   *sweep_arguments(sweep)]
        first = topology.cluster.in_node(topology.nodes[0], "unshare", "--uts", "sh", "-c", f'hostname node-{topology.address("a").replace(".", "-")}; exec "$@"', "sh")
        return lines_of_json(run_together([[*first, *command]], environment=dict(os.environ, TMPDIR=str(folder)))[0])


class Gloo:
    name = "Gloo"

    @staticmethod
    def run(topology, sweep):
        folder = topology.folder()
        commands = []
        for rank in range(topology.ranks):
            node = topology.nodes[rank // topology.ranks_of_node]
            commands.append(topology.cluster.in_node(node, PEERS / "gloo_bench", folder, topology.address(node), rank, topology.ranks,
                                                     *sweep_arguments(sweep)))
        return lines_of_json(run_together(commands)[0])


ALL = [Commd, OpenMpi, Gloo]
