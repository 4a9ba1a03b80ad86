"""Ranks with completion queues, as objects of the test's own process. Each has a client, a communicator and a queue."""
import ctypes
import threading

from client_library import Library

NAMES = Library.NAMES


class Ended:
    """A completion, with copies of what it points to."""

    def __init__(self, completion):
        self.cookie = completion.cookie or 0
        self.result = NAMES[completion.result]
        self.source, self.count = completion.received.source, completion.received.count
        self.failure = None
        if completion.failure:
            failure = ctypes.cast(completion.failure, ctypes.POINTER(Library.Failure)).contents
            self.failure = Failed(failure)

    def __repr__(self):
        return f"{self.cookie}: {self.result} {self.failure or ''}"


class Failed:
    def __init__(self, failure):
        listed = min(failure.rank_count, 64)
        self.result = NAMES[failure.result]
        self.operation = failure.operation.decode()
        self.seq = failure.seq
        self.rank_count = failure.rank_count
        self.ranks, self.pids = list(failure.ranks[:listed]), list(failure.pids[:listed])
        self.node = failure.node.decode()
        self.text = failure.text.decode(errors="replace")

    def __repr__(self):
        return f"{self.result} {self.operation} {self.seq} {self.ranks} {self.pids} {self.node}: {self.text}"


class QueueRank:
    def __init__(self, path):
        self.calls = Library()
        self.comm, self.queue = None, None
        code, self.client = self.calls.open(path)
        self.require(code)
        self.buffers = []

    def require(self, code, expected="OK"):
        if NAMES[code] != expected:
            raise AssertionError(f"{NAMES[code]} instead of {expected}: {self.calls.error()}")

    def join(self, name, rank, size, **options):
        code, self.comm = self.calls.init(self.client, name, rank, size, **options)
        self.require(code)
        self.rank, self.size = rank, size

    def make_queue(self):
        self.queue = ctypes.c_void_p()
        self.require(self.calls.comm_queue_create(self.client, ctypes.byref(self.queue)))

    def options(self, cookie=0, timeout_ms=0, queue=True, request=None, persistent=0):
        return Library.CallOptions(struct_size=ctypes.sizeof(Library.CallOptions), timeout_ms=timeout_ms, factor=1.0,
                                   request=ctypes.addressof(request) if request is not None else None, persistent=persistent,
                                   queue=self.queue if queue else None, cookie=cookie)

    def reduce(self, cookie, count=1, expected="OK", **options):
        """Starts an all-reduce in place, of numbers that differ by rank, element and cookie. Returns the buffer."""
        first = (self.rank + 1) * 1000003 + cookie
        values = (ctypes.c_int64 * count)(*range(first, first + 7 * count, 7))
        given = self.options(cookie, **options)
        self.buffers.append(values)
        code = self.calls.comm_all_reduce(self.comm, values, values, count, Library.DTYPES["i64"], 0, ctypes.byref(given))
        self.require(code, expected)
        return values

    def call(self, name, *arguments, cookie=0, expected="OK", **options):
        """Starts another operation, with this rank's communicator and options."""
        given = self.options(cookie, **options)
        self.require(getattr(self.calls, name)(self.comm, *arguments, ctypes.byref(given)), expected)

    def barrier(self, cookie=0, **options):
        self.call("comm_barrier", cookie=cookie, **options)

    def last_failure(self):
        failure = Library.Failure(struct_size=ctypes.sizeof(Library.Failure))
        found = self.calls.comm_last_failure(ctypes.byref(failure))
        return Failed(failure) if found else None

    def destroy(self):
        self.calls.comm_destroy(self.comm)
        self.comm = None

    def destroy_queue(self):
        self.calls.comm_queue_destroy(self.queue)
        self.queue = None

    def sums(self, cookie, count=1):
        first = self.size * (self.size + 1) // 2 * 1000003 + self.size * cookie
        return list(range(first, first + 7 * self.size * count, 7 * self.size))

    def next(self, most=64, timeout_ms=20000, expected="OK"):
        completions = (Library.Completion * most)()
        count = ctypes.c_size_t(99)
        code = self.calls.comm_queue_next(self.queue, completions, most, ctypes.byref(count), timeout_ms)
        self.require(code, expected)
        return [Ended(each) for each in completions[:count.value]]

    def take(self, number, most=64):
        """Takes that many completions."""
        ended = []
        while len(ended) < number:
            ended += self.next(most=min(most, number - len(ended)))
        return ended

    def close(self):
        self.calls.comm_client_close(self.client)


def together(*calls):
    """Runs the calls in threads, and returns their results; raises what one of them raised."""
    results, raised = [None] * len(calls), []

    def run(place, call):
        try:
            results[place] = call()
        except BaseException as error:
            raised.append(error)
    threads = [threading.Thread(target=run, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    return results


def form(cluster, layout, name, queues=True, **options):
    """Returns a rank on each node of the layout, "ab", in one communicator."""
    ranks = [QueueRank(cluster.socket(node)) for node in layout]
    together(*(lambda rank=rank, number=number: rank.join(name, number, len(layout), **options) for number, rank in enumerate(ranks)))
    for rank in ranks:
        if queues:
            rank.make_queue()
    return ranks
