"""Attacks with sessions: connections, greetings, packets, and answers that nobody reads."""
import array
import os
import random
import signal
import socket
import struct
import time

from wire import ALL_REDUCE, BARRIER, U8, VERSION, Wire, message, operation, tries, until

SESSIONS = 5000
QUERIES = {9: {}, 10: {}, 11: {}, 12: {}, 13: {}, 15: {}, 17: {1: ""}, 20: {}}


def without_hello(path, end_s, index):
    """Opens as many connections as it can, and never sends anything."""
    held = []
    while until(end_s):
        held += tries(SESSIONS - len(held), lambda _: Wire(path, greets=False))
        for wire in held:
            wire.read_what_comes(4)
        time.sleep(0.1)


def with_hello(path, end_s, index):
    """Opens as many connections as it can, and sends a Hello on each."""
    held = []
    while until(end_s):
        held += tries(SESSIONS - len(held), lambda _: Wire(path))
        time.sleep(0.1)


def unread(path, end_s, index):
    """Sends packets on 300 connections without reading answers: packets of 900 submits, then requests with long answers."""
    held = tries(300, lambda _: Wire(path))
    packet = operation(0, 0, BARRIER) * 900
    for wire in held:
        wire.connection.setblocking(False)
        for each in (packet, packet, *(message([(1, 2), (kind, b"")]) for kind in (15, 17, 9, 15, 17))):
            try:
                wire.connection.send(each)
            except OSError:
                break
    while until(end_s):
        time.sleep(0.05)
    for wire in held:
        wire.read_what_comes(100)


def queries(path, end_s, index):
    """Sends the requests of commctl, without a pause."""
    wire = Wire(path)
    while until(end_s):
        for kind, body in QUERIES.items():
            wire.ask(kind, body)


def churn(path, end_s, index):
    """Closes connections at any point of their first messages."""
    lot = random.Random(index)
    hello = message([(1, 1), (2, message({1: VERSION, 2: "attack"}))])
    while until(end_s):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(1)
        try:
            connection.connect(path)
            if lot.random() < 0.7:
                connection.send(hello)
            if lot.random() < 0.5:
                connection.send(message([(1, 2), (3, message({1: 1, 2: f"churn-{index}", 3: 0, 4: 2}))]))
            if lot.random() < 0.5:
                connection.recv(65536)
        except OSError:
            pass
        connection.close()


def garbage(path, end_s, index):
    """Sends packets of random bytes, and requests and submits with wrong fields."""
    lot = random.Random(index)
    while until(end_s):
        try:
            wire = Wire(path)
            for _ in range(20):
                kind = lot.randrange(2, 25)
                body = bytes(lot.randrange(256) for _ in range(lot.randrange(40)))
                wrong = bytearray(operation(1, 1, ALL_REDUCE, U8, 64, input=(1, 0), output=(1, 64), waits=[(1, 0, 1)]))
                wrong[lot.randrange(len(wrong))] = lot.randrange(256)
                wire.connection.send(lot.choice((body, bytes(wrong), wrong[:lot.randrange(1, len(wrong))], *[message([(1, 5), (kind, body)])] * 7)))
            while wire.event():
                pass
        except OSError:
            pass


def descriptors(path, end_s, index):
    """Sends as many descriptors as a packet can carry, with every packet."""
    held = os.open("/dev/null", os.O_RDONLY)
    while until(end_s):
        try:
            wire = Wire(path)
            for _ in range(50):
                wire.connection.sendmsg([message([(1, 9), (6, message({1: 1, 2: 4096}))])],
                                        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [held] * 250))])
            while wire.event():
                pass
        except OSError:
            pass


class Rings:
    """A session with rings, in whose memory the attacker may write anything."""

    HEADER_BYTES, RING_BYTES = 192, 65536

    def __init__(self, path):
        import mmap
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(1)
        self.connection.connect(path)
        self.connection.send(message([(1, 1), (2, message([(1, VERSION), (2, "attack"), (4, "rings")]))]))
        _, control, _, _ = self.connection.recvmsg(65536, socket.CMSG_SPACE(3 * 4))
        self.fds = array.array("i")
        for _, _, data in control:
            self.fds.frombytes(data)
        if len(self.fds) != 3:
            raise OSError("no rings")
        self.memory = mmap.mmap(self.fds[0], 2 * (self.HEADER_BYTES + self.RING_BYTES))

    def ring(self):
        os.write(self.fds[1], b"\1")

    def close(self):
        self.memory.close()
        self.connection.close()
        for fd in self.fds:
            os.close(fd)


def rings_scribbled(path, end_s, index):
    """Writes random values anywhere in the rings, all the time."""
    lot = random.Random(index)
    while until(end_s):
        try:
            rings = Rings(path)
        except OSError:
            continue
        os.set_blocking(rings.fds[1], False)
        for _ in range(200):
            at = lot.choice((0, 64, 128, 132, 192, 65728, 65792)) + 4 * lot.randrange(4)
            rings.memory[at:at + 4] = struct.pack("<I", lot.choice((0, 1, 8, 65536, 0xFFFFFFFF, lot.getrandbits(32))))
            try:
                rings.ring()
            except OSError:
                break
        rings.close()


def doorbells(path, end_s, index):
    """Rings the doorbells, though there is nothing to take."""
    held = tries(20, lambda _: Rings(path))
    for rings in held:
        os.set_blocking(rings.fds[1], False)
    while until(end_s):
        for rings in held:
            try:
                rings.ring()
            except OSError:
                pass


def rings_full_of_requests(path, end_s, index):
    """Keeps rings full: asks for the status again and again, and takes no answer."""
    held = tries(20, lambda _: Rings(path))
    entry = struct.pack("<I", 4) + b"\x08\x07\x4a\x00"
    tails = [0] * len(held)
    while until(end_s):
        for number, rings in enumerate(held):
            for _ in range(50):
                at = 192 + tails[number] % 65536
                rings.memory[at:at + 8] = entry
                tails[number] += 8
            head = struct.unpack("<I", rings.memory[64:68])[0]
            if tails[number] - head > 60000:
                tails[number] = head + 0
                continue
            rings.memory[0:4] = struct.pack("<I", tails[number] & 0xFFFFFFFF)
            try:
                os.set_blocking(rings.fds[1], False)
                rings.ring()
            except OSError:
                pass


def half_an_entry(path, end_s, index):
    """Stops clients in the middle of a ring entry. They announce more than they wrote, or only a length, or ring before they publish anything."""
    turn = 0
    while until(end_s):
        children = []
        for _ in range(6):
            turn += 1
            child = os.fork()
            if child == 0:
                try:
                    rings = Rings(path)
                    rings.memory[192:198] = struct.pack("<I", 60000 if turn % 3 == 0 else 4) + b"\x08\x07"
                    rings.memory[0:4] = struct.pack("<I", (8, 4, 0)[turn % 3])
                    rings.ring()
                    os.kill(os.getpid(), signal.SIGSTOP)
                finally:
                    os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, os.WUNTRACED)
        time.sleep(0.2)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
