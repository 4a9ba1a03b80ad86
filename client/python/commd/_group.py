"""Groups: operations that are submitted together."""
from __future__ import annotations

import threading
import weakref

from . import _library, errors
from .request import Request, wait_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

any_open: set[int] = set()  # the open groups of all threads, by id, so that other calls need not look further


class _Thread(threading.local):
    """The open groups of one thread, outermost first. A group that an exception left open dies with its block."""

    def __init__(self) -> None:
        self.groups: list[weakref.ref[Group]] = []


_thread = _Thread()


def current() -> Group | None:
    """Returns the innermost group that is open in this thread."""
    groups = _thread.groups
    return groups[-1]() if groups else None


class Group(_library.OfProcess):
    """Operations of this thread that are submitted together, on any communicators.

    Each call in the block returns a Request, and its results are valid after the block. Leaving the block submits the
    operations and waits for all of them; with wait=False it only submits them. Groups nest: the outermost one submits.
    With asyncio, use `async with`. All ranks must group their collectives alike.
    """

    def __init__(self, library: _library.Library, wait: bool = True) -> None:
        self._library = library
        self._waits = wait
        self._groups: list[weakref.ref[Group]] = []
        self.requests: list[Request] = []

    def __enter__(self) -> Group:
        try:
            self._open()
        except BaseException:
            self._abandon()
            raise
        return self

    def _open(self) -> None:
        self._groups = _thread.groups
        any_open.add(id(self))
        self._groups.append(weakref.ref(self))
        if len(self._groups) == 1:
            result = self._library.comm_group_begin()
            if result != 0:
                raise errors.last_error(self._library, result, "group_begin")

    def _close(self) -> Group | None:
        """Ends the group. Returns the group around it, if there is one: that one submits.

        An exception such as Ctrl-C may end it between any two steps; it may then be called again.
        """
        groups = self._groups
        mine = [place for place, group in enumerate(groups) if group() in (self, None)]
        if not mine:
            any_open.discard(id(self))
            return None
        outer = groups[mine[0] - 1]() if mine[0] > 0 else None
        result = 0
        if outer is not None:
            outer.requests.extend(self.requests)
        elif groups is _thread.groups:
            result = self._library.comm_group_end()
        del groups[mine[0]:]
        any_open.discard(id(self))
        if result != 0:
            raise errors.last_error(self._library, result, "group_end")
        return outer

    def _abandon(self) -> None:
        try:
            self._close()
        except errors.Error:
            pass  # the exception that is on its way says more

    def _leave(self) -> Group | None:
        try:
            return self._close()
        except BaseException:
            self._abandon()
            raise

    def __del__(self) -> None:
        # Ctrl-C at the very start of __exit__ leaves the group open, as any context manager that is written in Python.
        if id(self) in any_open:
            self._abandon()

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        # After an exception, what was collected is submitted all the same: other ranks count on it.
        outer = self._leave()
        if outer is None and self._waits and value is None:
            wait_all(self.requests)

    async def __aenter__(self) -> Group:
        return self.__enter__()

    async def __aexit__(self, kind: object, value: object, trace: object) -> None:
        outer = self._leave()
        if outer is None and self._waits and value is None:
            for request in self.requests:
                await request

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Waits for all operations of the group, and returns their outputs."""
        return wait_all(self.requests, timeout)


def group(wait: bool = True) -> Group:
    """Returns a context manager that submits the operations of its block together, on any communicators."""
    return Group(_library.load(), wait)
