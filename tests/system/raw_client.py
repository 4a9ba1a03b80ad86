"""Speaks commd's protocol for clients (proto/client.proto, proto/records.h) without the library, to send what no library would send."""
import array
import fcntl
import mmap
import os
import socket
import struct

WORD_BYTES = 8
VERSION = 2  # CLIENT_PROTOCOL_VERSION
RECORD_MARK, RECORD_VERSION = 7, 1
OPERATION, EVENT = 1, 2  # kinds of records
ENTRIES = {"input": 1, "output": 2, "input_layout": 3, "output_layout": 4, "residual": 5, "ended": 6, "waits": 7}


def number(value):
    out = b""
    while value > 0x7f:
        out += bytes([value & 0x7f | 0x80])
        value >>= 7
    return out + bytes([value])


def message(fields):
    """Encodes {number: value}, or [(number, value)] if a field is repeated. A value is a number, bytes, a text, a float, or fields of its own."""
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


def fields(data):
    """Yields the number and the value of each field, in order; values are numbers and bytes."""
    at = 0

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
            yield key >> 3, take()
            continue
        length = take() if key & 7 == 2 else 8
        yield key >> 3, data[at:at + length]
        at += length


def parse(data):
    """Returns {number: the last value of that field}."""
    return dict(fields(data))


def record(kind, head, entries):
    """Encodes a submission: its head, and {name: (memory, offset[, value])}. None: the submission lacks that entry. For `waits`, the value is a
    list of such tuples."""
    places = [(ENTRIES[name], place) for name, given in entries.items() for place in (given if name == "waits" else [given]) if place is not None]
    packed = b"".join(struct.pack("<B3xIQQ", what, *place, *[0] * (3 - len(place))) for what, place in sorted(places, key=lambda entry: entry[0]))
    return struct.pack("<4B", RECORD_MARK, RECORD_VERSION, kind, len(places)) + head + packed


def operation(handle, ticket, kind, dtype=0, count=0, reduce=0, root=0, factor=0.0, timeout_ms=0, peer=0, tag=0, compression=0, top_k=0, has_layouts=0,
              bucket_ops=1, bucket_index=0, **entries):
    terms = struct.pack("<6BHIHHQQ", kind, dtype, reduce, compression, has_layouts, 0, top_k, root, bucket_ops, bucket_index, count, 0)
    return record(OPERATION, struct.pack("<IQ", handle, ticket) + terms + struct.pack("<dQII", factor, timeout_ms, peer, tag), entries)


def event(handle, ended=None, waits=()):
    return record(EVENT, struct.pack("<I64x", handle), {"ended": ended, "waits": waits})


def completion(packet):
    """Returns (ticket, status, text)."""
    _, ticket, _, _, status, length = struct.unpack_from("<4xIQQIHH", packet)
    return ticket, status, packet[32:32 + length].decode(errors="replace")


class RawClient:
    HELLO, COMM_INIT, REGISTER, DEREGISTER, MAP = 2, 3, 6, 7, 18

    def __init__(self, path):
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(10)
        self.connection.connect(path)
        self.last_id = 0
        self.others = []  # events that came while it waited for an answer
        self.ask(self.HELLO, {1: VERSION, 2: "raw"})

    def close(self):
        self.connection.close()

    def tell(self, kind, body, fd=None):
        self.last_id += 1
        packet = message([(1, self.last_id), (kind, message(body))])
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd is not None else []
        self.connection.sendmsg([packet], control)
        return self.last_id

    def event(self):
        """Returns the fields of an Event; for a completion, {"completion": (ticket, status, text)}."""
        data = self.connection.recv(65536)
        if data == b"":
            raise ConnectionError("commd has closed the connection")
        return {"completion": completion(data)} if data[0] == RECORD_MARK else parse(data)

    def ask(self, kind, body, fd=None):
        """Sends a request, and returns (status, text) of the reply."""
        wanted = self.tell(kind, body, fd)
        while True:
            event = self.event()
            reply = parse(event[1]) if 1 in event else {}
            if reply.get(1) == wanted:
                error = parse(reply[2]) if 2 in reply else {}
                return error.get(1, 0), error.get(2, b"").decode()
            self.others.append(event)

    def complete(self, ticket):
        """Waits for the end of an operation, and returns its (status, text)."""
        while True:
            for event in self.others:
                if event.get("completion", (None,))[0] == ticket:
                    self.others.remove(event)
                    return event["completion"][1:]
            self.others.append(self.event())

    def post(self, *records):
        self.connection.send(b"".join(records))

    def submit(self, submission):
        self.post(submission)
        return self.complete(struct.unpack_from("<Q", submission, 8)[0])


class HostMemory:
    """Registers a sealed memfd, which is also mapped here, for words."""

    SEAL_SHRINK = 2

    def __init__(self, client, memory, size=4096):
        self.fd = os.memfd_create("raw", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(self.fd, bytes(size))  # the client has to provide the pages
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
