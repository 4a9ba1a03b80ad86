#!/usr/bin/env python3
"""The driver does not return from opening or closing a client's memory, because a GPU's work does not end. commd and everybody else go on. The GPUs are doubles
(tests/cuda_double)."""
import itertools
import time
import unittest

from cluster import BUILD, Cluster
from failure_case import FailureCase

WAITS = True
# The call, and the memory of the ranks that need it.
OPENS = {"cuIpcOpenMemHandle": "cuda", "cuMemAddressReserve": "comm", "cuMemMap": "comm", "cuMemPoolImportFromShareableHandle": "pool",
         "cuMemPoolImportPointer": "pool"}
CLOSES = {"cuIpcCloseMemHandle": "cuda", "cuMemUnmap": "comm", "cuMemFreeAsync": "pool"}
SOME = {"cuIpcOpenMemHandle": "cuda", "cuMemMap": "comm", "cuMemPoolImportPointer": "pool", "cuIpcCloseMemHandle": "cuda", "cuMemFreeAsync": "pool"}
FOREVER_MS = 3600000
QUICK_S = 1.0
AHEAD = "gpu_ahead = 8;"


class GpuSlowMemory(FailureCase):
    def cluster(self, symbol, ms=FOREVER_MS, settings="", **environment):
        """The calls are slow while the file `slow` is there."""
        cluster = Cluster("a", settings, gpus=2, start=False)
        self.addCleanup(cluster.close)
        self.slow = cluster.folder / "slow"
        cluster.daemon_environment = dict(cluster.daemon_environment or {}, CUDA_DOUBLE_SLOW=f"{symbol}:{ms}", CUDA_DOUBLE_SLOW_WHILE=str(self.slow), **environment)
        cluster.start("a")
        cluster.wait_ready()
        return cluster

    def completed(self, cluster, processes):
        pids = {process.pid for process in processes}
        return [client["ops_completed"] for client in cluster.json("a", "clients")["clients"] if client["pid"] in pids]

    def check_others_go_on(self, cluster, others):
        """commctl answers at once, operations of others go on, also on the same GPU, and newcomers form communicators on the other GPU and on the host."""
        began = time.monotonic()
        before = self.completed(cluster, others)
        self.assertLess(time.monotonic() - began, QUICK_S)
        self.assertEqual(len(before), len(others))
        cluster.wait(lambda: all(now > old + 5 for now, old in zip(self.completed(cluster, others), before)), "operations of others go on", timeout_s=5)
        self.check_new_communicator(cluster, "aa", "host")
        self.check_new_communicator(cluster, "aa", "other-gpu", [1, 1])

    def imported(self, cluster):
        return [gpu["memories"] for gpu in cluster.json("a", "gpus")["gpus"]]

    def begin(self, symbol, memory, settings=""):
        """Ranks on both GPUs are at work when the driver begins to hang."""
        cluster = self.cluster(symbol, settings=settings, CUDA_DOUBLE_SLOW_DEVICE="0")
        others = [*self.start(cluster, "aa", "gpu-0", "loop", "pause=0.03", f"memory={memory}", devices=[0, 0]),
                  *self.start(cluster, "aa", "gpu-1", "loop", "pause=0.03", f"memory={memory}", devices=[1, 1])]
        return cluster, others, self.imported(cluster)

    def end(self, cluster, others, before):
        """The driver goes on: so does everything else."""
        self.slow.unlink()
        cluster.wait(lambda: self.imported(cluster) == before, "commd holds what it held before", timeout_s=10)
        self.check_new_communicator(cluster, "aa", "again", [0, 0])
        for process in others:
            self.assertIsNone(process.poll())
            process.kill()
        cluster.wait_gpus_idle()
        cluster.wait(lambda: self.imported(cluster) == [0, 0], "commd lets go of all memory", timeout_s=10)

    def test_opening(self):
        for symbol, memory in OPENS.items():
            with self.subTest(symbol):
                cluster, others, before = self.begin(symbol, memory)
                self.slow.touch()
                waits = self.ranks(cluster, "aa", "waits", "once", f"memory={memory}", devices=[0, 0])
                self.check_others_go_on(cluster, others)
                time.sleep(2)  # commd then takes the call for late
                for process in self.ranks(cluster, "aa", "told", "once", f"memory={memory}", devices=[0, 0]):
                    self.expect(process, "DEVICE", "GPU 0", "an earlier call of the driver", within_s=5)
                waits[0].kill()  # its memory is closed as soon as it is open
                self.check_others_go_on(cluster, others)
                self.slow.unlink()
                self.expect(waits[1], "RANK_LOST", within_s=10)
                self.slow.touch()
                self.end(cluster, others, before)

    def has_memory(self, cluster):
        return all([self.last_line(process, 15).startswith("OK") for process in self.ranks(cluster, "aa", "again", "once", devices=[0, -1])])

    def test_pinning(self):
        """An operation needs pinned memory. It waits, and ends with a reason after two seconds. commd itself does not wait: it says what the operation waits
        for. Nor does anybody who needs none, newcomers included."""
        cluster, others, _ = self.begin("cuMemHostAlloc", "cuda")

        def is_seen(attempt=itertools.count()):
            self.slow.touch()
            waits = self.ranks(cluster, "aa", f"waits-{next(attempt)}", "once", devices=[0, -1])
            seen = False
            while not seen and all(process.poll() is None for process in waits):
                seen = any("waiting for pinned memory" in op["waiting_for"] for op in cluster.json("a", "ops")["ops"])
            for process in waits:
                self.expect(process, "DEVICE", "no pinned memory", within_s=15)
            self.check_others_go_on(cluster, others)
            if not seen:  # commctl came too late
                self.slow.unlink()
                cluster.wait(lambda: self.has_memory(cluster), "pinned memory can be had again", timeout_s=10)
            return seen

        self.assertTrue(any(is_seen() for _ in range(5)))
        for process in self.ranks(cluster, "aa", "told", "once", devices=[0, -1]):
            self.expect(process, "DEVICE", "an earlier cuMemHostAlloc has not returned", within_s=15)
        self.slow.unlink()
        cluster.wait(lambda: self.has_memory(cluster), "pinned memory can be had again", timeout_s=10)
        for process in others:
            self.assertIsNone(process.poll())
            process.kill()
        cluster.wait_gpus_idle()

    def test_closing(self):
        for symbol, memory in CLOSES.items():
            with self.subTest(symbol):
                cluster, others, before = self.begin(symbol, memory)
                ends = self.start(cluster, "aa", "ends", "loop", f"memory={memory}", devices=[0, 0])
                self.slow.touch()
                for process in ends:
                    process.kill()
                self.check_others_go_on(cluster, others)
                time.sleep(2)
                self.check_others_go_on(cluster, others)
                self.end(cluster, others, before)

    def order(self, cluster, name):
        """A rank on GPU 0 whose streams order its operations: commd registers their words, so that its own stream can wait for them."""
        process = cluster.client("a", BUILD / "tests/system/stream_order", name, 0, 1, 0, 10)
        output, errors = process.communicate(timeout=60)
        self.assertEqual((process.returncode, output), (0, "30 operations checked\n"), errors)

    def ahead(self, cluster):
        return cluster.json("a", "gpus")["operations_ahead"]

    def test_registering_words(self):
        """Until the words are registered, the processor looks at them, and operations go on. Then the GPU waits for them."""
        cluster, others, before = self.begin("cuMemHostRegister_v2", "cuda", AHEAD)
        self.slow.touch()
        self.order(cluster, "waits")
        self.check_others_go_on(cluster, others)
        self.check_new_communicator(cluster, "aa", "same-gpu", [0, 0])  # it opens memory
        self.assertEqual(self.ahead(cluster), 0)
        self.end(cluster, others, before)
        self.order(cluster, "registered")
        self.assertGreater(self.ahead(cluster), 0)

    def test_unregistering_words(self):
        """The memory of the words stays until the driver has let go of it."""
        cluster, others, before = self.begin("cuMemHostUnregister", "cuda", AHEAD)
        self.slow.touch()
        self.order(cluster, "ends")
        self.assertGreater(self.ahead(cluster), 0)
        self.check_others_go_on(cluster, others)
        self.check_new_communicator(cluster, "aa", "same-gpu", [0, 0])
        self.end(cluster, others, before)

    def test_words_while_the_daemon_ends(self):
        for symbol in ("cuMemHostRegister_v2", "cuMemHostUnregister"):
            with self.subTest(symbol):
                cluster, _, _ = self.begin(symbol, "cuda", AHEAD)
                self.slow.touch()
                self.order(cluster, "ends")
                began = time.monotonic()
                cluster.daemons["a"].terminate()
                self.assertEqual(cluster.daemons["a"].wait(timeout=20), 0, cluster.log("a"))
                self.assertLess(time.monotonic() - began, 15)

    def test_slow_ones(self):
        """Calls of a fifth of a second: each client waits for its own memory, and nobody is refused."""
        for symbol, memory in SOME.items():
            with self.subTest(symbol):
                cluster = self.cluster(symbol, ms=200)
                self.slow.touch()
                began = time.monotonic()
                for name in range(2):
                    for process in self.ranks(cluster, "aaa", f"slow-{name}", "once", f"memory={memory}", devices=[0, 1, 0]):
                        self.expect(process, "OK", within_s=15)
                self.assertGreater(time.monotonic() - began, 0.4)
                cluster.wait(lambda: self.imported(cluster) == [0, 0], "commd lets go of all memory", timeout_s=10)
                cluster.wait_gpus_idle()

    def test_the_daemon_ends_meanwhile(self):
        for symbol, memory in SOME.items():
            with self.subTest(symbol):
                cluster, _, _ = self.begin(symbol, memory)
                waits = self.start(cluster, "a", "ends", "loop", f"memory={memory}", devices=[0])
                self.slow.touch()
                waits[0].kill()
                self.ranks(cluster, "a", "waits", "once", f"memory={memory}", devices=[0])
                time.sleep(0.5)
                began = time.monotonic()
                cluster.daemons["a"].terminate()
                self.assertEqual(cluster.daemons["a"].wait(timeout=20), 0, cluster.log("a"))
                self.assertLess(time.monotonic() - began, 15)


if __name__ == "__main__":
    unittest.main()
