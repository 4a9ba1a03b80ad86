#!/usr/bin/env python3
"""Completion queues of the library, with rings and without them, on one node and on two."""
import ctypes
import os
import select
import signal
import threading
import time
import unittest

import cluster
from cluster import Cluster, Library
from queue_rank import NAMES, Ended, QueueRank, form, together

WAITS = True
READABLE_S = 10


class QueueCase(unittest.TestCase):
    number = 0
    layouts = ("aa", "ab")

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster("ab")

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def form(self, layout, **options):
        QueueCase.number += 1
        ranks = form(self.cluster, layout, f"queues-{QueueCase.number}", **options)
        self.addCleanup(lambda: together(*(rank.close for rank in ranks)))
        return ranks

    def check_reduced(self, rank, buffers, ended):
        for each in ended:
            self.assertEqual(each.result, "OK", each)
            self.assertEqual(list(buffers[each.cookie]), rank.sums(each.cookie, len(buffers[each.cookie])))


class Queues(QueueCase):
    def test_each_operation_gives_one_completion(self):
        for layout in self.layouts:
            for count in (1, 300000):  # copied in the call, and by the thread that takes the completion
                with self.subTest(layout=layout, count=count):
                    ranks = self.form(layout)

                    def run(rank):
                        buffers = {cookie: rank.reduce(cookie, count) for cookie in range(1, 9)}
                        ended = rank.take(8, most=3)
                        self.assertEqual([each.cookie for each in ended], list(range(1, 9)))
                        self.check_reduced(rank, buffers, ended)
                        self.assertEqual(rank.next(timeout_ms=0, expected="TIMED_OUT"), [])
                    together(*(lambda rank=rank: run(rank) for rank in ranks))

    def test_ten_thousand(self):
        """There are more operations than commd takes at a time. The library holds the others."""
        for layout in self.layouts:
            with self.subTest(layout=layout):
                ranks = self.form(layout)

                def run(rank):
                    buffers = {cookie: rank.reduce(cookie) for cookie in range(1, 10001)}
                    ended = rank.take(10000, most=256)
                    self.assertEqual(sorted(each.cookie for each in ended), list(range(1, 10001)))
                    self.check_reduced(rank, buffers, ended)
                together(*(lambda rank=rank: run(rank) for rank in ranks))

    def test_the_descriptor(self):
        for how in ("select", "poll"):
            for layout in self.layouts:
                with self.subTest(how=how, layout=layout):
                    first, second = self.form(layout)
                    fd = first.calls.comm_queue_fd(first.queue)

                    def readable(timeout_s, fd=fd, how=how):
                        if how == "select":
                            return bool(select.select([fd], [], [], timeout_s)[0])
                        poll = select.poll()
                        poll.register(fd, select.POLLIN)
                        return bool(poll.poll(timeout_s * 1000))

                    for _ in range(10):  # it may be readable without a completion, but does not stay so
                        self.assertEqual(first.next(timeout_ms=0, expected="TIMED_OUT"), [])
                        if not readable(0.05):
                            break
                    else:
                        self.fail("the descriptor stays readable")
                    for cookie in range(1, 51):
                        values = first.reduce(cookie)
                        second.reduce(cookie)
                        ended = []
                        while not ended:
                            self.assertTrue(readable(READABLE_S))
                            ended = self.poll_once(first)
                        self.check_reduced(first, {cookie: values}, ended)
                        second.take(1)

    def poll_once(self, rank):
        """Takes all completions, as a program does before it polls again."""
        ended = []
        completions = (Library.Completion * 8)()
        count = ctypes.c_size_t()
        while NAMES[rank.calls.comm_queue_next(rank.queue, completions, 8, ctypes.byref(count), 0)] == "OK":
            ended += [Ended(each) for each in completions[:count.value]]
        return ended


    def test_messages(self):
        for layout in self.layouts:
            for size in (8, 100000):
                with self.subTest(layout=layout, size=size):
                    sender, receiver = self.form(layout)
                    out = (ctypes.c_ubyte * size)(*(i * 7 % 251 for i in range(size)))
                    into = (ctypes.c_ubyte * (size + 5))(*([170] * (size + 5)))
                    receiver.call("comm_recv", into, size + 5, 13, 0xffffffff, 9, cookie=21)
                    sender.call("comm_send", out, size, 13, 1, 9, cookie=22)
                    received, = receiver.take(1)
                    self.assertEqual((received.cookie, received.result, received.source, received.count), (21, "OK", 0, size))
                    self.assertEqual(bytes(into), bytes(out) + b"\xaa" * 5)
                    self.assertEqual(sender.take(1)[0].cookie, 22)

    def test_groups(self):
        for layout in self.layouts:
            with self.subTest(layout=layout):
                ranks = self.form(layout)

                def run(rank):
                    rank.require(rank.calls.comm_group_begin())
                    buffers = {cookie: rank.reduce(cookie, 5) for cookie in range(1, 6)}
                    rank.require(rank.calls.comm_queue_next(rank.queue, (Library.Completion * 1)(), 1, ctypes.byref(ctypes.c_size_t()), 0),
                                 "INVALID_ARGUMENT")  # a call that waits
                    rank.require(rank.calls.comm_group_end())
                    self.check_reduced(rank, buffers, rank.take(5))
                together(*(lambda rank=rank: run(rank) for rank in ranks))

    def test_a_group_that_its_communicator_leaves(self):
        rank, _ = self.form("aa")
        rank.require(rank.calls.comm_group_begin())
        rank.reduce(1)
        rank.destroy()
        rank.require(rank.calls.comm_group_end())
        ended, = rank.take(1)
        self.assertEqual((ended.cookie, ended.result), (1, "ABORTED"))

    def test_persistent(self):
        ranks = self.form("aa")

        def run(rank):
            request = ctypes.c_void_p()
            values = rank.reduce(6, 40000, request=request, persistent=1)
            first = list(values)
            for _ in range(3):
                values[:] = first
                rank.require(rank.calls.comm_start(request))
                rank.require(rank.calls.comm_start(request), "IN_PROGRESS")
                rank.require(rank.calls.comm_wait(ctypes.byref(request), None), "INVALID_ARGUMENT")
                ended, = rank.take(1)
                self.check_reduced(rank, {6: values}, [ended])
            rank.calls.comm_request_free(request)
        together(*(lambda rank=rank: run(rank) for rank in ranks))

    def test_barriers(self):
        first, second = self.form("ab")
        first.barrier(3)
        self.assertEqual(first.next(timeout_ms=100, expected="TIMED_OUT"), [])
        second.barrier(4)
        self.assertEqual([each.cookie for each in first.take(1) + second.take(1)], [3, 4])

    def test_what_is_refused(self):
        first, second = self.form("aa")
        first.reduce(1, request=ctypes.c_void_p(), expected="INVALID_ARGUMENT")
        self.assertIn("a handle and a queue", first.calls.error())
        own, first.queue = first.queue, second.queue
        first.reduce(1, expected="INVALID_ARGUMENT")
        self.assertIn("belongs to another client", first.calls.error())
        first.queue = own
        self.assertEqual(first.next(timeout_ms=0, expected="TIMED_OUT"), [])
        count = ctypes.c_size_t(7)
        for arguments in ((None, (Library.Completion * 1)(), 1, ctypes.byref(count), 0), (own, None, 1, ctypes.byref(count), 0),
                          (own, (Library.Completion * 1)(), 0, ctypes.byref(count), 0), (own, (Library.Completion * 1)(), 1, None, 0)):
            first.require(first.calls.comm_queue_next(*arguments), "INVALID_ARGUMENT")
        first.require(first.calls.comm_queue_create(first.client, None), "INVALID_ARGUMENT")
        first.calls.comm_queue_destroy(None)
        first.calls.comm_queue_wake(None)
        self.assertEqual(first.calls.comm_queue_fd(None), -1)

    def test_two_threads_take(self):
        """Two threads take completions, and each completion goes to one of them. A third thread waits for a handle of the same client."""
        ranks = self.form("ab")
        total = 2000

        def run(rank):
            taken = [[], []]
            lock, left = threading.Lock(), [total]

            def take(place):
                while left[0] > 0:
                    ended = rank.next(most=3)
                    taken[place] += ended
                    with lock:
                        left[0] -= len(ended)
                        if left[0] == 0:
                            rank.calls.comm_queue_wake(rank.queue)

            def wait():
                for _ in range(50):
                    request = ctypes.c_void_p()
                    rank.call("comm_barrier", queue=False, request=request)
                    rank.require(rank.calls.comm_wait(ctypes.byref(request), None))
                return {cookie: rank.reduce(cookie) for cookie in range(1, total + 1)}
            _, _, buffers = together(lambda: take(0), lambda: take(1), wait)
            self.assertEqual(sorted(each.cookie for each in taken[0] + taken[1]), list(range(1, total + 1)))
            self.check_reduced(rank, buffers, taken[0] + taken[1])
        together(*(lambda rank=rank: run(rank) for rank in ranks))

    def test_wakes(self):
        rank, _ = self.form("aa")
        fd = rank.calls.comm_queue_fd(rank.queue)
        for armed in (False, True):
            if armed:
                self.assertEqual(rank.next(timeout_ms=0, expected="TIMED_OUT"), [])
            rank.calls.comm_queue_wake(rank.queue)
            self.assertTrue(select.select([fd], [], [], READABLE_S)[0])
            self.assertEqual(rank.next(timeout_ms=20000), [])
            self.assertEqual(rank.next(timeout_ms=0, expected="TIMED_OUT"), [])
            self.assertFalse(select.select([fd], [], [], 0)[0])
        returned = []
        waiting = threading.Thread(target=lambda: returned.append(rank.next(timeout_ms=0xffffffff)))
        waiting.start()
        rank.calls.comm_queue_wake(rank.queue)  # it waits, or it is about to
        waiting.join(READABLE_S)
        self.assertEqual(returned, [[]])

    def test_many_wakes_count_as_one(self):
        rank, _ = self.form("aa")
        for _ in range(100):
            rank.calls.comm_queue_wake(rank.queue)
        self.assertEqual(rank.next(timeout_ms=20000), [])
        self.assertEqual(rank.next(timeout_ms=0, expected="TIMED_OUT"), [])

    def test_a_queue_that_is_destroyed(self):
        """If a queue is destroyed, its operations go on. comm_sync then reports their first failure."""
        first, second = self.form("ab")
        values = first.reduce(5, 9000)
        failing = first.options(6, timeout_ms=300)
        first.require(first.calls.comm_recv(first.comm, (ctypes.c_ubyte * 4)(), 4, 13, 1, 4, ctypes.byref(failing)))
        first.destroy_queue()
        second.reduce(5, 9000)
        self.check_reduced(second, {5: second.buffers[0]}, second.take(1))
        first.require(first.calls.comm_sync(first.comm, 0), "TIMED_OUT")
        self.assertEqual(list(values), first.sums(5, 9000))
        first.require(first.calls.comm_sync(first.comm, 0))

    def test_a_communicator_that_is_destroyed(self):
        first, _ = self.form("aa")
        first.reduce(5)
        first.destroy()
        ended, = first.take(1)
        self.assertEqual((ended.cookie, ended.result, ended.failure.operation), (5, "ABORTED", "all_reduce"))

    def test_a_failure_is_not_told_twice(self):
        first, _ = self.form("ab")
        first.barrier(8, timeout_ms=300)
        ended, = first.take(1)
        self.assertEqual((ended.cookie, ended.result), (8, "TIMED_OUT"))
        self.assertEqual(first.last_failure().text, ended.failure.text)
        first.require(first.calls.comm_sync(first.comm, 0))

    def test_waiting_for_a_time(self):
        first, second = self.form("ab")
        request = ctypes.c_void_p()
        values = first.reduce(2, queue=False, request=request)
        for timeout_ms in (0, 50):
            first.require(first.calls.comm_wait_for(ctypes.byref(request), timeout_ms, None), "TIMED_OUT")
            self.assertIn("all_reduce has not ended yet", first.calls.error())
            self.assertIsNotNone(request.value)
        second.reduce(2)
        first.require(first.calls.comm_wait_for(ctypes.byref(request), 20000, None))
        self.assertIsNone(request.value)
        self.assertEqual(list(values), first.sums(2))
        first.require(first.calls.comm_wait_for(ctypes.byref(request), 0, None))
        first.barrier(queue=False, request=request, timeout_ms=200)
        first.require(first.calls.comm_wait_for(ctypes.byref(request), 0xffffffff, None), "TIMED_OUT")
        self.assertIsNone(request.value)


class Aborts(QueueCase):
    def test_waiters_and_peers(self):
        """One thread aborts while others of its process wait in three calls."""
        for layout in self.layouts:
            with self.subTest(layout=layout):
                first, second = self.form(layout, op_timeout_ms=60000)
                request = ctypes.c_void_p()
                first.barrier(queue=False, request=request)
                first.reduce(1)
                second.call("comm_recv", (ctypes.c_ubyte * 4)(), 4, 13, 0, 4)
                started = threading.Barrier(4)

                def begin(call):
                    started.wait()
                    return call()

                def abort():
                    started.wait()
                    first.require(first.calls.comm_abort(first.comm, "a loss that is \u00e4 bit \"large\"".encode()))
                began = time.monotonic()
                waited, synced, ended, _ = together(
                    lambda: begin(lambda: NAMES[first.calls.comm_wait(ctypes.byref(request), None)]),
                    lambda: begin(lambda: NAMES[first.calls.comm_sync(first.comm, 0)]),
                    lambda: begin(lambda: first.take(1)), abort)
                self.assertEqual((waited, synced, ended[0].result), ("ABORTED", "ABORTED", "ABORTED"))
                text = f'aborted by rank 0 (pid {os.getpid()}) on node a: a loss that is \u00e4 bit "large"'
                self.assertIn(text, ended[0].failure.text)
                self.assertEqual((ended[0].failure.ranks, ended[0].failure.pids, ended[0].failure.node), ([0], [os.getpid()], "a"))
                told, = second.take(1)
                self.assertEqual((told.result, told.failure.operation, told.failure.ranks), ("ABORTED", "recv", [0]))
                self.assertIn(text, told.failure.text)
                told = second.calls.comm_sync(second.comm, 0)
                while NAMES[told] == "OK" and time.monotonic() - began < 5:  # commd tells of messages before it tells of their communicator
                    time.sleep(0.01)
                    told = second.calls.comm_sync(second.comm, 0)
                second.require(told, "ABORTED")
                self.assertEqual((second.last_failure().ranks, second.last_failure().node), ([0], "a"))
                second.reduce(2, expected="ABORTED")
                first.require(first.calls.comm_abort(first.comm, None))  # again
                first.destroy()
                self.assertLess(time.monotonic() - began, 5)

    def test_reasons(self):
        rank, _ = self.form("aa")
        for reason in (b"x" * 256, b"two\nlines", b"\x7f"):
            rank.require(rank.calls.comm_abort(rank.comm, reason), "INVALID_ARGUMENT")
        rank.require(rank.calls.comm_sync(rank.comm, 0))
        rank.require(rank.calls.comm_abort(rank.comm, b"y" * 255))
        rank.reduce(1, expected="ABORTED")
        self.assertIn("y" * 255, rank.calls.error())
        rank.require(rank.calls.comm_abort(None, None), "INVALID_ARGUMENT")

    def test_held_collectives_end(self):
        rank, _ = self.form("aa")
        for cookie in range(1, 3001):
            rank.reduce(cookie)
        rank.require(rank.calls.comm_abort(rank.comm, None))
        ended = rank.take(3000, most=512)
        self.assertEqual({each.result for each in ended}, {"ABORTED"})
        self.assertEqual(sorted(each.cookie for each in ended), list(range(1, 3001)))


class Failures(QueueCase):
    def form_names(self, name, layout, others):
        """Forms a communicator of ranks in this process and of others, each a process of its own."""
        size = len(layout) + len(others)
        processes = [self.cluster.rank(node, name, len(layout) + i, size, mode, "seconds=60") for i, (node, mode) in enumerate(others)]
        ranks = [QueueRank(self.cluster.socket(node)) for node in layout]
        self.addCleanup(lambda: together(*(rank.close for rank in ranks)))
        together(*(lambda rank=rank, number=number: rank.join(name, number, size) for number, rank in enumerate(ranks)))
        for rank in ranks:
            rank.make_queue()
        return ranks, processes

    def test_ranks_that_do_not_come(self):
        """Every rank gets the numbers of the missing ranks of all nodes. So does a missing rank that comes later."""
        for kind, came in (("barrier", (0, 3)), ("reduce", (0, 3)), ("barrier", (3,))):
            with self.subTest(kind=kind, came=came):
                ranks = self.form("aabb")
                for rank in came:
                    getattr(ranks[rank], kind)(9, timeout_ms=1000)
                told = [ranks[rank].take(1)[0] for rank in came]
                getattr(ranks[2], kind)(9, timeout_ms=1000)
                missing = [rank for rank in range(4) if rank not in came]
                for each in [*told, ranks[2].take(1)[0]]:
                    failure = each.failure
                    self.assertEqual((each.result, failure.result), ("TIMED_OUT", "TIMED_OUT"))
                    self.assertEqual((failure.operation, failure.seq), ({"barrier": "barrier", "reduce": "all_reduce"}[kind], 1))
                    self.assertEqual((failure.rank_count, sorted(failure.ranks)), (len(missing), missing), failure)
                    self.assertEqual(failure.pids, [os.getpid()] * len(missing))
                    self.assertIn(failure.node, "ab")

    def test_a_rank_that_does_not_come_on_one_node(self):
        first, _ = self.form("aa")
        first.barrier(9, timeout_ms=200)
        failure = first.take(1)[0].failure
        self.assertEqual((failure.ranks, failure.pids, failure.node, failure.operation), ([1], [os.getpid()], "a", "barrier"))
        request = ctypes.c_void_p()
        first.barrier(queue=False, request=request, timeout_ms=200)
        first.require(first.calls.comm_wait(ctypes.byref(request), None), "TIMED_OUT")
        self.assertEqual((first.last_failure().ranks, first.last_failure().seq), ([1], 2))

    def test_ranks_that_contradict_each_other(self):
        for layout in self.layouts:
            with self.subTest(layout=layout):
                first, second = self.form(layout)
                first.reduce(1, 5)
                second.reduce(1, 6)
                for rank in (first, second):
                    failure = rank.take(1)[0].failure
                    self.assertEqual((failure.result, failure.seq, sorted(failure.ranks)), ("MISMATCH", 1, [0, 1]), failure)
                    self.assertEqual(failure.pids, [os.getpid()] * 2)

    def test_a_rank_that_is_killed(self):
        for node in "ab":
            with self.subTest(node=node):
                (first, second), (killed,) = self.form_names(f"killed-{node}", "ab", [(node, "idle")])
                for rank in (first, second):
                    rank.reduce(1)
                killed.kill()
                for rank in (first, second):
                    failure = rank.take(1)[0].failure
                    self.assertEqual((failure.result, failure.operation, failure.ranks, failure.pids, failure.node),
                                     ("RANK_LOST", "all_reduce", [2], [killed.pid], node), failure)

    def test_what_is_submitted_after_a_loss(self):
        """A group, and a wait for several operations, tell of the loss as a single operation does."""
        (rank,), (killed,) = self.form_names("later", "a", [("b", "idle")])
        handles = (ctypes.c_void_p * 2)()
        for place in range(2):
            handle = ctypes.c_void_p.from_buffer(handles, place * ctypes.sizeof(ctypes.c_void_p))
            rank.reduce(1, queue=False, request=handle)
        killed.kill()
        rank.require(rank.calls.comm_wait_all(handles, 2, None), "RANK_LOST")
        failures = [rank.last_failure()]
        rank.require(rank.calls.comm_group_begin())
        rank.reduce(2)
        rank.barrier(3)
        rank.require(rank.calls.comm_group_end(), "RANK_LOST")
        failures.append(rank.last_failure())
        ended = rank.take(2)
        self.assertEqual([each.failure.operation for each in ended], ["all_reduce", "barrier"])
        for failure in failures + [each.failure for each in ended]:
            self.assertEqual((failure.result, failure.ranks, failure.pids, failure.node), ("RANK_LOST", [1], [killed.pid], "b"), failure)

    def test_a_node_that_is_lost(self):
        with Cluster("ab") as cluster:
            ranks = form(cluster, "abb", "lost")
            ranks[0].barrier(5)
            cluster.daemons["b"].kill()
            failure = ranks[0].take(1)[0].failure
            self.assertEqual((failure.result, failure.operation, failure.ranks, failure.node), ("NODE_LOST", "barrier", [1, 2], "b"), failure)
            together(*(rank.close for rank in ranks))

    def test_a_message_that_nobody_sends(self):
        first, _ = self.form("ab")
        first.call("comm_recv", (ctypes.c_ubyte * 4)(), 4, 13, 1, 4, cookie=6, timeout_ms=200)
        failure = first.take(1)[0].failure
        self.assertEqual((failure.result, failure.operation, failure.seq, failure.ranks, failure.node), ("TIMED_OUT", "recv", 0, [1], "b"), failure)

    def test_a_communicator_that_does_not_form(self):
        rank = QueueRank(self.cluster.socket("a"))
        self.addCleanup(rank.close)
        code, _ = rank.calls.init(rank.client, "never", 1, 3, timeout_ms=300)
        rank.require(code, "TIMED_OUT")
        self.assertEqual(rank.last_failure().ranks, [0, 2])

    def test_nothing_has_failed(self):
        answers = together(lambda: QueueRank(self.cluster.socket("a")).last_failure())
        self.assertEqual(answers, [None])


class TheEnd(QueueCase):
    """commd ends, or stands still, while a queue has operations."""

    def setUp(self):
        super().setUp()
        self.own = Cluster("a", namespaces=False)
        self.addCleanup(self.own.close)
        self.rank = QueueRank(self.own.socket("a"))
        self.addCleanup(self.rank.close)
        self.rank.join("ending", 0, 1)
        self.rank.make_queue()
        for cookie in (1, 2):
            self.rank.call("comm_recv", (ctypes.c_ubyte * 4)(), 4, 13, 0, 4, cookie=cookie)

    @classmethod
    def setUpClass(cls):
        pass

    @classmethod
    def tearDownClass(cls):
        pass

    def expect_the_end(self):
        ended = self.rank.take(2)
        self.assertEqual([(each.cookie, each.result) for each in ended], [(1, "DAEMON_LOST"), (2, "DAEMON_LOST")])
        self.assertEqual(self.rank.next(expected="DAEMON_LOST"), [])
        self.assertEqual(self.rank.next(timeout_ms=0, expected="DAEMON_LOST"), [])
        self.rank.reduce(3, expected="DAEMON_LOST")

    def test_killed_while_a_thread_waits(self):
        threading.Timer(0.2, self.own.daemons["a"].kill).start()
        self.expect_the_end()

    def test_killed_while_the_descriptor_is_polled(self):
        self.assertEqual(self.rank.next(timeout_ms=0, expected="TIMED_OUT"), [])
        self.own.daemons["a"].kill()
        poll = select.poll()
        poll.register(self.rank.calls.comm_queue_fd(self.rank.queue), select.POLLIN)
        ended = []
        deadline = time.monotonic() + READABLE_S
        while not ended and time.monotonic() < deadline and poll.poll(READABLE_S * 1000):
            completions, count = (Library.Completion * 8)(), ctypes.c_size_t()
            if NAMES[self.rank.calls.comm_queue_next(self.rank.queue, completions, 8, ctypes.byref(count), 0)] == "OK":
                ended = [Ended(each) for each in completions[:count.value]]
        self.assertEqual([each.result for each in ended], ["DAEMON_LOST"] * 2)
        self.assertTrue(poll.poll(0))

    def test_frozen_while_a_thread_waits(self):
        self.own.daemons["a"].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        self.expect_the_end()
        self.assertLess(time.monotonic() - began, 7)

    def test_frozen_while_the_descriptor_is_polled(self):
        """The descriptor alone makes the program look at the queue again."""
        self.own.daemons["a"].send_signal(signal.SIGSTOP)
        poll = select.poll()
        poll.register(self.rank.calls.comm_queue_fd(self.rank.queue), select.POLLIN)
        result, looks, deadline = "TIMED_OUT", 0, time.monotonic() + 30
        while result == "TIMED_OUT" and time.monotonic() < deadline:
            completions, count = (Library.Completion * 8)(), ctypes.c_size_t()
            result = NAMES[self.rank.calls.comm_queue_next(self.rank.queue, completions, 8, ctypes.byref(count), 0)]
            if result == "TIMED_OUT":
                looks += 1
                self.assertTrue(poll.poll(1000))
        self.assertEqual((result, count.value), ("OK", 2))
        self.assertLess(looks, 100)  # it does not spin: it takes 4.3 s, and each look may take 0.1 s


class WithoutRings:
    def setUp(self):
        os.environ["COMMD_RINGS"] = "off"
        self.addCleanup(os.environ.pop, "COMMD_RINGS")
        super().setUp()


class QueuesWithoutRings(WithoutRings, Queues):
    pass


class AbortsWithoutRings(WithoutRings, Aborts):
    pass


class FailuresWithoutRings(WithoutRings, Failures):
    pass


class TheEndWithoutRings(WithoutRings, TheEnd):
    pass


if __name__ == "__main__":
    unittest.main()
