"""Communicators: groups of processes that compute together."""
from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from operator import index

from . import _call, _group, _library, client, errors, memory, objects
from .collectives import Collectives
from .messages import Messages
from .request import Request, running_loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator

_LEAVE_S = 1.0  # how long destroy waits for other threads to leave the library
_REAP_AT = 64  # from how many pending requests on the ended ones are looked for
_REASON_MAX_BYTES = 255


class Communicator(_library.OfProcess, Collectives, Messages):
    """One rank of a communicator. Make it by commd.init() or split(). It is a context manager: leaving the block
    destroys it, and aborts it first if an exception leaves the block.

    Every rank calls the same collectives in the same order. If several threads use one communicator, the program orders
    their calls.
    """

    def __init__(self, owner: client.Client, handle: int, name: str) -> None:
        self._client = owner
        self._library = library = owner.calls
        self._handle: int | None = handle
        self._inside: list[None] = []  # one entry for each call that is in the library
        self._pending: set[Request] = set()
        self._reap_at = _REAP_AT
        self._why_closed = "the communicator was destroyed"
        self._destroying = threading.Lock()
        self._name = name
        self.rank: int = library.comm_rank(handle)
        self.size: int = library.comm_size(handle)
        self.local_rank: int = library.comm_local_rank(handle)
        self.local_size: int = library.comm_local_size(handle)
        self._nodes = [library.comm_node_of(handle, rank).decode(errors="replace") for rank in range(self.size)]
        self._device: int = _library.DEVICE_HOST
        client.track(self)

    def __repr__(self) -> str:
        state = "" if self._handle is not None else ", closed"
        return f"<commd.Communicator {self._name!r}, rank {self.rank} of {self.size}{state}>"

    @property
    def name(self) -> str:
        """What the program called this communicator."""
        return self._name

    @property
    def objects(self) -> objects.Objects:
        """The same operations on any Python objects, under mpi4py's names. See commd.objects."""
        return objects.Objects(self)

    @property
    def closed(self) -> bool:
        """Whether it was destroyed."""
        return self._handle is None

    @property
    def on_gpu(self) -> bool:
        """Whether this rank was made for a GPU. Only then it takes arrays on one."""
        return self._device != _library.DEVICE_HOST

    def node_of(self, rank: int) -> str:
        """Returns the name of the node that holds a rank."""
        return self._nodes[self._check_rank(rank)]

    # --- Submitting ---

    def _check_rank(self, rank: Any, what: str = "rank") -> int:
        if type(rank) is not int:
            rank = index(rank)
        if not 0 <= rank < self.size:
            raise ValueError(f"{what} {rank} is out of range: the communicator has {self.size} ranks")
        return rank

    def _closed_error(self) -> errors.Closed:
        return errors.Closed(self._why_closed, errors.Result.INVALID_ARGUMENT)

    def _submit(self, operation: str, function: Callable[..., int], arguments: tuple[Any, ...], buffers: Any, output: Any,
                wait: bool, timeout: float | None, tune: dict[str, Any] | None = None) -> Any:
        """Submits an operation. `buffers` is kept until it has ended. `tune`: further call options.

        With `wait`, returns the output once the operation has ended. Otherwise, and in a group, returns a Request.
        """
        inside = self._inside
        inside.append(None)
        try:
            handle = self._handle
            if handle is None:
                raise self._closed_error()
            group = _group.current() if _group.any_open else None
            if not wait or group is not None or timeout is not None or tune is not None:
                return self._submit_slowly(operation, function, (handle, *arguments), buffers, output, wait, timeout, tune,
                                           group)
            call = _call.take()
            try:
                result = function(handle, *arguments, call.options_address)
                if result != 0:
                    raise self._client.error_of(result, operation)
                ended, result = _call.wait_slice(self._library, call)
                if ended and result == 0:
                    _call.give_back(call)
                    return output
            except BaseException:
                self._interrupted(operation, call, buffers, output)
                raise
            if ended:
                error = self._client.error_of(result, operation)
                _call.give_back(call)
                raise error
            request = self._keep(Request(self, operation, buffers, output), call)
            if result != errors.Result.TIMED_OUT:
                raise self._client.error_of(result, operation)
            return request.wait()
        finally:
            inside.pop()

    def _submit_slowly(self, operation: str, function: Callable[..., int], arguments: tuple[Any, ...], buffers: Any,
                       output: Any, wait: bool, timeout: float | None, tune: dict[str, Any] | None,
                       group: _group.Group | None) -> Any:
        timeout_ms = _call.milliseconds(timeout)
        request = Request(self, operation, buffers, output)
        call = _call.take()
        try:
            options = call.options
            options.timeout_ms = timeout_ms
            for name, value in (tune or {}).items():
                setattr(options, name, value)
            loop = running_loop() if not wait else None
            if loop is not None:
                from . import aio
                aio.attach(self._client, loop, request, options)
            result = function(*arguments, call.options_address)
            if result != 0:
                if request._queue is not None:
                    request._queue.detach(request)
                raise self._client.error_of(result, operation)
        except BaseException:
            self._interrupted(operation, call, buffers, output)
            raise
        self._keep(request, call)
        if group is not None:
            group.requests.append(request)
            return request
        return request.wait() if wait else request

    def _keep(self, request: Request, call: _call.Call) -> Request:
        """Keeps a pending request and its arrays until it has ended, also if the program drops it."""
        request._call = call
        if not request._done:
            self._pending.add(request)
            if len(self._pending) >= self._reap_at and not (_group.any_open and _group.current() is not None):
                for each in list(self._pending):
                    each.test()
                self._reap_at = max(_REAP_AT, 2 * len(self._pending))
        return request

    def _interrupted(self, operation: str, call: _call.Call, buffers: Any, output: Any) -> None:
        """An exception (such as Ctrl-C) came while the operation was submitted or waited for. Its arrays stay alive."""
        if call.handle:
            self._keep(Request(self, operation, buffers, output), call)
        else:
            call.reset()
            _call.give_back(call)

    # --- Its end ---

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Splits the communicator: ranks of equal color form a new one, ordered by key, then by rank.

        Every rank must call it. A rank with color None joins none, and gets None.
        """
        number = _library.COLOR_NONE if color is None else index(color)
        if color is not None and not 0 <= number < 1 << 31:
            raise ValueError(f"color must be 0 or more, and below 2^31: {color}")
        if not -(1 << 31) <= index(key) < 1 << 31:
            raise ValueError(f"key must fit 32 bits: {key}")
        part = ctypes.c_void_p()
        library = self._library
        with self._used():
            client.interruptible(self._client.error_of, library.comm_split, self._handle, number, index(key),
                                 ctypes.byref(part), operation="split", undo=lambda: library.comm_destroy(part),
                                 inside=self._inside)
        if not part.value:
            return None
        made = Communicator(self._client, part.value, f"{self._name}.{number}")
        made._device = self._device
        return made

    def abort(self, reason: str = "") -> None:
        """Ends the communicator on all its ranks, from any thread. Pending and later operations raise Aborted with the
        reason, of which the other ranks get 255 bytes."""
        text = str(reason).encode(errors="replace").replace(b"\0", b" ")[:_REASON_MAX_BYTES]
        text = text.decode(errors="ignore").encode()
        with self._used():
            self._client.check(self._library.comm_abort(self._handle, text or None), "abort")

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        """The communicator stays while a call uses it. Raises Closed if it has been destroyed."""
        self._inside.append(None)
        try:
            if self._handle is None:
                raise self._closed_error()
            yield
        finally:
            self._inside.pop()

    def _following(self, operation: str, function: Callable[..., int], options: ctypes.Structure) -> Communicator | None:
        """Calls a function that makes another communicator of this one. None if it makes none."""
        made = ctypes.c_void_p()
        library = self._library
        with self._used():
            client.interruptible(self._client.error_of, function, self._handle, ctypes.byref(options), ctypes.byref(made),
                                 operation=operation, undo=lambda: library.comm_destroy(made), inside=self._inside)
        if not made.value:
            return None
        following = Communicator(self._client, made.value, self._name)
        following._device = self._device
        return following

    def shrink(self, timeout: float | None = None) -> Communicator:
        """Returns a communicator of the ranks that survive a failure: same order, contiguous ranks.

        Every surviving rank must call it. It waits until this communicator has failed on all nodes, and until all
        survivors have called, at most `timeout` seconds (60) each. Ranks lost meanwhile are left out, too. This one
        stays until destroy(). Raises Aborted if this part of the cluster is a minority.
        """
        options = _library.ShrinkOptions(ctypes.sizeof(_library.ShrinkOptions), _call.milliseconds(timeout))
        following = self._following("shrink", self._library.comm_shrink, options)
        assert following is not None  # the library makes one, or fails
        return following

    def grow(self, most: int | None = None, timeout: float | None = None) -> Communicator | None:
        """Takes in the processes that wait in join(). Returns the next communicator, or None on all ranks if nobody waits.

        Only for a communicator that join(), shrink() or grow() made. All its ranks call it. Their ranks stay, and
        newcomers come last, up to `most` ranks (rank 0's; that of join() if None). This one stays until destroy().
        timeout: seconds for the newcomers (60). If a newcomer is lost meanwhile or does not answer, the result is None,
        too, and this communicator goes on.
        """
        options = _library.GrowOptions(ctypes.sizeof(_library.GrowOptions), 0 if most is None else index(most) & 0xffffffff,
                                       _call.milliseconds(timeout))
        return self._following("grow", self._library.comm_grow, options)

    @property
    def waiting(self) -> int:
        """How many processes wait in join() to be taken in with grow(). It may be some 100 ms old."""
        count = ctypes.c_uint32()
        with self._used():
            self._client.check(self._library.comm_waiting(self._handle, ctypes.byref(count)), "waiting")
        return count.value

    @property
    def draining(self) -> tuple[str, float | None] | None:
        """None, or if this node drains: the reason, and how many seconds its communicators have left (None: no limit)."""
        found = _library.Draining(ctypes.sizeof(_library.Draining))
        with self._used():
            self._client.check(self._library.comm_draining(self._client.use(), ctypes.byref(found)), "draining")
        if not found.draining:
            return None
        return found.reason.decode(errors="replace"), None if found.left_ms == 0xffffffff else found.left_ms / 1000

    def agree(self, flags: int = 1, timeout: float | None = None) -> int:
        """Returns the bitwise AND of all surviving ranks' flags (64 bits): the same on all of them, whoever is lost.

        Every surviving rank calls it, also after a failure. If ranks are lost, the survivors agree without them, and
        shrink() returns at once. timeout: seconds to wait for the others, each time that ranks are lost (60).
        """
        value = ctypes.c_uint64(index(flags) & (1 << 64) - 1)
        with self._used():
            client.interruptible(self._client.error_of, self._library.comm_agree, self._handle, ctypes.byref(value),
                                 _call.milliseconds(timeout), operation="agree", inside=self._inside)
        return value.value

    def _lost(self) -> tuple[tuple[int, ...], int]:
        found = _library.Lost()
        size = self.size
        ranks = (ctypes.c_uint32 * size)()
        with self._used():
            self._client.check(self._library.comm_lost(self._handle, ranks, size, ctypes.byref(found)), "lost")
        return tuple(ranks[:min(found.count, size)]), found.last_seq

    @property
    def lost(self) -> tuple[int, ...]:
        """The ranks that a failed communicator has lost: the same on all survivors. () while it has not failed."""
        return self._lost()[0]

    @property
    def last_seq(self) -> int:
        """Of a failed communicator: every collective up to this number has ended on all survivors."""
        return self._lost()[1]

    def destroy(self) -> None:
        """Leaves the communicator. Later calls raise Closed. It may be called more than once.

        Pending operations get at most one second to finish. Threads that wait for an operation get Closed.
        """
        if not self._destroying.acquire(blocking=False):
            return
        handle, self._handle = self._handle, None
        if handle is None:
            return
        self._wait_for_others(_LEAVE_S)
        if self._inside:
            # What waits inside the library without a limit is woken: this rank leaves in any case.
            self._library.comm_abort(handle, b"it was destroyed while one of its threads waited")
            self._wait_for_others(_LEAVE_S)
        if self._inside:
            return  # a thread is still in the library: what it uses is not freed, and commd notices the process's end
        for request in list(self._pending):
            call = request._call
            if call is not None and call.handle:
                self._library.comm_request_free(call.handle)
                call.handle.value = None
        self._library.comm_destroy(handle)
        for request in list(self._pending):
            request._end(self._closed_error(), None)

    close = destroy

    def _wait_for_others(self, limit_s: float) -> None:
        """Waits until no thread is in the library with this communicator."""
        limit = time.monotonic() + limit_s
        while self._inside and time.monotonic() < limit:
            time.sleep(0.001)

    def _leave(self) -> None:
        """Destroys the communicator at the end of the program, if no thread is in the library."""
        if not self._inside:
            self.destroy()

    def _forget(self, why: str) -> None:
        """Closes the communicator without a call of the library: this process is a child of its owner."""
        self._handle = None
        self._why_closed = why
        for request in self._pending:
            request._call = None
        self._pending = set()

    def __enter__(self) -> Communicator:
        if self._handle is None:
            raise self._closed_error()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: object) -> None:
        if value is not None and self._handle is not None:
            try:
                self.abort(f"rank {self.rank}: {type(value).__name__}: {value}")
            except errors.Error:
                pass  # the exception that leaves the block is the cause
        self.destroy()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and not sys.is_finalizing():
            self.destroy()

    # --- Memory and groups ---

    def empty(self, shape: int | tuple[int, ...], dtype: Any = "float64") -> Any:
        """Returns a new array in memory that commd works on without a copy. See commd.empty."""
        return memory.empty(shape, dtype, self._client)

    def zeros(self, shape: int | tuple[int, ...], dtype: Any = "float64") -> Any:
        """As empty, and sets all elements to zero."""
        return memory.zeros(shape, dtype, self._client)

    def group(self, wait: bool = True) -> _group.Group:
        """Returns a context manager that submits the operations of its block together. See commd.group."""
        return _group.Group(self._library, wait)


def _device_number(device: int | str | None) -> int:
    if device is None or device in ("host", "cpu"):
        return _library.DEVICE_HOST
    if device == "cuda":
        return _library.DEVICE_LOCAL_RANK
    text = str(device)
    if text.startswith("cuda:"):
        text = text[5:]
    if isinstance(device, bool) or not text.isdigit() or int(text) >= 1 << 31:
        raise ValueError(f"device must be None, \"cuda\", \"cuda:NUMBER\" or a number: {device!r}")
    return int(text)


def _name_bytes(name: str) -> bytes:
    if not isinstance(name, str):
        raise TypeError(f"name must be a str: {name!r}")
    if not name.isascii() or not name or "\0" in name:
        raise ValueError(f"name must be 1 to 127 printable ASCII characters without space: {name!r}")
    return name.encode()


def _policy(on_loss: str) -> int:
    if on_loss not in ("raise", "abort"):
        raise ValueError(f"on_loss must be \"raise\" or \"abort\": {on_loss!r}")
    return int(on_loss == "abort")


def init(name: str | None = None, rank: int | None = None, size: int | None = None, device: int | str | None = None, *,
         timeout: float | None = None, op_timeout: float | None = None, algorithms: str | None = None,
         slice_bytes: int = 0, minority_continues: bool = False, on_loss: str = "raise", socket: str | None = None,
         daemon_wait: float | None = None) -> Communicator:
    """Joins a communicator, and waits until all its ranks have joined.

    Without rank and size, they come from the launcher's environment (torchrun, commctl run, mpirun, Slurm and others);
    `name` then tells several communicators of one job apart. A process without a launcher becomes a communicator of
    size 1. With rank and size, `name` is required, and the same on all ranks.

    device: None for arrays on the host; "cuda" for the GPU whose number is the local rank; "cuda:1" or a number.
    timeout: seconds to wait for all ranks (60). op_timeout: deadline of each operation (60); all ranks must agree.
    algorithms, slice_bytes: see comm_init in libcommclient(3). socket: the socket of commd.
    minority_continues: if nodes cannot reach each other, every group of them may go on with shrink(); all ranks agree.
    on_loss: what this process does when a rank or node of the communicator is lost: "raise" an exception; or "abort",
    which writes a line with the reason to stderr and ends the process, like MPI_ERRORS_ARE_FATAL. Ranks may differ.
    daemon_wait: seconds to wait for a commd that does not run yet.
    """
    if (rank is None) != (size is None) or (rank is not None and name is None):
        raise ValueError("rank and size are given together, and with a name")
    options = _library.InitOptions(ctypes.sizeof(_library.InitOptions), _call.milliseconds(timeout),
                                   _call.milliseconds(op_timeout, "op_timeout"), index(slice_bytes) & (1 << 64) - 1,
                                   _name_bytes(algorithms) if algorithms is not None else None, minority_continues, 0, _policy(on_loss))
    number = _device_number(device)
    text = _name_bytes(name) if name is not None else None
    owner = client.shared_client(socket, daemon_wait)
    handle = ctypes.c_void_p()
    library = owner.calls

    def join(function: Callable[..., int], *arguments: Any) -> None:
        client.interruptible(owner.error_of, function, *arguments, ctypes.byref(handle), operation="init",
                             undo=lambda: library.comm_destroy(handle))

    if rank is not None and size is not None:
        if not 0 < index(size) < 1 << 32 or not 0 <= index(rank) < index(size):
            raise ValueError(f"rank {rank} of size {size} is out of range")
        join(library.comm_init, owner.use(), text, index(rank), index(size), max(number, -1), ctypes.byref(options))
    else:
        environment = _library.EnvOptions(ctypes.sizeof(_library.EnvOptions), number, text, ctypes.addressof(options))
        environment.keep = options  # the call may outlive this function, if Ctrl-C ends the wait
        try:
            join(library.comm_init_env, owner.use(), ctypes.byref(environment))
        except errors.NotFound:
            alone = f"{name or 'world'}-alone-{os.getpid()}-{os.urandom(6).hex()}"
            join(library.comm_init, owner.use(), alone[-127:].encode(), 0, 1, 0 if number == _library.DEVICE_LOCAL_RANK
                 else number, ctypes.byref(options))
    made = Communicator(owner, handle.value or 0, name or "world")
    made._device = number
    return made


def join(name: str, least: int = 1, most: int = 65536, device: int | str | None = None, *, timeout: float | None = None,
         last_call: float | None = None, op_timeout: float | None = None, algorithms: str | None = None, slice_bytes: int = 0,
         minority_continues: bool = False, on_loss: str = "raise", socket: str | None = None,
         daemon_wait: float | None = None) -> Communicator:
    """Takes part in the job `name`, whose number of ranks is not known before: waits for a rank.

    A communicator is formed when `most` processes wait, or when `least` wait and nobody else has come for `last_call`
    seconds (1). While one runs, processes wait until its ranks call grow(). timeout: seconds to wait for a rank (600).
    The other arguments are those of init(), and the same for all processes.
    """
    if not 0 < index(least) <= index(most) <= 65536:
        raise ValueError(f"at least {least} and at most {most} ranks: expected 1 to 65536, in that order")
    init_options = _library.InitOptions(ctypes.sizeof(_library.InitOptions), 0, _call.milliseconds(op_timeout, "op_timeout"),
                                        index(slice_bytes) & (1 << 64) - 1,
                                        _name_bytes(algorithms) if algorithms is not None else None, minority_continues, 0, _policy(on_loss))
    number = _device_number(device)
    options = _library.JoinOptions(ctypes.sizeof(_library.JoinOptions), max(number, -1), _call.milliseconds(timeout),
                                   _call.milliseconds(last_call, "last_call"), ctypes.addressof(init_options))
    options.keep = init_options  # the call may outlive this function, if Ctrl-C ends the wait
    owner = client.shared_client(socket, daemon_wait)
    handle = ctypes.c_void_p()
    library = owner.calls
    client.interruptible(owner.error_of, library.comm_join, owner.use(), _name_bytes(name), index(least), index(most),
                         ctypes.byref(options), ctypes.byref(handle), operation="join",
                         undo=lambda: library.comm_destroy(handle))
    made = Communicator(owner, handle.value or 0, name)
    made._device = number
    return made


def cancel(name: str | None = None, *, socket: str | None = None) -> None:
    """Ends calls of init() and join() that wait for `name`, or all, in other threads: they raise Aborted."""
    owner = client.shared_client(socket, None)
    owner.check(owner.calls.comm_cancel(owner.use(), _name_bytes(name) if name is not None else None), "cancel")
