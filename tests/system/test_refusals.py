#!/usr/bin/env python3
"""The sender of bad input gets a clear error. All others lose nothing."""
import contextlib
import os
import pathlib
import socket
import struct
import time
import unittest

import cluster
from cluster import BUILD, Cluster, Library, run
from raw_client import VERSION, operation

WAITS = True


class Standalone(cluster.StandaloneTest):
    def setUp(self):
        os.environ["COMMD_SOCKET"] = self.cluster.socket("solo")
        self.calls = Library()

    def tearDown(self):
        result, client = self.calls.open()
        self.assertEqual(result, 0, "commd still answers")
        result, comm = self.calls.init(client, "after", 0, 1)
        self.assertEqual(result, 0, self.calls.error())
        self.assertEqual(self.calls.comm_barrier(comm, None), 0)
        self.calls.comm_destroy(comm)
        self.calls.comm_client_close(client)

    def connect(self):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(5)
        connection.connect(self.cluster.socket("solo"))
        return connection

    def answer_and_end(self, packet, *texts):
        with self.connect() as connection:
            connection.send(packet)
            answer = connection.recv(65536)
            for text in texts:
                self.assertIn(text.encode(), answer)
            self.assertEqual(connection.recv(65536), b"", "the session is ended")

    def test_garbage(self):
        self.answer_and_end(b"\xff\xff\xff\xff garbage", "no request")

    def test_oversized_packet(self):
        self.answer_and_end(b"\x08\x01" * 40000, "larger than 65536")

    def test_first_request_is_not_hello(self):
        self.answer_and_end(bytes([0x08, 7, 0x4a, 0x00]), "Hello")
        self.answer_and_end(operation(1, 1, 2), "Hello")

    def test_other_version(self):
        for version in (VERSION - 1, 99):
            self.answer_and_end(bytes([0x08, 7, 0x12, 2, 0x08, version]), f"speaks version {VERSION} of the client protocol, the library version {version}")

    def test_too_many_descriptors(self):
        with self.connect() as connection:
            connection.send(bytes([0x08, 1, 0x12, 2, 0x08, VERSION]))
            connection.recv(65536)
            connection.sendmsg([b"\x08\x02"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("3i", 0, 1, 2))])
            self.assertIn(b"file descriptor", connection.recv(65536))

    def test_arguments(self):
        library = self.calls
        result, client = library.open()
        self.assertEqual(library.NAMES[library.init(client, "bad name", 0, 1)[0]], "INVALID_ARGUMENT")
        self.assertEqual(library.NAMES[library.init(client, "x" * 200, 0, 1)[0]], "INVALID_ARGUMENT")
        self.assertEqual(library.NAMES[library.init(client, "n", 3, 2)[0]], "INVALID_ARGUMENT")
        self.assertEqual(library.NAMES[library.init(client, "n", 0, 1, device=3)[0]], "UNSUPPORTED")
        self.assertIn("device 3", library.error())
        result, comm = library.init(client, "n", 0, 1)
        self.assertEqual(result, 0, library.error())
        self.assertEqual(library.NAMES[library.comm_all_reduce(comm, None, None, 5, 1, 0, None)], "INVALID_ARGUMENT")
        self.assertEqual(library.NAMES[library.comm_all_reduce(comm, None, None, 0, 99, 0, None)], "INVALID_ARGUMENT")
        self.assertEqual(library.NAMES[library.comm_all_reduce(comm, None, None, 0, 1, 6, None)], "UNSUPPORTED")
        self.assertIn("band of f32", library.error())
        self.assertEqual(library.NAMES[library.comm_broadcast(comm, None, 0, 1, 7, None)], "INVALID_ARGUMENT")
        library.comm_destroy(comm)
        library.comm_client_close(client)

    def test_second_rank_with_the_same_number(self):
        first = self.cluster.rank("solo", "taken", 0, 2, "once", "timeout_ms=4000")
        self.cluster.wait(lambda: any(comm["name"] == "taken" for comm in self.cluster.json("solo", "comms")["comms"]), "first rank")
        second = self.cluster.rank("solo", "taken", 0, 2, "once")
        output, _ = second.communicate(timeout=10)
        self.assertIn("ALREADY_EXISTS", output)
        self.assertIn(str(first.pid), output)
        third = self.cluster.rank("solo", "taken", 1, 2, "once")
        self.assertIn("OK", third.communicate(timeout=10)[0])
        self.assertIn("OK", first.communicate(timeout=10)[0])

    def test_other_size(self):
        first = self.cluster.rank("solo", "sized", 0, 2, "once", "timeout_ms=4000")
        self.cluster.wait(lambda: any(comm["name"] == "sized" for comm in self.cluster.json("solo", "comms")["comms"]), "first rank")
        output, _ = self.cluster.rank("solo", "sized", 1, 3, "once").communicate(timeout=10)
        self.assertIn("MISMATCH", output)
        self.assertIn("OK", self.cluster.rank("solo", "sized", 1, 2, "once").communicate(timeout=10)[0])
        self.assertIn("OK", first.communicate(timeout=10)[0])

    def test_name_of_another_user(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to be another user")
        first = self.cluster.rank("solo", "owned", 0, 2, "once", "timeout_ms=4000")
        self.cluster.wait(lambda: any(comm["name"] == "owned" for comm in self.cluster.json("solo", "comms")["comms"]), "first rank")
        os.chmod(self.cluster.folder, 0o755)
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            result, client = self.calls.open()
            result, comm = self.calls.init(client, "owned", 0, 1) if result == 0 else (result, None)  # rank 0, but of a communicator of another size
            os._exit(0 if result == 0 and self.calls.comm_barrier(comm, None) == 0 else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertIn("OK", self.cluster.rank("solo", "owned", 1, 2, "once").communicate(timeout=10)[0])
        self.assertIn("OK", first.communicate(timeout=10)[0])

    def test_missing_rank_is_named(self):
        output, _ = self.cluster.rank("solo", "missing", 1, 4, "once", "timeout_ms=500").communicate(timeout=10)
        self.assertIn("TIMED_OUT", output)
        self.assertIn("0, 2-3", output)

    def test_second_daemon_on_the_socket(self):
        second = run(BUILD / "commd", "--standalone", "--socket", self.cluster.socket("solo"), check=False, timeout=10)
        self.assertNotEqual(second.returncode, 0)
        self.assertIn("another commd is running: stop it, or give another path (socket_path, --socket)", second.stderr)

    def refused_path(self, path, *texts, become=()):
        result = run(*become, BUILD / "commd", "--standalone", "--socket", path, check=False, timeout=10)
        self.assertNotEqual(result.returncode, 0)
        for text in (str(path), "(socket_path, --socket)", *texts):
            self.assertIn(text, result.stderr)

    def test_paths_without_a_place(self):
        folder = pathlib.Path(self.cluster.socket("solo")).parent / "folder"
        self.refused_path(folder / "commd.sock", f"make the folder {folder}, or give another path")
        self.refused_path(folder / ("x" * 120), "107 bytes: give a shorter one")
        nobody = os.geteuid() or 65534
        become = ["setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups"] if os.geteuid() == 0 else []
        folder.mkdir(mode=0o555)
        folder.parent.chmod(0o755)
        self.refused_path(folder / "commd.sock", f"let uid {nobody} write to the folder {folder}", become=become)


class Configuration(unittest.TestCase):
    def check(self, text, *expected):
        with Cluster(["a"], namespaces=False, start=False) as cluster:
            path = cluster.config_path("a")
            path.write_text(text)
            result = run(BUILD / "commd", "--check-config", "--config", path, check=False)
            self.assertEqual(result.returncode, 78, result.stdout)
            for each in expected:
                self.assertIn(each, result.stderr)

    def test_bad_files(self):
        self.check('node_name = "a";\nunknown = 3;\n', ".conf:2", "unknown", "unknown key")
        self.check('heartbeat_interval_ms = "soon";\n', ".conf:1", "heartbeat_interval_ms", "whole number")
        self.check('\nslice_bytes = 12;\n', ".conf:2", "slice_bytes", "4096")
        self.check('nodes = ( { name = "a b"; address = "x:1"; } );\n', ".conf:1", "a b", "letters")
        self.check('nodes = ( { name = "a"; address = "nowhere"; } );\n', "host:port")
        self.check("node_name = \n", ".conf:", "syntax error")
        self.check('\nadmin_group = "no-such-group";\n', ".conf:2", "admin_group", "no-such-group", "group on this node")
        self.check('socket_group = "no-such-group";\n', ".conf:1", "socket_group", "no-such-group")
        self.check('node_name = "a";\nnodes = ( { name = "b"; address = "h:1"; } );\n', '"a"', "not among them")

    def test_wrong_arguments(self):
        self.assertEqual(run(BUILD / "commd", "--nonsense", check=False).returncode, 2)
        self.assertEqual(run(BUILD / "commctl", "nonsense", check=False).returncode, 2)
        self.assertEqual(run(BUILD / "commctl", "--socket", "/nonexistent/socket", check=False).returncode, 3)


class Certificates(unittest.TestCase):
    def refused(self, prepare, *texts):
        """Node b starts with the files that `prepare` made. Node a never reports it as up, and says why."""
        with Cluster("ab", start=False) as cluster:
            prepare(cluster)
            cluster.start("a")
            cluster.start("b")

            def said():
                rows = cluster.commctl("a", "-f", "json", "nodes").stdout + cluster.log("a") + cluster.log("b")
                return all(text in rows for text in texts)

            cluster.wait(said, f"a refusal that says {texts}")
            states = {row["name"]: row["state"] for row in cluster.json("a", "nodes")["nodes"]}
            self.assertNotEqual(states["b"], "up")

    def test_other_authority(self):
        def prepare(cluster):
            run(BUILD / "commctl", "pki", "init", "--dir", cluster.folder / "other")
            run(BUILD / "commctl", "pki", "issue", "b", "--dir", cluster.folder / "other")
            cluster.write_config("b", certificate=cluster.folder / "other/b.crt", key=cluster.folder / "other/b.key", authority=cluster.folder / "other/ca.crt")
        self.refused(prepare, "certificate")

    def test_name_of_another_node(self):
        def prepare(cluster):
            run(BUILD / "commctl", "pki", "issue", "c", "--dir", cluster.folder / "pki")
            cluster.write_config("b", certificate=cluster.folder / "pki/c.crt", key=cluster.folder / "pki/c.key")
        with Cluster("ab", start=False) as cluster:
            prepare(cluster)
            process = cluster.start("b")
            self.assertEqual(process.wait(timeout=10), 78)
            cluster.wait_logged("b", "c.crt")

    def test_expired(self):
        with Cluster("ab", start=False) as cluster:
            os.remove(cluster.folder / "pki/b.crt")
            os.remove(cluster.folder / "pki/b.key")
            run(BUILD / "commctl", "pki", "issue", "b", "--days", "-1", "--dir", cluster.folder / "pki")
            process = cluster.start("b")
            self.assertEqual(process.wait(timeout=10), 78)
            cluster.wait_logged("b", "expired")


class Datagrams(unittest.TestCase):
    def test_garbage_on_the_port(self):
        with Cluster("ab", namespaces=False) as cluster:
            ranks = [cluster.rank(node, "work", rank, 2, "loop", "steps=4000") for rank, node in enumerate("ab")]
            host, port = cluster.addresses["a"].split(":")
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                for i in range(3000):
                    sender.sendto(os.urandom(i % 1400) if i % 3 else b"", (host, int(port)))
            for process in ranks:
                self.assertIn("OK", process.communicate(timeout=30)[0])
            self.assertGreater(cluster.json("a", "status")["dropped_datagrams"], 100)


SO_RCVBUFFORCE = 33  # on Linux root may exceed net.core.rmem_max with this option


class Capture(unittest.TestCase):
    def test_no_byte_pattern_of_the_payload(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to capture")
        with Cluster("ab", namespaces=False) as cluster:
            capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            with contextlib.suppress(PermissionError):
                capture.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            capture.bind(("lo", 0))
            capture.setblocking(False)
            port = int(cluster.addresses["a"].split(":")[1]), int(cluster.addresses["b"].split(":")[1])
            ranks = [cluster.rank(node, "work", rank, 2, "once", "count=200000", "pattern=attack at dawn! ") for rank, node in enumerate("ab")]
            seen = bytearray()

            def drain():
                with contextlib.suppress(BlockingIOError):
                    while True:
                        frame = capture.recv(70000)
                        if len(frame) > 42 and (struct.unpack("!HH", frame[34:38])[0] in port):
                            seen.extend(frame[42:])

            with capture:
                while any(process.poll() is None for process in ranks):
                    drain()
                    time.sleep(0.001)
                drain()
            for process in ranks:
                self.assertIn("OK", process.communicate(timeout=10)[0])
            self.assertGreater(len(seen), 800000, "the transfer itself was captured")
            self.assertNotIn(b"attack", seen)
            self.assertNotIn(b"dawn!", seen)


if __name__ == "__main__":
    unittest.main()
