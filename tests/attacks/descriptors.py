"""Attacks with descriptors. They offer every kind of descriptor as memory, leave descriptors in packets that nobody reads, and misuse the
descriptors that commd hands out."""
import array
import ctypes
import errno
import fcntl
import mmap
import os
import select
import signal
import socket
import time

from memory import ADD_SEALS, MIB, SEAL_SHRINK, alone, libc, sealed, touch
from sessions import Rings
from wire import ALL_REDUCE, SAID, U8, VERSION, Wire, message, operation, tries, until

GROW, WRITE, FUTURE_WRITE = 4, 8, 16  # seals
HUGE = 4  # MFD_HUGETLB
USERFAULTFD, IO_URING_SETUP, MEMFD_SECRET, PIDFD_OPEN, PERF_EVENT_OPEN = 323, 425, 447, 434, 298  # system call numbers of x86-64
RIGHTS = (socket.SOL_SOCKET, socket.SCM_RIGHTS)
SPARSE_BYTES = 1 << 44


def of_call(number, *arguments):
    return libc.syscall(number, *arguments)


def kinds(wire):
    """Returns one descriptor of each kind that this machine lets a user have."""
    epoll = select.epoll()
    epoll.register(wire.connection.fileno(), select.EPOLLIN)
    pair, pipe = socket.socketpair(), os.pipe()
    made = [epoll.fileno(), *(each.fileno() for each in pair), *pipe, os.eventfd(1), os.dup(wire.connection.fileno())]
    made += [of_call(USERFAULTFD, 1), of_call(MEMFD_SECRET, 0), of_call(PIDFD_OPEN, os.getpid(), 0), libc.inotify_init(), libc.timerfd_create(1, 0),
             of_call(IO_URING_SETUP, 4, ctypes.create_string_buffer(120)), of_call(PERF_EVENT_OPEN, ctypes.create_string_buffer(128), 0, -1, -1, 0)]
    for path in ("/proc/self/mem", "/proc/self/maps", "/proc/kmsg", "/dev/zero", "/dev/full", "/dev/tty", "/dev/fuse", "/dev/shm", "/", "/proc/self/ns/net",
                 "/proc/self/exe", "/sys/kernel/mm"):
        for flags in (os.O_RDWR, os.O_RDONLY, os.O_PATH):
            try:
                made.append(os.open(path, flags | os.O_NONBLOCK))
            except OSError:
                pass
    return [fd for fd in made if fd >= 0], (epoll, pair)


def strange(path, end_s, index):
    """Registers every kind of descriptor as memory. commd must not call anything on it that could block."""
    wire = alone(path, f"strange-{index}")
    fds, kept = kinds(wire)
    memory = 0
    while until(end_s):
        for fd in fds:
            memory += 1
            try:
                if wire.ask(wire.REGISTER, {1: memory, 2: 4096}, fd)[0] == 0:
                    SAID.counts["MEMORY THAT IS NONE"] += 1
            except OSError as refused:
                if refused.errno != errno.EINVAL:  # the kernel refuses to pass some kinds
                    raise
    del kept


def sealed_later(path, end_s, index):
    """Memory that grows, and gets seals against growth and writing, while commd uses it."""
    wire = alone(path, f"later-{index}")
    memory = 0
    while until(end_s):
        memory += 1
        fd = sealed(MIB)
        libc.fallocate(fd, 0, 0, MIB)
        wire.ask(wire.REGISTER, {1: memory, 2: MIB}, fd)
        wire.post(operation(1, memory, ALL_REDUCE, U8, MIB // 2, input=(memory, 0), output=(memory, MIB // 2)))
        os.ftruncate(fd, 64 * MIB)
        for seal in (FUTURE_WRITE, WRITE, GROW):
            try:
                fcntl.fcntl(fd, ADD_SEALS, seal)
            except OSError:
                pass
        wire.complete(memory)
        touch(wire, 1 << 30 | memory, memory, MIB)
        wire.ask(wire.DEREGISTER, {1: memory})
        os.close(fd)


def huge(path, end_s, index):
    """Memory of huge pages that has none of them, with sizes and places that are no multiples of them."""
    wire = alone(path, f"huge-{index}")
    fd = os.memfd_create("attack", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | HUGE)
    os.ftruncate(fd, 1 << 30)
    fcntl.fcntl(fd, ADD_SEALS, SEAL_SHRINK)
    memory = 0
    while until(end_s):
        memory += 1
        size = (1 << 30) - (memory * 4099 % (3 * MIB))
        wire.ask(wire.REGISTER, {1: memory, 2: size}, fd)
        wire.post(operation(1, memory, ALL_REDUCE, U8, 5 * MIB, input=(memory, memory * 8191), output=(memory, 512 * MIB)))
        wire.complete(memory)
        libc.fallocate(fd, 3, 0, 4 * MIB)
        wire.ask(wire.DEREGISTER, {1: memory})


def addresses(path, end_s, index):
    """Registers 16 TiB of memory without a page, again and again. Addresses cost the attacker nothing, but commd has only one process's addresses."""
    wire = alone(path, f"addresses-{index}")
    fd = sealed(SPARSE_BYTES)
    memory, held = 0, []
    while until(end_s):
        memory += 1
        if wire.ask(wire.REGISTER, {1: memory, 2: SPARSE_BYTES}, fd)[0] == 0:
            held.append(memory)
            touch(wire, memory, memory, 1 << 20)
        elif held:
            wire.ask(wire.DEREGISTER, {1: held.pop()})


def same(path, end_s, index):
    """Registers the same memory a thousand times, and uses all registrations at once."""
    wire = alone(path, f"same-{index}")
    fd = sealed(MIB)
    libc.fallocate(fd, 0, 0, MIB)
    count = 0
    while count < 1000 and wire.ask(wire.REGISTER, {1: count + 1, 2: MIB}, fd)[0] == 0:
        count += 1
    ticket = 0
    while until(end_s):
        for memory in range(1, min(count, 500) + 1):
            ticket += 1
            wire.post(operation(1, ticket, ALL_REDUCE, U8, MIB // 4, input=(memory, 0), output=(memory + count // 2, MIB // 8)))
        wire.read_what_comes()


def left_in_packets(path, end_s, index):
    """Processes that end while packets with descriptors are on their way. The packets carry descriptors of the process's own connection, and of
    sockets that hold such packets in turn."""
    while until(end_s):
        child = os.fork()
        if child == 0:
            wires = tries(8, lambda _: Wire(path))
            for number, wire in enumerate(wires):
                wire.connection.setblocking(False)
                inner = socket.socketpair()
                fds = array.array("i", [wires[number - 1].connection.fileno(), wire.connection.fileno(), inner[0].fileno()])
                try:
                    inner[0].sendmsg([b"x"], [(*RIGHTS, array.array("i", [inner[0].fileno(), inner[1].fileno(), wire.connection.fileno()]))])
                    for _ in range(64):
                        wire.connection.sendmsg([message([(1, 9), (6, message({1: 1, 2: 4096}))])], [(*RIGHTS, fds)])
                except OSError:
                    pass
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)


def bells(path, end_s, index):
    """Misuses the doorbell sockets: makes their buffers small and large, fills them, reads from the wrong side, sends descriptors, and shuts them
    down."""
    while until(end_s):
        for rings in tries(20, lambda _: Rings(path)):
            for fd in rings.fds[1:]:
                bell = socket.socket(fileno=os.dup(fd))
                for call in (lambda: bell.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1), lambda: bell.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB),
                             lambda: fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC), lambda: fcntl.fcntl(fd, fcntl.F_SETOWN, os.getppid()),
                             lambda: bell.recv(4096, socket.MSG_DONTWAIT), lambda: bell.send(bytes(4096), socket.MSG_DONTWAIT),
                             lambda: socket.send_fds(bell, [b"x"], [fd] * 8, socket.MSG_DONTWAIT), lambda: bell.shutdown(index % 3)):
                    try:
                        call()
                    except OSError:
                        pass
                bell.close()
            rings.close()


def handed_out(path, end_s, index):
    """Truncates, seals, punches and writes to what commd hands out: the memory of the rings and the heartbeat page."""
    while until(end_s):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(path)
            connection.send(message([(1, 1), (2, message([(1, VERSION), (2, "attack"), (4, "rings"), (4, "heartbeat")]))]))
            _, control, _, _ = connection.recvmsg(65536, socket.CMSG_SPACE(8 * 4))
        except OSError:
            continue
        fds = array.array("i")
        for _, _, data in control:
            fds.frombytes(data[:len(data) - len(data) % 4])
        for fd in fds:
            for call in (lambda: os.ftruncate(fd, 0), lambda: fcntl.fcntl(fd, ADD_SEALS, WRITE), lambda: os.pwrite(fd, b"\xff" * 64, 0),
                         lambda: signal.pidfd_send_signal(fd, signal.SIGKILL)):
                try:
                    call()
                except OSError:
                    pass
            libc.fallocate(fd, 3, 0, MIB)
        try:  # all clients map the same heartbeat page
            opened = os.open(f"/proc/self/fd/{fds[3]}", os.O_RDWR)
            memory = mmap.mmap(opened, 4096)
            memory[0:8] = b"\xff" * 8
            SAID.counts["THE HEARTBEAT CAN BE WRITTEN"] += 1
        except (OSError, IndexError):
            pass
        connection.close()
        for fd in fds:
            os.close(fd)
        time.sleep(0.002)
