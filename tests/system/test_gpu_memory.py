#!/usr/bin/env python3
"""How commd gets GPU memory (of doubles): by descriptor, or by a legacy IPC handle, unless the configuration refuses handles. In the end, commd
holds none of it."""
import signal
import sys
import unittest

from cluster import ROOT, Cluster
from failure_case import FailureCase, read_until

WAITS = True
REFUSE = 'cuda_ipc_handles = "refuse";'
WITHOUT = {"CUDA_DOUBLE_VIRTUAL_MEMORY": "0"}  # as with a GPU or a driver without virtual memory
UNIT = 2 << 20


class GpuMemory(FailureCase):
    def rank(self, cluster, rank, size, name, mode, *options, environment=None):
        before, cluster.client_environment = cluster.client_environment, environment or {}
        process = cluster.rank("a", name, rank, size, mode, "device=0", *options)
        cluster.client_environment = before
        return process

    def work(self, cluster, ranks):
        """Starts a rank for each (memory, environment) in `ranks`, and waits until all are at work."""
        name = f"work-{len(cluster.processes)}"
        processes = [self.rank(cluster, rank, len(ranks), name, "loop", f"memory={memory}", environment=environment)
                     for rank, (memory, environment) in enumerate(ranks)]
        for process in processes:
            read_until(process, "READY")
        return processes

    def imported(self, cluster):
        gpu = cluster.json("a", "gpus")["gpus"][0]
        return gpu["memories"], gpu["memories_by_ipc"], gpu["memory_imported_bytes"]

    def expect_nothing_left(self, cluster, used_bytes):
        cluster.wait(lambda: self.imported(cluster) == (0, 0, 0), "all memory is let go of", timeout_s=5)
        cluster.wait(lambda: cluster.json("a", "gpus")["gpus"][0]["used_bytes"] == used_bytes, "and free", timeout_s=5)

    def end(self, cluster, processes):
        for process in processes:
            process.kill()
            process.communicate()

    def test_by_descriptor_and_by_handle(self):
        """The chosen ranks run operations in one communicator. Then all of them are killed."""
        with Cluster("a", gpus=1) as cluster:
            used_bytes = cluster.json("a", "gpus")["gpus"][0]["used_bytes"]
            ranks = [("comm", None), ("cuda", None), ("comm", None), ("comm", WITHOUT)]
            for chosen, by_ipc, size in ((ranks[:1], 0, UNIT), (ranks[1:2], 1, 8000), (ranks[3:], 1, UNIT), (ranks, 2, 3 * UNIT + 8000)):
                processes = self.work(cluster, chosen)
                self.assertEqual(self.imported(cluster), (len(chosen), by_ipc, size))
                self.assertIn("BY IPC", cluster.commctl("a", "gpus").stdout)
                self.end(cluster, processes)
                self.expect_nothing_left(cluster, used_bytes)

    def test_killed_beside_others(self):
        """commd also releases the memory of a dead client that was shared by descriptor, while others work."""
        with Cluster("a", gpus=1) as cluster:
            others = self.work(cluster, [("comm", None), ("cuda", None)])
            before, used_bytes = self.imported(cluster), cluster.json("a", "gpus")["gpus"][0]["used_bytes"]
            for _ in range(3):
                killed, left = self.work(cluster, [("comm", None), ("comm", None)])
                killed.kill()
                self.expect(left, "RANK_LOST", "rank 0", within_s=5)
                cluster.wait(lambda: self.imported(cluster) == before, "all memory of the dead is let go of", timeout_s=5)
                cluster.wait(lambda: cluster.json("a", "gpus")["gpus"][0]["used_bytes"] == used_bytes, "and free", timeout_s=5)
            self.end(cluster, others)

    def test_ended(self):
        """commd also holds nothing of a client that closes."""
        with Cluster("a", gpus=1) as cluster:
            used_bytes = cluster.json("a", "gpus")["gpus"][0]["used_bytes"]
            for memory, environment in (("comm", None), ("comm", WITHOUT)):
                self.expect(self.rank(cluster, 0, 1, f"once-{bool(environment)}", "once", f"memory={memory}", environment=environment), "OK", within_s=10)
                self.expect_nothing_left(cluster, used_bytes)

    def test_freed_and_allocated_at_the_same_place(self):
        """Before commd opens new memory at an address, it closes the old memory there, or waits for its operations."""
        with Cluster("a", gpus=1) as cluster:
            process = cluster.client("a", sys.executable, ROOT / "tests/system/same_place.py", "place")
            output, errors = process.communicate(timeout=60)
            self.assertEqual((output, process.returncode), ("DONE\n", 0), errors)
            cluster.wait(lambda: self.imported(cluster) == (0, 0, 0), "all memory is let go of", timeout_s=5)

    def test_handles_refused(self):
        with Cluster("a", settings=REFUSE, gpus=1) as cluster:
            self.assertTrue(cluster.json("a", "gpus")["refuses_ipc_handles"])
            self.assertIn("legacy IPC handles refused", cluster.commctl("a", "gpus").stdout)
            works = self.work(cluster, [("comm", None), ("comm", None)])
            self.expect(self.rank(cluster, 0, 1, "handle", "once"), "PERMISSION", 'cuda_ipc_handles = "refuse"', "comm_mem_alloc",
                        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "comm_all_reduce on", within_s=10)
            self.expect(self.rank(cluster, 0, 1, "fall-back", "once", "memory=comm", environment=WITHOUT), "PERMISSION", "comm_mem_alloc: GPU 0 cannot make memory",
                        'cuda_ipc_handles = "refuse"', within_s=10)
            self.assertEqual(self.imported(cluster), (2, 0, 2 * UNIT))
            self.assertTrue(all(process.poll() is None for process in works), "the others go on")
            self.end(cluster, works)

    def test_reload(self):
        """A reload decides whether later handles are refused or accepted. Registered memory stays."""
        with Cluster("a", gpus=1) as cluster:
            good = cluster.config_path("a").read_text()
            works = self.work(cluster, [("cuda", None), ("comm", None)])
            for settings, refused in ((REFUSE, True), ("", False)):
                cluster.config_path("a").write_text(good + settings + "\n")
                cluster.daemons["a"].send_signal(signal.SIGHUP)
                cluster.wait(lambda refused=refused: cluster.json("a", "gpus")["refuses_ipc_handles"] == refused, "reloaded")
                self.assertNotIn("only with a restart", cluster.log("a"))
                self.expect(self.rank(cluster, 0, 1, f"alone-{refused}", "once"), "PERMISSION" if refused else "OK", within_s=10)
                self.assertTrue(all(process.poll() is None for process in works), "who had a handle opened goes on")
            self.end(cluster, works)

    def test_memory_pools(self):
        """Two ranks on two GPUs. Between them commd is restarted. In the end nobody has freed what commd had open."""
        with Cluster("a", gpus=2) as cluster:
            def imported():
                return [(gpu["memories"], gpu["memories_by_ipc"]) for gpu in cluster.json("a", "gpus")["gpus"]]
            ranks = [cluster.client("a", sys.executable, ROOT / "tests/system/memory_pools_gpu.py", cluster.socket("a"), rank, 2, rank) for rank in range(2)]
            for process in ranks:
                read_until(process, "READY")
            self.assertEqual(imported(), [(3, 0)] * 2)
            cluster.daemons["a"].kill()
            cluster.daemons["a"].wait(timeout=20)
            cluster.start("a")
            for process in ranks:
                output, errors = process.communicate(timeout=60)
                self.assertEqual((process.returncode, output.strip()), (0, "OK"), errors)
                self.assertNotIn("cuda_double", errors)
            cluster.wait(lambda: imported() == [(0, 0)] * 2, "all memory is let go of", timeout_s=5)


if __name__ == "__main__":
    unittest.main()
