"""Requests: operations that were started, and end later."""
from __future__ import annotations

import sys
import threading
from time import monotonic

from . import _call, _library, errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Generator, Iterable

    from .communicator import Communicator

_TIMED_OUT = int(errors.Result.TIMED_OUT)


class Received(tuple):
    """The message that a receive took: (source, count). count is in elements."""

    __slots__ = ()
    source = property(lambda self: self[0], doc="The rank that sent it.")
    count = property(lambda self: self[1], doc="How many elements it had.")

    def __new__(cls, source: int, count: int) -> Received:
        return super().__new__(cls, (source, count))

    def __getnewargs__(self) -> tuple[int, int]:
        return (self[0], self[1])

    def __repr__(self) -> str:
        return f"Received(source={self[0]}, count={self[1]})"


class Request(_library.OfProcess):
    """An operation that was started with wait=False, or in a group.

    It keeps its arrays alive until the operation has ended. Wait for it by wait(), or by `await`. Any thread may.
    """

    __slots__ = ("operation", "received", "_comm", "_call", "_buffers", "_output", "_error", "_done", "_lock", "_queue",
                 "_waiters", "__weakref__")

    def __init__(self, comm: Communicator, operation: str, buffers: Any, output: Any) -> None:
        self.operation = operation
        self.received: Received | None = None
        self._comm = comm
        self._call: _call.Call | None = None
        self._buffers = buffers
        self._output = output
        self._error: BaseException | None = None
        self._done = False
        self._lock = threading.Lock()
        self._queue: Any = None
        self._waiters: list[tuple[Any, Any]] = []

    def __repr__(self) -> str:
        state = "pending" if not self._done else "failed" if self._error is not None else "done"
        return f"<commd.Request {self.operation}, {state}>"

    @property
    def done(self) -> bool:
        """Whether the operation is known to have ended. test() asks the library."""
        return self._done

    @property
    def output(self) -> Any:
        """The array that gets the result. It is valid once the operation has ended."""
        return self._output

    def exception(self) -> BaseException | None:
        """Returns the failure of an operation that has ended, or None."""
        return self._error

    def test(self) -> bool:
        """Returns whether the operation has ended, without waiting. Does not raise its failure."""
        if not self._done:
            self._progress(0)
        return self._done

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until the operation has ended. Returns its output, or the Received of a receive; raises its failure.

        timeout: in seconds. If it passes first, TimedOut is raised, and the operation goes on. None: the operation's
        own deadline ends the wait.
        """
        if not self._done:
            self._wait(_call.deadline_after(timeout), timeout)
        if self._error is not None:
            raise self._error
        return self._output if self.received is None else self.received

    def _wait(self, deadline: float, timeout: float | None) -> None:
        while not self._done:
            left = deadline - monotonic()
            self._progress(max(0, min(_call.SLICE_MS, int(left * 1000 + 0.999) if left < 1 else _call.SLICE_MS)))
            if not self._done and left <= 0:
                raise errors.TimedOut(f"{self.operation} has not ended within {timeout:g} s; it goes on", _TIMED_OUT,
                                      self.operation)

    def _progress(self, limit_ms: int) -> None:
        """Waits for a moment, and notes the end of the operation."""
        comm = self._comm
        comm._inside.append(None)
        try:
            handle = comm._handle
            if handle is None:
                if not self._done:
                    raise comm._closed_error()
                return
            if self._queue is not None:
                self._queue.drain(limit_ms, self)
            elif self._lock.acquire(timeout=limit_ms / 1000 if limit_ms else 0):
                try:
                    if not self._done and self._call is not None:
                        self._ask(comm, self._call, limit_ms)
                finally:
                    self._lock.release()
        finally:
            comm._inside.pop()

    def _ask(self, comm: Communicator, call: _call.Call, limit_ms: int) -> None:
        ended, result = _call.wait_slice(comm._library, call, limit_ms)
        if ended:
            error = comm._client.error_of(result, self.operation) if result != 0 else None
            self._end(error, call.received)
        elif result not in (0, _TIMED_OUT):
            raise comm._client.error_of(result, self.operation)

    def _end(self, error: BaseException | None, received: _library.Received | None) -> None:
        """The operation has ended: its arrays are let go, and those who await it go on."""
        if self.operation == "recv" and error is None and received is not None:
            self.received = Received(received.source, received.count)
        self._error = error
        self._buffers = None
        self._done = True
        self._comm._pending.discard(self)
        call, self._call = self._call, None
        if call is not None:
            call.reset()
            _call.give_back(call)
        waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_wake, future)
            except RuntimeError:
                pass  # that loop is closed: nobody waits in it any more

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio
        if not self.test():
            loop = asyncio.get_running_loop()
            if self._queue is None or self._queue.loop() is not loop:
                yield from loop.run_in_executor(None, self._wait_quietly).__await__()
            else:
                future = loop.create_future()
                self._waiters.append((loop, future))
                if not self._done:
                    yield from future.__await__()
        return self.wait()

    def _wait_quietly(self) -> None:
        try:
            self.wait()
        except BaseException as error:
            if not self._done:
                self._error = error


def _wake(future: Any) -> None:
    if not future.done():
        future.set_result(None)


def wait_all(requests: Iterable[Request], timeout: float | None = None) -> list[Any]:
    """Waits for all requests, and returns what their wait() returns. Raises the first failure in their order, after all
    have ended. timeout: for all of them together."""
    requests = list(requests)
    deadline = _call.deadline_after(timeout)
    for request in requests:
        request._wait(deadline, timeout)
    return [request.wait() for request in requests]


def running_loop() -> Any:
    """Returns the asyncio loop that runs in this thread, or None. asyncio is not imported for that."""
    events = sys.modules.get("asyncio.events")
    return events._get_running_loop() if events is not None else None
