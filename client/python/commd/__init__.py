"""commd: collectives and messages between processes, through the commd of each node.

    import numpy, commd

    with commd.init() as comm:                   # started by: python -m commd.run -n 4 program.py
        total = comm.all_reduce(numpy.arange(8.0) * comm.rank)

Arrays are anything with the buffer protocol, __array_interface__, __cuda_array_interface__ or DLPack: numpy, torch, cupy,
jax and others. client/python/README.md is the guide.
"""
from __future__ import annotations

from ._buffers import Buffer
from ._group import Group, group
from .client import reopen
from .communicator import Communicator, cancel, init, join
from .errors import (Aborted, AlreadyExists, Closed, ConnectionFailed, DaemonLost, DeviceFailed, Error, InvalidArgument,
                     LibraryMissing, LimitReached, Mismatch, NodeLost, NotFound, OutOfMemory, PermissionDenied, RankLost,
                     Result, TimedOut, Unsupported)
from .memory import empty, is_shared, zeros
from .messages import ANY_SOURCE
from .request import Received, Request, wait_all

__version__ = "0.1.0"
__all__ = ["ANY_SOURCE", "Aborted", "AlreadyExists", "Buffer", "Closed", "Communicator", "ConnectionFailed", "DaemonLost",
           "DeviceFailed", "Error", "Group", "InvalidArgument", "LibraryMissing", "LimitReached", "Mismatch", "NodeLost",
           "NotFound", "OutOfMemory", "PermissionDenied", "RankLost", "Received", "Request", "Result", "TimedOut",
           "Unsupported", "c_library_version", "cancel", "empty", "group", "init", "is_shared", "join", "reopen", "wait_all",
           "zeros"]


def c_library_version() -> str:
    """Returns the version of libcommclient, such as "0.1.0"."""
    from . import _library
    return _library.load().comm_version().decode()
