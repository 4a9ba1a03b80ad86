"""Makes a running daemon's UDP sockets drop datagrams: a share of all, or those of some senders. The kernel drops them before the daemon sees them.

The filter is classic BPF (SO_ATTACH_FILTER), set on the daemon's own sockets through pidfd_getfd. It needs root. Neither netem nor a relay is needed.
"""
import ctypes
import os
import re
import socket
import struct

SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
PIDFD_GETFD = 438
LOAD_WORD, JUMP_EQUAL, JUMP_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
SOURCE_ADDRESS = 0x100000000 - 0x100000 + 12       # in the IP header: SKF_NET_OFF
RANDOM = 0x100000000 - 0x1000 + 56                 # SKF_AD_OFF + SKF_AD_RANDOM

libc = ctypes.CDLL(None, use_errno=True)


def udp_sockets(pid):
    """Yields the UDP sockets of a process. Each is a descriptor of our own for the same socket."""
    inodes = set()
    for table in ("udp", "udp6"):
        with open(f"/proc/{pid}/net/{table}") as lines:
            inodes |= {line.split()[9] for line in list(lines)[1:]}
    pidfd = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                inode = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}"))
            except FileNotFoundError:
                continue
            if inode and inode.group(1) in inodes:
                fd = libc.syscall(PIDFD_GETFD, pidfd, int(name), 0)
                if fd >= 0:
                    with socket.socket(fileno=fd) as its:
                        yield its
    finally:
        os.close(pidfd)


def program(sources, percent):
    """Returns the instructions: drop what comes from `sources` (IPv4 addresses), and `percent` of the rest."""
    steps = []
    if sources:
        steps.append((LOAD_WORD, 0, 0, SOURCE_ADDRESS))
        for source in sources:
            steps += [(JUMP_EQUAL, 0, 1, struct.unpack(">I", socket.inet_aton(source))[0]), (RETURN, 0, 0, 0)]
    if percent:
        steps += [(LOAD_WORD, 0, 0, RANDOM), (JUMP_AT_LEAST, 1, 0, int(percent / 100 * 0xffffffff)), (RETURN, 0, 0, 0)]
    return steps + [(RETURN, 0, 0, 0xffffffff)]


def drop(pid, sources=(), percent=0):
    """Replaces what the sockets of this process drop. Without sources and percent, they drop nothing. Returns the number of sockets."""
    steps = program(sorted(sources), percent)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    count = 0
    for each in udp_sockets(pid):
        if sources or percent:
            each.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
        else:
            try:
                each.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
            except FileNotFoundError:
                pass  # it had none
        count += 1
    return count
