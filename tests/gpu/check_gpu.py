#!/usr/bin/env python3
"""Checks commd on the GPU of this machine: real daemons and clients, one GPU for all of them, also as two nodes that share it.

usage: check_gpu.py [--quick] [--double] [--seconds N] [--only TEXT]

Prints "ok", "FAIL" or "skip" for each check, with the reason; the last line has the counts. A check that would begin after that many seconds
(300) is skipped. --double: runs on doubles of GPUs (tests/cuda_double), which proves nothing about a GPU. $COMMD_BUILD: the folder with the
programs, by default build/release. Exit code 1: a check failed. Exit code 77: there is no GPU.
"""
import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest

import machine
from machine import BUILD, ROOT

machine.use_carried_libraries()

import test_gpu_failures  # noqa: E402: what was carried has to be found first
from cluster import Cluster  # noqa: E402
from several_gpus import SeveralGpus  # noqa: E402

CHECK_SECONDS = 150  # the most that one check may take
LOG_CHARACTERS = 2000
COMM_OK_OF_ALL = "operations checked"
USERS = (65533, 65534)  # users of clients and of commd, for checks with two users; any users but root will do
BECOME = "import os, sys; user = int(sys.argv[1]); os.setgroups([]); os.setgid(user); os.setuid(user); os.execv(sys.argv[2], sys.argv[2:])"
TIMED_OUT = 3  # an exit code of two_orders


class Skip(Exception):
    pass


class Checks:
    """Runs checks, one after the other, until the time is over."""

    def __init__(self, seconds, only):
        self.end_s = time.monotonic() + seconds
        self.only = only
        self.counts = {"ok": 0, "FAIL": 0, "skip": 0}

    def left_s(self):
        return min(CHECK_SECONDS, self.end_s - time.monotonic())

    def skip_at_the_end(self):
        """Skips a check that was stopped because the time of the whole run is over: that says nothing about the check."""
        if time.monotonic() > self.end_s - 1:
            raise Skip("it did not end before the time was over (--seconds)")

    def tell(self, how, name, text=""):
        self.counts[how] += 1
        first, *rest = text.strip().splitlines() or [""]
        print(f"{how:<4} {name}{': ' if first else ''}{first}", flush=True)
        for line in rest if how == "FAIL" else []:
            print(f"     | {line}", flush=True)

    def run(self, name, check, *arguments):
        if self.only and self.only not in name:
            return
        if self.left_s() < 2:
            self.tell("skip", name, "no time left (--seconds)")
            return
        began_s = time.monotonic()
        try:
            said = check(*arguments)
        except Skip as reason:
            self.tell("skip", name, str(reason))
        except Exception as failure:  # the other checks must still run
            text = str(failure) if isinstance(failure, AssertionError) else traceback.format_exc()
            self.tell("FAIL", name, text)
        else:
            self.tell("ok", f"{name} ({time.monotonic() - began_s:.1f} s)", said or "")


class GpuChecks:
    def __init__(self, arguments, gpu):
        self.gpu = gpu
        self.double = arguments.double
        self.quick = arguments.quick
        self.checks = Checks(arguments.seconds, arguments.only)

    # --- Daemons and ranks ---

    def cluster(self, layout, **options):
        return Cluster(sorted(set(layout)), namespaces=False, gpus=1, **options)

    def wait_for(self, cluster, processes, what="rank"):
        """Returns the output of the processes. All of them must end well."""
        outputs = []
        end_s = time.monotonic() + self.checks.left_s()
        for number, process in enumerate(processes):
            try:
                output, errors = process.communicate(timeout=max(1, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.checks.skip_at_the_end()
                raise AssertionError(f"{what} {number} does not end\n{self.logs(cluster)}") from None
            if process.returncode != 0:
                raise AssertionError(f"{what} {number} ends with {process.returncode}: {errors.strip() or output.strip()}\n{self.logs(cluster)}")
            outputs.append(output)
        return outputs

    @staticmethod
    def logs(cluster):
        return "\n".join(f"log of node {name}:\n{cluster.log(name)[-LOG_CHARACTERS:]}" for name in cluster.names)

    def ranks(self, layout, command, says=COMM_OK_OF_ALL):
        """Runs ranks on the nodes of the layout; command(rank, size) is the command of each."""
        with self.cluster(layout) as cluster:
            processes = [cluster.client(node, *command(rank, len(layout))) for rank, node in enumerate(layout)]
            outputs = self.wait_for(cluster, processes)
            if not any(says in output for output in outputs):
                raise AssertionError(f"no rank says \"{says}\": {outputs}")
            cluster.wait_gpus_idle()
            return outputs[0].strip().splitlines()[-1]

    # --- What is checked ---

    def kernels(self):
        code, output, errors = machine.run(BUILD / "tests/gpu/check_kernels", timeout_s=self.checks.left_s())
        last = (output.strip() or errors.strip() or "no output").splitlines()[-1]
        if code == machine.SKIPPED:
            raise Skip(last)
        if code is None:
            self.checks.skip_at_the_end()
        if code != 0:
            raise AssertionError(f"{'out of time' if code is None else last}\n{(output + errors)[-LOG_CHARACTERS:]}")
        return last

    def shows_its_gpu(self):
        with self.cluster("a") as cluster:
            answer = cluster.json("a", "gpus")
            if not answer["gpus"]:
                raise AssertionError(f"{answer.get('absent')}\n{self.logs(cluster)}")
            gpu = answer["gpus"][0]
            if gpu["error"]:
                raise AssertionError(gpu["error"])
            return f"{gpu['name']}, NCCL {answer.get('nccl_version') or 'absent'}, MPS {'on' if gpu['mps'] else 'off'}"

    def matrix(self, layout):
        return self.ranks(layout, lambda rank, size: [BUILD / "tests/system/matrix", "matrix", rank, size, 0])

    def surface(self, layout, turns):
        return self.ranks(layout, lambda rank, size: [BUILD / "tests/system/surface", "surface", rank, size, turns, 0])

    def compressed(self, layout):
        """GPUs encode with the bits of the host: the same program with host memory prints the same hashes."""
        outputs = []
        for device in (["0"], []):
            with self.cluster(layout) as cluster:
                command = [BUILD / "tests/system/compressed", "compressed"]
                processes = [cluster.client(node, *command, rank, len(layout), 300000, *device) for rank, node in enumerate(layout)]
                outputs.append(self.wait_for(cluster, processes))
                cluster.wait_gpus_idle()
        if outputs[0] != outputs[1]:
            raise AssertionError(f"on GPUs: {outputs[0]}; on the host: {outputs[1]}")
        return f"{len(outputs[0][0].splitlines())} ways, the host's bits"

    def reuse(self, layout):
        return self.ranks(layout, lambda rank, size: [BUILD / "tests/system/reuse", "reuse", rank, size, 24, 0])

    def stream_order(self, layout):
        return self.ranks(layout, lambda rank, size: [BUILD / "tests/system/stream_order", "order", rank, size, 0])

    def ahead(self, layout):
        """Operations in a row on one stream: the GPU waits for the client's marks, and writes the client's semaphore."""
        with self.cluster(layout, settings="gpu_ahead = 8;") as cluster:
            command = [BUILD / "tests/system/stream_order", "order"]
            self.wait_for(cluster, [cluster.client(node, *command, rank, len(layout), 0) for rank, node in enumerate(layout)])
            shown = cluster.json("a", "gpus")
            if not shown["operations_ahead"]:
                raise AssertionError("no operation waited on the GPU")
            cluster.wait_gpus_idle()
            return f"{shown['operations_ahead']} of {shown['operations_by_kernels']} operations waited on the GPU"

    def graphs(self, layout, mode, number):
        return self.ranks(layout, lambda rank, size: [BUILD / "tests/system/graphs", "graphs", rank, size, mode, number, 0], says="operations checked")

    def graphs_after_a_loss(self, how):
        """A rank dies, or commd is killed, in the middle of replays: the others are told, and their later replays end."""
        with self.cluster("a") as cluster:
            command = [BUILD / "tests/system/graphs", "graphs"]
            processes = [cluster.client("a", *command, rank, 2, "dies" if how == "rank" else "waits", 1, 0) for rank in range(2)]
            if how == "daemon":
                for process in processes:
                    test_gpu_failures.read_until(process, "READY")
                cluster.daemons["a"].kill()
            outputs = self.wait_for(cluster, processes[:1] if how == "rank" else processes)
            lost = [line for output in outputs for line in output.splitlines() if line.startswith("lost: ")]
            if len(lost) != len(outputs):
                raise AssertionError(f"not every rank was told: {outputs}")
            return lost[0]

    def overlap(self, layout):
        return self.ranks(layout, lambda rank, size: [BUILD / "examples/overlap", "--rank", rank, "--size", size, "--device", 0], says="right")

    def comes_by_descriptor(self):
        """Checks that memory of comm_mem_alloc comes by descriptor, where the GPU has virtual memory."""
        with self.cluster("a") as cluster:
            processes = [cluster.rank("a", "descriptor", rank, 2, "loop", "device=0", "memory=comm", "count=100000") for rank in range(2)]
            for process in processes:
                test_gpu_failures.read_until(process, "READY")
            gpu = cluster.json("a", "gpus")["gpus"][0]
            for process in processes:
                process.kill()
                process.communicate()
            cluster.wait_gpus_idle()
            if gpu["memories"] != 2:
                raise AssertionError(f"{gpu['memories']} memories of 2 ranks")
            return "by descriptor" if gpu["memories_by_ipc"] == 0 else f"{gpu['memories_by_ipc']} of 2 by legacy handle"

    def memory_pools(self):
        """Between the two halves commd is killed and started again."""
        with self.cluster("a") as cluster:
            processes = [cluster.client("a", sys.executable, ROOT / "tests/system/memory_pools_gpu.py", cluster.socket("a"), rank, 2, 0) for rank in range(2)]
            for process in processes:
                test_gpu_failures.read_until(process, "READY")
            gpu = cluster.json("a", "gpus")["gpus"][0]
            cluster.daemons["a"].kill()
            cluster.daemons["a"].wait(timeout=20)
            cluster.start("a")
            self.wait_for(cluster, processes)
            cluster.wait_gpus_idle()
            return f"{gpu['memories']} memories of 2 ranks, {gpu['memories_by_ipc']} by legacy handle"

    @staticmethod
    def become(user, *command):
        return [sys.executable, "-c", BECOME, user, *command]

    def two_users(self):
        """commd and its clients run as two different users, neither of them root. Handles must pass between them."""
        program = BUILD / "tests/system/surface"
        if os.geteuid() != 0:
            raise Skip("only root can start processes of two other users")
        for user, path in ((USERS[0], program), (USERS[1], BUILD / "commd")):
            if subprocess.run([str(part) for part in self.become(user, "/usr/bin/test", "-x", path)], check=False, capture_output=True).returncode != 0:
                raise Skip(f"{path} is not for every user to run")
        with self.cluster("a", start=False) as cluster:
            cluster.environment("a")
            roots = {cluster.folder, cluster.gpu_folder}
            for path in (*roots, *(path for root in roots for path in root.rglob("*"))):
                os.chown(path, USERS[1], USERS[1])
                if path.is_dir():
                    path.chmod(0o777 if self.double and path not in roots else 0o711)
            Cluster.daemon_command = self.become(USERS[1])
            try:
                cluster.start("a")
            finally:
                Cluster.daemon_command = []
            cluster.wait_ready()
            processes = [cluster.client("a", *self.become(USERS[0], program, "users", rank, 2, 2, 0)) for rank in range(2)]
            return self.wait_for(cluster, processes)[0].strip().splitlines()[-1]

    def one_connection(self, check, *arguments):
        """Runs a check while all streams of a process share one connection to the GPU."""
        before = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        try:
            return check(*arguments)
        finally:
            if before is None:
                del os.environ["CUDA_DEVICE_MAX_CONNECTIONS"]
            else:
                os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = before

    def two_orders(self):
        """Two ranks use two communicators in different orders. The results must be right, or a deadline must end the operations, with a text that
        says for what they waited."""
        with self.cluster("a") as cluster:
            processes = [cluster.client("a", BUILD / "tests/system/two_orders", "orders", rank, 2, 0, 3000) for rank in range(2)]
            outputs = [process.communicate(timeout=max(1, self.checks.left_s())) for process in processes]
            codes = {process.returncode for process in processes}
            if codes == {0}:
                return outputs[0][0].strip()
            if codes == {TIMED_OUT} and all("waiting for the stream of rank" in errors for _, errors in outputs):
                return outputs[0][1].strip().splitlines()[-1]
            raise AssertionError(f"{codes}: {outputs}\n{self.logs(cluster)}")

    def memory_comes_back(self):
        """Checks that a daemon gives GPU memory back, after clients that ended and clients that were killed."""
        def used(cluster):
            return cluster.json("a", "gpus")["gpus"][0]["used_bytes"]

        def once(cluster, name):
            self.wait_for(cluster, [cluster.client("a", BUILD / "tests/system/surface", name, rank, 2, 1, 0) for rank in range(2)])

        with self.cluster("a") as cluster:
            once(cluster, "first")  # from here on, the daemon has the memory that it always keeps
            cluster.wait_gpus_idle()
            before = used(cluster)
            for turn in range(3):
                once(cluster, f"again-{turn}")
                processes = [cluster.rank("a", f"killed-{turn}", rank, 2, "loop", "device=0", "count=100000") for rank in range(2)]
                for process in processes:
                    test_gpu_failures.read_until(process, "READY")
                    process.kill()
                for process in processes:
                    process.communicate()
            cluster.wait_gpus_idle()
            cluster.wait(lambda: used(cluster) - before < 64 << 20, f"{before} bytes of the GPU in use again", timeout_s=10)
            return f"{before >> 20} MiB in use before, {used(cluster) >> 20} MiB after"

    def failure(self, method):
        """Runs a test of tests/system/test_gpu_failures.py with its ranks on the GPUs of this machine."""
        case = test_gpu_failures.GpuFailures(method)
        case.gpus_there = self.gpu.count
        result = unittest.TestResult()
        case.run(result)
        for _, reason in result.skipped:
            raise Skip(reason)
        for _, text in result.failures + result.errors:
            raise AssertionError(text.strip().splitlines()[-1] + "\n" + text)

    # --- PyTorch ---

    def torch_version(self):
        if self.double:
            raise Skip("PyTorch works on GPUs alone")
        code, output, errors = machine.run(sys.executable, "-c", "import torch; print(torch.__version__, torch.cuda.is_available())",
                                           timeout_s=self.checks.left_s())
        if code != 0 or not output.strip().endswith("True"):
            raise Skip(f"no PyTorch with CUDA: {(errors.strip() or output.strip() or 'no answer').splitlines()[-1]}")
        return output.split()[0]

    def torch(self, layout, setting):
        version = self.torch_version()
        environment = {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting} if setting else {}
        os.environ.update(environment)
        try:
            said = self.ranks(layout, lambda rank, size: [sys.executable, ROOT / "tests/gpu/torch_rank.py", "torch", rank, size])
        finally:
            for name in environment:
                del os.environ[name]
        return f"{version}: {said}"

    # --- compute-sanitizer ---

    def sanitizer(self):
        tool = machine.find_tool("compute-sanitizer")
        if self.double or tool is None:
            raise Skip("it works on GPUs alone" if self.double else "compute-sanitizer is not installed")
        return tool

    @staticmethod
    def daemons_below(pid):
        """Returns the daemon that the tool started, or that it became. There may be processes in between."""
        parents, names = {}, {}
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                first, rest = path.read_text().rsplit(")", 1)
            except OSError:
                continue
            number, name = first.split(" (", 1)
            parents[int(number)], names[int(number)] = int(rest.split()[1]), name

        def is_below(number):
            return number == pid or number in parents and is_below(parents[number])

        return [number for number, name in names.items() if name == "commd" and is_below(number)]

    def sanitized_daemon(self):
        tool = self.sanitizer()
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / "log"
            Cluster.daemon_command = [tool, "--tool", "memcheck", "--log-file", log]
            try:
                cluster = self.cluster("a", start=False)
                process = cluster.start("a")
            finally:
                Cluster.daemon_command = []
            with cluster:
                cluster.wait(lambda: cluster.commctl("a", "status").returncode == 0, "the daemon under compute-sanitizer", timeout_s=60)
                ranks = [cluster.client("a", BUILD / "tests/system/matrix", "matrix", rank, 2, 0) for rank in range(2)]
                self.wait_for(cluster, ranks)
                for daemon in self.daemons_below(process.pid):
                    os.kill(daemon, signal.SIGTERM)
                process.wait(timeout=60)
                return self.read_sanitizer(log.read_text(errors="replace"))

    def sanitized_kernels(self):
        tool = self.sanitizer()
        code, output, errors = machine.run(tool, "--tool", "memcheck", BUILD / "tests/gpu/check_kernels", timeout_s=self.checks.left_s())
        if code is None:
            raise Skip("it did not end within its time")
        return self.read_sanitizer(output + errors)

    @staticmethod
    def read_sanitizer(text):
        found = re.search(r"ERROR SUMMARY: (\d+) error", text)
        if found is None:
            raise AssertionError(f"compute-sanitizer gives no summary\n{text[-LOG_CHARACTERS:]}")
        if found.group(1) != "0":
            raise AssertionError(f"compute-sanitizer: {found.group(0)}\n{text[:2 * LOG_CHARACTERS]}")
        return "compute-sanitizer finds nothing"

    # --- All of it ---

    def local(self):
        run = self.checks.run
        run("the node shows its GPU", self.shows_its_gpu)
        if not self.quick:
            run("every kernel, against the host's reductions", self.kernels)
        for size in (2,) if self.quick else (1, 2, 4, 8):
            run(f"everything that the library offers, {size} on one GPU", self.surface, "a" * size, 1 if self.quick else 4 if size > 4 else 8)
        run("how memory of comm_mem_alloc comes", self.comes_by_descriptor)
        run("order by streams, 2 on one GPU", self.stream_order, "aa")
        run("order by streams, with waits on the GPU, 2 on one GPU", self.ahead, "aa")
        run("computing and communicating by events, 2 on one GPU", self.overlap, "aa")
        run("CUDA graphs: operations of all kinds, 2 on one GPU", self.graphs, "aa", "replays", 20 if self.quick else 1000)
        if not self.quick:
            run("CUDA graphs: an all-reduce, 2 on one GPU", self.graphs, "aa", "pair", 1000)
            run("CUDA graphs: operations on branches, 2 on one GPU", self.graphs, "aa", "forks", 100)
            run("CUDA graphs: captured and destroyed again and again, 2 on one GPU", self.graphs, "aa", "many", 100)
            run("CUDA graphs: what cannot be captured, 2 on one GPU", self.graphs, "aa", "refused", 0)
            run("CUDA graphs: two replays at once, 2 on one GPU", self.graphs, "aa", "twice", 0)
            run("CUDA graphs: a rank dies in the middle of replays", self.graphs_after_a_loss, "rank")
            run("CUDA graphs: commd is killed in the middle of replays", self.graphs_after_a_loss, "daemon")
            run("commd and its clients of two users", self.two_users)
            run("everything that the library offers, CUDA_DEVICE_MAX_CONNECTIONS=1, 2 on one GPU", self.one_connection, self.surface, "aa", 4)
            run("computing and communicating by events, CUDA_DEVICE_MAX_CONNECTIONS=1, 2 on one GPU", self.one_connection, self.overlap, "aa")
            run("two communicators in two orders, 2 on one GPU", self.two_orders)
            run("two communicators in two orders, CUDA_DEVICE_MAX_CONNECTIONS=1, 2 on one GPU", self.one_connection, self.two_orders)
            run("memory freed and allocated again, 2 on one GPU", self.reuse, "aa")
            run("memory of CUDA memory pools, 2 on one GPU", self.memory_pools)
            run("all types and operators, 2 on one GPU", self.matrix, "aa")

    def nodes(self):
        run = self.checks.run
        for layout in ("ab",) if self.quick else ("ab", "aabb", "abbaabba"):
            run(f"everything that the library offers, {len(layout)} on two nodes that share a GPU", self.surface, layout, 1 if self.quick else 4)
            run(f"compressed on the GPU, {len(layout)} on two nodes that share a GPU", self.compressed, layout)
        if self.quick:
            return
        run("order by streams, 3 on two nodes that share a GPU", self.stream_order, "aab")
        run("computing and communicating by events, 4 on two nodes that share a GPU", self.overlap, "aabb")
        run("CUDA graphs: operations of all kinds, 3 on two nodes that share a GPU", self.graphs, "aab", "replays", 200)
        run("memory freed and allocated again, 3 on two nodes that share a GPU", self.reuse, "aab")
        run("all types and operators, 4 on two nodes that share a GPU", self.matrix, "abba")

    def kills(self):
        quick = ["test_killed_daemon_while_a_stream_waits", "test_killed_client_of_one_gpu"]
        methods = quick if self.quick else unittest.TestLoader().getTestCaseNames(test_gpu_failures.GpuFailures)
        for method in methods:
            self.checks.run(method.removeprefix("test_").replace("_", " "), self.failure, method)
        if not self.quick:
            self.checks.run("the GPU's memory comes back", self.memory_comes_back)

    def several_gpus(self):
        if self.gpu.count < 2 and not self.double:
            self.checks.tell("skip", "several GPUs", "the machine has one GPU")
            return
        SeveralGpus(self, 4 if self.double else self.gpu.count).run()

    def programs_of_others(self):
        run = self.checks.run
        for layout, where in (("aa", "2 on one GPU"), ("ab", "on two nodes that share a GPU")):
            run(f"PyTorch's tensors as buffers, {where}", self.torch, layout, None)
            run(f"PyTorch's tensors in segments that grow, {where}", self.torch, layout, "expandable_segments:True")

    def the_rest(self):
        run = self.checks.run
        run("compute-sanitizer, the daemon", self.sanitized_daemon)
        for size in (1, 4, 8):
            run(f"all types and operators, {size} on one GPU", self.matrix, "a" * size)
        run("all types and operators, 8 on two nodes that share a GPU", self.matrix, "abbaabba")
        run("compute-sanitizer, the kernels", self.sanitized_kernels)

    def run(self):
        self.local()
        self.nodes()
        self.kills()
        if not self.quick:
            self.several_gpus()
            self.programs_of_others()
            self.the_rest()
        counts = self.checks.counts
        print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped", flush=True)
        return 1 if counts["FAIL"] or not counts["ok"] else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the few that say most")
    parser.add_argument("--double", action="store_true", help="on doubles of GPUs: a dry run")
    parser.add_argument("--seconds", type=float, default=300, help="after which no check begins")
    parser.add_argument("--only", metavar="TEXT", help="checks with that in their names")
    arguments = parser.parse_args()
    try:
        gpu = machine.find_gpu(arguments.double)
    except machine.NoGpu as reason:
        print(f"skipped: {reason}")
        machine.tidy()
        return machine.SKIPPED
    Cluster.real_gpus = not arguments.double
    print(f"{gpu.name}, driver {gpu.driver}, CUDA {gpu.cuda}{': no GPU, what follows says nothing about one' if arguments.double else ''}", flush=True)
    try:
        return GpuChecks(arguments, gpu).run()
    finally:
        machine.tidy()


if __name__ == "__main__":
    sys.exit(main())
