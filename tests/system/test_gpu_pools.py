#!/usr/bin/env python3
"""Clients that make false statements about CUDA memory pools (of a double). commd refuses them with a reason, and no other client notices."""
import os
import unittest

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


if __name__ == "__main__":
    unittest.main()
