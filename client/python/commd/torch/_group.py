"""The process group: one communicator of commd."""
from __future__ import annotations

import collections
import ctypes
import datetime
import os
import threading
import time
import uuid

import torch
import torch.distributed as distributed
from torch._C._distributed_c10d import PrefixStore

from .. import _library, client
from . import _barrier, _ddp, _failures, _memory, _records, _shrink, _split
from ._collectives import Collectives
from ._completion import Completions
from ._messages import Messages
from ._work import Work

NAME = "commd"
_MOST_MS = 0xFFFFFFFE
# Works that nobody waited for are looked at when a group has so many of them.
_WORKS_MOST = 1024
# How long close() waits for operations in progress.
_CLOSE_S = 1.0


def milliseconds(timeout) -> int:
    """Returns a timedelta as commd takes it: 0, its default, if it is not set."""
    if timeout is None or timeout.days < 0:
        return 0
    return max(1, min(_MOST_MS, int(timeout.total_seconds() * 1000)))


def _device_of(wanted) -> int:
    """Returns the number of the GPU that this process's communicators use, or DEVICE_HOST."""
    if os.environ.get("COMMD_TORCH_DEVICE") == "cpu" or not torch.cuda.is_available():
        return _library.DEVICE_HOST
    if wanted is not None and wanted.type == "cuda":
        return wanted.index if wanted.index is not None else torch.cuda.current_device()
    return torch.cuda.current_device()


def create(options, backend_options=None):
    """Makes the process group that torch asks for."""
    _barrier.install()
    _ddp.install()
    _split.install()
    _shrink.install()
    device = getattr(backend_options, "device_id", None)
    return ProcessGroup(options.store, options.group_rank, options.group_size, options.timeout, device)


class ProcessGroup(Collectives, Messages, distributed.ProcessGroup):
    """A process group whose operations run through commd.

    It is a subclass of torch's ProcessGroup, because torch calls the methods of such a group without its dispatcher.
    name: the communicator's, if all ranks know it; otherwise rank 0 invents it. handle: the communicator, if it is there.
    """

    def __init__(self, store, rank: int, size: int, timeout, device=None, name=None, handle=None) -> None:
        distributed.ProcessGroup.__init__(self, rank, size)
        self._rank, self._size = rank, size
        self._store = store
        self._timeout = timeout
        self._device = device
        self._name: str | None = None
        self._description = "undefined"
        self._splits: dict = {}
        self._works: dict[int, Work] = {}
        self.recent: collections.deque = collections.deque(maxlen=_records.kept())
        self._waited: collections.deque = collections.deque(maxlen=_WORKS_MOST)
        self._number = 0  # of works, messages included
        self._seq = 0     # of collectives
        self._collected = threading.local()
        self._pid = os.getpid()
        self._completions = Completions("commd-futures")
        self._message_completions = Completions("commd-message-futures")
        self.futures_lock = threading.Lock()
        self._client = _failures.translated(client.shared_client)
        self.calls = self._client.calls
        self.formed_as = name
        self.handle: int | None = handle
        if handle is None:
            self._join()
        client.track(self)
        _records.groups.add(self)
        self._backend = _memory.register_backend(self, rank, size)

    def _join(self) -> None:
        """Forms the communicator. Rank 0 invents its name, and tells the others through the store."""
        if self.formed_as is None and self._rank == 0:
            self.formed_as = f"torch-{uuid.uuid4().hex}"
            if self._size > 1:
                self._store.set("commd", self.formed_as)
        elif self.formed_as is None:
            self.formed_as = bytes(self._store.get("commd")).decode()
        limit_ms = milliseconds(self._timeout)
        options = _library.InitOptions(ctypes.sizeof(_library.InitOptions), limit_ms, limit_ms, 0, None)
        handle = ctypes.c_void_p()
        self.interruptible(self.calls.comm_init, self._client.use(), self.formed_as.encode(), self._rank, self._size,
                           _device_of(self._device), ctypes.byref(options), handle, operation="init")
        self.handle = handle.value

    def interruptible(self, function, *arguments, operation: str) -> None:
        """Calls a function that makes a communicator: its last argument is the c_void_p for the handle."""
        handle = arguments[-1]
        _failures.translated(client.interruptible, self._client.error_of, function, *arguments[:-1], ctypes.byref(handle),
                             operation=operation, undo=lambda: self.calls.comm_destroy(handle), context=self.context())

    @property
    def timeout_ms(self) -> int:
        """The deadline of the group's operations."""
        return milliseconds(self._timeout)

    def context(self) -> str:
        """Returns who speaks, for messages."""
        return f"commd group {self._name or 'of torch'}, rank {self._rank} of {self._size}"

    # --- works ---

    def check_open(self) -> None:
        """Raises an exception if the group cannot be used."""
        if self._pid != os.getpid():
            raise _failures.BackendError(f"{self.context()}: this process was forked from the one that made the group. "
                                         f"It must call init_process_group itself.")
        if not self.handle:
            raise _failures.BackendError(f"{self.context()}: the group was destroyed")

    def next_number(self) -> int:
        """Returns a number for a work."""
        self._number += 1
        return self._number

    def record(self, work) -> None:
        """Numbers a work, and has it in the records."""
        work.number = self.next_number()
        work.record_id = _records.next_id()
        self.recent.append(work)

    def keep(self, work) -> None:
        """Keeps a submitted work until somebody has waited for it: its results must arrive even if the program drops it.

        In torch 2.6, C++ code that holds a work does not keep its Python half. Without that, it would wait for ever.
        """
        self._works[work.number] = work
        if len(self._works) > _WORKS_MOST and work.number % (_WORKS_MOST // 4) == 0:
            ended = [each for each in list(self._works.values()) if each.is_completed()]
            for each in ended[:max(0, len(self._works) - _WORKS_MOST // 2)]:
                self._works.pop(each.number, None)

    def forget(self, work) -> None:
        """Somebody has waited for this work."""
        self._works.pop(work.number, None)

    def has_waited(self, several) -> None:
        """Somebody has waited for works that belong together, and may do so again: see keep()."""
        if self._works.pop(several.number, None) is not None:
            self._waited.append(several)

    def complete_later(self, work: Work) -> None:
        """Completes the work's future in a thread. Messages have a thread of their own: they may never come."""
        (self._completions if work.seq else self._message_completions).add(work)

    # --- ends ---

    def abort(self, reason: str | None = None) -> None:
        """Ends the group on all its ranks. Operations in progress fail, and threads that wait wake up."""
        if not self.handle or self._pid != os.getpid():
            return
        text = (reason or f"rank {self._rank} called abort").encode()[:255]
        result = self.calls.comm_abort(self.handle, text)
        if result != 0:
            raise _failures.of_call(self._client, result, "abort", self.context())

    _abort = abort

    def shutdown(self) -> None:
        """Waits for the group's operations, and leaves."""
        self.close()

    _shutdown = shutdown

    def close(self) -> None:
        """Leaves the communicator. Operations that do not end within a second are aborted."""
        if not getattr(self, "handle", None) or self._pid != os.getpid():
            return
        pending = list(self._works.values())
        deadline = time.monotonic() + _CLOSE_S
        if not all(work.complete(max(1, int((deadline - time.monotonic()) * 1000))) for work in pending):
            self.abort(f"rank {self._rank} has left the group")
            for work in pending:
                work.complete()
        self._works.clear()
        self._completions.close()
        self._message_completions.close()
        handle, self.handle = self.handle, None
        self.calls.comm_destroy(handle)

    _leave = close

    def _forget(self, _: str) -> None:
        """This is a child of the process that made the group: check_open says so at the next call."""
        self.handle = None

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the interpreter may be ending; there is nobody to tell
            pass

    def _wait_for_pending_works(self) -> None:
        for work in list(self._works.values()):
            work.complete()

    # --- parts ---

    def split_group(self, ranks, timeout=None, pg_options=None, group_name=None, group_desc=None, devices=None):
        """Makes a group of these ranks of this group. Only they call it. Returns None on others."""
        ranks = list(ranks)
        if self._rank not in ranks:
            return None
        key = ",".join(map(str, ranks))
        turn = self._splits[key] = self._splits.get(key, 0) + 1
        store = PrefixStore(f"commd-split/{key}/{turn}", self._store)
        part = ProcessGroup(store, ranks.index(self._rank), len(ranks), timeout or self._timeout, self._device)
        part._set_group_name(group_name or f"{self._name}:split:{key}:{turn}")
        part._set_group_desc(group_desc or f"{self._description}:split")
        return part

    splitGroup = split_group

    # --- names and settings that torch asks for ---

    def getBackendName(self) -> str:
        return NAME

    def getRank(self) -> int:
        return self._rank

    def getSize(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return NAME

    def _get_backend_name(self) -> str:
        return NAME

    def _set_group_name(self, name: str) -> None:
        self._name = name

    setGroupName = _set_group_name

    def getGroupName(self) -> str:
        if self._name is None:
            raise RuntimeError("the process group has no name yet")
        return self._name

    group_name = property(getGroupName)

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    setGroupDesc = _set_group_desc

    def getGroupDesc(self) -> str:
        return self._description

    group_desc = property(getGroupDesc)

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supports_shrinking(self) -> bool:
        return True

    @property
    def supports_coalescing(self) -> bool:
        return False

    @property
    def _device_types(self) -> list:
        names = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        return [torch.device(name) for name in names]

    def _get_backend(self, device):
        return self._backend if self._backend is not None else self

    def _set_default_timeout(self, timeout: datetime.timedelta) -> None:
        """The deadline of later operations. The communicator keeps its own for operations that end late."""
        self._timeout = timeout

    set_timeout = _set_default_timeout
    _set_timeout = _set_default_timeout

    def _get_sequence_number_for_group(self) -> int:
        """Returns the number of collectives that this rank has started."""
        return self._seq

    def _set_sequence_number_for_group(self) -> None:
        """Nothing is to be agreed: commd numbers the collectives of each communicator."""

    def _has_hooks(self) -> bool:
        return False

    def _enable_collectives_timing(self) -> None:
        """Times are always taken."""
