#!/usr/bin/env python3
"""Programs that use the library wrongly, or have no room left. Their calls fail as the header says, and nobody else notices."""
import ctypes
import os
import pathlib
import resource
import signal
import socket
import sys
import threading
import time
import traceback

import cluster
from cluster import Library

WAITS = True

F32 = 1
COUNT = 4


class Misuse(cluster.StandaloneTest):
    def setUp(self):
        os.environ["COMMD_SOCKET"] = self.cluster.socket("solo")
        self.calls = Library()
        self.calls.comm_agree.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32]
        self.calls.comm_wait.argtypes = [ctypes.c_void_p] * 2
        self.calls.comm_shrink.argtypes = [ctypes.c_void_p] * 3
        self.calls.comm_lost.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p]
        for name in ("comm_rank", "comm_size", "comm_local_rank", "comm_local_size"):
            getattr(self.calls, name).argtypes = [ctypes.c_void_p]
        self.calls.comm_send_recv.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t,
                                              ctypes.c_uint32, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p]
        self.sent = (ctypes.c_float * COUNT)(1, 2, 3, 4)
        self.got = (ctypes.c_float * COUNT)(*[-7] * COUNT)

    def tearDown(self):
        self.start("after")
        self.expect(self.calls.comm_barrier(self.comm, None), "OK")
        self.calls.comm_client_close(self.client)

    def start(self, name, rank=0, size=1):
        result, self.client = self.calls.open()
        self.expect(result, "OK")
        result, self.comm = self.calls.init(self.client, name, rank, size)
        self.expect(result, "OK")

    def expect(self, result, name, *texts):
        self.assertEqual(Library.NAMES[result], name, self.calls.error())
        for text in texts:
            self.assertIn(text, self.calls.error())

    def options(self, request=None, queue=None):
        options = Library.CallOptions(ctypes.sizeof(Library.CallOptions), 0, 1.0)
        options.request = ctypes.addressof(request) if request is not None else None
        options.queue = queue
        return options

    def fork(self, function, *arguments):
        """Starts a process that calls the function, and ends with 0 if that does not raise."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(20)
                function(*arguments)
                code = 0
            except BaseException:  # pylint: disable=broad-except
                traceback.print_exc()
            os._exit(code)
        return child

    def in_child(self, function, *arguments):
        self.assertEqual(os.waitpid(self.fork(function, *arguments), 0)[1], 0)

    # --- Arguments ---

    def test_a_null_communicator_leaves_no_handle(self):
        """A program that ignores the failure waits for a null handle, not for what was in its variable."""
        for call in (lambda options: self.calls.comm_all_reduce(None, self.sent, self.got, COUNT, F32, 0, options),
                     lambda options: self.calls.comm_recv(None, self.got, COUNT, F32, 0, 0, options),
                     lambda options: self.calls.comm_barrier(None, options)):
            request = ctypes.c_void_p(1)
            self.expect(call(ctypes.byref(self.options(request))), "INVALID_ARGUMENT", "null pointer")
            self.assertIsNone(request.value)
            self.expect(self.calls.comm_wait(ctypes.byref(request), None), "OK")

    def test_a_null_communicator_has_no_ranks(self):
        for name in ("comm_rank", "comm_size", "comm_local_rank", "comm_local_size"):
            self.assertEqual(getattr(self.calls, name)(None), 0)
        self.assertIsNone(self.calls.comm_node_of(None, 0))

    def test_send_recv_takes_no_handle(self):
        self.start("send-recv")
        request = ctypes.c_void_p(1)
        self.expect(self.calls.comm_send_recv(self.comm, self.sent, COUNT, 0, self.got, COUNT, 0, F32, 0, ctypes.byref(self.options(request))),
                    "INVALID_ARGUMENT", "no handle")
        self.assertIsNone(request.value)
        self.expect(self.calls.comm_send_recv(self.comm, self.sent, COUNT, 0, self.got, COUNT, 0, F32, 0, None), "OK")
        self.assertEqual(list(self.got), list(self.sent))
        self.calls.comm_client_close(self.client)

    def test_what_is_reserved(self):
        result, client = self.calls.open()
        self.expect(result, "OK")
        options = Library.InitOptions(ctypes.sizeof(Library.InitOptions), 0, 0, 0, None, 0, 3, 0)
        comm = ctypes.c_void_p(1)
        self.expect(self.calls.comm_init(client, b"reserved", 0, 1, -1, ctypes.byref(options), ctypes.byref(comm)), "INVALID_ARGUMENT", "reserved is 3")
        self.assertIsNone(comm.value)
        self.calls.comm_client_close(client)

    def test_calls_that_wait_for_a_failure_in_a_group(self):
        self.start("in-a-group")
        lost, following = (ctypes.c_uint64 * 4)(), ctypes.c_void_p()
        self.expect(self.calls.comm_group_begin(), "OK")
        began = time.monotonic()
        self.expect(self.calls.comm_shrink(self.comm, None, ctypes.byref(following)), "INVALID_ARGUMENT", "a group is open")
        self.expect(self.calls.comm_lost(self.comm, None, 0, lost), "INVALID_ARGUMENT", "a group is open")
        self.assertLess(time.monotonic() - began, 5)
        self.expect(self.calls.comm_group_end(), "OK")
        self.expect(self.calls.comm_lost(self.comm, None, 0, lost), "OK")
        self.calls.comm_client_close(self.client)

    def test_two_threads_wait_for_one_handle(self):
        """The second is refused: the first frees the handle."""
        self.start("two-threads")
        request, results = ctypes.c_void_p(), []
        copy = ctypes.c_void_p()
        self.expect(self.calls.comm_recv(self.comm, self.got, COUNT, F32, 0, 5, ctypes.byref(self.options(request))), "OK")
        copy.value = request.value
        waiter = threading.Thread(target=lambda: results.append(self.calls.comm_wait(ctypes.byref(request), None)))
        waiter.start()
        done = ctypes.c_int()
        deadline = time.monotonic() + 10
        while self.calls.comm_test(ctypes.byref(copy), ctypes.byref(done), None) == 0 and time.monotonic() < deadline:
            self.assertEqual(done.value, 0)
            time.sleep(0.01)
        self.expect(self.calls.comm_wait(ctypes.byref(copy), None), "INVALID_ARGUMENT", "another thread waits for this handle")
        index = ctypes.c_size_t()
        self.expect(self.calls.comm_wait_any(ctypes.byref(copy), ctypes.c_size_t(1), ctypes.byref(index), None), "INVALID_ARGUMENT", "another thread")
        self.expect(self.calls.comm_send(self.comm, self.sent, COUNT, F32, 0, 5, None), "OK")
        waiter.join(10)
        self.assertEqual(results, [0])
        self.assertEqual(list(self.got), list(self.sent))
        self.calls.comm_client_close(self.client)

    # --- No room ---

    def use_all_descriptors(self, left):
        """Returns the descriptors that it took."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        taken = []
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            for _ in range(left):
                os.close(taken.pop())
        return taken

    def agree_without_descriptors(self, left):
        self.start("agree")
        taken = self.use_all_descriptors(left)
        flags = ctypes.c_uint64(6)
        self.expect(self.calls.comm_agree(self.comm, ctypes.byref(flags), 5000), "LIMIT", "ulimit -n")
        self.assertEqual(flags.value, 6)
        for fd in taken:
            os.close(fd)
        self.expect(self.calls.comm_agree(self.comm, ctypes.byref(flags), 5000), "OK")  # the communicator has not failed
        self.assertEqual(flags.value, 6)
        result, _ = self.calls.init(self.client, "agree-2", 0, 1)
        self.expect(result, "OK")

    def test_agree_without_descriptors(self):
        self.in_child(self.agree_without_descriptors, 0)

    def open_without_descriptors(self, left):
        self.use_all_descriptors(left)
        result, client = self.calls.open()
        self.expect(result, "LIMIT")
        self.assertIsNone(client.value)

    def test_open_without_descriptors(self):
        for left in range(6):
            self.in_child(self.open_without_descriptors, left)

    def more_memory_than_there_is(self):
        pathlib.Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        signal.alarm(4)
        self.start("memory")
        memory = ctypes.c_void_p(1)
        self.expect(self.calls.comm_mem_alloc(self.client, 1 << 42, -1, ctypes.byref(memory)), "NO_MEMORY", "the machine has")
        self.assertIsNone(memory.value)
        result, pool = self.calls.pool(self.client, chunk_bytes=1 << 42)
        self.expect(result, "OK")
        self.expect(self.calls.comm_pool_alloc(pool, 100, ctypes.byref(memory)), "OK")  # in a chunk no larger than it must be
        self.expect(self.calls.comm_all_reduce(self.comm, self.sent, self.sent, 1 << 40, F32, 0, None), "NO_MEMORY", "the machine has")
        self.expect(self.calls.comm_all_reduce(self.comm, self.sent, self.got, COUNT, F32, 0, None), "OK")
        self.expect(self.calls.comm_sync(self.comm, 0), "OK")
        self.assertEqual(list(self.got), list(self.sent))

    def test_more_memory_than_there_is(self):
        """It fails at once. Otherwise the kernel would end processes, perhaps others'."""
        self.in_child(self.more_memory_than_there_is)

    def limit_of_files(self):
        self.start("files")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        memory = ctypes.c_void_p(1)
        self.expect(self.calls.comm_mem_alloc(self.client, 2 << 20, -1, ctypes.byref(memory)), "LIMIT", "ulimit -f")
        self.expect(self.calls.comm_mem_alloc(self.client, 1 << 20, -1, ctypes.byref(memory)), "OK")
        self.expect(self.calls.comm_mem_free(self.client, memory), "OK")

    def test_a_limit_of_files(self):
        """It counts for memory to share as well. Its signal would end the program."""
        self.in_child(self.limit_of_files)

    # --- Signals ---

    def open_with_signals(self, path):
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        client = ctypes.c_void_p()
        options = Library.OpenOptions(ctypes.sizeof(Library.OpenOptions), path.encode(), 300, 0)
        began = time.monotonic()
        self.expect(self.calls.comm_client_open(ctypes.byref(options), ctypes.byref(client)), "TIMED_OUT", "within 300 ms")
        self.assertLess(time.monotonic() - began, 10)

    def test_open_with_signals(self):
        """Each signal interrupts the wait for room in the socket's queue. It ends nevertheless."""
        path = str(self.cluster.folder / "full.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            listener.bind(path)
            listener.listen(0)
            other.connect(path)
            child = self.fork(self.open_with_signals, path)
            deadline = time.monotonic() + 15
            ended, status = 0, 0
            while ended == 0 and time.monotonic() < deadline:
                time.sleep(0.05)
                ended, status = os.waitpid(child, os.WNOHANG)
            if ended == 0:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            self.assertEqual((ended, status), (child, 0))

    def close_twice_after_fork(self):
        self.calls.comm_client_close(self.client)
        mine = os.open("/dev/null", os.O_RDONLY)
        others = [os.dup(mine) for _ in range(40)]
        self.calls.comm_client_close(self.client)
        for fd in [mine, *others]:
            os.fstat(fd)

    def test_closed_twice_after_fork(self):
        """The child has only a copy of a descriptor, whose number it may use again."""
        self.start("forks")
        self.in_child(self.close_twice_after_fork)
        self.expect(self.calls.comm_barrier(self.comm, None), "OK")
        self.calls.comm_client_close(self.client)

    # --- Ends without comm_destroy ---

    def broadcast(self, rank, syncs):
        """Rank 0 ends at once, the others begin later."""
        self.start(f"ends-{syncs}", rank, 3)
        if rank != 0 and not syncs:
            time.sleep(0.5)
        request = ctypes.c_void_p()
        result = self.calls.comm_broadcast(self.comm, self.sent if rank == 0 else self.got, COUNT, F32, 0, ctypes.byref(self.options(request)))
        result = result or self.calls.comm_wait(ctypes.byref(request), None)
        if rank == 0 or syncs:
            self.expect(result, "OK")
            self.assertEqual(list(self.got), [-7] * COUNT if rank == 0 else list(self.sent))
        else:
            self.expect(result, "RANK_LOST", "the process of rank 0")
        if syncs and rank == 0:
            self.expect(self.calls.comm_sync(self.comm, 0), "OK")
        elif syncs:
            time.sleep(0.5)
            self.expect(self.calls.comm_sync(self.comm, 0), "RANK_LOST")  # rank 0 has not left in order

    def test_a_root_that_ends_without_destroying(self):
        for syncs in (False, True):
            children = [self.fork(self.broadcast, rank, syncs) for rank in range(3)]
            self.assertEqual([os.waitpid(child, 0)[1] for child in children], [0, 0, 0])


if __name__ == "__main__":
    cluster.unittest.main()
