#!/usr/bin/env python3
"""What commctl shows of GPUs (doubles of them), and which GPUs clients and commd see."""
import subprocess
import unittest

from cluster import Cluster
from failure_case import FailureCase, read_until


class GpuAdmin(FailureCase):
    def one(self, cluster, code, *texts, device=0, environment=None):
        """Runs a single rank on the GPU that the rank knows under this number."""
        before, cluster.client_environment = cluster.client_environment, environment or {}
        process = cluster.rank("a", f"one-{len(cluster.processes)}", 0, 1, "once", f"device={device}")
        cluster.client_environment = before
        self.expect(process, code, *texts, within_s=10)

    def test_gpus_at_work(self):
        with Cluster("a", gpus=3) as cluster:
            idle = cluster.json("a", "gpus")
            self.assertEqual([gpu["index"] for gpu in idle["gpus"]], [0, 1, 2])
            self.assertEqual(len({gpu["uuid"] for gpu in idle["gpus"]}), 3)
            self.assertRegex(idle["driver_version"], r"^\d+\.\d+$")
            self.assertRegex(idle["nccl_version"], r"^\d+\.\d+\.\d+$")
            self.assertEqual((idle["absent"], idle["gpus"][0]["memories"], idle["gpus"][0]["clients"], idle["gpus"][0]["mps"]), ("", 0, [], False))
            ranks = self.start(cluster, "aaa", "work", "loop", "count=100000", devices=[0, 0, 2])
            busy = cluster.json("a", "gpus")
            shared, unused, alone = busy["gpus"]
            self.assertEqual([(comm["name"], comm["ranks"]) for comm in shared["comms"]], [("work", 2)])
            self.assertEqual({client["pid"] for client in shared["clients"]}, {ranks[0].pid, ranks[1].pid})
            self.assertEqual([client["pid"] for client in alone["clients"]], [ranks[2].pid])
            self.assertEqual((unused["comms"], unused["clients"], unused["memory_imported_bytes"]), ([], [], 0))
            self.assertEqual((shared["memories"], shared["memory_imported_bytes"]), (2, 2 * 800000))
            self.assertEqual((alone["memories"], alone["memory_imported_bytes"]), (1, 800000))
            self.assertGreater(shared["used_bytes"], idle["gpus"][0]["used_bytes"])
            self.assertGreater(busy["pinned_bytes"], 0)
            text = cluster.commctl("a", "gpus").stdout
            for part in ("IMPORTED", "COMMUNICATOR", "work", str(ranks[0].pid), str(ranks[2].pid), "Double of a GPU", "pinned"):
                self.assertIn(part, text)
            self.assertEqual(cluster.commctl("a", "gpus", "surplus").returncode, 2)
            for process in ranks:
                process.kill()
            cluster.wait(lambda: all((gpu["memories"], gpu["comms"]) == (0, []) for gpu in cluster.json("a", "gpus")["gpus"]), "all memory is let go of")

    def test_off(self):
        with Cluster("a", settings='gpus = "off";', gpus=2) as cluster:
            self.assertIn('gpus = "off"', cluster.commctl("a", "gpus").stdout)
            self.assertEqual(cluster.json("a", "gpus")["gpus"], [])
            self.one(cluster, "UNSUPPORTED", 'gpus = "off"')
            self.check_new_communicator(cluster, "aa", "host")

    def test_no_driver(self):
        with Cluster("a", gpus=2, daemon_environment={"COMMD_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}) as cluster:
            self.assertIn("no CUDA driver", cluster.commctl("a", "gpus").stdout)
            self.one(cluster, "UNSUPPORTED", "no CUDA driver")
            self.check_new_communicator(cluster, "aa", "host")

    def test_a_driver_that_does_not_work(self):
        """The driver's kernel module seems to be loaded, but the driver does not work: the log says what is wrong."""
        pretend = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia && touch /proc/driver/nvidia/version && exec "$@"', "sh"]
        if subprocess.run([*pretend, "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("no mount namespaces")
        self.addCleanup(setattr, Cluster, "daemon_command", [])
        for rule, shown in (("cuInit:1=999", "cuInit: unknown error"), ("cuInit:1+=100", "no CUDA-capable device")):
            Cluster.daemon_command = pretend
            with Cluster("a", gpus=1, daemon_environment={"CUDA_DOUBLE_FAIL": rule}) as cluster:
                cluster.wait_logged("a", "no GPUs, though the NVIDIA driver is loaded.*" + shown, is_pattern=True)
                self.check_new_communicator(cluster, "aa", "host")
        Cluster.daemon_command = []
        with Cluster("a", gpus=1, daemon_environment={"CUDA_DOUBLE_FAIL": "cuInit:1"}) as cluster:
            self.assertNotIn("no GPUs", cluster.log("a"), "nobody expects a GPU where there is no driver")

    def test_no_driver_for_the_client(self):
        with Cluster("a", gpus=2) as cluster:
            self.one(cluster, "UNSUPPORTED", "device 0", "no CUDA driver", environment={"COMMD_CUDA_LIBRARY": "/nowhere/libcuda.so.1"})

    def test_no_gpus(self):
        with Cluster("a", gpus=2, daemon_environment={"CUDA_DOUBLE_DEVICES": "0"}) as cluster:
            self.assertIn("no GPUs", cluster.commctl("a", "gpus").stdout)
            self.check_new_communicator(cluster, "aa", "host")

    def test_no_such_gpu(self):
        with Cluster("a", gpus=2) as cluster:
            self.one(cluster, "UNSUPPORTED", "device 2", "sees 2 GPUs", device=2)

    def test_gpus_numbered_otherwise(self):
        """Processes may number the GPUs differently. commd knows that they mean the same GPU."""
        with Cluster("a", gpus=3, daemon_environment={"CUDA_VISIBLE_DEVICES": "2,0"}) as cluster:
            uuids = [gpu["uuid"] for gpu in cluster.json("a", "gpus")["gpus"]]
            self.assertEqual(len(uuids), 2)
            self.one(cluster, "OK", device=2)
            self.one(cluster, "OK", device=0, environment={"CUDA_VISIBLE_DEVICES": "2"})
            self.one(cluster, "NOT_FOUND", "GPU 1 is none of the 2", "CUDA_VISIBLE_DEVICES", device=1)
            cluster.client_environment = {"CUDA_VISIBLE_DEVICES": "0,2"}
            ranks = self.start(cluster, "aa", "work", "loop", devices=[1, 1])
            first, second = cluster.json("a", "gpus")["gpus"]
            self.assertEqual((len(first["clients"]), second["clients"]), (2, []), "it is the daemon's first one")
            for process in ranks:
                process.kill()

    def test_a_gpu_that_does_not_start(self):
        with Cluster("a", gpus=2, start=False) as cluster:
            for rule, symbol in (("cuModuleLoadData:2=209", "cuModuleLoadData"), ("cuDevicePrimaryCtxRetain:1", "cuDevicePrimaryCtxRetain")):
                daemon = cluster.start("a", environment={"CUDA_DOUBLE_FAIL": rule})
                self.assertNotEqual(daemon.wait(timeout=10), 0)
                cluster.wait_logged("a", symbol)
                cluster.wait_logged("a", 'gpus = "off" starts without them')

    def test_a_rank_that_does_not_come(self):
        """At the deadline the stream of the waiting rank is released, and the error names the missing rank."""
        with Cluster("a", gpus=1) as cluster:
            idle = cluster.rank("a", "half", 1, 2, "idle", "device=0", "seconds=60", "op_timeout_ms=1000")
            waits = cluster.rank("a", "half", 0, 2, "stream", "device=0", "op_timeout_ms=1000")
            read_until(waits, "POSTED")
            self.assertEqual(cluster.json("a", "gpus")["gpus"][0]["comms"][0]["ranks"], 2)
            self.expect(waits, "TIMED_OUT", "rank 1", "has not posted", within_s=8)
            idle.kill()


if __name__ == "__main__":
    unittest.main()
