#!/usr/bin/env python3
"""Programs that are written for NCCL and run on commd, with GPUs that are doubles (tests/cuda_double), between real daemons."""
import ctypes
import os
import pathlib
import subprocess
import unittest

from cluster import BUILD, Cluster
from failure_case import read_until

LIBRARY = BUILD / "nccl/libnccl.so.2"
NAMES = (pathlib.Path(__file__).parent / "nccl_names.txt").read_text().split()
INVALID_ARGUMENT, INVALID_USAGE = 4, 5


class NcclPrograms(unittest.TestCase):
    def check(self, layout):
        """layout: for each process, its node and the devices of its ranks."""
        size = sum(len(devices) for _, devices in layout)
        with Cluster(sorted({node for node, _ in layout}), gpus=4, client_environment={"LD_LIBRARY_PATH": str(LIBRARY.parent)}) as cluster:
            first, processes = 0, []
            for node, devices in layout:
                processes.append(cluster.client(node, BUILD / "tests/system/nccl_rank", cluster.folder / "id", first, size, *devices))
                first += len(devices)
            for process in processes:
                output, errors = process.communicate(timeout=120)
                self.assertEqual((process.returncode, errors), (0, ""))
                self.assertIn("operations checked", output)
            cluster.wait_gpus_idle()

    def test_two_processes(self):
        self.check([("a", [0]), ("a", [1])])

    def test_one_process_of_four_devices(self):
        self.check([("a", [0, 1, 2, 3])])

    def test_two_nodes_of_two_devices(self):
        self.check([("a", [0, 1]), ("b", [1, 0])])

    def test_two_nodes_and_a_process_for_each_device(self):
        self.check([("a", [0]), ("b", [0]), ("a", [1])])


TWO_PROCESSES = [("a", [0]), ("a", [1])]
FOUR_DEVICES = [("a", [0, 1, 2, 3])]
TWO_NODES = [("a", [0, 1]), ("b", [1, 0])]
MIXED = [("a", [0]), ("a", [2, 1]), ("b", [3])]


class Cases(unittest.TestCase):
    """The cases of nccl_cases.c, each in its own processes."""

    def cluster(self, layout, **options):
        return Cluster(sorted({node for node, _ in layout}), gpus=4,
                       client_environment={"LD_LIBRARY_PATH": str(LIBRARY.parent), "COMMD_WAIT_MS": "10000"}, **options)

    def start(self, cluster, case, layout):
        size = sum(len(devices) for _, devices in layout)
        first, processes = 0, []
        for node, devices in layout:
            processes.append(cluster.client(node, BUILD / "tests/system/nccl_cases", case, cluster.folder / f"id-{case}", first, size, *devices))
            first += len(devices)
        return processes

    def finish(self, processes, case):
        for process in processes:
            output, errors = process.communicate(timeout=120)
            self.assertEqual((process.returncode, errors, output.strip().splitlines()[-1:]), (0, "", ["OK"]), case)

    def check(self, layout, *cases):
        with self.cluster(layout) as cluster:
            for case in cases:
                self.finish(self.start(cluster, case, layout), case)
            cluster.wait_gpus_idle()


class NcclCases(Cases):
    WELL = ("kinds", "arguments", "groups", "messages", "splits", "memory", "pools", "configs", "life")

    def test_two_processes(self):
        self.check(TWO_PROCESSES, *self.WELL, "operators", "non-blocking", "graph")

    def test_one_process_of_four_devices(self):
        self.check(FOUR_DEVICES, *self.WELL, "init-all", "threads", "non-blocking-group")

    def test_two_nodes(self):
        self.check(TWO_NODES, *self.WELL, "non-blocking-group")

    def test_processes_of_one_and_two_devices_on_two_nodes(self):
        self.check(MIXED, *self.WELL)

    def test_devices_and_streams_that_do_not_fit(self):
        self.check([("a", [0, 1])], "mixes", "half-captured")
        self.check(TWO_NODES, "mixes")

    def test_two_ranks_of_a_process_on_one_device(self):
        self.check([("a", [1, 1])], "one-device")

    def test_graphs_on_two_nodes(self):
        self.check([("a", [0]), ("a", [1]), ("b", [0])], "graph")

    def test_a_process_for_each_of_four_devices(self):
        self.check([("a", [0]), ("a", [1]), ("a", [2]), ("a", [3])], "types", "operators", "non-blocking")

    def test_all_types_and_operators_in_one_process(self):
        self.check(FOUR_DEVICES, "types")

    def test_all_types_and_operators_on_two_nodes(self):
        self.check(TWO_NODES, "types")


class NcclExamples(Cases):
    """Programs as NCCL's documentation and its performance tests have them (nccl_examples.c)."""
    PROGRAMS = ("loops", "children", "polling", "factors", "abort-in-group")

    def test_two_processes(self):
        self.check(TWO_PROCESSES, *self.PROGRAMS)

    def test_one_process_of_four_devices(self):
        self.check(FOUR_DEVICES, *self.PROGRAMS, "watchdog", "shrink-group")

    def test_two_nodes(self):
        self.check(TWO_NODES, *self.PROGRAMS, "watchdog", "shrink-group")

    def test_processes_of_one_and_two_devices_on_two_nodes(self):
        self.check(MIXED, *self.PROGRAMS)


class NcclGraphs(Cases):
    """CUDA graphs of several devices in one process, as NCCL's performance tests have them with -G."""

    def test_a_graph_for_each_device(self):
        self.check(FOUR_DEVICES, "graph-devices")

    def test_a_graph_for_each_device_on_two_nodes(self):
        self.check(TWO_NODES, "graph-devices")
        self.check(MIXED, "graph-devices")

    def test_one_graph_of_several_devices(self):
        self.check(FOUR_DEVICES, "graph-spread")
        self.check(TWO_NODES, "graph-spread")

    def test_a_thread_for_each_device(self):
        self.check(FOUR_DEVICES, "graph-threads")

    def test_what_cannot_be_captured(self):
        self.check([("a", [0, 1])], "graph-refused")


class NcclFailures(Cases):
    def test_abort(self):
        for layout in (TWO_PROCESSES, [("a", [0]), ("b", [0]), ("b", [1])]):
            self.check(layout, "abort")

    def test_abort_before_all_have_come(self):
        self.check(TWO_PROCESSES, "abandon")

    def test_survivors_shrink(self):
        self.check([("a", [0]), ("a", [1]), ("a", [2])], "shrink")
        self.check([("a", [0]), ("b", [1]), ("a", [2]), ("b", [0])], "shrink")

    def test_ranks_that_are_taken_in(self):
        self.check([("a", [0]), ("a", [1]), ("b", [2])], "grow")

    def check_killed(self, layout):
        with self.cluster(layout) as cluster:
            processes = self.start(cluster, "survive", layout)
            for process in processes:
                read_until(process, "READY")
            processes[-1].kill()
            self.finish(processes[:-1], "survive")
            cluster.wait_gpus_idle()

    def test_killed_peer(self):
        self.check_killed(TWO_PROCESSES)

    def test_killed_peer_of_another_node(self):
        self.check_killed([("a", [0]), ("a", [2, 1]), ("b", [0])])

    def test_killed_daemon(self):
        with self.cluster(TWO_PROCESSES) as cluster:
            processes = self.start(cluster, "restart", TWO_PROCESSES)
            for process in processes:
                read_until(process, "READY")
            cluster.daemons["a"].kill()
            cluster.daemons["a"].wait()
            cluster.start("a")
            self.finish(processes, "restart")
            cluster.wait_gpus_idle()

    def test_killed_daemon_of_a_peer(self):
        layout = [("a", [0]), ("b", [0])]
        with self.cluster(layout) as cluster:
            processes = self.start(cluster, "survive", layout)
            for process in processes:
                read_until(process, "READY")
            cluster.daemons["b"].kill()
            processes[-1].kill()
            output, errors = processes[0].communicate(timeout=60)
            self.assertIn("OK", output, errors)


class Preloaded(Cases):
    def test_a_program_with_an_rpath_of_its_own(self):
        """LD_LIBRARY_PATH does not reach a program with DT_RPATH, such as torch's wheel. LD_PRELOAD does."""
        layout = TWO_PROCESSES
        with Cluster(["a"], gpus=4, client_environment={"LD_PRELOAD": str(LIBRARY)}) as cluster:
            self.finish(self.start(cluster, "life", layout), "life")

    def test_python_finds_it_by_its_name(self):
        script = "import ctypes; ctypes.CDLL('libnccl.so.2').commd_nccl_drop_in; print('found')"
        done = subprocess.run(["python3", "-c", script], env=dict(os.environ, LD_PRELOAD=str(LIBRARY)), capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.strip(), "found")


class NcclLibrary(unittest.TestCase):
    def setUp(self):
        self.nccl = ctypes.CDLL(str(LIBRARY), mode=os.RTLD_NOW)
        self.nccl.ncclGetLastError.restype = ctypes.c_char_p
        self.nccl.ncclGetErrorString.restype = ctypes.c_char_p

    def test_every_name_of_nccl_2_32_is_there(self):
        self.assertEqual(len(NAMES), 96)
        missing = [prefix + name for name in NAMES for prefix in ("", "p") if not hasattr(self.nccl, prefix + name)]
        self.assertEqual(missing, [])

    def test_what_is_not_offered_says_so(self):
        for name in ("ncclCommSuspend", "ncclCommResume", "ncclCommMemStats", "ncclDevCommCreate", "ncclPutSignal", "ncclSetEncryption", "ncclAllReduceConfig"):
            self.assertEqual(self.nccl[name](None), INVALID_USAGE)
            self.assertEqual(self.nccl.ncclGetLastError(None).decode(), f"{name}: commd's libnccl does not offer this call")

    def test_versions(self):
        for setting, wanted in (("", 22809), ("23203", 23203), ("21400", 21400), ("21399", 22809), ("2.28", 22809), ("30000", 22809)):
            script = "import ctypes, sys; v = ctypes.c_int(); r = ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(v)); print(r, v.value)"
            done = subprocess.run(["python3", "-c", script, str(LIBRARY)], env=dict(os.environ, COMMD_NCCL_VERSION=setting), capture_output=True, text=True,
                                  check=True)
            self.assertEqual(done.stdout.split(), ["0", str(wanted)], setting)

    def test_ids(self):
        ids = [ctypes.create_string_buffer(128) for _ in range(3)]
        for each in ids:
            self.assertEqual(self.nccl.ncclGetUniqueId(each), 0)
            self.assertEqual((each.raw[:8], each.raw[24:]), (b"commd-i1", bytes(104)))
        self.assertEqual(len({each.raw for each in ids}), 3)
        self.assertEqual(self.nccl.ncclGetUniqueId(None), INVALID_ARGUMENT)

    def test_texts(self):
        self.assertEqual(self.nccl.ncclGetErrorString(0), b"no error")
        self.assertEqual(len({self.nccl.ncclGetErrorString(result) for result in range(9)}), 9)
        self.assertEqual(self.nccl.ncclGetErrorString(9), self.nccl.ncclGetErrorString(-1))


class Refused(unittest.TestCase):
    def test_commd_does_not_load_it(self):
        with Cluster(["a"], gpus=2, daemon_environment={"COMMD_NCCL_LIBRARY": str(LIBRARY)}) as cluster:
            self.assertIn("NCCL none", cluster.commctl("a", "gpus").stdout)
            cluster.wait_logged("a", f"{LIBRARY} is commd's own libnccl for programs: commd needs NCCL itself")


if __name__ == "__main__":
    unittest.main()
