"""Attacks with requests: submits, messages, communicators, records."""
import os
import pathlib
import signal
import time

from wire import ALL_REDUCE, ALL_TO_ALL, BARRIER, BROADCAST, RECEIVE, REDUCE, SAID, SEND, U8, VERSION, HostMemory, Wire, event, operation, tries, until

SCAN, F32, I64 = 9, 1, 6
HANDLES = 1020
FORM_S = 5
ONE_SIDED = 400
HOST = 1  # device -1, as a signed number is written


def init(wire, handle, name, rank=0, size=1):
    return wire.ask(wire.COMM_INIT, {1: handle, 2: name, 3: rank, 4: size, 5: HOST, 6: 20000})


def formed(path, name):
    """Returns a session with a communicator of one rank, and memory."""
    wire = Wire(path)
    status, text = init(wire, 1, name)
    if status:
        raise OSError(text)
    wire.memory = HostMemory(wire, 1, 1 << 16)
    return wire


def lists(path, end_s, index):
    """Sends packets on 100 connections, again and again. Each packet has 900 submits for a communicator that does not exist."""
    held = tries(100, lambda _: Wire(path))
    packet = operation(0, 0, BARRIER) * 900
    while until(end_s):
        for wire in held:
            wire.connection.setblocking(False)
            try:
                wire.connection.send(packet)
            except OSError:
                pass
        held[0].read_what_comes()
        time.sleep(0.01)


def waiting_receives(path, end_s, index):
    """Posts 65,536 receives that no message matches."""
    wire = formed(path, f"receives-{index}")
    bodies = (operation(1, ticket, RECEIVE, U8, 16, output=(1, 0), tag=ticket) for ticket in range(1, 65537))
    try:
        wire.submit_many(bodies)
    except OSError:
        pass
    while until(end_s - 0.5):
        wire.read_what_comes()
        time.sleep(0.05)


def receives(path, end_s, index):
    """Posts 65,536 receives; then the process is killed."""
    waiting_receives(path, end_s, index)
    raise Gone


class Gone(Exception):
    """Raised when the process is to end by SIGKILL, with all that it holds."""


def messages(path, end_s, index):
    """Sends messages of 16 KiB to itself, each with another tag. Nobody receives them."""
    wire = formed(path, f"messages-{index}")
    tag = 0
    while until(end_s):
        tag += 1
        try:
            wire.post(operation(1, tag, SEND, U8, 16384, input=(1, 0), tag=tag))
        except OSError:
            pass
        if tag % 64 == 0:
            wire.read_what_comes()


def inits(path, end_s, index):
    """Starts as many communicators as one user may have. They never form."""
    wires = tries(4, lambda _: Wire(path))
    for number, wire in enumerate(wires):
        try:
            for handle in range(1, HANDLES + 1):
                wire.tell(wire.COMM_INIT, {1: handle, 2: f"inits-{index}-{number}-{handle}", 3: 0, 4: 2, 5: HOST, 6: 60000})
        except OSError:
            pass
    while until(end_s):
        for wire in wires:
            wire.read_what_comes()
        time.sleep(0.02)


def init_churn(path, end_s, index):
    """Starts communicators, which commd announces to all nodes, and leaves them at once."""
    wire = Wire(path)
    handle = 0
    while until(end_s):
        handle += 1
        wire.tell(wire.COMM_INIT, {1: handle, 2: f"churn-{index}-{handle % 50}", 3: 0, 4: 2, 5: HOST, 6: 60000})
        wire.ask(wire.COMM_DESTROY, {1: handle})


def forms(path, end_s, index):
    """Forms as many communicators of one rank as one user may have; then runs a barrier on each, again and again."""
    wire = Wire(path)
    handles = []
    for handle in range(1, HANDLES + 1):
        if init(wire, handle, f"forms-{index}-{handle}")[0]:
            break
        handles.append(handle)
    while until(end_s):
        wire.submit_many(operation(handle, handle, BARRIER) for handle in handles)
        wire.read_what_comes()


def layouts(path, end_s, index):
    """Posts 61,440 all_to_all_v in a communicator of 1,000 ranks, all in one session. They wait for the other ranks, so commd must keep their
    layouts."""
    wire = Wire(path)
    size, posting = 1000, 60
    memory = HostMemory(wire, 1, 1 << 20)
    for rank in range(size):
        wire.tell(wire.COMM_INIT, {1: rank + 1, 2: f"layouts-{index}", 3: rank, 4: size, 5: HOST, 6: 20000})
    began_s = time.monotonic()
    formed_count = 0
    while formed_count < size and time.monotonic() < began_s + 2:
        formed_count += wire.read_what_comes()
    fields = {"has_layouts": 1, "input": (1, 1 << 19), "output": (1, 1 << 18), "input_layout": (1, 0), "output_layout": (1, 0)}
    for handle in range(1, posting + 1):
        try:
            wire.submit_many(operation(handle, handle * 1024 + number, ALL_TO_ALL, U8, **fields) for number in range(1024))
        except OSError:
            pass
        wire.read_what_comes()
    while until(end_s):
        wire.read_what_comes()
        time.sleep(0.02)
    memory.close()


def records(path, end_s, index):
    """Posts 2,000 records that wait for words in memory. These words never change."""
    wire = formed(path, f"records-{index}")
    for _ in range(2000):
        wire.post(event(1, (1, 16, 1), [(1, 8, 1 << 40)]))
    while until(end_s):
        wire.read_what_comes()
        time.sleep(0.05)


def barriers(path, end_s, index):
    """Submits barriers as fast as possible, 1,024 at once."""
    wire = formed(path, f"barriers-{index}")
    bodies = [operation(1, ticket, BARRIER) for ticket in range(1, 1025)]
    while until(end_s):
        try:
            wire.submit_many(bodies)
        except OSError:
            pass
        wire.read_what_comes()


def foreign_ids(path, end_s, index):
    """Uses handles and memories that belong to other sessions."""
    wire = Wire(path)
    while until(end_s):
        for handle in range(0, 300, 7):
            wire.submit(operation(handle, handle + 1, ALL_REDUCE, I64, 8192, input=(handle, 0), output=(handle, 0)))
            wire.ask(wire.COMM_DESTROY, {1: handle})
            wire.ask(wire.DEREGISTER, {1: handle})


def stopped(path, end_s, index):
    """Stops a rank while its partner's operations wait; then both are killed."""
    first, second = Wire(path), Wire(path)
    first.tell(first.COMM_INIT, {1: 1, 2: f"stopped-{index}", 3: 0, 4: 2, 5: HOST, 6: 20000})
    init(second, 1, f"stopped-{index}", 1, 2)
    first.submit_many(operation(1, ticket, BARRIER) for ticket in range(1, 1000))
    child = os.fork()
    if child == 0:
        time.sleep(max(0, end_s - time.monotonic() - 0.2))
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(child, 0)
    raise Gone


def across(path, name, count, size_bytes):
    """Forms communicators of two ranks, one on this node and one on node b. Returns the sessions on both nodes."""
    here, there = Wire(path), Wire(str(pathlib.Path(path).with_name("b.sock")))
    here.memory = HostMemory(here, 1, size_bytes)
    for handle in range(1, count + 1):
        for rank, wire in enumerate((here, there)):
            wire.tell(wire.COMM_INIT, {1: handle, 2: f"{name}-{handle}", 3: rank, 4: 2, 5: HOST, 6: 20000})
    replies, end_s = 0, time.monotonic() + FORM_S
    while replies < 2 * count and time.monotonic() < end_s:
        replies += here.read_what_comes() + there.read_what_comes()
        time.sleep(0.01)
    return here, there


def one_sided(path, end_s, index):
    """Broadcasts of 8 MiB on communicators of two nodes. The rank on the other node never takes part."""
    here, there = across(path, f"one-sided-{index}", ONE_SIDED, 8 << 20)
    here.submit_many(operation(handle, handle, BROADCAST, U8, 8 << 20, input=(1, 0)) for handle in range(1, ONE_SIDED + 1))
    while until(end_s):
        here.read_what_comes()
        there.read_what_comes()
        time.sleep(0.02)


def one_sided_reduces(path, end_s, index):
    """Reductions of 8 MiB to a root on the other node, which never takes part. So commd on this node works in memory of its own."""
    here, there = across(path, f"one-sided-reduces-{index}", ONE_SIDED, 8 << 20)
    here.submit_many(operation(handle, handle, REDUCE, U8, 8 << 20, root=1, input=(1, 0)) for handle in range(1, ONE_SIDED + 1))
    while until(end_s):
        here.read_what_comes()
        there.read_what_comes()
        time.sleep(0.02)


def half_read(path, end_s, index):
    """Operations of two ranks. One rank takes all answers, the other takes none."""
    reads, never = Wire(path), Wire(path)
    reads.tell(reads.COMM_INIT, {1: 1, 2: f"half-{index}", 3: 0, 4: 2, 5: HOST, 6: 20000})
    init(never, 1, f"half-{index}", 1, 2)
    never.connection.setblocking(False)
    ticket = 0
    while until(end_s):
        ticket += 1
        try:
            reads.post(operation(1, ticket, BARRIER))
            never.post(operation(1, ticket, BARRIER))
        except OSError:
            pass
        reads.read_what_comes()


def thousand_ranks(path, end_s, index):
    """Forms communicators of 1,000 ranks in one process, runs one operation of all ranks, and ends them."""
    wire = Wire(path)
    wire.connection.settimeout(10)
    size, number = 1000, 0
    memory = HostMemory(wire, 1, 1 << 17)
    while until(end_s):
        number, answers = number + 1, 0
        for rank in range(size):
            wire.tell(wire.COMM_INIT, {1: rank + 1, 2: f"thousand-{index}-{number}", 3: rank, 4: size, 5: HOST, 6: 20000})
            answers += wire.read_what_comes() if rank % 100 == 99 else 0
        while answers < size:
            wire.event()
            answers += 1
        wire.submit_many(operation(rank + 1, rank + 1, ALL_REDUCE, U8, 32, input=(1, 0), output=(1, 64 * rank + 64)) for rank in range(size))
        for _ in range(size):
            wire.event()
        for rank in range(size):
            wire.ask(wire.COMM_DESTROY, {1: rank + 1})
    memory.close()


def contradictions(path, end_s, index):
    """Lets 64 ranks contradict each other in each operation. So each operation ends with a verdict and a text."""
    wire = Wire(path)
    wire.connection.settimeout(10)
    ranks, ticket, answers = 64, 0, 0
    memory = HostMemory(wire, 1, 1 << 16)
    asked = [wire.tell(wire.COMM_INIT, {1: rank + 1, 2: f"contradictions-{index}", 3: rank, 4: ranks, 5: HOST, 6: 20000}) for rank in range(ranks)]
    while answers < len(asked):
        wire.event()
        answers += 1
    while until(end_s):
        wire.submit_many(operation(rank + 1, ticket + rank, ALL_REDUCE, U8, rank + 1, input=(1, 0), output=(1, 4096)) for rank in range(ranks))
        ticket += ranks
        for _ in range(ranks):
            wire.event()
    memory.close()


def names(path, end_s, index):
    """Uses names of the greatest length, with characters that end a line of the log, steer a terminal or forge an entry. Each communicator fails."""
    forged = "x\n2026-01-01T00:00:00.000Z error: FORGED\r\x1b[2J\u202e"
    wire = Wire(path)
    number = 0
    while until(end_s):
        number += 1
        try:
            if number % 100 == 1:
                wire = Wire(path, greets=False)
                wire.ask(wire.HELLO, {1: VERSION, 2: forged * (1 + number % 7)})
            for name in (f"n{number}-" + "\u00e9" * 60, forged, "%s%n%p" * 9 + str(number), "n" * 127 + str(number), f"n{number}"):
                wire.tell(wire.COMM_INIT, {1: 1, 2: name, 3: 0, 4: 2, 5: HOST, 6: 1})
                wire.ask(wire.COMM_INIT, {1: 2, 2: name, 3: 1, 4: 3, 5: HOST, 6: 1, 9: forged})
                wire.ask(wire.COMM_DESTROY, {1: 1})
        except OSError:
            wire = Wire(path)


def crowd(path, name, wires, size):
    """Forms a communicator whose ranks are spread evenly over these connections. Returns the memory of each connection, which is memory 1 there."""
    each = size // len(wires)
    memories = [HostMemory(wire, 1, 1 << 20) for wire in wires]
    for number, wire in enumerate(wires):
        wire.connection.settimeout(20)
        for handle in range(1, each + 1):
            wire.tell(wire.COMM_INIT, {1: handle, 2: name, 3: number * each + handle - 1, 4: size, 5: HOST, 6: 20000})
    for wire in wires:
        for _ in range(each):
            wire.event()
    return memories


def crowd_works(places, name, end_s, kinds, most=1000):
    """Runs operations of 1,000 ranks on connections to these places, one kind after the other. An all_to_all has one byte for each pair of ranks,
    other kinds `most` bytes."""
    wires, size = [Wire(place) for place in places], 1000
    memories = crowd(places[0], name, wires, size)
    ticket, each = 0, size // len(wires)
    while until(end_s):
        kind = kinds[ticket % len(kinds)]
        count = 1 if kind == ALL_TO_ALL else most
        ticket += 1
        for wire in wires:
            wire.submit_many(operation(handle, ticket << 16 | handle, kind, U8, count, input=(1, 0), output=(1, 1 << 19)) for handle in range(1, each + 1))
        for wire in wires:
            for _ in range(each):
                wire.event()
        SAID.counts["operations"] += 1
    for memory in memories:
        memory.close()


def blocks(path, end_s, index):
    """Runs all_to_all and scans of 1,000 ranks, all on this node. An all_to_all has a million blocks of one byte."""
    crowd_works([path] * 4, f"blocks-{index}", end_s, (ALL_TO_ALL, SCAN))


def blocks_across(path, end_s, index):
    """Runs all_to_all of 500 ranks on each of two nodes. Each node has half a million blocks of one byte."""
    there = str(pathlib.Path(path).with_name("b.sock"))
    crowd_works([path, path, there, there], f"blocks-across-{index}", end_s, (ALL_TO_ALL,))


def sums_across(path, end_s, index):
    """Runs all-reduces and scans of 512 KiB, by 500 ranks on each of two nodes. Each node has 250 MiB for one slice."""
    there = str(pathlib.Path(path).with_name("b.sock"))
    crowd_works([path, path, there, there], f"sums-across-{index}", end_s, (ALL_REDUCE, SCAN), 1 << 19)


def bulk(path, end_s, index):
    """Runs all-reduces of 16 MiB among 8 ranks on this node, on 16 communicators at once, with and without compression."""
    wires = [Wire(path) for _ in range(8)]
    size, count = 64 << 20, 16
    memories = [HostMemory(wire, 1, size) for wire in wires]
    for rank, wire in enumerate(wires):
        wire.connection.settimeout(20)
        for handle in range(1, count + 1):
            wire.tell(wire.COMM_INIT, {1: handle, 2: f"bulk-{index}-{handle}", 3: rank, 4: len(wires), 5: HOST, 6: 20000})
    for wire in wires:
        for _ in range(count):
            wire.event()
    ticket = 0
    while until(end_s):
        ticket += 1
        for wire in wires:
            for handle in range(1, count + 1):
                wire.post(operation(handle, ticket << 8 | handle, ALL_REDUCE, F32, 4 << 20, input=(1, 0), output=(1, 32 << 20), compression=handle % 4,
                                    top_k=10 if handle % 4 == 3 else 0))
        for wire in wires:
            for _ in range(count):
                wire.event()
        SAID.counts["operations"] += 1
    for memory in memories:
        memory.close()
