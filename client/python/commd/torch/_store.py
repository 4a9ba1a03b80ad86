"""A torch Store that commd keeps, so that no process has to be found by its address."""
from __future__ import annotations

import ctypes
import datetime
from time import monotonic

import torch.distributed as distributed
from torch.distributed import DistStoreError

from .. import client, errors
from . import _failures

DEFAULT_TIMEOUT = datetime.timedelta(minutes=5)
# How long one call of the library waits. Between two of them, Python handles signals, such as Ctrl-C.
_SLICE_MS = 100


def _bytes(value) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class Store(distributed.Store):
    """A store of keys and values that the processes of a job share. It ends with its last process.

    name: as a communicator's. timeout: how long get() and wait() wait, if they are not told.
    """

    def __init__(self, name: str, timeout: datetime.timedelta = DEFAULT_TIMEOUT) -> None:
        super().__init__()
        self._timeout = timeout
        self._client = _failures.translated(client.shared_client)
        self._library = _declare(self._client.calls)
        handle = ctypes.c_void_p()
        library = self._library
        _failures.translated(
            client.interruptible, self._client.error_of, library.comm_store_open, self._client.use(), name.encode(),
            self._limit(timeout), ctypes.byref(handle), operation="open",
            undo=lambda: library.comm_store_close(handle), context="commd store")
        self._handle: int | None = handle.value
        client.track(self)

    @property
    def is_open(self) -> bool:
        """Whether the store may be used: it was not closed, and its commd is not lost."""
        return self._handle is not None and not self._client.lost

    def __hash__(self) -> int:
        return id(self)

    def _limit(self, timeout) -> int:
        return max(1, min(0xFFFFFFFE, int((timeout or self._timeout).total_seconds() * 1000)))

    def _check(self, result: int, what: str) -> None:
        if result == 0:
            return
        error = _failures.of_call(self._client, result, what, "commd store")
        if result == errors.Result.TIMED_OUT:
            raise DistStoreError(str(error)) from error
        raise error

    def _wait(self, call, limit_ms: int, what: str) -> None:
        """Repeats call(milliseconds), which waits, until it has succeeded or failed, or the time has passed."""
        deadline = monotonic() + limit_ms / 1000
        while True:
            left_ms = max(0, int((deadline - monotonic()) * 1000))
            result = call(min(_SLICE_MS, left_ms))
            if result != errors.Result.TIMED_OUT or left_ms == 0:
                self._check(result, what)
                return

    def _taken(self, value, size) -> bytes:
        """Returns a value that the library has allocated, and frees it."""
        try:
            return ctypes.string_at(value, size.value) if size.value else b""
        finally:
            self._library.comm_store_free(value)

    def set(self, key: str, value) -> None:
        data = _bytes(value)
        self._check(self._library.comm_store_set(self._handle, key.encode(), data, len(data)), "set")

    def get(self, key: str) -> bytes:
        value, size = ctypes.c_void_p(), ctypes.c_size_t()
        name, where = key.encode(), (ctypes.byref(value), ctypes.byref(size))
        self._wait(lambda limit_ms: self._library.comm_store_get(self._handle, name, limit_ms, *where),
                   self._limit(None), f"get {key}")
        return self._taken(value, size)

    def add(self, key: str, amount: int) -> int:
        total = ctypes.c_int64()
        self._check(self._library.comm_store_add(self._handle, key.encode(), amount, ctypes.byref(total)), "add")
        return total.value

    def compare_set(self, key: str, expected, desired) -> bytes:
        expected, desired = _bytes(expected), _bytes(desired)
        value, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._check(self._library.comm_store_compare_set(self._handle, key.encode(), expected, len(expected), desired,
                                                         len(desired), ctypes.byref(value), ctypes.byref(size)),
                    "compare_set")
        return self._taken(value, size)

    def wait(self, keys, timeout: datetime.timedelta | None = None) -> None:
        names = (ctypes.c_char_p * len(keys))(*[key.encode() for key in keys])
        self._wait(lambda limit_ms: self._library.comm_store_wait(self._handle, names, len(keys), limit_ms),
                   self._limit(timeout), f"wait for {', '.join(keys)}")

    def check(self, keys) -> bool:
        names = (ctypes.c_char_p * len(keys))(*[key.encode() for key in keys])
        found = ctypes.c_int()
        self._check(self._library.comm_store_check(self._handle, names, len(keys), ctypes.byref(found)), "check")
        return bool(found.value)

    def delete_key(self, key: str) -> bool:
        existed = ctypes.c_int()
        self._check(self._library.comm_store_delete(self._handle, key.encode(), ctypes.byref(existed)), "delete")
        return bool(existed.value)

    def num_keys(self) -> int:
        count = ctypes.c_size_t()
        self._check(self._library.comm_store_count(self._handle, ctypes.byref(count)), "count")
        return count.value

    def append(self, key: str, value) -> None:
        """Adds bytes at the end of a value. Several processes may do so at once."""
        data, known = _bytes(value), b""
        while True:
            now = self.compare_set(key, known, known + data)
            if now == known + data:
                return
            known = now

    def multi_get(self, keys) -> list:
        return [self.get(key) for key in keys]

    def multi_set(self, keys, values) -> None:
        for key, value in zip(keys, values):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        return True

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> datetime.timedelta:
        return self._timeout

    def clone(self):
        return self

    def close(self) -> None:
        """Leaves the store. It ends when all processes have left it."""
        handle, self._handle = self._handle, None
        if handle and self._client.handle is not None:
            self._library.comm_store_close(handle)

    _leave = close

    def _forget(self, _: str) -> None:
        """This is a child of the process that opened the store."""
        self._handle = None


def _declare(library):
    """Declares the library's functions for stores, if that has not been done."""
    if getattr(library, "has_stores", None) is not None:
        return library
    pointer, size, text, u32 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_uint32
    functions = {
        "comm_store_open": (pointer, text, u32, pointer), "comm_store_close": (pointer,),
        "comm_store_set": (pointer, text, text, size), "comm_store_get": (pointer, text, u32, pointer, pointer),
        "comm_store_free": (pointer,), "comm_store_add": (pointer, text, ctypes.c_int64, pointer),
        "comm_store_compare_set": (pointer, text, text, size, text, size, pointer, pointer),
        "comm_store_wait": (pointer, pointer, size, u32), "comm_store_check": (pointer, pointer, size, pointer),
        "comm_store_delete": (pointer, text, pointer), "comm_store_count": (pointer, pointer)}
    handle = ctypes.CDLL(library.path)
    for name, arguments in functions.items():
        function = getattr(handle, name)
        function.argtypes = arguments
        function.restype = None if name in ("comm_store_close", "comm_store_free") else ctypes.c_int
        setattr(library, name, function)
    library.has_stores = True
    return library
