"""Parts that all attacking clients share: the protocol without the library, and a count of what commd answers."""
import collections
import json
import os
import pathlib
import resource
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "system"))
from client_library import Library  # noqa: E402
from raw_client import VERSION, HostMemory, RawClient, event, fields, message, operation, parse  # noqa: E402,F401

SEND_TIMEOUT_S = 0.5
BUSY_TRIES = 500
ALL_REDUCE, BROADCAST, BARRIER, REDUCE, ALL_TO_ALL, SEND, RECEIVE = 0, 1, 2, 3, 8, 11, 12
U8 = 13


class Said:
    """Counts commd's answers by the name of their status, and keeps the first text of each."""

    def __init__(self):
        self.counts = collections.Counter()
        self.texts = {}

    def add(self, status, text):
        name = Library.NAMES[status] if status < len(Library.NAMES) else str(status)
        self.counts[name] += 1
        self.texts.setdefault(name, text)

    def print(self):
        print(json.dumps({"counts": self.counts, "texts": self.texts}), flush=True)


SAID = Said()


class Wire(RawClient):
    """A client that counts errors, also those that come just before commd closes the connection."""

    COMM_DESTROY = 5

    def __init__(self, path, greets=True):
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(10)
        self.last_id = 0
        self.others = []
        try:
            self.connection.connect(path)
            if greets:
                self.ask(self.HELLO, {1: VERSION, 2: "attack"})
        except OSError:
            self.connection.close()
            raise
        self.connection.settimeout(SEND_TIMEOUT_S)

    def event(self):
        event = super().event()
        reply = parse(event[1]) if 1 in event else {}
        if 2 in reply:
            error = parse(reply[2])
            SAID.add(error.get(1, 0), error.get(2, b"").decode(errors="replace"))
        _, status, text = event.get("completion", (0, 0, ""))
        if status:
            SAID.add(status, text)
        return event

    def read_what_comes(self, limit=100000):
        """Takes the answers that are there already. Returns how many."""
        timeout_s = self.connection.gettimeout()
        self.connection.setblocking(False)
        count = 0
        try:
            while count < limit:
                self.event()
                count += 1
        except (BlockingIOError, ConnectionError):
            pass
        self.connection.settimeout(timeout_s or SEND_TIMEOUT_S)
        return count

    def submit_many(self, submissions):
        """Sends the submissions in as few packets as possible."""
        packet, size = [], 0
        for submission in submissions:
            if size + len(submission) > 65536:
                self.post(*packet)
                packet, size = [], 0
            packet.append(submission)
            size += len(submission)
        self.post(*packet)


def tries(count, make):
    """Makes up to `count` objects. Stops when commd refuses one."""
    made = []
    for index in range(count):
        for _ in range(BUSY_TRIES):
            try:
                made.append(make(index))
                break
            except BlockingIOError:
                time.sleep(0.01)  # too many connections wait to be accepted; commd has refused nothing
            except OSError:
                return made
    return made


def become(user):
    """Raises this process's limit of descriptors as far as allowed, then becomes the user."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def until(end_s):
    return time.monotonic() < end_s
