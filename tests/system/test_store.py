#!/usr/bin/env python3
"""Stores of keys and values: the library and real daemons, on one node and on three."""
import ctypes
import os
import sys
import threading
import unittest

from cluster import ROOT, Cluster, StandaloneTest
from keys import Client, Failed
from test_admin import NOBODY, as_user

VALUE_MAX = 61440
WAITERS = 1000


class StoreCase(unittest.TestCase):
    def client(self, node):
        client = Client(self.cluster.socket(node))
        self.addCleanup(client.close)
        return client

    def wait_connected(self):
        for name in self.cluster.names:
            others = len(self.cluster.names) - 1
            self.cluster.wait(lambda: self.cluster.json(name, "status")["nodes_up"] == others, f"node {name} is connected to the others")

    def fails(self, code, text, call, *arguments):
        with self.assertRaises(Failed) as caught:
            call(*arguments)
        self.assertEqual(caught.exception.code, code, caught.exception.text)
        self.assertIn(text, caught.exception.text)


def in_threads(calls):
    """Runs the calls at the same time, each in a thread. Returns their results or exceptions, in the order of the calls."""
    results = [None] * len(calls)

    def run(index):
        try:
            results[index] = calls[index]()
        except Failed as failure:
            results[index] = failure

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


class OneNode(StandaloneTest, StoreCase):
    def test_all_calls(self):
        store = self.client("solo").store("all-calls")
        store.set("a", b"\0one\xff")
        self.assertEqual(store.get("a"), b"\0one\xff")
        store.set("a", b"")
        self.assertEqual(store.get("a"), b"")
        self.assertEqual(store.add("n", 5), 5)
        self.assertEqual(store.add("n", -7), -2)
        self.assertEqual(store.get("n"), b"-2")
        self.assertEqual(store.compare_set("c", b"other", b"new"), b"other")
        self.assertFalse(store.check(["c"]))
        self.assertEqual(store.compare_set("c", b"", b"first"), b"first")
        self.assertEqual(store.compare_set("c", b"wrong", b"second"), b"first")
        self.assertEqual(store.compare_set("c", b"first", b"second"), b"second")
        self.assertEqual(store.count(), 3)
        self.assertTrue(store.check(["a", "n", "c"]))
        self.assertFalse(store.check(["a", "missing", "c"]))
        store.wait(["a", "n", "c"], 0)
        self.fails("TIMED_OUT", 'key "missing" does not exist', store.wait, ["a", "missing"], 0)
        self.assertTrue(store.delete("a"))
        self.assertFalse(store.delete("a"))
        self.assertEqual(store.count(), 2)
        self.fails("TIMED_OUT", 'key "a" was not set within 50 ms', store.get, "a", 0.05)
        store.set("word", b"12x")
        self.fails("INVALID_ARGUMENT", "no decimal number", store.add, "word", 1)
        store.set("most", b"9223372036854775807")
        self.fails("INVALID_ARGUMENT", "does not fit", store.add, "most", 1)
        store.close()

    def test_get_waits_for_a_set(self):
        reader, writer = self.client("solo").store("waits"), self.client("solo").store("waits")
        found = []
        thread = threading.Thread(target=lambda: found.append(reader.get("later")))
        thread.start()
        writer.set("later", b"now")
        thread.join(20)
        self.assertEqual(found, [b"now"])


    def test_sizes_of_keys_and_values(self):
        store = self.client("solo").store("sizes")
        store.set("k" * 255, b"v" * VALUE_MAX)
        self.assertEqual(store.get("k" * 255), b"v" * VALUE_MAX)
        self.fails("LIMIT", f"a value of {VALUE_MAX + 1} bytes", store.set, "k", b"v" * (VALUE_MAX + 1))
        self.fails("INVALID_ARGUMENT", "expected 1 to 255 bytes", store.set, "k" * 256, b"")
        self.fails("INVALID_ARGUMENT", "expected 1 to 255 bytes", store.get, "")
        half = VALUE_MAX // 2
        self.assertEqual(store.compare_set("c", b"", b"1" * half), b"1" * half)
        self.assertEqual(store.compare_set("c", b"1" * half, b"2" * half), b"2" * half)
        self.fails("LIMIT", "together", store.compare_set, "c", b"2" * half, b"3" * (half + 1))
        many = [f"{number:0240}" for number in range(2500)]  # they take several requests
        for key in many:
            store.set(key, key[-4:].encode())
        store.wait(many, 0)
        self.assertTrue(store.check(many))
        store.delete(many[-1])
        self.assertFalse(store.check(many))
        self.fails("TIMED_OUT", "does not exist", store.wait, many, 0)
        store.close()

    def test_bad_names(self):
        client = self.client("solo")
        for name in ("", "with space", "n" * 128, "tab\t"):
            self.fails("INVALID_ARGUMENT", "a name has 1 to 127 printable ASCII characters", client.store, name)
        client.store("n" * 127).close()

    def test_wrong_arguments(self):
        client = self.client("solo")
        store, calls = client.store("arguments"), client.calls
        number, null = ctypes.c_int64(5), ctypes.c_void_p()
        size, out = ctypes.c_size_t(0), ctypes.byref(ctypes.c_void_p())
        wrong = [("the argument for the store is a null pointer", calls.comm_store_open, client.handle, b"x", 0, null),
                 ("the name is a null pointer", calls.comm_store_open, client.handle, null, 0, out),
                 ("", calls.comm_store_open, null, b"x", 0, out),
                 ("the store is a null pointer", calls.comm_store_set, null, b"k", b"v", size),
                 ("the store is a null pointer", calls.comm_store_count, null, ctypes.byref(size)),
                 ("the key is a null pointer", calls.comm_store_add, store.handle, null, number, null),
                 ("the value is a null pointer", calls.comm_store_set, store.handle, b"k", null, ctypes.c_size_t(1)),
                 ("the argument for the answer is a null pointer", calls.comm_store_get, store.handle, b"k", 0, null, ctypes.byref(size)),
                 ("the argument for the answer is a null pointer", calls.comm_store_get, store.handle, b"k", 0, out, null),
                 ("the argument for the answer is a null pointer", calls.comm_store_count, store.handle, null),
                 ("the keys are a null pointer", calls.comm_store_check, store.handle, null, ctypes.c_size_t(1), out),
                 ("the argument for the answer is a null pointer", calls.comm_store_check, store.handle, null, size, null)]
        for text, call, *arguments in wrong:
            self.fails("INVALID_ARGUMENT", text, lambda: client.check(call(*arguments)))
        client.check(calls.comm_store_set(store.handle, b"k", null, size))
        client.check(calls.comm_store_add(store.handle, b"n", number, null))
        client.check(calls.comm_store_delete(store.handle, b"n", null))
        self.assertEqual(store.count(), 1)
        calls.comm_store_close(null)
        calls.comm_store_free(null)
        client.check(calls.comm_group_begin())
        self.fails("INVALID_ARGUMENT", "a group is open", store.get, "k")
        self.fails("INVALID_ARGUMENT", "a group is open", client.store, "other")
        client.check(calls.comm_group_end())
        store.close()

    def test_a_child_may_not_use_its_parents_store(self):
        store = self.client("solo").store("fork")
        child = os.fork()
        if child == 0:
            try:
                store.set("k", b"child")
            except Failed as failure:
                os._exit(0 if failure.code == "INVALID_ARGUMENT" else 2)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(store.count(), 0)

    def test_a_call_that_waits_delays_no_other_thread(self):
        store = self.client("solo").store("threads")
        results = in_threads([lambda: store.get("late"), lambda: [store.add("n", 1) for _ in range(500)] and store.set("late", b"500")])
        self.assertEqual(results, [b"500", None])
        self.assertEqual(store.get("n"), b"500")

    def test_bytes_and_keys_of_a_store(self):
        store = self.client("solo").store("full")
        for number in range(300):
            try:
                store.set(f"large-{number}", bytes([number % 251]) * VALUE_MAX)
            except Failed as failure:
                self.assertEqual(failure.code, "LIMIT")
                self.assertRegex(failure.text, r'store "full" holds 16\d{6} bytes; \d+ more are beyond the limit of 16777216')
                break
        self.assertEqual(number, 271)  # 16 MiB, less what each key costs
        self.assertEqual(store.count(), 271)
        self.assertEqual(store.get("large-270"), bytes([270 % 251]) * VALUE_MAX)
        self.fails("TIMED_OUT", "does not exist", store.get, "large-271", 0)
        for number in range(271):
            self.assertTrue(store.delete(f"large-{number}"))
        for number in range(65536):
            store.set(f"{number}", b"")
        self.fails("LIMIT", "has 65536 keys", store.set, "one more", b"")
        store.close()

    def test_stores_are_each_users_own(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to be several users")
        os.chmod(self.cluster.folder, 0o755)
        store = self.client("solo").store("shared")
        self.assertEqual(store.add("n", 5), 5)
        other = self.cluster.client("solo", *as_user(sys.executable, "-B", ROOT / "tests/system/store_client.py", "shared", "add", "n", 100))
        self.assertEqual(other.communicate(timeout=20)[0], "100\n")
        self.assertEqual(store.add("n", 1), 6)

    def used(self):
        """Returns how much all accounts of this user are charged for stores."""
        return sum(user["kinds"]["store_bytes"]["used"] for user in self.cluster.json("solo", "users")["users"] if user["uid"] == os.geteuid())

    def test_a_client_is_killed_while_it_waits(self):
        store = self.client("solo").store("killed")
        before = self.used()
        waiter = self.cluster.client("solo", sys.executable, "-B", ROOT / "tests/system/store_client.py", "killed", "get", "never", 60)
        self.assertEqual(waiter.stdout.readline(), "WAITS\n")
        self.cluster.wait(lambda: self.used() > before + 500, "it waits")
        waiter.kill()
        self.cluster.wait(lambda: self.used() == before, "nothing of it is left")
        self.assertEqual(store.count(), 0)
        store.set("never", b"now")
        self.assertEqual(store.get("never", 0), b"now")


class Budget(StoreCase):
    def test_what_a_user_may_hold(self):
        with Cluster(["solo"], settings="user_limit_store_bytes = 3000000;") as self.cluster:
            store = self.client("solo").store("limited")
            for number in range(100):
                try:
                    store.set(f"{number}", b"x" * VALUE_MAX)
                except Failed as failure:
                    self.assertEqual(failure.code, "LIMIT")
                    self.assertIn("bytes of stores", failure.text)
                    self.assertIn("user_limit_store_bytes", failure.text)
                    self.assertIn("3000000", failure.text)
                    break
            self.assertEqual(number, 48)
            self.assertEqual(store.count(), 48)
            store.delete("0")
            store.set("48", b"x" * VALUE_MAX)


class Endings(StoreCase):
    def test_commd_restarts(self):
        with Cluster(["solo"]) as self.cluster:
            store = self.client("solo").store("restart")
            store.set("k", b"before")
            waiter = self.cluster.client("solo", sys.executable, "-B", ROOT / "tests/system/store_client.py", "restart", "get", "never", 60)
            self.assertEqual(waiter.stdout.readline(), "WAITS\n")
            self.cluster.daemons["solo"].terminate()
            self.assertEqual(self.cluster.daemons["solo"].wait(timeout=20), 0)
            self.assertIn("DAEMON_LOST", waiter.communicate(timeout=20)[0])
            self.fails("DAEMON_LOST", "", store.get, "k")
            self.cluster.start("solo")
            self.cluster.wait_ready()
            again = self.client("solo").store("restart")
            self.assertEqual(again.count(), 0)

    def test_the_keeper_is_killed(self):
        with Cluster("abc") as self.cluster:
            self.wait_connected()
            stores = [self.client(node).store("lost@c") for node in "ab"]
            other = self.client("a").store("kept@b")
            other.set("k", b"v")
            calls = [lambda store=store: store.get("never", 60) for store in stores]
            killer = threading.Timer(0.3, self.cluster.daemons["c"].kill)
            killer.start()
            for failure in in_threads(calls):
                self.assertEqual(failure.code, "NODE_LOST", failure)
                self.assertIn('store "lost@c" is lost with node c, which kept it', failure.text)
            self.fails("NODE_LOST", "is lost with node c", stores[0].set, "k", b"")
            self.assertEqual(other.get("k"), b"v")
            self.fails("UNREACHABLE", 'store "new@c" is kept by node c, which was not connected within 300 ms', self.client("b").store, "new@c", 0.3)
            opened = []
            thread = threading.Thread(target=lambda: opened.append(self.client("a").store("lost@c", 20).count()))
            thread.start()
            self.cluster.start("c")
            thread.join(20)
            self.assertEqual(opened, [0])

    def test_a_keeper_that_drains_makes_no_new_store(self):
        with Cluster("ab") as self.cluster:
            self.wait_connected()
            before = self.client("a").store("before@b")
            self.cluster.commctl("b", "drain", "--reason", "new kernel")
            self.fails("SHUTTING_DOWN", "node b is draining: new kernel", self.client("a").store, "after@b")
            before.set("k", b"v")
            self.assertEqual(self.client("b").store("before@b").get("k"), b"v")
            self.cluster.commctl("b", "undrain")
            self.client("a").store("after@b").close()


class ThreeNodes(StoreCase):
    """The store "x@b" is kept on node b."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster("abc")

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def setUp(self):
        self.wait_connected()

    def test_every_node_reaches_the_same_store(self):
        clients = [self.client(node) for node in "abc"]
        for number in range(12):
            stores = [client.store(f"same-{number}") for client in clients]
            self.assertEqual([store.add("n", rank + 1) for rank, store in enumerate(stores)], [1, 3, 6])
            for rank, store in enumerate(stores):
                store.set(f"rank-{rank}", bytes([rank, 0, 255 - rank]) * (rank + 1))
            for store in stores:
                for rank in range(3):
                    self.assertEqual(store.get(f"rank-{rank}"), bytes([rank, 0, 255 - rank]) * (rank + 1))
                self.assertEqual(store.count(), 4)
                store.close()

    def test_get_waits_for_a_set_on_another_node(self):
        for keeper in "abc":
            reader, writer = self.client("a").store(f"waits@{keeper}"), self.client("c").store(f"waits@{keeper}")
            thread = threading.Thread(target=lambda: found.append(reader.get("later")))
            found = []
            thread.start()
            self.fails("TIMED_OUT", "was not set within 100 ms", writer.get, "later", 0.1)
            writer.set("later", b"now" * 20000)
            thread.join(20)
            self.assertEqual(found, [b"now" * 20000])

    def test_adds_and_compare_sets_from_several_processes(self):
        stores = [self.client(node).store("races@b") for node in "abca"]

        def work(rank):
            wins = 0
            for turn in range(100):
                stores[rank].add("sum", rank * 1000 + turn)
                wins += stores[rank].compare_set(f"race-{turn}", b"", b"rank %d" % rank) == b"rank %d" % rank
            return wins

        wins = in_threads([lambda rank=rank: work(rank) for rank in range(4)])
        self.assertEqual(stores[0].add("sum", 0), sum(rank * 1000 + turn for rank in range(4) for turn in range(100)))
        self.assertEqual(sum(wins), 100)

    def test_a_thousand_waiters(self):
        """Each gets the whole value, which is 60 MB in all, while heartbeats go on."""
        value = bytes(range(256)) * (VALUE_MAX // 256)
        stores = [self.client(node).store("crowd@b") for node in "abca"]
        waits = [lambda store=stores[number % 4], number=number: store.get("value" if number % 2 else "other", 60) for number in range(WAITERS)]

        def write():
            self.fails("TIMED_OUT", "", stores[1].get, "a second", 1)
            stores[1].set("other", b"small")
            stores[1].set("value", value)
            return "written"

        results = in_threads([*waits, write])
        self.assertEqual(results.pop(), "written")
        for number, result in enumerate(results):
            self.assertEqual(result, value if number % 2 else b"small", number)
        self.wait_connected()
        self.assertNotIn("is down", self.cluster.log("b"))

    def test_four_processes(self):
        clients = [self.cluster.client(node, sys.executable, "-B", ROOT / "tests/system/store_client.py", "processes", "get", "go", 20) for node in "abca"]
        for client in clients:
            self.assertEqual(client.stdout.readline(), "WAITS\n")
        setter = self.cluster.client("c", sys.executable, "-B", ROOT / "tests/system/store_client.py", "processes", "set", "go", "17")
        self.assertEqual(setter.communicate(timeout=20)[0], "OK\n")
        for client in clients:
            self.assertEqual(client.communicate(timeout=20)[0], "17\n")


class OnSockets(unittest.TestCase):
    """A mixin: the library uses only the socket, not the rings."""

    @classmethod
    def setUpClass(cls):
        os.environ["COMMD_RINGS"] = "off"
        cls.addClassCleanup(os.environ.pop, "COMMD_RINGS")
        super().setUpClass()


class OneNodeOnSockets(OnSockets, OneNode):
    test_bytes_and_keys_of_a_store = None


class ThreeNodesOnSockets(OnSockets, ThreeNodes):
    pass


if __name__ == "__main__":
    unittest.main()
