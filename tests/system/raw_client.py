"""commd's protocol for clients by hand (proto/client.proto): for what no library would send."""
import array
import fcntl
import mmap
import os
import socket
import struct

WORD_BYTES = 8


def number(value):
    out = b""
    while value > 0x7f:
        out += bytes([value & 0x7f | 0x80])
        value >>= 7
    return out + bytes([value])


def message(fields):
    """{number: value}, or [(number, value)] where a field is repeated; a value is a number, bytes, text, a float or fields of its own."""
    out = b""
    for place, value in fields.items() if isinstance(fields, dict) else fields:
        if isinstance(value, float):
            out += number(place << 3 | 1) + struct.pack("<d", value)
        elif isinstance(value, int):
            out += number(place << 3) + number(value)
        else:
            data = value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else message(value)
            out += number(place << 3 | 2) + number(len(data)) + data
    return out


def parse(data):
    """{number: the last value of that field}, of numbers and bytes."""
    fields, at = {}, 0

    def take():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7f) << shift
            shift += 7
            if byte < 0x80:
                return value
    while at < len(data):
        key = take()
        if key & 7 == 0:
            fields[key >> 3] = take()
            continue
        length = take() if key & 7 == 2 else 8
        fields[key >> 3] = data[at:at + length]
        at += length
    return fields


class RawClient:
    HELLO, COMM_INIT, REGISTER, DEREGISTER, SUBMIT, MAP, RECORD = 2, 3, 6, 7, 8, 18, 19

    def __init__(self, path):
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(10)
        self.connection.connect(path)
        self.last_id = 0
        self.others = []  # what came while an answer was waited for
        self.ask(self.HELLO, {1: 1, 2: "raw"})

    def close(self):
        self.connection.close()

    def tell(self, kind, body, fd=None):
        self.last_id += 1
        packet = message([(1, self.last_id), (kind, message(body))])
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd is not None else []
        self.connection.sendmsg([packet], control)
        return self.last_id

    def event(self):
        data = self.connection.recv(65536)
        if data == b"":
            raise ConnectionError("commd has closed the connection")
        return parse(data)

    def ask(self, kind, body, fd=None):
        """(status, text) of the reply."""
        wanted = self.tell(kind, body, fd)
        while True:
            event = self.event()
            reply = parse(event[1]) if 1 in event else {}
            if reply.get(1) == wanted:
                error = parse(reply[2]) if 2 in reply else {}
                return error.get(1, 0), error.get(2, b"").decode()
            self.others.append(event)

    def complete(self, ticket):
        """(status, text) of an operation."""
        while True:
            for event in self.others:
                complete = parse(event[2]) if 2 in event else {}
                if complete.get(2) == ticket:
                    self.others.remove(event)
                    return complete.get(3, 0), complete.get(4, b"").decode()
            self.others.append(self.event())

    def submit(self, body):
        self.tell(self.SUBMIT, body)
        return self.complete(body[2] if isinstance(body, dict) else dict(body)[2])


class HostMemory:
    """A sealed memfd that is registered, and mapped here: words of it."""

    SEAL_SHRINK = 2

    def __init__(self, client, memory, size=4096):
        self.fd = os.memfd_create("raw", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(self.fd, bytes(size))  # the pages are the client's to make
        fcntl.fcntl(self.fd, 1033, self.SEAL_SHRINK)  # F_ADD_SEALS
        self.bytes = mmap.mmap(self.fd, size)
        status, text = client.ask(client.REGISTER, {1: memory, 2: size}, self.fd)
        assert status == 0, text

    def word(self, offset):
        return struct.unpack_from("<Q", self.bytes, offset)[0]

    def set_word(self, offset, value):
        struct.pack_into("<Q", self.bytes, offset, value)

    def close(self):
        self.bytes.close()
        os.close(self.fd)
