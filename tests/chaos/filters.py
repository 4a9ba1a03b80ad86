"""Makes a running daemon's sockets drop packets: a share of all, or those of some senders. The kernel drops them before the daemon sees them.

The filter is classic BPF (SO_ATTACH_FILTER), set on the daemon's own UDP and TCP sockets. It needs root. Neither netem nor a relay is needed.
"""
import ctypes
import socket
import struct

from process_sockets import sockets

SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
LOAD_WORD, JUMP_EQUAL, JUMP_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
SOURCE_ADDRESS = 0x100000000 - 0x100000 + 12       # in the IP header: SKF_NET_OFF
RANDOM = 0x100000000 - 0x1000 + 56                 # SKF_AD_OFF + SKF_AD_RANDOM


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
    for each in sockets(pid, ("udp", "tcp")):
        if sources or percent:
            each.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
        else:
            try:
                each.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
            except FileNotFoundError:
                pass  # it had none
        count += 1
    return count
