#!/usr/bin/env python3
"""The rings in shared memory, and the socket without rings. Both give the same results. A client that abuses its rings harms only itself."""
import array
import mmap
import os
import socket
import struct
import subprocess
import time
import unittest

import cluster
from cluster import BUILD, Cluster, cpu_s
from failure_case import read_until

WAITS = True
RING_BYTES = 65536
HEADER_BYTES = 192  # the header of struct ring_shared: tail, head, and who sleeps, each on a cache line of its own
HELLO = b"\x08\x01\x12\x0e\x08\x02\x12\x03bad\x22\x05rings"  # Request 1: Hello {2, "bad", features: "rings"}


class RawClient:
    """A client without the library: it has the memory of the rings, commd's doorbell and its own."""

    def __init__(self, path):
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(5)
        self.connection.connect(path)
        self.connection.send(HELLO)
        _, control, _, _ = self.connection.recvmsg(65536, socket.CMSG_SPACE(3 * 4))
        fds = array.array("i")
        for _, _, data in control:
            fds.frombytes(data)
        self.memory_fd, self.bell_fd, self.own_bell_fd = fds
        self.memory = mmap.mmap(self.memory_fd, 2 * (HEADER_BYTES + RING_BYTES))
        self.tail = 0

    def put(self, packet, length=None, rings=True):
        entry = struct.pack("<I", len(packet) if length is None else length) + packet
        entry += bytes(-len(entry) % 8)
        for place, byte in enumerate(entry):
            self.memory[HEADER_BYTES + (self.tail + place) % RING_BYTES] = byte
        self.set_tail(self.tail + len(entry), rings)

    def set_tail(self, tail, rings=True):
        self.tail = tail
        self.memory[0:4] = struct.pack("<I", tail & 0xFFFFFFFF)
        if rings:
            self.ring()

    def ring(self):
        try:
            os.write(self.bell_fd, b"x")
        except BlockingIOError:
            pass  # the bell is full, and wakes commd all the same

    def answer(self):
        """Returns the first packet in the ring from commd."""
        ring = HEADER_BYTES + RING_BYTES
        for _ in range(500):
            if self.memory[ring:ring + 4] != bytes(4):
                length = struct.unpack("<I", self.memory[ring + HEADER_BYTES:ring + HEADER_BYTES + 4])[0]
                return bytes(self.memory[ring + HEADER_BYTES + 4:ring + HEADER_BYTES + 4 + length])
            time.sleep(0.01)
        return b""

    def is_ended(self):
        try:
            return self.connection.recv(65536) == b""
        except ConnectionResetError:
            return True

    def close(self):
        self.memory.close()
        self.connection.close()
        for fd in (self.memory_fd, self.bell_fd, self.own_bell_fd):
            os.close(fd)


class Rings(cluster.StandaloneTest):
    def setUp(self):
        self.client = RawClient(self.cluster.socket("solo"))

    def tearDown(self):
        self.client.close()
        checked = subprocess.run([BUILD / "commctl", "--socket", self.cluster.socket("solo"), "bench", "--max-bytes", "4k", "--step-factor", "8",
                                  "--iterations", "5"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        self.assertEqual(checked.returncode, 0, f"commd still works: {checked.stderr}")

    def test_a_request_and_its_answer(self):
        self.client.put(b"\x08\x07\x4a\x00")  # Request 7: StatusQuery
        self.assertIn(b"solo", self.client.answer())

    def test_a_request_before_the_end(self):
        """commd carries out the requests that a client sent before its connection ended, as on a socket."""
        self.client.put(b"\x08\x07\x4a\x00", rings=False)
        self.client.connection.shutdown(socket.SHUT_RDWR)
        self.assertIn(b"solo", self.client.answer())

    def test_the_memory_cannot_be_taken_away(self):
        with self.assertRaises(OSError):
            os.ftruncate(self.client.memory_fd, 4096)

    def test_a_packet_that_is_no_request(self):
        self.client.put(b"\xff\xff\xff\xff garbage")
        self.assertIn(b"no request", self.client.answer())
        self.assertTrue(self.client.is_ended())

    def test_a_length_that_cannot_be(self):
        self.client.put(b"x" * 8, length=1 << 30)
        self.assertIn(b"invalid data", self.client.answer())
        self.assertTrue(self.client.is_ended())

    def test_a_tail_that_cannot_be(self):
        self.client.set_tail(RING_BYTES + 8)
        self.assertTrue(self.client.is_ended())

    def test_a_head_that_cannot_be(self):
        ring = HEADER_BYTES + RING_BYTES
        self.client.memory[ring + 64:ring + 68] = struct.pack("<I", 12345 * 8)
        self.client.put(b"\x08\x07\x4a\x00")
        self.assertTrue(self.client.is_ended())

    def test_answers_that_nobody_takes(self):
        """The requests fill the client's ring and then commd's queue. After that commd reads no more, and does not spin."""
        for _ in range(3000):
            used = self.client.tail - struct.unpack("<I", self.client.memory[64:68])[0]
            if used + 8 > RING_BYTES:
                break
            self.client.put(b"\x08\x07\x4a\x00")
        time.sleep(0.3)
        pid = self.cluster.daemons["solo"].pid
        before = cpu_s(pid)
        time.sleep(1)
        self.assertLess(cpu_s(pid) - before, 0.2)
        self.client.connection.shutdown(socket.SHUT_RDWR)
        self.cluster.wait(lambda: "bad" not in self.cluster.commctl("solo", "clients").stdout, "its end is seen though nothing of it is read", timeout_s=5)

    def test_bells_that_block(self):
        """A client may change the flags of its descriptors. That does not change commd's own ends."""
        for fd in (self.client.bell_fd, self.client.own_bell_fd):
            os.set_blocking(fd, True)
        for _ in range(300):
            self.client.memory[HEADER_BYTES + RING_BYTES + 128:HEADER_BYTES + RING_BYTES + 132] = struct.pack("<I", 1)  # the flag "I sleep"
            self.client.put(b"\x08\x07\x4a\x00")
        answer = subprocess.run([BUILD / "commctl", "--socket", self.cluster.socket("solo"), "status"], stdout=subprocess.DEVNULL, timeout=10, check=False)
        self.assertEqual(answer.returncode, 0)

    def test_scribbling_all_over(self):
        for number in range(0, len(self.client.memory), 4):
            self.client.memory[number:number + 4] = struct.pack("<I", number * 2654435761 & 0xFFFFFFFF)
        self.client.set_tail(4096)
        self.assertTrue(self.client.is_ended())

    def test_bells_alone_cost_nothing_lasting(self):
        for _ in range(1000):
            self.client.ring()
        time.sleep(0.2)
        pid = self.cluster.daemons["solo"].pid
        before = cpu_s(pid)
        time.sleep(1)
        self.assertLess(cpu_s(pid) - before, 0.1)


class Programs(unittest.TestCase):
    def test_who_has_rings(self):
        """test_surface.py and test_matrix.py check programs that work without rings."""
        for wanted, count in (("1", 1), ("0", 0)):
            with Cluster(["a"], namespaces=False, client_environment={"COMMD_RINGS": wanted}) as cluster:
                rank = cluster.rank("a", "rings", 0, 1, "idle", "seconds=30")
                read_until(rank, "FORMED")
                with open(f"/proc/{cluster.daemons['a'].pid}/maps", encoding="ascii") as maps:
                    self.assertEqual(sum("commd-rings" in line for line in maps), count)
                rank.kill()
                rank.communicate()

    def test_killed_while_clients_wait(self):
        """Clients that wait in their rings notice at once that commd is gone."""
        with Cluster(["a"], namespaces=False) as cluster:
            rank = cluster.rank("a", "killed", 0, 2, "once")
            other = cluster.rank("a", "killed", 1, 2, "idle", "seconds=30")
            read_until(rank, "FORMED")
            time.sleep(0.5)
            cluster.daemons["a"].kill()
            began = time.monotonic()
            output = rank.communicate(timeout=10)[0]
            self.assertLess(time.monotonic() - began, 3)
            self.assertIn("DAEMON_LOST", output)
            other.kill()
            other.communicate()


if __name__ == "__main__":
    unittest.main()
