"""What rank.py does. Its modes and options are described there."""
import ctypes
import os
import sys
import time

from client_library import Library
from gpu import Gpu

STEPS_APART = 256  # after so many steps, the numbers of an all-reduce are the same again


class Buffer:
    """The numbers for an all-reduce in place, on the host or on a GPU."""

    def __init__(self, count, device):
        self.count = count
        self.gpu = Gpu(device) if device >= 0 else None
        self.values = (ctypes.c_int64 * count)()
        self.at = self.values

    def alloc(self, library, client, memory):
        """Allocates on the GPU, and returns a result code of the library."""
        self.at = ctypes.c_void_p()
        if memory == "comm":
            return library.comm_mem_alloc(client, 8 * self.count, self.gpu.device.value, ctypes.byref(self.at))
        if memory == "pool":
            self.at.value = self.gpu.alloc_from(self.gpu.new_pool(), 8 * self.count)
            self.gpu.synchronize()
            return library.comm_mem_register(client, self.at, 8 * self.count, -1, 0)
        self.at.value = self.gpu.alloc(8 * self.count)
        return 0

    def fill(self, values):
        self.values[:] = values
        if self.gpu:
            self.gpu.put(self.at.value, self.values)

    def fill_from(self, address):
        if self.gpu:
            self.gpu.put_from(self.at.value, address, 8 * self.count)
        else:
            ctypes.memmove(self.values, address, 8 * self.count)

    def holds(self, address):
        if self.gpu:
            self.gpu.get_to(ctypes.addressof(self.values), self.at.value, 8 * self.count)
        return are_equal(self.values, address, 8 * self.count)

    def read(self):
        return list(memoryview(self.gpu.get(self.at.value, 8 * self.count)).cast("q")) if self.gpu else list(self.values)


def are_equal(one, other, size):
    return ctypes.pythonapi.memcmp(one, ctypes.c_void_p(other), ctypes.c_size_t(size)) == 0


class Multiples:
    """The multiples of a number, from that of a step on. All steps share one array, because a loop has many of them."""

    def __init__(self, factor, count):
        self.all = (ctypes.c_int64 * (count + STEPS_APART))(*range(0, factor * (count + STEPS_APART), factor))

    def of(self, step):
        """Returns the address of the first one."""
        return ctypes.addressof(self.all) + 8 * (step % STEPS_APART)


class Contents:
    """What a rank sends in its messages of one tag. All steps share the bytes; each begins at another place."""

    WORDS = 1021

    def __init__(self, rank, tag, size):
        pattern = b"".join((rank * 1000003 + tag * 7919 + i * i).to_bytes(4, "little") for i in range(self.WORDS))
        self.all = ctypes.create_string_buffer(pattern * ((size + 4 * STEPS_APART) // len(pattern) + 1))

    def of(self, step):
        """Returns the address of the first byte."""
        return ctypes.addressof(self.all) + 4 * (step % STEPS_APART)


class Messages:
    """The buffers for messages to the next rank and from the rank before. There is one message of each size, all at once, each with its own tag."""

    def __init__(self, library, rank, size, sizes, device):
        self.calls, self.rank, self.size, self.sizes = library, rank, size, sizes
        self.gpu = Gpu(device) if device >= 0 else None
        self.sources, self.sinks = ([self.alloc(each) for each in sizes] for _ in range(2))
        self.sent, self.expected = ([Contents(of, tag, each) for tag, each in enumerate(sizes)] for of in (rank, (rank - 1) % size))
        self.marks, self.read = (ctypes.create_string_buffer(b"?" * (max(sizes) + 1)) for _ in range(2))

    def alloc(self, size):
        return ctypes.c_void_p(self.gpu.alloc(size + 1)) if self.gpu else ctypes.create_string_buffer(size + 1)

    def put(self, at, address, size):
        if self.gpu:
            self.gpu.put_from(at.value, address, size)
        else:
            ctypes.memmove(at, address, size)

    def holds(self, tag, step):
        """Returns whether the sink has the message of that step, and the byte behind it is what it was."""
        at, size = self.sinks[tag], self.sizes[tag]
        if self.gpu:
            self.gpu.get_to(ctypes.addressof(self.read), at.value, size + 1)
            at = self.read
        return are_equal(at, self.expected[tag].of(step), size) and at[size] == b"?"

    def step(self, comm, step):
        """Returns the result code, and whether the received messages are right."""
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        for tag, size in enumerate(self.sizes):
            self.put(self.sources[tag], self.sent[tag].of(step), size)
            self.put(self.sinks[tag], ctypes.addressof(self.marks), size + 1)
        calls = self.calls
        result = calls.comm_group_begin()
        for tag, size in enumerate(self.sizes):
            result = result or calls.comm_send(comm, self.sources[tag], size, calls.DTYPES["u8"], after, tag, None)
        for tag, size in reversed(list(enumerate(self.sizes))):
            result = result or calls.comm_recv(comm, self.sinks[tag], size, calls.DTYPES["u8"], before, tag, None)
        ended = calls.comm_group_end()
        result = result or ended or calls.comm_sync(comm, 0)
        right = result != 0 or all(self.holds(tag, step) for tag in range(len(self.sizes)))
        return result, right


def is_over(library, comm, wish):
    """All ranks stop after the same step: as soon as one of them has reached its end."""
    word = (ctypes.c_int64 * 1)(wish)
    result = library.comm_all_reduce(comm, word, word, 1, library.DTYPES["i64"], 0, None)
    result = result or library.comm_sync(comm, 0)
    return result, word[0] > 0


def in_stream(library, comm, buffer):
    """Returns the result code of the wait for the all-reduce."""
    result = library.comm_all_reduce(comm, buffer.at, buffer.at, buffer.count, library.DTYPES["i64"], 0, None)
    if result:
        return result
    print("POSTED", flush=True)
    buffer.gpu.synchronize()
    return library.comm_sync(comm, 0)


def split(library, comm, dies):
    """Returns the result code of comm_split."""
    if not dies:
        part = ctypes.c_void_p()
        library.calls.comm_split.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p]
        return library.calls.comm_split(comm, 0, 0, ctypes.byref(part))
    own, all_of_them = (ctypes.c_int32 * 2)(0, 0), (ctypes.c_int32 * 2000)()
    result = library.comm_all_gather(comm, own, all_of_them, 2, library.DTYPES["i32"], None) or library.comm_sync(comm, 0)
    time.sleep(0.3)  # the others wait for this rank by now
    os.kill(os.getpid(), 9)  # SIGKILL; to import signal would take a third of the time in which a rank starts
    return result


def moves(library, comm, client, kinds, rank, size, count, device):
    """Returns the result code of operations of these kinds, or None if a result is wrong."""
    def block(source, target):
        return [(source + 1) * 1000003 + target * 7919 + i * 31 for i in range(count)]

    def total(target):
        return [sum(each) for each in zip(*(block(r, target) for r in range(size)))]

    every = range(size)
    data = {"gather": (block(rank, 1), [value for r in every for value in block(r, 1)] if rank == 1 else None),
            "scatter": ([value for r in every for value in block(1, r)] if rank == 1 else [], block(1, rank)),
            "all_to_all": ([value for r in every for value in block(rank, r)], [value for r in every for value in block(r, rank)]),
            "all_gather": (block(rank, 0), [value for r in every for value in block(r, 0)]),
            "reduce_scatter": ([value for r in every for value in block(rank, r)], total(rank)),
            "all_reduce": (block(rank, 0), total(0)), "reduce": (block(rank, 0), total(0) if rank == 1 else None),
            "broadcast": (block(1, 0), None)}
    send, receive = (Buffer(count * size, device) for _ in range(2))
    result = send.alloc(library, client, "cuda") or receive.alloc(library, client, "cuda")
    for kind in kinds:
        values, expected = data[kind]
        send.fill(values + [-1] * (count * size - len(values)))
        receive.fill([-7] * (count * size))
        buffers = (send if rank == 1 else receive,) if kind == "broadcast" else (send, receive)
        expected = block(1, 0) if kind == "broadcast" and rank != 1 else expected
        operator = (0,) if "reduce" in kind else ()
        root = (ctypes.c_uint32(1),) if kind in ("gather", "scatter", "reduce", "broadcast") else ()
        call = getattr(library.calls, f"comm_{kind}")
        result = result or call(comm, *(buffer.at for buffer in buffers), ctypes.c_size_t(count), library.DTYPES["i64"], *operator, *root, None)
        result = result or library.comm_sync(comm, 0)
        got = receive.read()
        if result == 0 and (got[:len(expected or [])] != (expected or []) or set(got[len(expected or []):]) - {-7}):
            return None
    return result


def fork_worker(seconds):
    """Forks as a data loader does, and prints WORKER and the child's pid."""
    child = os.fork()
    if child == 0:
        for stream in range(3):
            os.close(stream)
        time.sleep(seconds)
        os._exit(0)
    print("WORKER", child, flush=True)


def main():
    name, rank, size, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    options = dict(argument.split("=", 1) for argument in sys.argv[5:])
    count = int(options.get("count", 1000))
    seconds = float(options.get("seconds", 60))
    library = Library()

    def end(result):
        print(f"{library.NAMES[result]} {library.error() if result else ''}", flush=True)
        return 0 if result == 0 else 1

    result, client = library.open()
    if result:
        return end(result)
    device = int(options.get("device", -1))
    result, comm = library.init(client, name, rank, size, int(options.get("timeout_ms", 20000)), int(options.get("op_timeout_ms", 0)), device,
                                int(options.get("on_loss", 0)))
    if result:
        return end(result)
    print("FORMED", flush=True)
    if mode == "idle":
        time.sleep(seconds)
    values = ctypes.c_int64 * count
    reduced = Buffer(count, device)
    if device >= 0:
        result = reduced.alloc(library, client, options.get("memory", "cuda"))
        if result:
            return end(result)
    own, total = Multiples(rank + 1, count), Multiples(size * (size + 1) // 2, count)
    messages = Messages(library, rank, size, [int(each) for each in options["sizes"].split(",")], device) if mode == "messages" else None
    if mode == "split":
        return end(split(library, comm, int(options["dies"]) == rank))
    if mode == "moves":
        result = moves(library, comm, client, options.get("kinds", "gather,scatter,all_to_all").split(","), rank, size, count, device)
        if result is None:
            print("WRONG", flush=True)
            return 1
        result = result or library.comm_barrier(comm, None)
        library.comm_destroy(comm)
        return end(result)
    if mode == "stream":
        return end(in_stream(library, comm, reduced))
    started = time.monotonic()
    steps = int(options.get("steps", 1 << 60))
    step, slowest = 0, 0.0
    while result == 0 and (step == 0 or mode in ("loop", "messages") and step < steps and ("together" in options or time.monotonic() - started < seconds)):
        began = time.monotonic()
        if messages:
            result, right = messages.step(comm, step)
            if not right:
                print("WRONG", flush=True)
                return 1
        elif "pattern" in options:
            buffer = ctypes.create_string_buffer((options["pattern"] * (count * 8)).encode()[:count * 8], count * 8)
            result = library.comm_broadcast(comm, buffer, count, library.DTYPES["i64"], 0, None)
            result = result or library.comm_sync(comm, 0)
        elif options.get("kind") == "broadcast":
            buffer = values()
            result = library.comm_broadcast(comm, buffer, count, library.DTYPES["i64"], 0, None)
            result = result or library.comm_sync(comm, 0)
        else:
            reduced.fill_from(own.of(step))
            result = library.comm_all_reduce(comm, reduced.at, reduced.at, count, library.DTYPES["i64"], 0, None)
            result = result or library.comm_sync(comm, 0)
            if result == 0 and not reduced.holds(total.of(step)):
                print("WRONG", flush=True)
                return 1
        slowest = max(slowest, time.monotonic() - began)
        if "together" in options and result == 0:
            result, over = is_over(library, comm, time.monotonic() - started >= seconds)
            steps = step if over else steps
        if step == 0 and result == 0:
            slowest = 0.0
            if "fork" in options:
                fork_worker(float(options["fork"]))
            print("READY", flush=True)
            if "aborts" in options:
                result = library.calls.comm_abort(comm, b"enough")
                break
        step += 1
        if result == 0 and "pause" in options:
            time.sleep(float(options["pause"]))
    if "slowest" in options:
        print(f"SLOWEST {slowest:.3f} of {step}", flush=True)
    code = end(result)
    library.comm_destroy(comm)
    library.comm_client_close(client)
    return code
