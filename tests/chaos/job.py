"""Jobs: the ranks of chaos_rank, and what they say."""
import mmap
import os
import re
import signal
import struct
import subprocess
import time

from cluster import BUILD, Library

RANK = BUILD / "tests/chaos/chaos_rank"
STATUS_BYTES = 64
# How long a call may take, at most. Operations have a deadline of 20 s, and end within it.
BOUNDS_S = {"comm_shrink": 55, "comm_init": 70, "comm_client_open": 75, "comm_lost": 20, "comm_destroy": 15, "comm_client_close": 30}
OPERATION_BOUND_S = 30


class Event(dict):
    """One line of a rank. Its numbers are ints, and times are seconds."""

    __getattr__ = dict.__getitem__


def parse(line):
    kind, _, rest = line.partition(" ")
    head, text_is_there, text = rest.partition("text=")
    event = Event(kind=kind, text=text if text_is_there else "")
    for key, value in re.findall(r"(\w+)=(\S*)", head):
        event[key] = int(value) / 1e9 if key in ("t", "at", "began") else int(value) if value.isdigit() else value
    if "lost" in event:
        event["lost"] = tuple(int(each) for each in str(event["lost"]).split(",") if each)
    if "result" in event:
        event["result"] = Library.NAMES[event["result"]]
    return event


class Rank:
    def __init__(self, world, job, rank, node, arguments, attempt=0):
        self.job, self.rank, self.node = job, rank, node
        folder = world.folder / "ranks"
        folder.mkdir(exist_ok=True)
        self.output = folder / f"{job.title}-{rank}{'+' * attempt}.out"
        status = folder / f"{job.title}-{rank}{'+' * attempt}.status"
        status.write_bytes(bytes(STATUS_BYTES))
        with open(status, "r+b") as file:
            self.status = mmap.mmap(file.fileno(), STATUS_BYTES)
        self.events, self.read = [], 0
        self.stopped, self.killed, self.held_s = False, False, 0.0
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen([str(each) for each in [RANK, job.title, rank, len(job.layout), *arguments, status]], stdin=subprocess.DEVNULL,
                                            stdout=output, stderr=output, env=world.environment(node))
        world.processes.append(self.process)

    @property
    def alive(self):
        return self.process.poll() is None

    def signal(self, number):
        if self.alive:
            self.process.send_signal(number)

    def take_events(self):
        """Returns the events since the last call."""
        with open(self.output, "rb") as output:
            output.seek(self.read)
            data = output.read()
        whole = data[:data.rfind(b"\n") + 1]
        self.read += len(whole)
        new = [parse(line) for line in whole.decode(errors="replace").splitlines()]
        self.events += new
        return new

    def last(self, *kinds):
        return next((event for event in reversed(self.events) if event.kind in kinds), None)

    def call(self):
        """Returns the call that is under way, and since when it is, in seconds; or None."""
        began, _, name = struct.unpack("QQ48s", self.status[:STATUS_BYTES])
        return (name.split(b"\0")[0].decode(), time.monotonic() - began / 1e9) if began else None

    def calls(self):
        return struct.unpack("QQ", self.status[:16])[1]


class Job:
    """A job's name and shape stay; it may be started any number of times, under new names."""

    def __init__(self, world, name, layout, seed, most_bytes, pause_us):
        self.world, self.name, self.layout, self.seed = world, name, layout, seed
        self.arguments = [most_bytes, pause_us]
        self.starts, self.ranks, self.ending, self.disturbed = 0, [], False, False
        self.over = []  # the ranks of earlier starts

    def start(self, absent=None):
        """absent: a node whose ranks do not come; then the job cannot form."""
        self.absent = absent
        self.over += self.ranks
        self.starts += 1
        self.title = f"{self.name}.{self.starts}"
        self.ending = self.disturbed = False
        self.ranks = [self.new_rank(rank) for rank, node in enumerate(self.layout) if node != absent]

    def new_rank(self, rank, attempt=0):
        return Rank(self.world, self, rank, self.layout[rank], [self.seed * 1000 + self.starts, *self.arguments], attempt)

    def complete(self):
        """Starts the ranks that are not there."""
        for rank in self.ranks:
            if not rank.alive:
                self.over.append(rank)
        self.ranks = self.living()
        there = {rank.rank for rank in self.ranks}
        self.ranks += [self.new_rank(rank, 1) for rank in range(len(self.layout)) if rank not in there]

    def end(self):
        """Asks all ranks to end in order."""
        self.ending = True
        for rank in self.ranks:
            rank.signal(signal.SIGUSR1)

    def living(self):
        return [rank for rank in self.ranks if rank.alive]

    def size(self):
        """How many ranks the living ranks' communicator has; 0 if they do not agree, or none lives."""
        sizes = {event.size if event else 0 for event in (rank.last("FORMED", "SHRUNK", "WORKS") for rank in self.living())}
        return sizes.pop() if len(sizes) == 1 else 0

    def works(self):
        """Whether all living ranks run operations, on one communicator that has no other ranks."""
        living = self.living()
        last = [rank.last("FORMED", "SHRUNK", "WORKS", "FAILED") for rank in living]
        return bool(living) and all(event and event.kind == "WORKS" for event in last) and self.size() == len(living)

    def kill(self):
        for rank in self.ranks:
            if rank.alive:
                rank.killed = True
                rank.process.kill()
                rank.process.wait()
