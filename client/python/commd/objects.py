"""Collectives and messages of any Python objects that pickle can handle, under mpi4py's lower-case names.

`comm.objects.bcast(obj)` and the others. Objects are unpickled as they come: only processes of the same user are in a
communicator, and each can make the others run code. For arrays, the communicator's own methods are faster.
"""
from __future__ import annotations

from . import errors
from .messages import ANY_SOURCE, _OBJECT_TAG, _tag_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Sequence

    from .communicator import Communicator

_HEADER_BYTES = 8
_FIRST_BYTES = 16 << 10  # a message up to this size is copied at once, and needs no second one
_BROADCAST_BYTES = 1 << 10
_FAILED = (1 << 64) - 1  # in place of a size: the sender could not pickle its object


def _pickled(thing: Any) -> bytes:
    import pickle  # not with the package: it takes longer to import than the package itself
    return pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL if pickle.HIGHEST_PROTOCOL < 5 else 5)


def _unpickled(data: Any) -> Any:
    import pickle
    return pickle.loads(data)


def _try_pickle(things: Sequence[Any]) -> tuple[list[bytes], BaseException | None]:
    """Pickles each. On a failure, returns no bytes and the failure: the other ranks must still be told."""
    try:
        return [_pickled(thing) for thing in things], None
    except Exception as error:
        return [], error


class Objects:
    """The object operations of a communicator."""

    __slots__ = ("_comm",)

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    # --- Messages ---

    def send(self, obj: Any, dest: int, tag: int = 0, timeout: float | None = None) -> None:
        """Sends an object to a rank, which calls recv."""
        comm = self._comm
        dest = comm._check_rank(dest, "dest")
        number = _tag_number(tag) | _OBJECT_TAG
        data = _pickled(obj)
        first = len(data).to_bytes(_HEADER_BYTES, "little") + data[:_FIRST_BYTES - _HEADER_BYTES]
        comm._send_tagged(first, dest, number, True, timeout)
        rest = memoryview(data)[_FIRST_BYTES - _HEADER_BYTES:]
        if rest.nbytes > 0:
            comm._send_tagged(rest, dest, number, True, timeout)

    def recv(self, source: int = ANY_SOURCE, tag: int = 0, timeout: float | None = None) -> Any:
        """Returns the oldest object with this tag that a rank, or any, has sent."""
        return self.recv_from(source, tag, timeout)[0]

    def recv_from(self, source: int = ANY_SOURCE, tag: int = 0, timeout: float | None = None) -> tuple[Any, int]:
        """As recv. Returns the object and the rank that sent it."""
        comm = self._comm
        source = comm._check_source(source)
        number = _tag_number(tag) | _OBJECT_TAG
        first = bytearray(_FIRST_BYTES)
        sender, count = comm._recv_tagged(first, source, number, True, timeout)
        size = int.from_bytes(first[:_HEADER_BYTES], "little")
        have = count - _HEADER_BYTES
        if size == have:
            return _unpickled(memoryview(first)[_HEADER_BYTES:count]), sender
        data = bytearray(size)
        data[:have] = memoryview(first)[_HEADER_BYTES:count]
        comm._recv_tagged(memoryview(data)[have:], sender, number, True, timeout)
        return _unpickled(data), sender

    # --- Collectives ---

    def bcast(self, obj: Any = None, root: int = 0, timeout: float | None = None) -> Any:
        """Returns the root's object on every rank."""
        comm = self._comm
        root = comm._check_rank(root, "root")
        first = bytearray(_BROADCAST_BYTES)
        data, failure = b"", None
        if comm.rank == root:
            pickled, failure = _try_pickle([obj])
            data = pickled[0] if pickled else b""
            head = data[:_BROADCAST_BYTES - _HEADER_BYTES]
            first[:_HEADER_BYTES] = (_FAILED if failure else len(data)).to_bytes(_HEADER_BYTES, "little")
            first[_HEADER_BYTES:_HEADER_BYTES + len(head)] = head
        comm.broadcast(first, root, timeout=timeout)
        if failure is not None:
            raise failure
        size = int.from_bytes(first[:_HEADER_BYTES], "little")
        if size == _FAILED:
            raise _sender_failed(root)
        if size > _BROADCAST_BYTES - _HEADER_BYTES:
            whole = bytearray(data) if comm.rank == root else bytearray(size)
            comm.broadcast(whole, root, timeout=timeout)
        else:
            whole = first[_HEADER_BYTES:_HEADER_BYTES + size]
        return obj if comm.rank == root else _unpickled(whole)

    def _sizes(self, pickled: list[bytes], failure: BaseException | None, count: int) -> list[int]:
        return [_FAILED] * count if failure is not None else [len(data) for data in pickled]

    def allgather(self, obj: Any, timeout: float | None = None) -> list[Any]:
        """Returns the objects of all ranks, in rank order."""
        comm = self._comm
        pickled, failure = _try_pickle([obj])
        own = _numbers(self._sizes(pickled, failure, 1))
        sizes = _numbers([0] * comm.size)
        comm.all_gather(own, out=sizes, timeout=timeout)
        self._check_sizes(sizes, failure)
        whole = bytearray(sum(sizes))
        comm.all_gather_v(pickled[0], list(sizes), out=whole, timeout=timeout)
        return _unpickle_blocks(whole, sizes)

    def gather(self, obj: Any, root: int = 0, timeout: float | None = None) -> list[Any] | None:
        """Returns the objects of all ranks on the root, and None elsewhere."""
        comm = self._comm
        root = comm._check_rank(root, "root")
        pickled, failure = _try_pickle([obj])
        own = _numbers(self._sizes(pickled, failure, 1))
        sizes = _numbers([0] * comm.size)
        comm.all_gather(own, out=sizes, timeout=timeout)
        self._check_sizes(sizes, failure)
        whole = bytearray(sum(sizes)) if comm.rank == root else None
        comm.gather_v(pickled[0], list(sizes), root, out=whole, timeout=timeout)
        return _unpickle_blocks(whole, sizes) if whole is not None else None

    def scatter(self, objs: Sequence[Any] | None = None, root: int = 0, timeout: float | None = None) -> Any:
        """Gives rank i the object objs[i] of the root."""
        comm = self._comm
        root = comm._check_rank(root, "root")
        pickled: list[bytes] = []
        failure: BaseException | None = None
        sizes = _numbers([0] * comm.size)
        if comm.rank == root:
            pickled, failure = self._pickle_list(objs)
            sizes = _numbers(self._sizes(pickled, failure, comm.size))
        own = _numbers([0])
        comm.scatter(sizes if comm.rank == root else None, out=own, root=root, timeout=timeout)
        if failure is not None:
            raise failure
        if own[0] == _FAILED:
            raise _sender_failed(root)
        data = bytearray(own[0])
        comm.scatter_v(b"".join(pickled), list(sizes), out=data, root=root, timeout=timeout)
        return _unpickled(data)

    def alltoall(self, objs: Sequence[Any], timeout: float | None = None) -> list[Any]:
        """Sends objs[j] to rank j. Returns the objects that the ranks have sent here, in rank order."""
        comm = self._comm
        pickled, failure = self._pickle_list(objs)
        sends = self._sizes(pickled, failure, comm.size)
        receives = _numbers([0] * comm.size)
        comm.all_to_all(_numbers(sends), out=receives, timeout=timeout)
        if failure is not None or _FAILED in receives:
            # The ranks with no failure of their own still take part, with nothing to send or receive from those.
            sends = [0] * comm.size if failure is not None else sends
        all_well = _numbers([0 if failure is not None else 1])
        comm.all_reduce(all_well, "min", out=all_well, timeout=timeout)
        if all_well[0] == 0:
            raise failure if failure is not None else _sender_failed(_failed_rank(receives))
        whole = bytearray(sum(receives))
        comm.all_to_all_v(b"".join(pickled), sends, list(receives), out=whole, timeout=timeout)
        return _unpickle_blocks(whole, receives)

    def allreduce(self, obj: Any, op: Callable[[Any, Any], Any] | None = None, timeout: float | None = None) -> Any:
        """Returns op(op(obj of rank 0, obj of rank 1), ...) on every rank. op: a function of two; None adds."""
        return _fold(self.allgather(obj, timeout), op)

    def reduce(self, obj: Any, op: Callable[[Any, Any], Any] | None = None, root: int = 0,
               timeout: float | None = None) -> Any:
        """As allreduce, on the root; None elsewhere."""
        gathered = self.gather(obj, root, timeout)
        return _fold(gathered, op) if gathered is not None else None

    def _pickle_list(self, objs: Sequence[Any] | None) -> tuple[list[bytes], BaseException | None]:
        try:
            things = list(objs)  # type: ignore[arg-type]
        except TypeError as error:
            return [], error
        if len(things) != self._comm.size:
            return [], ValueError(f"{len(things)} objects were given, and the communicator has {self._comm.size} ranks")
        return _try_pickle(things)

    def _check_sizes(self, sizes: Any, failure: BaseException | None) -> None:
        if failure is not None:
            raise failure
        if _FAILED in sizes:
            raise _sender_failed(_failed_rank(sizes))


def _numbers(values: list[int]) -> Any:
    from array import array
    return array("Q", values)


def _failed_rank(sizes: Any) -> int:
    for rank, size in enumerate(sizes):
        if size == _FAILED:
            return rank
    return -1


def _sender_failed(rank: int) -> errors.Error:
    return errors.Error(f"rank {rank} could not pickle its object", errors.Result.INVALID_ARGUMENT, ranks=(rank,))


def _unpickle_blocks(whole: bytearray, sizes: Any) -> list[Any]:
    view, start, things = memoryview(whole), 0, []
    for size in sizes:
        things.append(_unpickled(view[start:start + size]))
        start += size
    return things


def _fold(things: list[Any], op: Callable[[Any, Any], Any] | None) -> Any:
    total = things[0]
    for thing in things[1:]:
        total = total + thing if op is None else op(total, thing)
    return total
