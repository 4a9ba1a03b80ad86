"""The sockets of a running process, as descriptors of our own for the same sockets (pidfd_getfd). It needs root for another process."""
import ctypes
import os
import re
import socket

PIDFD_GETFD = 438
ESTABLISHED = "01"

libc = ctypes.CDLL(None, use_errno=True)


def inodes(pid, protocols, state=None):
    """Returns the inodes of the sockets in the process's network namespace. protocols: some of "udp", "tcp". state: as in /proc/net/tcp."""
    found = set()
    for protocol in protocols:
        for table in (protocol, protocol + "6"):
            with open(f"/proc/{pid}/net/{table}") as lines:
                found |= {fields[9] for fields in (line.split() for line in list(lines)[1:]) if state in (None, fields[3])}
    return found


def descriptors(pid, inodes):
    """Returns the numbers of the process's descriptors that are sockets with one of these inodes."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            inode = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue
        if inode and inode.group(1) in inodes:
            found.append(int(name))
    return found


def sockets(pid, protocols, state=None):
    """Yields the sockets. Each is closed when the next one is asked for."""
    pidfd = os.pidfd_open(pid)
    try:
        for number in descriptors(pid, inodes(pid, protocols, state)):
            fd = libc.syscall(PIDFD_GETFD, pidfd, number, 0)
            if fd >= 0:
                with socket.socket(fileno=fd) as its:
                    yield its
    finally:
        os.close(pidfd)
