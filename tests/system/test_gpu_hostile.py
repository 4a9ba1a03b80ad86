#!/usr/bin/env python3
"""Clients that make false statements about GPUs (doubles of them). commd refuses them with a reason, and no other client notices."""
import fcntl
import os
import select
import signal
import socket
import unittest

from gpu import UNIT, Gpu
from hostile_gpu import (
    ALL_GATHER_V, ALL_REDUCE, ALL_TO_ALL, BROADCAST, BUFFER, BUSY, COMM, ELEMENTS, F32, HUGE, INVALID_ARGUMENT, LIMIT,
    NOT_FOUND, OTHER, PERMISSION, PROTOCOL, RECEIVE, SEND, TIMED_OUT, WORDS, HostileGpu)
from raw_client import HostMemory, RawClient, event, operation, parse


class Hostile(HostileGpu):
    # --- Memory ---

    def as_other_user(self):
        """Opens a session of another user."""
        self.cluster.folder.chmod(0o711)
        os.seteuid(65534)
        try:
            return RawClient(self.cluster.socket("solo"))
        finally:
            os.seteuid(0)

    @unittest.skipIf(os.geteuid() != 0, "only root can be another user")
    def test_handles_are_of_one_user_at_a_time(self):
        """A user who has learned another user's handle gets no memory with it, not even by registering it first."""
        mine, other = self.client, self.as_other_user()
        handle = self.gpu.ipc_handle(self.buffer)
        self.share()
        self.client = other
        for text in ("another user has memory on this node's GPUs", "user 65534", 'cuda_ipc_handles = "auto"', "comm_mem_alloc",
                     "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"):
            self.register(BUFFER, UNIT, PERMISSION, text, handle=handle)
        self.register(OTHER, UNIT, virtual=1)  # by descriptor this is allowed
        self.client = mine
        self.register(30, UNIT, PERMISSION, "another user has memory", handle=handle)  # and from now on the first user may, too
        self.client.ask(self.client.DEREGISTER, {1: BUFFER})
        self.register(BUFFER, UNIT, PERMISSION, "another user has memory", handle=handle)
        other.close()
        self.cluster.wait(lambda: self.client.ask(self.client.REGISTER, {1: 31, 2: UNIT, 3: self.uuid, 4: handle})[0] == 0, "the other has left")

    def test_what_is_right_works(self):
        self.share()
        self.join()
        self.words.set_word(8, 7)
        self.done(waits=[(WORDS, 8, 7), (WORDS, 8, 3)])

    def test_uuids(self):
        handle = self.gpu.ipc_handle(self.buffer)
        self.register(BUFFER, UNIT, NOT_FOUND, "none of the 2", uuid=bytes(16), handle=handle)
        self.register(BUFFER, UNIT, INVALID_ARGUMENT, "UUID cannot have 15 bytes", uuid=self.uuid[:15], handle=handle)
        self.register(BUFFER, UNIT, INVALID_ARGUMENT, "UUID cannot have 17 bytes", uuid=self.uuid + b"x", handle=handle)
        other = next(bytes.fromhex(each["uuid"]) if isinstance(each["uuid"], str) else each["uuid"]
                     for each in self.cluster.json("solo", "gpus")["gpus"] if each["index"] == 1)
        self.register(BUFFER, UNIT, INVALID_ARGUMENT, "not of GPU 1", uuid=other, handle=handle)

    def test_handles(self):
        handle = self.gpu.ipc_handle(self.buffer)
        for length in (0, 1, 63, 65, 4096):
            self.register(BUFFER, UNIT, PROTOCOL, f"handle cannot have {length} bytes", handle=(handle + bytes(4096))[:length])
        for at in range(0, 64, 7):
            forged = bytearray(handle)
            forged[at] ^= 0x55
            status, text = self.client.ask(self.client.REGISTER, {1: 100 + at, 2: UNIT, 3: self.uuid, 4: bytes(forged)})
            if status == 0:  # bytes that commd does not read
                self.client.ask(self.client.DEREGISTER, {1: 100 + at})
            else:
                self.assertEqual(status, INVALID_ARGUMENT, text)
        self.register(BUFFER, UNIT, INVALID_ARGUMENT, handle=b"\xff" * 64)
        stale = self.gpu.alloc(3 * UNIT)
        handle = self.gpu.ipc_handle(stale)
        self.gpu.free(stale)
        self.register(BUFFER, UNIT, INVALID_ARGUMENT, handle=handle)

    def test_sizes(self):
        handle = self.gpu.ipc_handle(self.buffer)
        self.register(BUFFER, 0, INVALID_ARGUMENT, "0 bytes", handle=handle)
        self.register(BUFFER, 2 * UNIT + 1, INVALID_ARGUMENT, "the allocation has", handle=handle)
        self.register(BUFFER, HUGE, LIMIT, handle=handle)
        self.register(BUFFER, (1 << 64) - 1, LIMIT, handle=handle)
        self.share()
        self.register(BUFFER, UNIT, PROTOCOL, "registered already", handle=handle)
        self.join()
        self.refused(INVALID_ARGUMENT, "beyond the memory", count=2 * UNIT // 8 + 1)
        self.refused(INVALID_ARGUMENT, "beyond the memory", input=(BUFFER, 2 * UNIT - 8))
        self.refused(INVALID_ARGUMENT, "beyond the memory", output=(BUFFER, (1 << 64) - 8))

    def test_one_allocation_registered_twice(self):
        self.share()
        self.share(OTHER, UNIT)
        self.join()
        self.done(input=(BUFFER, 0), output=(OTHER, 0))
        self.client.ask(self.client.DEREGISTER, {1: BUFFER})
        self.done(input=(OTHER, 0), output=(OTHER, 0))

    # --- Memory freed and allocated again at the same place ---

    def again(self, pointer, size):
        """Frees the memory, and gets the same address again."""
        self.gpu.free(pointer)
        self.assertEqual(self.gpu.alloc(size), pointer)
        return {"handle": self.gpu.ipc_handle(pointer), "address": pointer}

    def test_a_place_that_an_operation_still_uses(self):
        """Withdrawn or not, the answer is BUSY and names the communicator until the operation has ended."""
        self.join()
        for withdrawn in (True, False):
            with self.subTest(withdrawn=withdrawn):
                pointer, memory, word = self.gpu.alloc(2 * UNIT), 40 + withdrawn, 16 + 8 * withdrawn
                self.register(memory, 2 * UNIT, handle=self.gpu.ipc_handle(pointer), address=pointer)
                self.client.post(self.submission(input=(memory, 0), output=(memory, 0), waits=[(WORDS, word, 1)]))
                if withdrawn:
                    self.client.ask(self.client.DEREGISTER, {1: memory})
                fields = self.again(pointer, 2 * UNIT)
                for _ in range(3):
                    self.register(50 + withdrawn, 2 * UNIT, BUSY, "still in use by an operation on \"raw-", **fields)
                self.register(50 + withdrawn, 2 * UNIT, BUSY, "still in use", handle=fields["handle"])
                self.words.set_word(word, 1)
                self.assertEqual(self.client.complete(self.ticket)[0], 0)
                self.register(50 + withdrawn, 2 * UNIT, **fields)
                self.done(input=(50 + withdrawn, 0), output=(50 + withdrawn, 0))
                self.gpu.free(pointer)

    def test_a_place_that_two_connections_had_registered(self):
        """One connection registers the new memory. So commd gives up the other connection's old registration, and answers NOT_FOUND for it."""
        other = RawClient(self.cluster.socket("solo"))
        pointer, beside = self.gpu.alloc(2 * UNIT), self.gpu.alloc(2 * UNIT)
        for memory, at in ((40, pointer), (41, beside)):
            status, text = other.ask(self.client.REGISTER, {1: memory, 2: 2 * UNIT, 3: self.uuid, 4: self.gpu.ipc_handle(at), 6: at})
            self.assertEqual(status, 0, text)
        self.register(40, 2 * UNIT, handle=self.gpu.ipc_handle(pointer), address=pointer)
        self.client.ask(self.client.DEREGISTER, {1: 40})
        fields = self.again(pointer, 2 * UNIT)
        self.register(40, 2 * UNIT, BUSY, "still in use", handle=fields["handle"])
        self.register(40, 2 * UNIT, BUSY, "still in use", handle=fields["handle"], address=(1 << 64) - 1)
        self.register(40, 2 * UNIT, **fields)
        self.assertEqual(other.ask(self.client.DEREGISTER, {1: 40})[0], NOT_FOUND)
        self.assertEqual(other.ask(self.client.DEREGISTER, {1: 41})[0], 0, "what lies beside it stays")
        self.join()
        self.done(input=(40, 0), output=(40, 0))
        other.close()
        self.gpu.free(pointer)
        self.gpu.free(beside)

    def test_withdrawn_if_unused(self):
        self.share()
        self.join()
        self.client.post(self.submission(waits=[(WORDS, 16, 1)]))
        for _ in range(3):
            status, text = self.client.ask(self.client.DEREGISTER, {1: BUFFER, 2: 1})
            self.assertEqual(status, BUSY, text)
            self.assertIn("still in use by an operation on \"raw-", text)
        self.words.set_word(16, 1)
        self.assertEqual(self.client.complete(self.ticket)[0], 0)
        self.assertEqual(self.client.ask(self.client.DEREGISTER, {1: BUFFER, 2: 1})[0], 0)
        self.assertEqual(self.client.ask(self.client.DEREGISTER, {1: BUFFER, 2: 1})[0], NOT_FOUND)

    def test_virtual_memory(self):
        allocation = self.gpu.create(UNIT)
        fd = self.gpu.export(allocation)
        with open("/dev/null", "rb") as null:
            self.map(BUFFER, UNIT, fd, NOT_FOUND, "not registered")
            self.map(WORDS, UNIT, fd, INVALID_ARGUMENT)
            self.share()
            self.map(BUFFER, UNIT, fd, INVALID_ARGUMENT)
            self.register(30, UNIT + 1, INVALID_ARGUMENT, virtual=1)
            self.register(30, HUGE, LIMIT, virtual=1)
            self.register(30, 2 * UNIT, virtual=1)
            self.map(30, UNIT, None, PROTOCOL, "no file descriptor")
            self.map(30, UNIT, null.fileno(), INVALID_ARGUMENT)
            self.map(30, UNIT, self.words.fd, INVALID_ARGUMENT)
            self.map(30, 0, fd, INVALID_ARGUMENT)
            self.map(30, 3 * UNIT, fd, INVALID_ARGUMENT, "more than are reserved")
            self.map(30, 2 * UNIT, fd, INVALID_ARGUMENT)
            self.map(30, UNIT - 512, fd, INVALID_ARGUMENT)
            self.join()
            self.refused(INVALID_ARGUMENT, "", output=(30, 0))
            self.map(30, UNIT, fd)
            self.done(output=(30, 0))
            for offset in (UNIT - 8, UNIT, 2 * UNIT - 8000):  # where nothing is mapped yet
                self.refused(INVALID_ARGUMENT, f"beyond the memory of {UNIT} bytes", output=(30, offset))
            self.map(30, UNIT, fd)
            self.done(output=(30, UNIT - 8))
            self.map(30, UNIT, fd, INVALID_ARGUMENT, "more than are reserved")
        os.close(fd)
        self.gpu.release(allocation)

    def test_more_mapped_while_it_is_used(self):
        """commd does not touch memory that an operation uses, and counts only memory that exists."""
        allocations = [self.gpu.create(UNIT) for _ in range(3)]
        fds = [self.gpu.export(allocation) for allocation in allocations]
        self.register(30, 4 * UNIT, virtual=1)
        self.map(30, UNIT, fds[0])
        self.join()
        self.client.post(self.submission(input=(30, 0), output=(30, 8000), waits=[(WORDS, 16, 1)]))
        waits = self.ticket
        for count, fd in enumerate(fds[1:], 2):
            self.map(30, UNIT, fd)
            gpu = self.cluster.json("solo", "gpus")["gpus"][0]
            self.assertEqual((gpu["memories"], gpu["memory_imported_bytes"]), (1, count * UNIT))
        self.words.set_word(16, 1)
        self.assertEqual(self.client.complete(waits)[0], 0)
        self.done(input=(30, UNIT - 80), output=(30, 2 * UNIT - 80))
        self.refused(INVALID_ARGUMENT, f"beyond the memory of {3 * UNIT} bytes", input=(30, 0), output=(30, 3 * UNIT - 80))
        self.client.ask(self.client.DEREGISTER, {1: 30})
        for fd, allocation in zip(fds, allocations):
            os.close(fd)
            self.gpu.release(allocation)
        mine = [client for client in self.cluster.json("solo", "clients")["clients"] if client["program"] == "raw"]
        self.assertEqual([client["memory_bytes"] for client in mine], [4096], "the words")

    def used_bytes(self):
        return self.cluster.json("solo", "gpus")["gpus"][0]["used_bytes"]

    def test_descriptors_of_no_memory_of_the_gpu(self):
        """Wrong descriptors are refused, whatever kind they are, and commd keeps none of them."""
        other = Gpu(1)
        elsewhere = other.create(UNIT)
        self.gpu.make_current()
        reader, writer = os.pipe()
        sealed = HostMemory(self.client, OTHER, UNIT)
        with open("/dev/null", "rb") as null, open("/dev/zero", "r+b", buffering=0) as zero, socket.socket(socket.AF_UNIX) as unconnected, \
                socket.create_server(("127.0.0.1", 0)) as server, open("/proc/self/maps", "rb") as maps, select.epoll() as epoll:
            folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
            path = os.open("/", os.O_PATH)
            exported = other.export(elsewhere)
            wrong = [reader, writer, folder, path, sealed.fd, self.client.connection.fileno()] + [each.fileno() for each in (null, zero, unconnected, server, maps, epoll)]
            self.register(30, 4 * UNIT, virtual=1)
            fds = f"/proc/{self.cluster.daemons['solo'].pid}/fd"
            self.client.ask(self.client.DEREGISTER, {1: 31})  # the earlier memory is closed by now
            before = len(os.listdir(fds))
            for fd in wrong * 3:
                self.map(30, UNIT, fd, INVALID_ARGUMENT)
            for _ in range(3):
                self.map(30, UNIT, exported, INVALID_ARGUMENT, "not refer to memory of GPU 0")
            self.cluster.wait(lambda: len(os.listdir(fds)) <= before, "it has closed them all")
            allocation = self.gpu.create(4 * UNIT)
            fd = self.gpu.export(allocation)
            self.map(30, 4 * UNIT, fd)  # the earlier attempts left no mapping in its way
            self.join()
            self.done(output=(30, 0), input=(30, 2 * UNIT))
            for each in (reader, writer, folder, path, exported, fd):
                os.close(each)
        self.gpu.release(allocation)
        other.release(elsewhere)
        self.client.ask(self.client.DEREGISTER, {1: OTHER})
        sealed.close()

    def test_one_block_many_times(self):
        """One block is mapped as often as it fits into the reservation. It counts as one block, and is freed with its last mapping."""
        used_bytes, count = self.used_bytes(), 200
        allocation = self.gpu.create(UNIT)
        fd = self.gpu.export(allocation)
        self.gpu.release(allocation)  # commd and the descriptor keep the block
        self.register(30, count * UNIT, virtual=1)
        for _ in range(count):
            self.map(30, UNIT, fd)
        self.map(30, UNIT, fd, INVALID_ARGUMENT, "more than are reserved")
        os.close(fd)
        self.assertEqual(self.used_bytes(), used_bytes + UNIT)
        self.join()
        self.done(input=(30, 0), output=(30, UNIT))  # the same bytes at another address
        self.client.ask(self.client.DEREGISTER, {1: 30})
        self.assertEqual(self.used_bytes(), used_bytes)

    def test_half_of_what_was_reserved(self):
        """Memory of which only a part has been mapped when its client withdraws it, or leaves, is released."""
        used_bytes = self.used_bytes()
        allocation = self.gpu.create(2 * UNIT)
        fd = self.gpu.export(allocation)
        for _ in range(20):
            self.register(30, 4 * UNIT, virtual=1)
            self.map(30, 2 * UNIT, fd)
            self.client.ask(self.client.DEREGISTER, {1: 30})
        self.register(30, 4 * UNIT, virtual=1)
        self.map(30, UNIT, fd)  # less than the size of the block
        os.close(fd)
        self.gpu.release(allocation)
        self.client.close()
        self.cluster.wait(lambda: self.used_bytes() == used_bytes, "the block is free")

    def test_the_sum_over_clients(self):
        """Files without contents use up commd's addresses. A user with many such files cannot use up all addresses, and commd works."""
        fd = os.memfd_create("sparse", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        size = 1 << 44
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, 1033, 2)  # F_ADD_SEALS, F_SEAL_SHRINK
        clients, memory, taken = [RawClient(self.cluster.socket("solo")) for _ in range(3)], 100, 0
        while size >= 4096:
            status, text = clients[memory % 3].ask(self.client.REGISTER, {1: memory, 2: size}, fd)
            memory, taken = memory + 1, taken + (size if status == 0 else 0)
            if status != 0:
                self.assertEqual(status, LIMIT, text)
                self.assertIn("commctl users shows what is held", text)
                size //= 2
        self.assertGreater(taken, (1 << 46) * 0.85)
        self.assertLess(taken, (1 << 46) * 7 // 8)
        self.register(BUFFER, 2 * UNIT, LIMIT, f"user {os.getuid()}", handle=self.gpu.ipc_handle(self.buffer))
        self.register(BUFFER, 2 * UNIT, LIMIT, "commctl users", virtual=1)
        for client in clients:
            client.close()
        os.close(fd)
        self.cluster.wait(lambda: [client["program"] for client in self.cluster.json("solo", "clients")["clients"]].count("raw") == 1, "they are gone")
        address = {1: BUFFER, 2: 2 * UNIT, 3: self.uuid, 4: self.gpu.ipc_handle(self.buffer)}
        self.cluster.wait(lambda: self.client.ask(self.client.REGISTER, address)[0] == 0, "what they had is unmapped")
        self.join()
        self.done()

    def test_more_reserved_than_there_are_addresses(self):
        """The limit of one client leaves some for other clients."""
        self.register(30, 1 << 37, LIMIT, "at most", virtual=1)
        for memory in range(100, 2100):
            status, text = self.client.ask(self.client.REGISTER, {1: memory, 2: 1 << 29, 3: self.uuid, 5: 1})
            if status != 0:
                break
        self.assertEqual(status, LIMIT, text)
        self.share()
        self.join()
        self.done()

    # --- Operations ---

    def test_a_rank_of_no_gpu(self):
        status, text = self.client.ask(self.client.COMM_INIT, {1: COMM, 2: "nowhere", 3: 0, 4: 1, 5: 0, 10: bytes(16)})
        self.assertEqual(status, NOT_FOUND, text)

    def test_buffers_that_are_not_aligned(self):
        self.share()
        self.join()
        for offset in (1, 4, 7):
            self.refused(INVALID_ARGUMENT, "aligned", input=(BUFFER, offset), output=(BUFFER, UNIT))
            self.refused(INVALID_ARGUMENT, "aligned", output=(BUFFER, UNIT + offset))
        self.refused(INVALID_ARGUMENT, "aligned", dtype=F32, compression=1, residual=(BUFFER, UNIT + 2))
        self.done(dtype=F32, input=(BUFFER, 4), output=(BUFFER, UNIT + 4))

    def test_buffers_that_overlap(self):
        self.share()
        self.share(OTHER)
        self.join()
        for kind in (ALL_REDUCE, ALL_TO_ALL):
            for memory in (BUFFER, OTHER):
                for offset in (8, 4000, 7992):
                    self.client.submit(self.submission(kind, output=(memory, offset)))
                    self.client.submit(self.submission(kind, input=(memory, offset)))
        self.done()

    def limit_bounces(self, bytes_or_0):
        path = self.cluster.config_path("solo")
        lines = [line for line in path.read_text().splitlines() if "user_limit" not in line]
        path.write_text("\n".join(lines + [f"user_limit_bounce_bytes = {bytes_or_0};"]) + "\n")
        self.cluster.daemons["solo"].send_signal(signal.SIGHUP)
        self.cluster.wait(lambda: all((user["kinds"]["bounce_bytes"]["ceiling"] == bytes_or_0) == (bytes_or_0 > 0)
                                      for user in self.cluster.json("solo", "users")["users"]), "reloaded")

    def test_bounce_buffers_are_charged(self):
        """The pinned memory into which whole buffers are copied counts for their user, and is given back. Buffers that overlap are copied."""
        overlapping = {"dtype": F32, "output": (BUFFER, 8)}
        self.share()
        self.limit_bounces(4096)
        try:
            self.join()
            self.refused(LIMIT, "user_limit_bounce_bytes", count=2000, **overlapping)
            self.join(handle=2)
            for _ in range(3):
                self.done(handle=2, count=1000, **overlapping)
        finally:
            self.limit_bounces(0)
        self.done(handle=2, count=2000, **overlapping)

    def test_ranks_that_share_their_buffers(self):
        self.share()
        first = self.join(rank=0, size=2, waits=False)
        self.join(handle=2, rank=1, size=2)
        self.assertGreater(first, 0)
        for offset in (0, 8, 4000):
            for kind in (ALL_REDUCE, ALL_TO_ALL):
                self.client.post(self.submission(kind, input=(BUFFER, UNIT), count=ELEMENTS))
                one = self.ticket
                self.client.submit(self.submission(kind, handle=2, input=(BUFFER, UNIT), output=(BUFFER, offset)))
                self.client.complete(one)

    def test_places_mixed(self):
        self.share()
        self.join()
        self.done(count=8, input=(WORDS, 513))
        self.done(count=8, dtype=F32, compression=1, residual=(WORDS, 512))
        other = Gpu(1)
        try:
            memory = other.alloc(UNIT)
            self.register(OTHER, UNIT, uuid=other.uuid(), handle=other.ipc_handle(memory))
            self.refused(INVALID_ARGUMENT, "different GPUs", count=8, input=(OTHER, 0))
            self.refused(INVALID_ARGUMENT, "different GPUs", count=8, dtype=F32, compression=1, residual=(OTHER, 0))
            self.done(count=8, input=(OTHER, 0), output=(OTHER, 0))
            other.free(memory)
        finally:
            self.gpu.make_current()

    def test_layouts_on_a_gpu(self):
        self.share()
        self.join()
        self.refused(INVALID_ARGUMENT, "memory of the host", kind=ALL_GATHER_V, has_layouts=1, output_layout=(BUFFER, 0))

    # --- Words ---

    def test_words_that_are_none(self):
        self.share()
        self.join()
        for wait in ((WORDS, 4096, 1), (WORDS, 4092, 1), (WORDS, (1 << 64) - 8, 1), (WORDS, 4, 1), (BUFFER, 0, 1), (99, 0, 1)):
            self.refused(INVALID_ARGUMENT, "not an aligned 64-bit word", waits=[wait])
        for ended in ((WORDS, 4096, 1), (WORDS, 4, 1), (BUFFER, 0, 1)):
            self.refused(INVALID_ARGUMENT, "not an aligned 64-bit word", told=False, ended=ended)
        self.done()

    def test_too_many_waits(self):
        self.share()
        self.join()
        self.done(waits=[(WORDS, 16, 0)] * 16)
        for submission in (self.submission(waits=[(WORDS, 16, 0)] * 17), event(COMM, (WORDS, 8, 1), [(WORDS, 16, 0)] * 17)):
            other = RawClient(self.cluster.socket("solo"))
            other.post(submission)
            error = parse(parse(other.connection.recv(65536))[1])[2]
            self.assertIn(b"a submission with a wrong number of waits", error)
            self.assertEqual(other.connection.recv(65536), b"", "the session is ended")
            other.close()

    def test_refusals_tell_the_end(self):
        self.share()
        self.refused(NOT_FOUND, "no communicator", handle=77)
        self.join()
        self.refused(INVALID_ARGUMENT, "whose kind is not valid", kind=99)
        self.refused(INVALID_ARGUMENT, "whose dtype is not valid", dtype=99)
        self.refused(NOT_FOUND, "not registered", input=(99, 0))
        self.refused(INVALID_ARGUMENT, "root", kind=BROADCAST, root=5)
        self.refused(INVALID_ARGUMENT, "send to rank 9", kind=SEND, peer=9)
        self.refused(INVALID_ARGUMENT, "needs an output", kind=RECEIVE, peer=0, output=None)

    def test_records(self):
        self.share()
        self.client.post(event(77, (WORDS, 64, 5)))
        self.join()
        self.assertEqual(self.words.word(64), 5, "nobody waits for a record of a communicator that is none")
        self.client.post(event(COMM, (WORDS, 80, 6), [(WORDS, 4, 0)]))
        self.client.post(event(COMM, (WORDS, 88, 6), [(WORDS, 16, 0)]), event(COMM, (WORDS, 4, 6)), event(COMM))
        for _ in range(1100):
            self.client.post(event(COMM, (WORDS, 96, 9), [(WORDS, 16, 1 << 20)]))
        self.done()
        self.assertEqual([self.words.word(offset) for offset in (80, 88)], [6, 6])
        self.assertEqual(self.words.word(96), 9, "the ones that were too many were told at once")

    def test_a_word_that_is_never_reached(self):
        self.share()
        self.join(op_timeout_ms=300)
        self.refused(TIMED_OUT, "stream of rank 0", waits=[(WORDS, 16, 1)])

    def test_a_message_whose_word_is_never_reached(self):
        self.share()
        self.join(op_timeout_ms=300)
        self.refused(TIMED_OUT, "its stream", kind=SEND, peer=0, output=None, waits=[(WORDS, 16, 1)])

    def test_gone_while_words_are_waited_for(self):
        """Nothing is left of operations, messages and records that can never begin."""
        self.share()
        self.join(op_timeout_ms=60000)
        never = (WORDS, 16, 1)
        for kind in (SEND, RECEIVE, ALL_REDUCE):
            self.client.post(self.submission(kind, peer=0, waits=[never]))
        self.client.post(event(COMM, (WORDS, 72, 6), [never]))
        self.client.ask(self.client.DEREGISTER, {1: BUFFER})

    def test_memory_withdrawn_while_it_is_used(self):
        self.share()
        self.join()
        self.client.post(self.submission(waits=[(WORDS, 16, 1)]))
        self.client.ask(self.client.DEREGISTER, {1: BUFFER})
        self.words.set_word(16, 1)
        self.assertEqual(self.client.complete(self.ticket)[0], 0)


if __name__ == "__main__":
    unittest.main()
