"""The connection of this process to its node's commd. The communicators and the shared memory of a process use one."""
from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref

from . import _call, _library, errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

_lock = threading.RLock()
_clients: weakref.WeakSet[Client] = weakref.WeakSet()
_communicators: weakref.WeakSet[Any] = weakref.WeakSet()
_shared: dict[str | None, Client] = {}
_exiting = False


class Client(_library.OfProcess):
    """A connection to commd. It is closed when nothing uses it any more: no communicator, and no shared memory. The
    process keeps the one that shared_client returns."""

    def __init__(self, socket_path: str | None = None, timeout: float | None = None,
                 daemon_wait: float | None = None) -> None:
        self.calls = library = _library.load()
        self.handle: int | None = None
        self.lost = False
        self._pool: int | None = None
        options = _library.OpenOptions(ctypes.sizeof(_library.OpenOptions),
                                       os.fsencode(socket_path) if socket_path is not None else None,
                                       _call.milliseconds(timeout), _call.milliseconds(daemon_wait, "daemon_wait"))
        handle = ctypes.c_void_p()
        interruptible(self.error_of, library.comm_client_open, ctypes.byref(options), ctypes.byref(handle))
        self.handle = handle.value
        with _lock:
            _clients.add(self)

    def error_of(self, result: int, operation: str = "") -> errors.Error:
        """Returns the exception for a call that has just failed in this thread."""
        if result == errors.Result.DAEMON_LOST:
            self.lost = True
        return errors.last_error(self.calls, result, operation)

    def check(self, result: int, operation: str = "") -> None:
        """Raises the exception for a result that is a failure."""
        if result != 0:
            raise self.error_of(result, operation)

    def use(self) -> int:
        """Returns the handle. Raises Closed in a child of the process that opened the client."""
        if self.handle is None:
            raise errors.Closed("the connection to commd belongs to the parent of this process: a child opens its own, "
                                "by commd.init()", errors.Result.INVALID_ARGUMENT)
        return self.handle

    def reopen(self, daemon_wait: float | None = None) -> None:
        """Connects again after commd was lost. Memory of allocate stays where it is, and is shared again."""
        handle = ctypes.c_void_p(self.use())
        options = _library.OpenOptions(ctypes.sizeof(_library.OpenOptions), None, 0,
                                       _call.milliseconds(daemon_wait, "daemon_wait"))
        self.check(self.calls.comm_client_reopen(ctypes.byref(handle), ctypes.byref(options)), "reopen")
        self.handle = handle.value
        self.lost = False

    # --- Memory ---

    def _pool_handle(self) -> int:
        if self._pool is None:
            with _lock:
                if self._pool is None:
                    pool = ctypes.c_void_p()
                    self.check(self.calls.comm_pool_create(self.use(), None, ctypes.byref(pool)), "pool_create")
                    self._pool = pool.value
        return self._pool  # type: ignore[return-value]

    def allocate(self, size: int, device: int = _library.DEVICE_HOST) -> int:
        """Allocates shared memory, and returns its address. Host memory comes from the client's pool."""
        client = self.use()
        memory = ctypes.c_void_p()
        if device == _library.DEVICE_HOST:
            result = self.calls.comm_pool_alloc(self._pool_handle(), max(size, 1), ctypes.byref(memory))
        else:
            result = self.calls.comm_mem_alloc(client, max(size, 1), device, ctypes.byref(memory))
        self.check(result, "allocate")
        return memory.value or 0

    def free(self, memory: int, device: int = _library.DEVICE_HOST) -> None:
        """Frees memory of allocate. In a child of the process that opened the client, it does nothing."""
        if self.handle is None or _exiting:
            return
        if device == _library.DEVICE_HOST:
            self.calls.comm_pool_free(self._pool, memory)
        else:
            self.calls.comm_mem_free(self.handle, memory)

    def is_shared(self, memory: int, size: int) -> bool:
        """Returns whether commd works on this memory without a copy."""
        return bool(self.calls.comm_mem_is_shared(self.use(), memory, size))

    def trim(self) -> int:
        """Gives unused shared memory back to the system. Returns how many bytes that were."""
        return self.calls.comm_pool_trim(self._pool) if self._pool is not None and self.use() else 0

    def __del__(self) -> None:
        handle, self.handle = getattr(self, "handle", None), None
        if handle is None or _exiting:
            return
        self.calls.comm_client_close(handle)  # this frees the pool, too


def shared_client(socket_path: str | None = None, daemon_wait: float | None = None) -> Client:
    """Returns this process's client of a socket. A new one is opened if there is none, or its commd is lost."""
    socket_path = os.environ.get("COMMD_SOCKET") if socket_path is None else os.fspath(socket_path)
    with _lock:
        client = _shared.get(socket_path)
    if client is None or client.lost:
        client = Client(socket_path, daemon_wait=daemon_wait)
        with _lock:
            _shared[socket_path] = client
    return client


def reopen(socket_path: str | None = None, daemon_wait: float | None = None) -> None:
    """Connects to commd again after it was lost (DaemonLost), and shares the memory of this process's arrays again.

    Arrays of `empty` and `zeros` keep their contents. Close the communicators first, and make new ones afterwards. No
    other thread may use commd, or these arrays, until it returns. `daemon_wait`: how many seconds to wait for commd. If
    the connection is not lost, or there is none, nothing happens. After a failure, call it again.
    """
    socket_path = os.environ.get("COMMD_SOCKET") if socket_path is None else os.fspath(socket_path)
    with _lock:
        client = _shared.get(socket_path)
        if client is not None:
            client.reopen(daemon_wait)


def interruptible(error_of: Callable[..., errors.Error], function: Callable[..., int], *arguments: Any,
                  operation: str = "", undo: Callable[[], None] | None = None,
                  inside: list[None] | None = None) -> None:
    """Calls a function of the library that waits. Raises its failure.

    Python runs signal handlers on the main thread only, and not while that is in the library. So the main thread has
    another thread make the call. If a handler raises (Ctrl-C), the call goes on there, and `undo` frees what it made.
    `inside` has one entry more until the call has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        result = function(*arguments)
        if result != 0:
            raise error_of(result, operation)
        return
    failure: list[errors.Error] = []
    state_lock, ended, given_up = threading.Lock(), threading.Event(), threading.Event()

    def call() -> None:
        try:
            result = function(*arguments)
            if result != 0:
                failure.append(error_of(result, operation))
            with state_lock:
                ended.set()
                late = given_up.is_set()
            if late and result == 0 and undo is not None:
                undo()
        finally:
            if inside is not None:
                inside.pop()

    if inside is not None:
        inside.append(None)
    threading.Thread(target=call, name="commd", daemon=True).start()
    try:
        ended.wait()
    except BaseException:
        with state_lock:
            given_up.set()
            late = ended.is_set()
        if late and not failure and undo is not None:
            undo()
        raise
    if failure:
        raise failure[0]


def is_shared(memory: int, size: int) -> bool:
    """Returns whether a client of this process knows this memory: commd works on it without a copy."""
    with _lock:
        known = [client for client in _clients if client.handle is not None]
    return any(client.is_shared(memory, size) for client in known)


def track(communicator: Any) -> None:
    """Has a communicator destroyed when the program ends, so that its last messages arrive."""
    with _lock:
        _communicators.add(communicator)


def _in_child() -> None:
    global _lock
    _lock = threading.RLock()
    for client in list(_clients):
        client.handle = client._pool = None
    for communicator in list(_communicators):
        communicator._forget("the communicator belongs to the parent of this process: a child makes its own, by "
                             "commd.init()")
    _clients.clear()
    _communicators.clear()
    _shared.clear()
    _call._kept.clear()


def _at_exit() -> None:
    global _exiting
    for communicator in list(_communicators):
        communicator._leave()
    _exiting = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
