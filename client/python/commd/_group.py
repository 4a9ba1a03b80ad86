"""Groups: operations that are submitted together."""
from __future__ import annotations

import threading

from . import _library, errors
from .request import Request, wait_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_thread = threading.local()
any_open: list[None] = []  # one entry for each open group of any thread, so that other calls need not look further


def current() -> Group | None:
    """Returns the innermost group that is open in this thread."""
    open_groups = getattr(_thread, "groups", None)
    return open_groups[-1] if open_groups else None


class Group:
    """Operations of this thread that are submitted together, on any communicators.

    Each call in the block returns a Request, and its results are valid after the block. Leaving the block submits the
    operations and waits for all of them; with wait=False it only submits them. Groups nest: the outermost one submits.
    With asyncio, use `async with`. All ranks must group their collectives alike.
    """

    def __init__(self, library: _library.Library, wait: bool = True) -> None:
        self._library = library
        self._waits = wait
        self.requests: list[Request] = []

    def __enter__(self) -> Group:
        result = self._library.comm_group_begin()
        if result != 0:
            raise errors.last_error(self._library, result, "group_begin")
        if not hasattr(_thread, "groups"):
            _thread.groups = []
        _thread.groups.append(self)
        any_open.append(None)
        return self

    def _close(self) -> Group | None:
        """Ends the group. Returns the group around it, if there is one: that one submits."""
        _thread.groups.pop()
        any_open.pop()
        result = self._library.comm_group_end()
        outer = current()
        if outer is not None:
            outer.requests.extend(self.requests)
        if result != 0:
            raise errors.last_error(self._library, result, "group_end")
        return outer

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        # After an exception, what was collected is submitted all the same: other ranks count on it.
        outer = self._close()
        if outer is None and self._waits and value is None:
            wait_all(self.requests)

    async def __aenter__(self) -> Group:
        return self.__enter__()

    async def __aexit__(self, kind: object, value: object, trace: object) -> None:
        outer = self._close()
        if outer is None and self._waits and value is None:
            for request in self.requests:
                await request

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Waits for all operations of the group, and returns their outputs."""
        return wait_all(self.requests, timeout)


def group(wait: bool = True) -> Group:
    """Returns a context manager that submits the operations of its block together, on any communicators."""
    return Group(_library.load(), wait)
