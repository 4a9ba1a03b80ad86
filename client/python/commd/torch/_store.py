"""A torch Store that commd keeps, so that no process has to be found by its address: `commd://job-17`."""
from __future__ import annotations

import ctypes
import datetime
import os
import threading
from urllib.parse import parse_qs, urlparse

import torch.distributed as distributed
from torch.distributed import DistStoreError

from .. import client, errors
from . import _failures

_DEFAULT_TIMEOUT = datetime.timedelta(minutes=5)
_lock = threading.Lock()
# torch's C++ code holds only the C++ half of a store, so this module keeps the Python half.
_open: dict[str, Store] = {}  # noqa: F821 (defined below)


def _bytes(value) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class Store(distributed.Store):
    """A store of keys and values that the processes of a job share. It ends with its last process.

    name: as a communicator's. timeout: how long get() and wait() wait, if they are not told.
    """

    def __init__(self, name: str, timeout: datetime.timedelta = _DEFAULT_TIMEOUT) -> None:
        super().__init__()
        self._timeout = timeout
        self._client = _failures.translated(client.shared_client)
        self._library = _declare(self._client.calls)
        self._handle = ctypes.c_void_p()
        self._check(self._library.comm_store_open(self._client.use(), name.encode(), self._limit(timeout),
                                                  ctypes.byref(self._handle)), "open")
        client.track(self)

    def __hash__(self) -> int:
        return id(self)

    def _limit(self, timeout) -> int:
        return max(1, min(0xFFFFFFFE, int((timeout or self._timeout).total_seconds() * 1000)))

    def _check(self, result: int, what: str) -> None:
        if result == 0:
            return
        error = _failures.of_call(self._library, result, what, "commd store")
        if result == errors.Result.TIMED_OUT:
            raise DistStoreError(str(error)) from error
        raise error

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
        self._check(self._library.comm_store_get(self._handle, key.encode(), self._limit(None), ctypes.byref(value),
                                                 ctypes.byref(size)), f"get {key}")
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
        self._check(self._library.comm_store_wait(self._handle, names, len(keys), self._limit(timeout)),
                    f"wait for {', '.join(keys)}")

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


def _place(url) -> tuple[int, int]:
    """Returns this process's rank and the number of processes, as the URL or the launcher says."""
    query = parse_qs(url.query)
    rank = query.get("rank", [None])[0]
    size = query.get("world_size", [None])[0]
    for name, own in (("RANK", "COMMD_RANK"), ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK")):
        rank = rank if rank is not None else os.environ.get(own, os.environ.get(name))
    for name, own in (("WORLD_SIZE", "COMMD_SIZE"), ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")):
        size = size if size is not None else os.environ.get(own, os.environ.get(name))
    if rank is None or size is None:
        raise ValueError(f"commd://{url.netloc}: say which rank this is and how many there are: "
                         f"init_process_group(rank=, world_size=), or RANK and WORLD_SIZE in the environment")
    return int(rank), int(size)


def rendezvous(url: str, timeout: datetime.timedelta | None = None):
    """Yields a store, this process's rank and the number of processes. torch calls it for commd://job."""
    parsed = urlparse(url)
    job = (parsed.netloc + parsed.path).strip("/")
    if not job:
        raise ValueError(f"{url}: expected commd://JOB, the same JOB on all ranks")
    rank, size = _place(parsed)
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    with _lock:
        store = _open.get(job)
        if store is None or not store._handle:
            store = _open[job] = Store(f"torch-{job}", timeout or _DEFAULT_TIMEOUT)
    # A job may call init_process_group several times. Each time has keys of its own.
    turn = store.add(f"turn/{restart}/{rank}", 1)
    prefixed = distributed.PrefixStore(f"{restart}/{turn}", store)
    prefixed.set_timeout(timeout or _DEFAULT_TIMEOUT)
    yield prefixed, rank, size
    raise RuntimeError("a commd rendezvous cannot be repeated without a new init_process_group")
