"""The exceptions of commd.

Every failure that libcommclient reports becomes an Error, or the subclass that fits. The attributes hold what is
known of the failure; the text is the library's own message.
"""
from __future__ import annotations

import ctypes
import enum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._library import Failure, Library


class Result(enum.IntEnum):
    """The results of libcommclient."""

    OK = 0
    IN_PROGRESS = 1
    INVALID_ARGUMENT = 2
    UNSUPPORTED = 3
    MISMATCH = 4
    PERMISSION = 5
    NOT_FOUND = 6
    ALREADY_EXISTS = 7
    LIMIT = 8
    NO_MEMORY = 9
    TIMED_OUT = 10
    PROTOCOL = 11
    VERSION = 12
    DAEMON_LOST = 13
    NODE_LOST = 14
    RANK_LOST = 15
    ABORTED = 16
    SHUTTING_DOWN = 17
    CONFIG = 18
    SYSTEM = 19
    CERTIFICATE = 20
    UNREACHABLE = 21
    INTERNAL = 22
    DEVICE = 23
    BUSY = 24


class Error(Exception):
    """A call of commd failed.

    result: the Result (an int, if a newer library returned a number that this package does not know).
    operation: the operation that failed, such as "all_reduce", or "".
    seq: the number of the collective in its communicator, from 1; 0 if none failed.
    ranks: the ranks that the failure is about: those that are missing, lost or contradict each other.
    pids: the process of each of these ranks on its node; 0 where it is not known.
    node: the node that is lost, or that has the first of the ranks; "" if none is known.
    """

    def __init__(self, text: str = "", result: int = Result.INTERNAL, operation: str = "", seq: int = 0,
                 ranks: tuple[int, ...] = (), pids: tuple[int, ...] = (), node: str = "") -> None:
        super().__init__(text)
        self.result = result
        self.operation = operation
        self.seq = seq
        self.ranks = ranks
        self.pids = pids
        self.node = node


class InvalidArgument(Error, ValueError):
    """An argument, or the environment of the launcher, is wrong."""


class Unsupported(Error, NotImplementedError):
    """commd cannot do this: the operator with this dtype, or this memory."""


class Mismatch(Error, ValueError):
    """Ranks contradict each other: their counts, dtypes or operations differ."""


class PermissionDenied(Error, PermissionError):
    """The user may not do this."""


class NotFound(Error, LookupError):
    """What was named does not exist."""


class AlreadyExists(Error, ValueError):
    """The rank or the name is taken."""


class LimitReached(Error):
    """A limit or a budget does not allow it."""


class OutOfMemory(Error, MemoryError):
    """There is not enough memory."""


class TimedOut(Error, TimeoutError):
    """A deadline passed."""


class ConnectionFailed(Error, ConnectionError):
    """commd, a node or a rank cannot be reached. The subclasses say which."""


class DaemonLost(ConnectionFailed):
    """commd of this node does not run, has ended, or stands still."""


class NodeLost(ConnectionFailed):
    """A node, or the connection to it, is lost."""


class RankLost(ConnectionFailed):
    """A rank that others need has ended, or has left."""


class Aborted(Error):
    """A rank or a user aborted the communicator."""


class DeviceFailed(Error):
    """A GPU or its driver failed."""


class Closed(Error, ValueError):
    """The communicator was destroyed, or belongs to the parent of this process."""


class LibraryMissing(Error, ImportError):
    """libcommclient was not found, or does not fit this package."""


_CLASSES: dict[int, type[Error]] = {
    Result.INVALID_ARGUMENT: InvalidArgument,
    Result.UNSUPPORTED: Unsupported,
    Result.MISMATCH: Mismatch,
    Result.PERMISSION: PermissionDenied,
    Result.NOT_FOUND: NotFound,
    Result.ALREADY_EXISTS: AlreadyExists,
    Result.LIMIT: LimitReached,
    Result.NO_MEMORY: OutOfMemory,
    Result.TIMED_OUT: TimedOut,
    Result.DAEMON_LOST: DaemonLost,
    Result.NODE_LOST: NodeLost,
    Result.RANK_LOST: RankLost,
    Result.ABORTED: Aborted,
    Result.DEVICE: DeviceFailed,
    Result.UNREACHABLE: ConnectionFailed,
}


def class_of(result: int) -> type[Error]:
    """Returns the class of exceptions for a result."""
    return _CLASSES.get(result, Error)


def _result_of(number: int) -> int:
    try:
        return Result(number)
    except ValueError:
        return number


def from_failure(result: int, text: str, failure: Failure | None, operation: str = "") -> Error:
    """Makes the exception for a failure that the library described. `operation` is used if the library names none."""
    if failure is None:
        return class_of(result)(text, _result_of(result), operation)
    listed = min(failure.rank_count, len(failure.ranks))
    return class_of(result)(text, _result_of(result), (failure.operation or b"").decode() or operation, failure.seq,
                            tuple(failure.ranks[:listed]), tuple(failure.pids[:listed]),
                            failure.node.decode(errors="replace"))


def last_error(library: Library, result: int, operation: str = "") -> Error:
    """Makes the exception for a call that has just failed in this thread."""
    text = library.comm_last_error().decode(errors="replace")
    if not text:
        text = library.comm_result_text(result).decode(errors="replace")
    failure = library.new_failure()
    known = library.comm_last_failure(ctypes.byref(failure)) and failure.result == result
    return from_failure(result, text, failure if known else None, operation)
