"""Failures of commd as torch's exceptions."""
from __future__ import annotations

import torch.distributed as distributed

from .. import errors


class BackendError(distributed.DistBackendError, errors.Error):
    """A call of commd failed. It is a RuntimeError, as with torch's own backends, and a commd Error with its
    attributes: result, operation, seq, ranks, pids and node."""

    def __init__(self, *arguments) -> None:
        errors.Error.__init__(self, *arguments)


# The failure that this process met last, for last_failure().
_last: BackendError | None = None


def last_failure() -> BackendError | None:
    """Returns the last failure of a commd process group in this process, or None. A training script may print it."""
    return _last


def of_error(error: errors.Error, context: str = "") -> BackendError:
    """Makes the exception for an error of libcommclient. `context` is put in front of its text."""
    global _last
    text = str(error)
    if error.result == errors.Result.TIMED_OUT:
        text = f"Timed out in {error.operation or 'a call'}: {text}"  # programs look for these words
    made = BackendError(f"{context}: {text}" if context else text, error.result, error.operation, error.seq, error.ranks,
                        error.pids, error.node)
    _last = made
    return made


def of_call(owner, result: int, operation: str, context: str = "") -> BackendError:
    """Makes the exception for a call of libcommclient that has just failed in this thread. owner: the client."""
    return of_error(owner.error_of(result, operation), context)


def translated(function, *arguments, context: str = "", **named):
    """Calls a function of the package, and turns its errors into torch's."""
    try:
        return function(*arguments, **named)
    except errors.Error as error:
        raise of_error(error, context) from None
