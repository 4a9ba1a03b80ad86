"""One call of libcommclient that submits an operation, and the wait for its end.

The structures that a call needs are kept for later calls: to make them costs more than a small operation.
"""
from __future__ import annotations

import ctypes
import math
from time import monotonic

from ._library import CallOptions, Library, Received
from .errors import Result

# A wait is done in slices: between two of them, Python runs its signal handlers (Ctrl-C), and another thread may have
# closed the communicator.
SLICE_MS = 50
_KEPT_MAX = 256
_TIMED_OUT = int(Result.TIMED_OUT)
_TIMEOUT_MS_MAX = 0xFFFFFFFE


class Call:
    """The handle, the options and the received message of one operation. Its addresses stay the same."""

    __slots__ = ("handle", "options", "received", "handle_address", "options_address", "received_address")

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()
        self.options = CallOptions()
        self.received = Received()
        self.handle_address = ctypes.addressof(self.handle)
        self.options_address = ctypes.addressof(self.options)
        self.received_address = ctypes.addressof(self.received)
        self.reset()

    def reset(self) -> None:
        """Sets the options to their defaults, with a request."""
        options = self.options
        ctypes.memset(self.options_address, 0, ctypes.sizeof(CallOptions))
        options.struct_size = ctypes.sizeof(CallOptions)
        options.factor = 1.0
        options.request = self.handle_address


_kept: list[Call] = []


def take() -> Call:
    """Returns a call with default options."""
    try:
        return _kept.pop()
    except IndexError:
        return Call()


def give_back(call: Call) -> None:
    """Keeps a call whose options are the defaults and whose operation has ended."""
    if len(_kept) < _KEPT_MAX:
        _kept.append(call)


def milliseconds(seconds: float | None, what: str = "timeout") -> int:
    """Converts a time-out for the library; None becomes 0, its default. A time below a millisecond becomes one."""
    if seconds is None:
        return 0
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"{what} must be a number of seconds, or None: {seconds!r}")
    if not 0 < seconds < math.inf:
        raise ValueError(f"{what} must be above 0 seconds, and finite: {seconds!r}")
    return max(1, min(_TIMEOUT_MS_MAX, int(seconds * 1000)))


def wait_slice(library: Library, call: Call, limit_ms: int = SLICE_MS) -> tuple[bool, int]:
    """Waits for a moment. Returns whether the operation has ended, and its result."""
    result = library.comm_wait_for(call.handle_address, limit_ms, call.received_address)
    return not call.handle, result


def deadline_after(timeout: float | None) -> float:
    """Returns the moment after `timeout` seconds, or infinity."""
    if timeout is None:
        return math.inf
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise ValueError(f"timeout must be 0 or more seconds, or None: {timeout!r}")
    return monotonic() + timeout
