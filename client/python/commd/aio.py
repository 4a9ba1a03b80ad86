"""asyncio: requests that are awaited end through one completion queue for each event loop. No thread waits."""
from __future__ import annotations

import ctypes
import threading
import weakref

from . import _group, _library, errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .client import Client
    from .request import Request

_AT_ONCE = 64
_queues: weakref.WeakKeyDictionary[Any, dict[int, LoopQueue]] = weakref.WeakKeyDictionary()


class LoopQueue(_library.OfProcess):
    """The completion queue of one event loop and one client."""

    def __init__(self, client: Client, loop: Any) -> None:
        self._client = client
        self._library = client.calls
        self.loop = weakref.ref(loop)
        self._requests: dict[int, Request] = {}
        self._next_cookie = 1
        self._lock = threading.Lock()
        self._completions = (_library.Completion * _AT_ONCE)()
        handle = ctypes.c_void_p()
        client.check(self._library.comm_queue_create(client.use(), ctypes.byref(handle)), "queue_create")
        self.handle = handle.value
        self._fd: int = self._library.comm_queue_fd(self.handle)
        weakly = weakref.ref(self)
        loop.add_reader(self._fd, _readable, weakly)

    def attach(self, request: Request, options: Any) -> None:
        """Has an operation end into this queue."""
        cookie = self._next_cookie
        self._next_cookie = cookie + 1
        self._requests[cookie] = request
        request._queue = self
        options.queue = self.handle
        options.cookie = cookie
        options.request = None

    def detach(self, request: Request) -> None:
        """Undoes attach: the operation was not submitted."""
        for cookie, each in list(self._requests.items()):
            if each is request:
                del self._requests[cookie]

    def drain(self, limit_ms: int, until: Request | None = None) -> None:
        """Takes the operations that have ended. Waits up to limit_ms for the first one, unless `until` has ended.

        The last call of the library returns none: it arms the descriptor for the event loop.
        """
        with self._lock:
            if until is not None and until._done:
                limit_ms = 0
            count = ctypes.c_size_t(_AT_ONCE)
            while count.value > 0:
                count.value = 0
                result = self._library.comm_queue_next(self.handle, self._completions, _AT_ONCE, ctypes.byref(count),
                                                       limit_ms)
                for completion in self._completions[:count.value]:
                    self._end(completion)
                limit_ms = 0
                if result == errors.Result.DAEMON_LOST:
                    self._fail(self._client.error_of(result))
                elif result not in (0, errors.Result.TIMED_OUT):
                    raise self._client.error_of(result, "queue_next")

    def _end(self, completion: _library.Completion) -> None:
        request = self._requests.pop(completion.cookie, None)
        if request is None:
            return
        error = None
        if completion.result != 0:
            failure = completion.failure.contents if completion.failure else None
            if completion.result == errors.Result.DAEMON_LOST:
                self._client.lost = True
            text = failure.text if failure is not None else None
            text = (text or self._library.comm_result_text(completion.result)).decode(errors="replace")
            error = errors.from_failure(completion.result, text, failure, request.operation)
        request._end(error, completion.received)

    def _fail(self, error: errors.Error) -> None:
        """commd is lost: nothing more will come."""
        loop = self.loop()
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._fd)
        for request in list(self._requests.values()):
            request._end(error, None)
        self._requests.clear()

    def __del__(self) -> None:
        if getattr(self, "handle", None) is not None and self._client.handle is not None:
            self._library.comm_queue_destroy(self.handle)


def _readable(weakly: weakref.ref[LoopQueue]) -> None:
    queue = weakly()
    if queue is not None and queue._client.handle is not None and _group.current() is None:
        queue.drain(0)


def attach(client: Client, loop: Any, request: Request, options: Any) -> None:
    """Has an operation that is about to be submitted end into the queue of the running event loop."""
    queues = _queues.get(loop)
    if queues is None:
        queues = _queues[loop] = {}
    queue = queues.get(id(client))
    if queue is None:
        queue = queues[id(client)] = LoopQueue(client, loop)
    queue.attach(request, options)
