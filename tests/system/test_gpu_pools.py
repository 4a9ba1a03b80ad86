#!/usr/bin/env python3
"""Memory of CUDA memory pools (of a double): ranks that use it, calls that fail, and clients that make false statements, which commd refuses with a
reason while no other client notices."""
import os
import unittest

from cluster import Cluster
from failure_case import FailureCase
from gpu import UNIT
from hostile_gpu import BUFFER, BUSY, HUGE, INVALID_ARGUMENT, LIMIT, NOT_FOUND, OTHER, PROTOCOL, WORDS, HostileGpu


class HostilePools(HostileGpu):
    def pooled(self, size=UNIT):
        """Returns a pool's descriptor, and the pointer and the data of an allocation in it."""
        pool = self.gpu.new_pool()
        fd, pointer = self.gpu.export_pool(pool), self.gpu.alloc_from(pool, size)
        self.addCleanup(os.close, fd)
        self.addCleanup(self.gpu.free, pointer)
        self.gpu.synchronize()
        return fd, pointer, self.gpu.export_pointer(pointer)

    def test_a_pool(self):
        fd, _, data = self.pooled()
        self.register(BUFFER, UNIT, fd=fd, pool=data)
        self.register(OTHER, UNIT, pool=data, pool_of=BUFFER)
        self.register(22, UNIT // 2, fd=fd, pool=data)
        self.join()
        self.done(input=(OTHER, 0), output=(BUFFER, 0))
        self.refused(INVALID_ARGUMENT, "beyond the memory", input=(22, UNIT // 2))
        self.client.ask(self.client.DEREGISTER, {1: BUFFER})
        self.done(input=(OTHER, 0), output=(22, 0))
        self.register(23, UNIT, NOT_FOUND, f"memory {BUFFER} is not of a memory pool", pool=data, pool_of=BUFFER)

    def test_pools_that_are_none(self):
        _, _, data = self.pooled()
        allocation = self.gpu.export(self.gpu.create(UNIT))
        pipe = os.pipe()
        memfd = os.memfd_create("none")
        os.ftruncate(memfd, UNIT)
        for fd in (allocation, *pipe, memfd, self.client.connection.fileno()):
            self.register(BUFFER, UNIT, INVALID_ARGUMENT, fd=fd, pool=data)
        for fd in (allocation, *pipe, memfd):
            os.close(fd)
        self.register(BUFFER, UNIT, PROTOCOL, "no file descriptor came", pool=data)
        self.share(OTHER)
        self.register(30, UNIT, virtual=1)
        for other in (OTHER, WORDS, 30, 999):
            self.register(BUFFER, UNIT, NOT_FOUND, f"memory {other} is not of a memory pool", pool=data, pool_of=other)

    def test_lying_exports(self):
        """Whatever the data say, the client gets no memory but that of an allocation of its pool."""
        fd, _, data = self.pooled()
        other_fd, _, other_data = self.pooled()
        for length in (1, 63, 65, 4096):
            self.register(BUFFER, UNIT, PROTOCOL, f"pointer of a pool cannot have {length} bytes", fd=fd, pool=(data + bytes(4096))[:length])
        self.register(BUFFER, UNIT, INVALID_ARGUMENT, fd=other_fd, pool=data)
        self.register(OTHER, UNIT, fd=other_fd, pool=other_data)
        self.register(BUFFER, UNIT, INVALID_ARGUMENT, pool=data, pool_of=OTHER)
        for forged in (bytes(64), b"\xff" * 64, self.gpu.ipc_handle(self.buffer), *(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1:] for at in range(0, 40, 3))):
            self.register(BUFFER, UNIT, INVALID_ARGUMENT, fd=fd, pool=forged)
        self.register(BUFFER, UNIT + 1, INVALID_ARGUMENT, f"the allocation of the memory pool has {UNIT}", fd=fd, pool=data)
        self.register(BUFFER, 0, INVALID_ARGUMENT, "0 bytes", fd=fd, pool=data)
        self.register(BUFFER, HUGE, LIMIT, fd=fd, pool=data)
        on_other = next(bytes.fromhex(each["uuid"]) if isinstance(each["uuid"], str) else each["uuid"]
                        for each in self.cluster.json("solo", "gpus")["gpus"] if each["index"] == 1)
        self.register(BUFFER, UNIT, INVALID_ARGUMENT, "the memory pool is not of GPU 1", fd=fd, pool=data, uuid=on_other)
        self.register(BUFFER, UNIT, NOT_FOUND, "not of a memory pool on GPU 1", pool=other_data, pool_of=OTHER, uuid=on_other)
        self.register(BUFFER, UNIT, fd=fd, pool=data)

    def test_pool_memory_freed_behind_our_back(self):
        """The client breaks CUDA's rule. It reads poison, and what comes to the same place must wait until the earlier memory is closed."""
        pool = self.gpu.new_pool()
        fd, pointer = self.gpu.export_pool(pool), self.gpu.alloc_from(pool, UNIT)
        self.register(BUFFER, UNIT, fd=fd, pool=self.gpu.export_pointer(pointer))
        stale = self.gpu.export_pointer(pointer)
        self.gpu.free_async(pointer)
        self.gpu.synchronize()
        self.join()
        self.done()
        self.register(OTHER, UNIT, INVALID_ARGUMENT, fd=fd, pool=stale)
        again = self.gpu.alloc_from(pool, UNIT)
        self.gpu.synchronize()
        if again == pointer:
            self.register(OTHER, UNIT, BUSY, "still in use", fd=fd, pool=self.gpu.export_pointer(again))
        self.client.ask(self.client.DEREGISTER, {1: BUFFER})
        self.register(OTHER, UNIT, fd=fd, pool=self.gpu.export_pointer(again))
        self.done(input=(OTHER, 0), output=(OTHER, 0))
        self.client.ask(self.client.DEREGISTER, {1: OTHER, 2: 1})
        self.gpu.free_async(again)
        os.close(fd)


class Pools(FailureCase):
    """Ranks whose memory is of pools, beside what else there is."""

    def once(self, cluster, layout, name, devices, memory="pool"):
        return self.ranks(cluster, layout, name, "once", f"memory={memory}", devices=devices)

    def expect_nothing_left(self, cluster):
        cluster.wait_gpus_idle()
        for name in cluster.names:
            self.assertNotIn("cuda_double", cluster.log(name))

    def test_calls_that_fail(self):
        """commd's call fails. The rank is told which, and the next rank succeeds: nothing was left behind."""
        for rule, code in (("cuMemPoolImportFromShareableHandle:1", "NO_MEMORY"), ("cuMemPoolImportFromShareableHandle:1=1", "INVALID_ARGUMENT"),
                           ("cuMemPoolSetAccess:1", "NO_MEMORY"), ("cuStreamCreateWithPriority:1", "NO_MEMORY"),
                           ("cuMemPoolImportPointer:1", "NO_MEMORY"), ("cuMemPoolImportPointer:1=1", "INVALID_ARGUMENT"),
                           ("cuMemGetAddressRange_v2:1=1", "DEVICE"), ("cuMemFreeAsync:1", "OK")):
            with self.subTest(rule=rule), Cluster("a", gpus=2, daemon_environment={"CUDA_DOUBLE_FAIL": rule}) as cluster:
                for process in self.once(cluster, "a", "first", [0]):
                    self.expect(process, code, *([] if code == "OK" else [rule.split(":")[0], "GPU 0", "comm_mem_register"]), within_s=10)
                for process in self.once(cluster, "a", "second", [0]):
                    self.expect(process, "OK", within_s=10)
                self.expect_nothing_left(cluster)

    def test_a_gpu_that_breaks(self):
        with Cluster("a", gpus=2, daemon_environment={"CUDA_DOUBLE_FAIL": "cuMemPoolImportPointer:1=700"}) as cluster:
            for process in self.once(cluster, "a", "first", [0]):
                self.expect(process, "DEVICE", "cuMemPoolImportPointer", "GPU 0", within_s=10)
            for process in self.once(cluster, "a", "beside", [1]):
                self.expect(process, "OK", within_s=10)

    def test_wherever_the_ranks_are(self):
        """On one GPU and on two, with and without peer access, on two nodes, by NCCL and by kernels, and with streams that hold up each other."""
        for settings, environment in (("", {}), ("", {"CUDA_DOUBLE_PEER": "0"}), ('gpu_engine = "nccl";', {}), ('gpu_engine = "kernels";', {}),
                                      ("", {"CUDA_DOUBLE_CONNECTIONS": "1", "CUDA_DOUBLE_DELAY_US": "500"})):
            with self.subTest(settings=settings, environment=environment), Cluster("ab", settings, gpus=2, daemon_environment=environment,
                                                                                  client_environment=environment) as cluster:
                for layout, devices in (("aa", [0, 0]), ("aa", [0, 1]), ("aab", [0, 1, 0]), ("aabb", [0, 1, 1, 0])):
                    for process in self.once(cluster, layout, f"{layout}-{devices[1]}", devices):
                        self.expect(process, "OK", within_s=20)
                self.expect_nothing_left(cluster)

    def test_killed_at_work(self):
        """commd lets go of a dead client's pool, and of its memory, while the pool of another client is in use."""
        with Cluster("a", gpus=1) as cluster:
            used_bytes = cluster.json("a", "gpus")["gpus"][0]["used_bytes"]
            others = self.ranks(cluster, "aa", "others", "loop", "memory=pool", devices=[0, 0])
            for step in range(3):
                killed = self.start(cluster, "a", f"killed-{step}", "loop", "memory=pool", devices=[0])[0]
                killed.kill()
                killed.communicate()
                cluster.wait(lambda: cluster.json("a", "gpus")["gpus"][0]["memories"] == 2, "the memory of the dead is let go of", timeout_s=5)
            self.assertTrue(all(process.poll() is None for process in others))
            for process in others:
                process.kill()
                process.communicate()
            self.expect_nothing_left(cluster)
            cluster.wait(lambda: cluster.json("a", "gpus")["gpus"][0]["used_bytes"] == used_bytes, "and free", timeout_s=5)


if __name__ == "__main__":
    unittest.main()
