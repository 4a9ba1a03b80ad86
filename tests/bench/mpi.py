"""The MPIs among the contestants: Open MPI, MPICH and Intel MPI. All use shared memory within a node, and TCP between nodes."""
import os
import pathlib
import shutil
import tempfile

from contestants import finish, lines_to_times, start

INSTALLED = pathlib.Path(__file__).resolve().parents[2] / "build/peers"


class Mpi:
    """An MPI that peers/install.sh has put into INSTALLED/FOLDER. `programs` is the folder of the benchmark's programs. Nodes are network namespaces, with a host name each: MPIs believe that processes with
    one host name share memory."""

    name = ""
    folder = ""

    def __init__(self, programs):
        self.root = INSTALLED / self.folder
        self.program = programs / f"mpi_contest_{self.folder}"

    def is_possible(self, topology):
        return self.program.exists() and (self.root / "bin/mpiexec").exists()

    def sweep(self, topology, sweep, timeout_s):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="commd-bench-"))
        several = topology.node_count > 1
        try:
            words = self.launcher(topology, self._agent(folder, topology) if several else None)
            as_node = ["unshare", "--uts", "sh", "-c", f'hostname node-{topology.nodes[0]} && exec "$@"', "node"] if several else []
            environment = {**os.environ, "TMPDIR": str(folder), **self.environment(topology)}
            process = start(topology.command(topology.nodes[0], *as_node, *words, self.program, *sweep.arguments()), env=environment)
            return lines_to_times(finish([process], timeout_s)[0], sweep)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def launcher(self, topology, agent):
        """Returns the words that start the ranks. agent: the program that runs a command on a node; None on one node."""
        raise NotImplementedError

    def environment(self, topology):
        return {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(self.root / "lib")}

    @staticmethod
    def _agent(folder, topology):
        """Writes the program that launchers call in place of ssh: [OPTION...] ADDRESS COMMAND... The address tells the namespace."""
        everywhere = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        cases = "\n".join(f"{topology.address(node)}) namespace={topology.cluster.namespaces[node]} node=node-{node} processors={topology.processors(node) or everywhere} ;;"
                          for node in topology.nodes)
        agent = folder / "agent.sh"
        agent.write_text(f'#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\ncase $1 in\n{cases}\nesac\nshift\n[ "$1" != -- ] || shift\n'
                         'exec ip netns exec "$namespace" taskset -c "$processors" unshare --uts /bin/bash -c "hostname $node; $*"\n')
        agent.chmod(0o755)
        return agent


class OpenMpi(Mpi):
    """Idle ranks yield if there are more ranks than processors. Without one of its own, the system's Open MPI runs."""

    name = "Open MPI"
    folder = "openmpi"

    def __init__(self, programs):
        super().__init__(programs)
        self.is_system = not super().is_possible(None)
        if self.is_system:
            self.program = programs / "mpi_contest_system"

    def is_possible(self, topology):
        return self.program.exists() and (not self.is_system or shutil.which("mpirun") is not None)

    def environment(self, topology):
        return {} if self.is_system else super().environment(topology)

    def launcher(self, topology, agent):
        words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", topology.size, "--mca", "mpi_yield_when_idle",
                 "1" if topology.size > os.cpu_count() else "0"]
        if agent is None:
            return words + ["--mca", "btl", "vader,self" if self.is_system else "sm,self"]
        words += ["--host", ",".join(f"{topology.address(node)}:{topology.ranks_per_node}" for node in topology.nodes),
                  "--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", "veth0", "--mca", "btl", self._transports(topology)]
        if self.is_system:  # release 4: its daemons must not look for each other by host name
            return words + ["--mca", "plm_rsh_agent", agent, "--mca", "plm_rsh_no_tree_spawn", "1", "--mca", "routed", "direct", "--mca", "oob_tcp_if_include", "veth0"]
        return words + ["--mca", "plm_ssh_agent", agent, "--prtemca", "plm_ssh_no_tree_spawn", "1", "--prtemca", "prte_if_include", "veth0"]

    def _transports(self, topology):
        shared = ",vader" if self.is_system else ",sm"
        return "tcp,self" + (shared if topology.ranks_per_node > 1 else "")


class Hydra(Mpi):
    """An MPI with the launcher Hydra."""

    launcher_option = "-launcher"

    def launcher(self, topology, agent):
        words = ["mpiexec", "-n", topology.size]
        if agent is not None:
            words += [self.launcher_option, "ssh", self.launcher_option + "-exec", agent, "-iface", "veth0",
                      "-hosts", ",".join(map(topology.address, topology.nodes)), "-ppn", topology.ranks_per_node]
        return words

    def environment(self, topology):
        between = {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": "veth0"} if topology.node_count > 1 else {}
        return {**super().environment(topology), **between}


class Mpich(Hydra):
    name = "MPICH"
    folder = "mpich"

    def environment(self, topology):
        return {**super().environment(topology), "MPIR_CVAR_CH4_NETMOD": "ofi"}


class IntelMpi(Hydra):
    """Ranks are not bound to processors. Idle ranks yield if there are more ranks than processors."""

    name = "Intel MPI"
    folder = "intelmpi"
    launcher_option = "-bootstrap"

    def environment(self, topology):
        fabrics = "shm" if topology.node_count == 1 else "shm:ofi" if topology.ranks_per_node > 1 else "ofi"
        return {**super().environment(topology), "I_MPI_ROOT": str(self.root), "FI_PROVIDER_PATH": str(self.root / "lib"), "I_MPI_FABRICS": fabrics,
                "I_MPI_PIN": "0", "I_MPI_THREAD_YIELD": "2" if topology.size > os.cpu_count() else "0"}


ALL = (OpenMpi, Mpich, IntelMpi)
