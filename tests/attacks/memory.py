"""Attacks with registered memory: it has no pages, or loses them, or is large, or there is much of it."""
import ctypes
import fcntl
import mmap
import os
import signal
import time

from wire import ALL_REDUCE, U8, Wire, operation, tries, until
from operations import HOST

ADD_SEALS, SEAL_SHRINK = 1033, 2
PUNCH_HOLE, KEEP_SIZE = 2, 1
MIB = 1 << 20

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def sealed(size):
    fd = os.memfd_create("attack", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, ADD_SEALS, SEAL_SHRINK)
    return fd


def populate(fd, size):
    with mmap.mmap(fd, size) as memory:
        for at in range(0, size, 4096):
            memory[at] = 1


def alone(path, name):
    wire = Wire(path)
    status, text = wire.ask(wire.COMM_INIT, {1: 1, 2: name, 3: 0, 4: 1, 5: HOST, 6: 20000})
    if status:
        raise OSError(text)
    wire.connection.settimeout(10)
    return wire


def touch(wire, ticket, memory, size):
    """Submits an operation for which commd reads and writes all of the memory."""
    return wire.submit(operation(1, ticket, ALL_REDUCE, U8, size // 2, input=(memory, 0), output=(memory, size // 2)))


def sparse(path, end_s, index):
    """Memory whose pages nobody has touched yet. The process that touches them first is charged for them."""
    wire = alone(path, f"sparse-{index}")
    for memory in range(1, 9):
        fd = sealed(128 * MIB)
        if wire.ask(wire.REGISTER, {1: memory, 2: 128 * MIB}, fd)[0] == 0:
            touch(wire, memory, memory, 128 * MIB)
        os.close(fd)
    while until(end_s):
        time.sleep(0.05)


def punched(path, end_s, index):
    """Memory that has pages when it is registered. Then the attacker punches holes."""
    wire = alone(path, f"punched-{index}")
    for memory in range(1, 21):
        fd = sealed(40 * MIB)
        populate(fd, 40 * MIB)
        if wire.ask(wire.REGISTER, {1: memory, 2: 40 * MIB}, fd)[0] == 0:
            libc.fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 0, 40 * MIB)
            touch(wire, memory, memory, 40 * MIB)
            libc.fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 0, 40 * MIB) if memory % 2 else None
        os.close(fd)
    while until(end_s):
        time.sleep(0.05)


def punched_meanwhile(path, end_s, index):
    """Holes that come and go while operations run."""
    wire = alone(path, f"meanwhile-{index}")
    size = 16 * MIB
    fd = sealed(size)
    populate(fd, size)
    wire.ask(wire.REGISTER, {1: 1, 2: size}, fd)
    ticket = 0
    while until(end_s):
        for _ in range(4):
            ticket += 1
            wire.post(operation(1, ticket, ALL_REDUCE, U8, size // 2, input=(1, 0), output=(1, size // 2)))
        for at in range(0, size, MIB):
            libc.fallocate(fd, PUNCH_HOLE | KEEP_SIZE, at, MIB)
        wire.complete(ticket)


def punched_slowly(path, end_s, index):
    """A process with hardly any processor time punches the holes, because the other attackers use all of it. So it stays in the middle of a hole
    for long."""
    size = 256 * MIB
    if index > 0:
        while until(end_s):
            pass
        return
    wire = alone(path, f"slowly-{index}")
    fd = sealed(size)
    populate(fd, size)
    wire.ask(wire.REGISTER, {1: 1, 2: size}, fd)
    puncher = os.fork()
    if puncher == 0:
        os.nice(19)
        while until(end_s):
            libc.fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 0, size)
            libc.fallocate(fd, 0, 0, size)
        os._exit(0)
    ticket = 0
    while until(end_s):
        ticket += 1
        at = size // 2 + 4096 * ticket % (size // 2)
        wire.submit(operation(1, ticket, ALL_REDUCE, U8, 64, input=(1, at), output=(1, at)))
    os.kill(puncher, signal.SIGKILL)


def churn(path, end_s, index):
    """Registers 1 GiB, lets commd map and touch it, and deregisters it, again and again."""
    wire = alone(path, f"churn-{index}")
    size = 1024 * MIB
    fd = sealed(size)
    libc.fallocate(fd, 0, 0, size)
    memory = 0
    while until(end_s):
        memory += 1
        if wire.ask(wire.REGISTER, {1: memory, 2: size}, fd)[0] == 0:
            touch(wire, memory, memory, size)
            wire.ask(wire.DEREGISTER, {1: memory})


def many(path, end_s, index):
    """Registers as many small memories as one session may have, on connection after connection."""
    fd = sealed(4096)
    populate(fd, 4096)
    held = []
    while until(end_s):
        wire = tries(1, lambda _: Wire(path))
        for memory in range(1, 16385):
            if not wire or not until(end_s) or wire[0].ask(Wire.REGISTER, {1: memory, 2: 4096}, fd)[0]:
                break
        held += wire
        time.sleep(0.05)


def not_sealed(path, end_s, index):
    """Memory without a seal, which is truncated under commd, and a file that is no memory."""
    wire = alone(path, f"truncated-{index}")
    memory = 0
    while until(end_s):
        memory += 1
        fd = os.memfd_create("attack", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, MIB)
        if wire.ask(wire.REGISTER, {1: memory, 2: MIB}, fd)[0] == 0:
            os.ftruncate(fd, 0)
            touch(wire, memory, memory, MIB)
            wire.ask(wire.DEREGISTER, {1: memory})
        os.close(fd)
        with open("/dev/zero", "rb") as zero:
            wire.ask(wire.REGISTER, {1: memory, 2: MIB}, zero.fileno())
