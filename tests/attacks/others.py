"""Attacks on what belongs to other users: their names, their rows in lists, and their share of resources when one user takes all that it may have."""
import ctypes
import os
import select
import signal
import socket
import struct
import time

import operations
import sessions
from wire import BARRIER, SAID, Wire, fields, operation, parse, tries, until
from operations import HOST


PIDFD_GETFD, PTRACE_ATTACH, PR_SET_DUMPABLE = 438, 16, 4
TOLD_S = 8  # added to the attack's time; if commd does not notice the partner's death, the rank gets no answer for 25 s and more


def squatting(path, end_s, index):
    """Holds the newcomer's name and asks for it, without end."""
    wire = Wire(path)
    wire.tell(wire.COMM_INIT, {1: 1, 2: "newcomer", 3: 0, 4: 2, 5: HOST, 6: 60000})
    handle = 1
    while until(end_s):
        handle += 1
        wire.ask(wire.COMM_INIT, {1: handle, 2: "newcomer", 3: 0, 4: 1, 5: HOST, 6: 1000})
        wire.ask(wire.COMM_DESTROY, {1: handle})
        time.sleep(0.001)


def listing(path, end_s, index):
    """Asks what commctl asks, as a user without rights. No answer may have another user's row, or the path of a key."""
    wire = Wire(path)
    # kind of the query: (number of the reply, number of the owner's uid in a row)
    lists = {12: (10, 3), 11: (9, 4), 13: (11, 2)}
    wire.connection.settimeout(10)
    while until(end_s):
        for kind, (reply, uid) in lists.items():
            wire.tell(kind, {})
            event = wire.event()
            body = parse(event[1]).get(reply, b"") if 1 in event else b""
            for number, row in fields(body):
                if number == 1 and parse(row).get(uid, 0) != os.getuid():
                    SAID.counts["A ROW OF ANOTHER USER"] += 1
        wire.tell(15, {})
        if b".key" in parse(wire.event()[1]).get(13, b""):
            SAID.counts["THE PATH OF A KEY"] += 1
        time.sleep(0.02)


def forked(path, end_s, index):
    """Kills a rank while its child still holds the connection. The other rank must be told at once."""
    first = Wire(path)
    first.tell(first.COMM_INIT, {1: 1, 2: f"forked-{index}", 3: 0, 4: 2, 5: HOST, 6: 20000})
    holds, held = os.pipe()  # the child ends when this process does
    rank = os.fork()
    if rank == 0:
        os.close(held)
        second = Wire(path)
        operations.init(second, 1, f"forked-{index}", 1, 2)
        if os.fork() == 0:
            select.select([holds], [], [], max(0, end_s + TOLD_S - time.monotonic()))
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(rank, 0)
    first.post(operation(1, 1, BARRIER))
    while until(end_s) or (until(end_s + TOLD_S) and not SAID.counts):
        first.read_what_comes()
        time.sleep(0.01)


def stolen(path, end_s, index):
    """Another process of the same user takes a rank's connection (pidfd_getfd), stops the rank (ptrace), and sends packets. It must get no more
    rights than that user has."""
    libc = ctypes.CDLL(None, use_errno=True)
    turn = 0
    while until(end_s):
        turn += 1
        ready, told = os.pipe()
        rank = os.fork()
        if rank == 0:
            libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
            wire = Wire(path)
            operations.init(wire, 1, f"stolen-{index}-{turn}")
            os.write(told, struct.pack("<i", wire.connection.fileno()))
            while True:
                wire.read_what_comes()
                time.sleep(0.001)
        descriptor, = struct.unpack("<i", os.read(ready, 4))
        taken = libc.syscall(PIDFD_GETFD, os.pidfd_open(rank), descriptor, 0)
        if taken < 0 or libc.ptrace(PTRACE_ATTACH, rank, None, None) != 0:
            raise OSError(ctypes.get_errno(), "a child cannot be traced")
        os.waitpid(rank, 0)
        thief = Wire.__new__(Wire)
        thief.connection, thief.last_id, thief.others = socket.socket(fileno=taken), 1 << 20, []
        thief.connection.settimeout(5)
        thief.submit_many(operation(1, ticket, BARRIER) for ticket in range(1, 100))
        thief.connection.send(b"\xff" * 100)
        try:
            while True:
                thief.event()
        except OSError:
            pass
        thief.connection.close()
        os.kill(rank, signal.SIGKILL)
        os.waitpid(rank, 0)
        for fd in (ready, told):
            os.close(fd)


def everything(path, end_s, index):
    """Lets one user reach many of its limits at once: lists of submits, waiting receives, communicators. Each process has its part."""
    parts = [operations.lists, operations.lists, operations.lists, operations.lists, operations.waiting_receives, operations.waiting_receives, operations.forms,
             operations.forms]
    parts[index % len(parts)](path, end_s, index)


def split_storm(path, end_s, index):
    """Forms and leaves communicators of one rank on many connections at once. Each has a new name."""
    held = tries(20, lambda _: Wire(path))
    number = 0
    while until(end_s):
        for wire in held:
            number += 1
            wire.tell(wire.COMM_INIT, {1: 1, 2: f"storm-{index}-{number}", 3: 0, 4: 1, 5: HOST, 6: 20000})
        for wire in held:
            wire.connection.settimeout(10)
            wire.event()
            wire.tell(wire.COMM_DESTROY, {1: 1})
        for wire in held:
            wire.event()


def with_rings(path, end_s, index):
    """Opens as many sessions with rings as one user may have. They use memory, sockets and descriptors of commd."""
    held = []
    while until(end_s):
        held += tries(3000 - len(held), lambda _: sessions.Rings(path))
        tries(5, lambda _: Wire(path))
        time.sleep(0.1)


def commctl_storm(path, end_s, index):
    """Does what many commctl processes do: connects, asks, leaves."""
    while until(end_s):
        wires = tries(100, lambda _: Wire(path))
        for wire in wires:
            wire.tell(9, {})
            wire.tell(11, {})
        for wire in wires:
            wire.connection.close()
