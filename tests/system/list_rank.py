#!/usr/bin/env python3
"""One rank that checks collectives on lists of buffers: list_rank.py NAME RANK SIZE [DEVICE]

Each buffer is in one kind of memory: plain memory, a registered memfd, or a pool. Each list is tried with all blocks in one kind of memory, near
each other or in several chunks, and with blocks in all kinds. The rank fills all memory first, and checks all of it afterwards: nothing beyond the
blocks may change. Prints "checked N" at its end. With a device, the rank is on a GPU, and the memory is plain or from a pool on the GPU.
"""
import ctypes
import itertools
import mmap
import os
import sys

from client_library import Library
from gpu import Gpu

SUM = 0
OUTER = 64  # bytes around each block that must not change
KINDS = ("plain", "registered", "pool", "pools", "mixed")
DTYPES = {"u8": (13, "B", 1), "i16": (8, "h", 2), "f32": (1, "f", 4), "i64": (6, "q", 8)}
COUNTS = ((1, 1, 1), (0, 5, 3), (0, 0, 0), (1023, 1, 1025), (4096, 0, 70001), (20000, 20000, 20000))


class Host:
    @staticmethod
    def put(at, data):
        ctypes.memmove(at, data, len(data))

    @staticmethod
    def get(at, size):
        return ctypes.string_at(at, size)


class Block:
    def __init__(self, at, size, kept, place=Host):
        self.at, self.size, self.kept, self.place = at, size, kept, place  # kept: what must live as long as the block
        self.poison()

    def poison(self):
        self.place.put(self.at - OUTER, b"\xa5" * (self.size + 2 * OUTER))

    def put(self, data):
        assert len(data) == self.size
        self.place.put(self.at - OUTER, b"\xa5" * OUTER + data + b"\xa5" * OUTER)

    def get(self):
        data = self.place.get(self.at - OUTER, self.size + 2 * OUTER)
        assert data[:OUTER] + data[-OUTER:] == b"\xa5" * (2 * OUTER), "bytes beyond a block have changed"
        return data[OUTER:-OUTER]


class Rank:
    def __init__(self, name, rank, size, device):
        self.calls, self.rank, self.size, self.checked = Library(), rank, size, 0
        self.gpu = Gpu(device) if device >= 0 else None
        result, self.client = self.calls.open()
        self.expect(result)
        result, self.comm = self.calls.init(self.client, name, rank, size, device=device)
        self.expect(result)
        self.pools = []
        for on, chunk_bytes in ((-1, 0), (-1, 4096), (-1, 4096), *([(device, 0)] * 2 if self.gpu else [])):
            result, pool = self.calls.pool(self.client, device=on, chunk_bytes=chunk_bytes)
            self.expect(result)
            self.pools.append(pool)
        self.register(16 << 20)

    def expect(self, result, expected=0):
        assert result == expected, f"rank {self.rank}: {Library.NAMES[result]}: {self.calls.error()}"

    def register(self, size):
        fd = os.memfd_create("list", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        self.mapped = mmap.mmap(fd, size)
        self.registered, self.registered_end = (ctypes.addressof(ctypes.c_char.from_buffer(self.mapped)) + each for each in (0, size))
        self.expect(self.calls.comm_mem_register(self.client, self.registered, size, fd, 0))
        os.close(fd)
        self.next = self.registered

    def allocate(self, kind, number, size):
        """The block begins at an address that is a multiple of 8 only, in memory with room around it."""
        whole = size + 2 * OUTER + 8
        shift = OUTER + 8 * (number % 2)
        kind = KINDS[number % 4] if kind == "mixed" else kind
        if kind == "plain":
            memory = ctypes.create_string_buffer(whole + 64)
            return Block(ctypes.addressof(memory) + shift, size, memory)
        if kind == "registered":
            if self.next + whole > self.registered_end:
                self.next = self.registered
            self.next, at = self.next + (whole + 63) // 64 * 64, self.next
            return Block(at + shift, size, None)
        memory = ctypes.c_void_p()
        pool = self.pools[{"pool": 0, "pools": 1 + number % 2, "gpu": 3, "gpus": 3 + number % 2}[kind]]
        self.expect(self.calls.comm_pool_alloc(pool, whole, ctypes.byref(memory)))
        assert self.calls.comm_mem_is_shared(self.client, memory, whole) == 1
        block = Block(memory.value + shift, size, None, self.gpu if kind.startswith("gpu") else Host)
        block.kept = Held(self.calls, pool, memory)
        return block

    def blocks(self, kind, counts, element):
        return [self.allocate(kind, number, count * element) for number, count in enumerate(counts)]

    @staticmethod
    def pointers(blocks):
        """Null for empty blocks."""
        return (ctypes.c_void_p * len(blocks))(*(block.at if block.size else None for block in blocks))

    @staticmethod
    def counts(counts):
        return (ctypes.c_size_t * len(counts))(*counts)

    def sync(self):
        self.expect(self.calls.comm_sync(self.comm, 0))
        self.checked += 1

    # --- The operations ---

    def all_gather(self, kind, counts, dtype, in_place):
        number, letter, element = DTYPES[dtype]
        receives = self.blocks(kind, counts, element)
        send = receives[self.rank] if in_place else self.allocate(kind, 3, counts[self.rank] * element)
        send.put(data(letter, self.rank, 0, counts[self.rank]))
        self.expect(self.calls.comm_all_gather_list(self.comm, send.at, self.pointers(receives), self.counts(counts), number, None))
        self.sync()
        for other, block in enumerate(receives):
            assert block.get() == data(letter, other, 0, counts[other]), f"all_gather of {counts} {dtype}, {kind}: block {other}"

    def reduce_scatter(self, kind, counts, dtype, in_place):
        number, letter, element = DTYPES[dtype]
        sends = self.blocks(kind, counts, element)
        for other, block in enumerate(sends):
            block.put(data(letter, self.rank, other, counts[other]))
        own = counts[self.rank]
        receive = sends[self.rank] if in_place else self.allocate(kind, 3, own * element)
        self.expect(self.calls.comm_reduce_scatter_list(self.comm, self.pointers(sends), receive.at, self.counts(counts), number, SUM, None))
        self.sync()
        assert receive.get() == total(letter, self.size, self.rank, own), f"reduce_scatter of {counts} {dtype}, {kind}"
        for other, block in enumerate(sends):
            assert block is receive or block.get() == data(letter, self.rank, other, counts[other]), "the input has changed"

    def all_to_all(self, kind, counts, dtype, in_place):
        """Rank i sends counts[(i + j) % size] elements to rank j, so both have equal counts."""
        number, letter, element = DTYPES[dtype]
        own = [counts[(self.rank + other) % self.size] for other in range(self.size)]
        sends = self.blocks(kind, own, element)
        for other, block in enumerate(sends):
            block.put(data(letter, self.rank, other, own[other]))
        receives = sends if in_place else self.blocks(kind, own, element)
        self.expect(self.calls.comm_all_to_all_list(self.comm, self.pointers(sends), self.counts(own), self.pointers(receives), self.counts(own), number, None))
        self.sync()
        for other, block in enumerate(receives):
            assert block.get() == data(letter, other, self.rank, own[other]), f"all_to_all of {counts} {dtype}, {kind}: block {other}"

    def gather_and_scatter(self, kind, counts, dtype, in_place):
        number, letter, element = DTYPES[dtype]
        for root in (0, self.size - 1):
            blocks = self.blocks(kind, counts, element) if self.rank == root else []
            own = blocks[root] if in_place and blocks else self.allocate(kind, 3, counts[self.rank] * element)
            own.put(data(letter, self.rank, 1, counts[self.rank]))
            lists = (self.pointers(blocks), self.counts(counts)) if blocks else (None, None)
            self.expect(self.calls.comm_gather_list(self.comm, own.at, counts[self.rank], *lists, number, root, None))
            self.sync()
            for other, block in enumerate(blocks):
                assert block.get() == data(letter, other, 1, counts[other]), f"gather of {counts} {dtype}, {kind}: block {other}"
            for other, block in enumerate(blocks):
                block.put(data(letter, root, 2 + other, counts[other]))
            if not (in_place and blocks):
                own.poison()
            self.expect(self.calls.comm_scatter_list(self.comm, *lists, own.at, counts[self.rank], number, root, None))
            self.sync()
            assert own.get() == data(letter, root, 2 + self.rank, counts[self.rank]), f"scatter of {counts} {dtype}, {kind}"

    def refusals(self):
        """Each is refused on all ranks before it is submitted."""
        block = self.allocate("plain", 0, 800)
        counts = self.counts([10] * self.size)
        apart = [block.at + 100 * each for each in range(self.size)]
        overlapping = (ctypes.c_void_p * self.size)(*[block.at + 79 * each for each in range(self.size)])
        receives, f64 = (ctypes.c_void_p * self.size)(*apart), 0
        invalid, other = Library.NAMES.index("INVALID_ARGUMENT"), self.allocate("plain", 0, 800)
        gather, reduce_scatter = self.calls.comm_all_gather_list, self.calls.comm_reduce_scatter_list
        self.expect(gather(self.comm, other.at, overlapping, counts, f64, None), invalid)
        assert "overlap" in self.calls.error(), self.calls.error()
        self.expect(gather(self.comm, apart[(self.rank + 1) % self.size], receives, counts, f64, None), invalid)
        assert "overlap" in self.calls.error(), self.calls.error()
        self.expect(reduce_scatter(self.comm, receives, apart[self.rank] + 8, counts, f64, SUM, None), invalid)
        holed = (ctypes.c_void_p * self.size)(*apart[:-1], None)
        self.expect(gather(self.comm, other.at, holed, counts, f64, None), invalid)
        assert f"the block of rank {self.size - 1}, of 10 elements, is a null pointer" in self.calls.error(), self.calls.error()
        self.expect(gather(self.comm, other.at, None, counts, f64, None), invalid)
        self.expect(gather(self.comm, other.at, receives, None, f64, None), invalid)
        self.expect(gather(self.comm, other.at, receives, self.counts([1 << 62] * self.size), f64, None), invalid)
        self.expect(self.calls.comm_gather_list(self.comm, other.at, 9, receives, counts, f64, self.rank, None), invalid)

    def equal_inputs(self):
        """Sent blocks may overlap: each rank sends the same block to all."""
        counts = [300] * self.size
        for kind in ("plain", "pool"):
            block, receive = (self.allocate(kind, number, 300 * 8) for number in (0, 1))
            block.put(data("q", self.rank, 0, 300))
            sends = (ctypes.c_void_p * self.size)(*[block.at] * self.size)
            self.expect(self.calls.comm_reduce_scatter_list(self.comm, sends, receive.at, self.counts(counts), DTYPES["i64"][0], SUM, None))
            self.sync()
            assert receive.get() == total("q", self.size, 0, 300)

    def waiting(self):
        """An operation with a handle, a persistent one, and a group. Their arrays are gone when the operations begin."""
        counts, request = [100 + each for each in range(self.size)], ctypes.c_void_p()
        options = Library.CallOptions(ctypes.sizeof(Library.CallOptions), 0, 1.0, None, ctypes.addressof(request), 1)
        receives, send = self.blocks("mixed", counts, 8), self.allocate("pool", 0, counts[self.rank] * 8)
        self.expect(self.calls.comm_all_gather_list(self.comm, send.at, self.pointers(receives), self.counts(counts), DTYPES["i64"][0], ctypes.byref(options)))
        for turn in range(3):
            send.put(data("q", self.rank, turn, counts[self.rank]))
            self.expect(self.calls.comm_start(request))
            self.expect(self.calls.comm_wait(ctypes.byref(request), None))
            for other, block in enumerate(receives):
                assert block.get() == data("q", other, turn, counts[other]), "a persistent operation"
        self.calls.comm_request_free(request)
        self.group(counts)
        self.checked += 4

    def group(self, counts):
        """Several collectives of different kinds, together."""
        gathered, reduced = self.blocks("mixed", counts, 8), self.allocate("plain", 1, 800)
        send, sends = self.allocate("plain", 0, counts[self.rank] * 8), self.blocks("pools", counts, 8)
        scattered, whole = self.allocate("pool", 1, counts[self.rank] * 8), self.allocate("registered", 1, self.size * 800)
        send.put(data("q", self.rank, 5, counts[self.rank]))
        reduced.put(data("q", self.rank, 6, 100))
        first = self.allocate("plain", 1, 800)
        first.put(data("q", self.rank, 8, 100))
        for other, block in enumerate(sends):
            block.put(data("q", self.rank, other, counts[other]))
        i64, calls = DTYPES["i64"][0], self.calls
        self.expect(calls.comm_group_begin())
        self.expect(calls.comm_all_gather_list(self.comm, send.at, self.pointers(gathered), self.counts(counts), i64, None))
        self.expect(calls.comm_reduce_scatter_list(self.comm, self.pointers(sends), scattered.at, self.counts(counts), i64, SUM, None))
        self.expect(calls.comm_all_reduce(self.comm, reduced.at, reduced.at, 100, i64, SUM, None))
        self.expect(calls.comm_all_gather(self.comm, first.at, whole.at, 100, i64, None))
        self.expect(calls.comm_group_end())
        self.sync()
        for other, block in enumerate(gathered):
            assert block.get() == data("q", other, 5, counts[other])
        assert scattered.get() == total("q", self.size, self.rank, counts[self.rank])
        assert reduced.get() == total("q", self.size, 6, 100)
        assert whole.get() == b"".join(data("q", other, 8, 100) for other in range(self.size))

    def several_allocations(self):
        """Refused on all ranks alike."""
        for kind in ("gpus", "gpu and host"):
            blocks = [self.allocate("gpu" if kind != "gpus" and number == 0 else "plain" if kind != "gpus" else kind, number, 800) for number in range(self.size)]
            send = self.allocate("gpu", 0, 800)
            result = self.calls.comm_all_gather_list(self.comm, send.at, self.pointers(blocks), self.counts([100] * self.size), DTYPES["i64"][0], None)
            self.expect(result, Library.NAMES.index("UNSUPPORTED"))
            assert "several allocations" in self.calls.error(), self.calls.error()
        self.sync()

    def run_on_gpu(self):
        for counts, kind in itertools.product(COUNTS, ("gpu", "plain")):
            for number, operation in enumerate((self.all_gather, self.reduce_scatter, self.all_to_all, self.gather_and_scatter)):
                operation(kind, [counts[each % 3] for each in range(self.size)], "f32", in_place=(self.checked + number) % 2 == 1)
        if self.size > 1:
            self.several_allocations()

    def run(self):
        if self.gpu:
            self.run_on_gpu()
        else:
            self.run_on_host()
        for pool in self.pools:
            self.calls.comm_pool_destroy(pool)
        self.calls.comm_destroy(self.comm)
        self.calls.comm_client_close(self.client)
        print("checked", self.checked)

    def run_on_host(self):
        operations = (self.all_gather, self.reduce_scatter, self.all_to_all, self.gather_and_scatter)
        for dtype, counts, kind in itertools.product(DTYPES, COUNTS, KINDS):
            for number, operation in enumerate(operations):
                operation(kind, [counts[each % 3] for each in range(self.size)], dtype, in_place=(self.checked + number) % 2 == 1)
        if self.size > 1:
            self.refusals()
        self.equal_inputs()
        self.waiting()


class Held:
    """Gives memory back to its pool."""

    def __init__(self, calls, pool, memory):
        self.calls, self.pool, self.memory = calls, pool, memory

    def __del__(self):
        assert self.calls.comm_pool_free(self.pool, self.memory) == 0


PERIOD = 41


def value(rank, block, index):
    """Small integers, so that every sum of them is exact in every type that is used here."""
    return (rank * 7 + block * 3 + index) % PERIOD


def repeated(letter, numbers, count):
    """Returns the bytes of that many numbers of a type: these ones again and again."""
    period = bytes((to_type(letter) * PERIOD)(*numbers))
    size = count * ctypes.sizeof(to_type(letter))
    return (period * (size // len(period) + 1))[:size]


def data(letter, rank, block, count):
    return repeated(letter, (value(rank, block, index) for index in range(PERIOD)), count)


def total(letter, size, block, count):
    return repeated(letter, (sum(value(rank, block, index) for rank in range(size)) for index in range(PERIOD)), count)


def to_type(letter):
    return {"B": ctypes.c_uint8, "h": ctypes.c_int16, "f": ctypes.c_float, "q": ctypes.c_int64}[letter]


if __name__ == "__main__":
    Rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else -1).run()
