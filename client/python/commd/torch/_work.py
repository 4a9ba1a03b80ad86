"""Handles of operations, as torch.distributed.Work."""
from __future__ import annotations

import ctypes
import datetime
import threading
import time

import torch
from torch._C._distributed_c10d import Work as _Base

from .. import _library
from . import _failures

_OK, _TIMED_OUT = 0, 10
# How long a wait lasts before Python gets a chance to handle signals, such as Ctrl-C.
_SLICE_MS = 100


class Work(_Base):
    """An operation of a process group. Whoever calls wait() waits for the operation itself, without another thread."""

    def __init__(self, group, operation: str, seq: int, buffers, value, timeout_ms: int) -> None:
        super().__init__()
        self._group = group
        self._library = group.calls
        self.operation = operation
        self.seq = seq
        self._buffers = buffers
        self._value = value
        self.sizes = [tuple(tensor.shape) for tensor in value]
        self.dtypes = [str(tensor.dtype) for tensor in value]
        self.input_sizes, self.input_dtypes = self.sizes, self.dtypes
        if buffers.sources:
            self.input_sizes = [tuple(tensor.shape) for tensor in buffers.sources]
            self.input_dtypes = [str(tensor.dtype) for tensor in buffers.sources]
        self.timeout_ms = timeout_ms
        self._requests: list = []
        self._received = None
        self._lock = threading.Lock()
        self._ended = False
        self._error: BaseException | None = None
        self._future = None
        self._source = None
        self._profile = None
        self._order = None
        self.number = 0     # in its group
        self.record_id = 0  # in this process
        self.created_ns = time.time_ns()
        self.ended_ns = 0

    # --- for the process group ---

    def new_request(self) -> int:
        """Returns the address for a request's handle."""
        request = ctypes.c_void_p()
        self._requests.append(request)
        return ctypes.addressof(request)

    def expect_message(self) -> None:
        """The operation is a receive: the sender's rank is wanted."""
        self._received = _library.Received()

    def then_do(self, finish) -> None:
        """Calls finish() once the operation has ended well, in the thread that notices it first."""
        before = self._buffers

        class _Steps:
            def finish(self) -> None:
                before.finish()
                finish()
        self._buffers = _Steps()

    # --- the end ---

    def _wait_request(self, request, limit_ms: int) -> int:
        received = ctypes.byref(self._received) if self._received is not None else None
        return self._library.comm_wait_for(ctypes.byref(request), limit_ms, received)

    def complete(self, timeout_ms: int | None = None) -> bool:
        """Waits for the end, at most timeout_ms. Returns whether the operation has ended; its failure is kept."""
        if self._ended:
            return True
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        if not self._lock.acquire(timeout=-1 if timeout_ms is None else timeout_ms / 1000):
            return False
        try:
            for request in self._requests:
                while request.value is not None and not self._ended:
                    limit_ms = _SLICE_MS
                    if deadline is not None:
                        limit_ms = max(0, min(_SLICE_MS, int((deadline - time.monotonic()) * 1000)))
                    result = self._wait_request(request, limit_ms)
                    if result == _TIMED_OUT and request.value is not None:
                        if deadline is not None and time.monotonic() >= deadline:
                            return False
                    elif result != _OK:
                        self._fail(result)
            self._end()
        finally:
            self._lock.release()
        return True

    def _fail(self, result: int) -> None:
        if self._error is None:
            self._error = _failures.of_call(self._group._client, result, self.operation, self._group.context())

    def _end(self) -> None:
        if self._ended:
            return
        try:
            if self._error is None and self._buffers is not None:
                if self._order is None:
                    self._buffers.finish()
                else:
                    self._order.finish(self._buffers)
        except Exception as error:  # a result could not be copied back
            self._error = error
        self._buffers = None
        if self._received is not None:
            self._source = self._received.source
        self.ended_ns = time.time_ns()
        self._ended = True
        self._end_profile()

    def _end_profile(self) -> None:
        """Ends the profiler's span. It is lost if another thread than the one that began it does that."""
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.__exit__(None, None, None)

    def follow_stream(self, order) -> None:
        """The operation is ordered by a GPU's stream: wait() makes the current stream wait, not the host."""
        self._order = order
        self._requests = []

    def abandon(self, error: BaseException) -> None:
        """The operation was not submitted."""
        self._error = error
        self._ended = True
        self._buffers = None
        self.ended_ns = time.time_ns()

    # --- torch's interface ---

    def wait(self, timeout=datetime.timedelta(0)) -> bool:
        """Waits until the results are valid. timeout: a timedelta; 0 waits as long as the operation's deadline."""
        if not self._ended:
            limit_ms = None
            if timeout:
                limit_ms = int(timeout.total_seconds() * 1000)
                if limit_ms <= 0:
                    limit_ms = None
            if not self.complete(limit_ms):
                raise _failures.BackendError(f"{self._group.context()}: {self.operation} has not ended within "
                                             f"{limit_ms} ms", _TIMED_OUT, self.operation, self.seq)
        self._group.forget(self)
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Returns whether the operation has ended, well or not."""
        if self._ended:
            return True
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._order is not None and not self._order.reached():
                return False
            done = ctypes.c_int()
            received = ctypes.byref(self._received) if self._received is not None else None
            for request in self._requests:
                if request.value is None:
                    continue
                result = self._library.comm_test(ctypes.byref(request), ctypes.byref(done), received)
                if result != _OK:
                    self._fail(result)
                elif not done.value:
                    return False
            self._end()
            return True
        finally:
            self._lock.release()

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self):
        return self._error

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def result(self) -> list:
        """Returns the tensors with the results."""
        return self._value

    def source_rank(self) -> int:
        """Returns the rank whose message this receive took."""
        if self._source is None:
            raise RuntimeError("this operation is no receive that has ended")
        return self._source

    _source_rank = source_rank

    def get_future(self):
        """Returns a future with the list of results. Callbacks run in a thread of the process group."""
        self._end_profile()
        with self._group.futures_lock:
            if self._future is None:
                self._promise = torch.futures.Future()
                # Only a callback that raises makes the C++ side of a future fail. DDP needs that.
                self._future = self._promise.then(self._unwrap)
                if self._ended:
                    self.settle()
                else:
                    self._group.complete_later(self)
        return self._future

    def _unwrap(self, _):
        if self._error is not None:
            raise self._error
        return self._value

    def settle(self) -> None:
        """Completes the future."""
        self._promise.set_result(None)
        self._group.forget(self)

    def get_future_result(self):
        """Returns a future with 0 once the operation has ended well."""
        return self.get_future().then(lambda future: future.value() and 0)

    def _get_duration(self) -> float:
        if not self._ended:
            raise RuntimeError("the operation has not ended")
        return (self.ended_ns - self.created_ns) / 1e6

    def _get_op_type(self):
        raise NotImplementedError("commd names operations: see Work.operation")

    def _get_sequence_number(self) -> int:
        return self.seq


class Several(_Base):
    """Operations that are waited for together."""

    seq = 0

    def __init__(self, group, works) -> None:
        super().__init__()
        self._group = group
        self._works = list(works)
        self.number = group.next_number()
        group.keep(self)

    def wait(self, timeout=datetime.timedelta(0)) -> bool:
        """Waits for all of them. Functional collectives wait once for each tensor."""
        for work in self._works:
            work.wait(timeout)
        self._works = []
        self._group.has_waited(self)
        return True

    def complete(self, timeout_ms: int | None = None) -> bool:
        """As Work.complete."""
        return all([work.complete(timeout_ms) for work in self._works])

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self):
        return next((error for error in (work.exception() for work in self._works) if error is not None), None)

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list:
        return [tensor for work in self._works for tensor in work.result() or ()]

    def get_future(self):
        self._group.forget(self)
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(
            lambda futures: [tensor for future in futures.value() for tensor in future.value()])
