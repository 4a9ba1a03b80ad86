"""The collectives of a communicator, on arrays.

Arrays are anything with the buffer protocol, __array_interface__, __cuda_array_interface__ or DLPack; they must be
contiguous. Where a call has `out`, that array gets the result and is returned; without it a new array is made. If `out`
is the input itself, the operation works in place.

All calls have: wait (False: return a Request at once), timeout (seconds; the operation's deadline) and stream (the CUDA
stream that orders the operation; by default the array's current one; -1: none).
"""
from __future__ import annotations

import ctypes
from operator import index

from . import _library, memory
from ._buffers import Buffer, describe, describe_output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

_OPS = _library.OPS


def _op_number(op: str) -> int:
    number = _OPS.get(op) if isinstance(op, str) else None
    if number is None:
        raise ValueError(f"op must be one of {', '.join(_OPS)}: {op!r}")
    return number


def _check_fits(what: str, buffer: Buffer, count: int, dtype: int) -> None:
    if buffer.dtype != dtype:
        names = _library.DTYPE_NAMES
        raise TypeError(f"{what} has elements of {names[buffer.dtype]}, and the other array of {names[dtype]}")
    if buffer.count != count:
        raise ValueError(f"{what} has {buffer.count} elements, and {count} are needed")


def _shape(array: Any, buffer: Buffer) -> tuple[int, ...]:
    shape = getattr(array, "shape", None)
    return tuple(shape) if shape is not None and not isinstance(array, Buffer) else (buffer.count,)


def _counts_array(counts: Sequence[int], size: int, what: str) -> tuple[Any, list[int]]:
    numbers = [index(count) for count in counts]
    if len(numbers) != size:
        raise ValueError(f"{what} has {len(numbers)} numbers, and the communicator has {size} ranks")
    if any(not 0 <= number < 1 << 62 for number in numbers):
        raise ValueError(f"{what} must be 0 or more, and below 2^62: {numbers}")
    return (ctypes.c_size_t * size)(*numbers), numbers


def _blocks(counts: Sequence[int], displacements: Sequence[int] | None, buffer: Buffer, size: int,
            what: str) -> tuple[Any, Any, list[int]]:
    """Checks that the blocks are inside the buffer. Returns the library's arrays of counts and displacements."""
    raw_counts, numbers = _counts_array(counts, size, what)
    if displacements is None:
        ends = [sum(numbers)]
        raw_displacements = None
    else:
        raw_displacements, starts = _counts_array(displacements, size, "displacements")
        ends = [start + number for start, number in zip(starts, numbers) if number > 0]
    if max(ends, default=0) > buffer.count:
        raise ValueError(f"the blocks need {max(ends)} elements, and the array has {buffer.count}")
    return raw_counts, raw_displacements, numbers


class Collectives:
    """Part of Communicator."""

    if TYPE_CHECKING:
        rank: int
        size: int
        on_gpu: Any
        _client: Any
        _library: Any
        _submit: Any
        _check_rank: Any

    # --- Parts of the calls ---

    def _tune(self, *buffers: Buffer, stream: int | None = None, factor: float | None = None) -> dict[str, Any] | None:
        """Checks where the buffers are. Returns the call options that order an operation on a GPU, and its factor."""
        if stream is not None:
            if not self.on_gpu:
                raise ValueError("a stream orders operations on a GPU, and this communicator is on the host")
            stream = index(stream)
            if not -1 <= stream < 1 << 64:
                raise ValueError(f"stream must be a CUDA stream, or -1 for none: {stream}")
        for buffer in buffers:
            if buffer.device is not None:
                if not self.on_gpu:
                    raise ValueError("the array is on a GPU, and this communicator is on the host: "
                                     "commd.init(device=...) makes one for a GPU")
                if stream is None:
                    stream = buffer.stream
        tune: dict[str, Any] = {"stream": stream} if stream else {}
        if factor is not None:
            tune["factor"] = float(factor)
        return tune or None

    def _target(self, array: Any, source: Buffer, out: Any, shape: tuple[int, ...], count: int) -> tuple[Any, Buffer]:
        """Returns the output array, which is made if `out` is None, and its buffer."""
        if out is None:
            out = memory.new_like(array, source, shape, self._client)
        elif out is array and count == source.count:
            if source.readonly:
                raise ValueError("the output array is read-only")
            return out, source
        target = describe_output(out)
        _check_fits("out", target, count, source.dtype)
        return out, target

    def _pointers(self, arrays: Sequence[Any], output: bool) -> tuple[Any, Any, list[Buffer]]:
        """Describes a list of arrays, one for each rank. Returns the library's arrays of pointers and counts."""
        buffers = [describe_output(array) if output else describe(array) for array in arrays]
        if len(buffers) != self.size:
            raise ValueError(f"the list has {len(buffers)} arrays, and the communicator has {self.size} ranks")
        for buffer in buffers:
            if buffer.dtype != buffers[0].dtype:
                raise TypeError("the arrays of a list must have one dtype")
        return ((ctypes.c_void_p * self.size)(*[buffer.pointer for buffer in buffers]),
                (ctypes.c_size_t * self.size)(*[buffer.count for buffer in buffers]), buffers)

    # --- Reductions ---

    def all_reduce(self, array: Any, op: str = "sum", out: Any = None, wait: bool = True, timeout: float | None = None, *,
                   factor: float | None = None, compression: str | None = None, top_k_permille: int = 0,
                   residual: Any = None, stream: int | None = None) -> Any:
        """Returns the reduction of the array over all ranks. In place: out=array.

        op: sum, prod, min, max, avg, premul_sum (with this rank's factor), band, bor, bxor, land or lor.
        compression: "bf16", "f8" or "top_k", for float32 with sum or avg; residual: a float32 array as long as the
        array, which keeps from call to call what compression lost.
        """
        source = describe(array)
        number = _OPS.get(op) if type(op) is str else None
        if number is None:
            number = _op_number(op)
        if out is None or out is not array or source.readonly:
            out, target = self._target(array, source, out, _shape(array, source), source.count)
        else:
            target = source
        tune = None
        if source.device is not None or target.device is not None or stream is not None:
            tune = self._tune(source, target, stream=stream)
        kept: tuple[Any, ...] = (array, out, source, target)
        if factor is not None or compression is not None or residual is not None:
            lost = describe_output(residual) if residual is not None else None
            kept += (residual, lost)
            tune = self._compression(source, tune or {}, factor, compression, top_k_permille, lost)
        return self._submit("all_reduce", self._library.comm_all_reduce,
                            (source.pointer, target.pointer, source.count, source.dtype, number), kept, out, wait, timeout,
                            tune)

    def _compression(self, source: Buffer, tune: dict[str, Any], factor: float | None, compression: str | None,
                     top_k_permille: int, lost: Buffer | None) -> dict[str, Any]:
        if compression not in _library.COMPRESSIONS:
            raise ValueError(f"compression must be bf16, f8 or top_k: {compression!r}")
        if not 0 <= index(top_k_permille) <= 1000:
            raise ValueError(f"top_k_permille must be between 0 and 1000: {top_k_permille}")
        tune["compression"] = _library.COMPRESSIONS[compression]
        tune["top_k_permille"] = top_k_permille
        if factor is not None:
            tune["factor"] = float(factor)
        if lost is not None:
            _check_fits("residual", lost, source.count, _library.F32)
            if lost.device != source.device:
                raise ValueError("residual must be where the array is")
            tune["residual"] = lost.pointer
        return tune

    def reduce(self, array: Any, op: str = "sum", root: int = 0, out: Any = None, wait: bool = True,
               timeout: float | None = None, *, factor: float | None = None,
               stream: int | None = None) -> Any:
        """Returns the reduction of the array over all ranks on the root, and None elsewhere."""
        source = describe(array)
        root = self._check_rank(root, "root")
        target = None
        if self.rank == root:
            out, target = self._target(array, source, out, _shape(array, source), source.count)
        else:
            out = None
        return self._submit("reduce", self._library.comm_reduce,
                            (source.pointer, target.pointer if target else None, source.count, source.dtype,
                             _op_number(op), root), (array, out, source, target), out, wait, timeout,
                            self._tune(source, target or source, stream=stream, factor=factor))

    def broadcast(self, array: Any, root: int = 0, wait: bool = True, timeout: float | None = None, *,
                  stream: int | None = None) -> Any:
        """Copies the root's array to the array of every rank, and returns it."""
        root = self._check_rank(root, "root")
        buffer = describe(array) if self.rank == root else describe_output(array)
        return self._submit("broadcast", self._library.comm_broadcast, (buffer.pointer, buffer.count, buffer.dtype, root),
                            (array, buffer), array, wait, timeout, self._tune(buffer, stream=stream))

    def _scan(self, name: str, array: Any, op: str, out: Any, wait: bool, timeout: float | None, stream: int | None,
              factor: float | None) -> Any:
        source = describe(array)
        out, target = self._target(array, source, out, _shape(array, source), source.count)
        return self._submit(name, getattr(self._library, f"comm_{name}"),
                            (source.pointer, target.pointer, source.count, source.dtype, _op_number(op)),
                            (array, out, source, target), out, wait, timeout,
                            self._tune(source, target, stream=stream, factor=factor))

    def scan(self, array: Any, op: str = "sum", out: Any = None, wait: bool = True, timeout: float | None = None, *,
             factor: float | None = None, stream: int | None = None) -> Any:
        """Returns the reduction over ranks 0 to this one, in rank order. Not for avg."""
        return self._scan("scan", array, op, out, wait, timeout, stream, factor)

    def exclusive_scan(self, array: Any, op: str = "sum", out: Any = None, wait: bool = True,
                       timeout: float | None = None, *, factor: float | None = None,
                       stream: int | None = None) -> Any:
        """Returns the reduction over the ranks before this one. Rank 0's `out` is not changed; without `out`, rank 0
        gets the operator's neutral element for sum, and otherwise a copy of its input."""
        number = _op_number(op)
        if out is None and self.rank == 0:
            source = describe(array)
            out, target = self._target(array, source, None, _shape(array, source), source.count)
            if target.device is None and target.count > 0:
                if number == _OPS["sum"]:
                    ctypes.memset(target.pointer, 0, target.size_bytes)
                else:
                    ctypes.memmove(target.pointer, source.pointer, target.size_bytes)
        return self._scan("exclusive_scan", array, op, out, wait, timeout, stream, factor)

    def reduce_scatter(self, array: Any, op: str = "sum", out: Any = None, wait: bool = True,
                       timeout: float | None = None, *, factor: float | None = None,
                       stream: int | None = None) -> Any:
        """Returns this rank's block of the reduction over all ranks.

        array: one block for each rank, in rank order; or a list of arrays, one for each rank, of any sizes.
        """
        number = _op_number(op)
        if isinstance(array, (list, tuple)):
            pointers, counts, sources = self._pointers(array, output=False)
            own = sources[self.rank]
            out, target = self._target(array[self.rank], own, out, _shape(array[self.rank], own), own.count)
            return self._submit("reduce_scatter", self._library.comm_reduce_scatter_list,
                                (pointers, target.pointer, counts, own.dtype, number), (array, out, sources, target), out,
                                wait, timeout, self._tune(*sources, target, stream=stream, factor=factor))
        source = describe(array)
        if source.count % self.size != 0:
            raise ValueError(f"{source.count} elements cannot be divided by {self.size} ranks")
        count = source.count // self.size
        out, target = self._target(array, source, out, self._part_shape(array, source), count)
        return self._submit("reduce_scatter", self._library.comm_reduce_scatter,
                            (source.pointer, target.pointer, count, source.dtype, number), (array, out, source, target),
                            out, wait, timeout, self._tune(source, target, stream=stream, factor=factor))

    def _part_shape(self, array: Any, source: Buffer) -> tuple[int, ...]:
        """The shape of one rank's block: the first extent is divided, if that is possible."""
        shape = _shape(array, source)
        if shape and shape[0] == self.size and len(shape) > 1:
            return shape[1:]
        if shape and shape[0] % self.size == 0:
            return (shape[0] // self.size, *shape[1:])
        return (source.count // self.size,)

    def reduce_scatter_v(self, array: Any, counts: Sequence[int], op: str = "sum", out: Any = None, wait: bool = True,
                         timeout: float | None = None, *, factor: float | None = None,
                         stream: int | None = None) -> Any:
        """As reduce_scatter; rank i gets counts[i] elements."""
        source = describe(array)
        raw, _, numbers = _blocks(counts, None, source, self.size, "counts")
        own = numbers[self.rank]
        out, target = self._target(array, source, out, (own,), own)
        return self._submit("reduce_scatter", self._library.comm_reduce_scatter_v,
                            (source.pointer, target.pointer, raw, source.dtype, _op_number(op)),
                            (array, out, source, target), out, wait, timeout,
                            self._tune(source, target, stream=stream, factor=factor))

    # --- Gathering and scattering ---

    def all_gather(self, array: Any, out: Any = None, wait: bool = True, timeout: float | None = None, *,
                   stream: int | None = None) -> Any:
        """Returns the arrays of all ranks, in rank order: an array with one more dimension, or `out`, which has
        size × count elements, or is a list of arrays, one for each rank, of any sizes."""
        source = describe(array)
        if isinstance(out, (list, tuple)):
            pointers, counts, targets = self._pointers(out, output=True)
            _check_fits("out[rank]", targets[self.rank], source.count, source.dtype)
            return self._submit("all_gather", self._library.comm_all_gather_list,
                                (source.pointer, pointers, counts, source.dtype), (array, out, source, targets), out, wait,
                                timeout, self._tune(source, *targets, stream=stream))
        out, target = self._target(array, source, out, (self.size, *_shape(array, source)), source.count * self.size)
        return self._submit("all_gather", self._library.comm_all_gather,
                            (source.pointer, target.pointer, source.count, source.dtype), (array, out, source, target),
                            out, wait, timeout, self._tune(source, target, stream=stream))

    def all_gather_v(self, array: Any, counts: Sequence[int], out: Any = None, displacements: Sequence[int] | None = None,
                     wait: bool = True, timeout: float | None = None, *, stream: int | None = None) -> Any:
        """As all_gather; rank i sends counts[i] elements. displacements: where the blocks are in out."""
        source = describe(array)
        numbers = _counts_array(counts, self.size, "counts")[1]
        _check_fits("the array", source, numbers[self.rank], source.dtype)
        if out is None:
            if displacements is not None:
                raise ValueError("displacements need out")
            out = memory.new_like(array, source, (sum(numbers),), self._client)
        target = describe_output(out)
        _check_fits("out", target, target.count, source.dtype)
        raw, starts, _ = _blocks(numbers, displacements, target, self.size, "counts")
        return self._submit("all_gather", self._library.comm_all_gather_v,
                            (source.pointer, target.pointer, raw, starts, source.dtype), (array, out, source, target), out,
                            wait, timeout, self._tune(source, target, stream=stream))

    def gather(self, array: Any, root: int = 0, out: Any = None, wait: bool = True, timeout: float | None = None, *,
               stream: int | None = None) -> Any:
        """Returns the arrays of all ranks on the root, as all_gather, and None elsewhere. (gather_v takes a list.)"""
        source = describe(array)
        root = self._check_rank(root, "root")
        target = None
        if self.rank == root:
            out, target = self._target(array, source, out, (self.size, *_shape(array, source)), source.count * self.size)
        else:
            out = None
        return self._submit("gather", self._library.comm_gather,
                            (source.pointer, target.pointer if target else None, source.count, source.dtype, root),
                            (array, out, source, target), out, wait, timeout,
                            self._tune(source, target or source, stream=stream))

    def _gather_list(self, array: Any, source: Buffer, root: int, out: Any, wait: bool, timeout: float | None,
                     stream: int | None) -> Any:
        pointers, counts, targets = self._pointers(out, output=True)
        _check_fits("out[rank]", targets[self.rank], source.count, source.dtype)
        return self._submit("gather", self._library.comm_gather_list,
                            (source.pointer, source.count, pointers, counts, source.dtype, root),
                            (array, out, source, targets), out, wait, timeout,
                            self._tune(source, *targets, stream=stream))

    def gather_v(self, array: Any, counts: Sequence[int] | None = None, root: int = 0, out: Any = None,
                 displacements: Sequence[int] | None = None, wait: bool = True, timeout: float | None = None, *,
                 stream: int | None = None) -> Any:
        """As gather, of arrays of any sizes. counts, out and displacements are read on the root alone. `out` may be a
        list of arrays, one for each rank; counts are not needed then."""
        source = describe(array)
        root = self._check_rank(root, "root")
        if self.rank == root and isinstance(out, (list, tuple)):
            return self._gather_list(array, source, root, out, wait, timeout, stream)
        raw = starts = target = None
        if self.rank == root:
            if counts is None:
                raise ValueError("the root needs counts")
            numbers = _counts_array(counts, self.size, "counts")[1]
            if out is None:
                out = memory.new_like(array, source, (sum(numbers),), self._client)
            target = describe_output(out)
            _check_fits("out", target, target.count, source.dtype)
            raw, starts, _ = _blocks(numbers, displacements, target, self.size, "counts")
        else:
            out = None
        return self._submit("gather", self._library.comm_gather_v,
                            (source.pointer, source.count, target.pointer if target else None, raw, starts, source.dtype,
                             root), (array, out, source, target), out, wait, timeout,
                            self._tune(source, target or source, stream=stream))

    def scatter(self, array: Any = None, out: Any = None, root: int = 0, wait: bool = True,
                timeout: float | None = None, *, stream: int | None = None) -> Any:
        """Gives each rank its block of the root's array, in `out`.

        array: read on the root alone; one block for each rank. out: needed, except on the root. (scatter_v takes a list.)
        """
        root = self._check_rank(root, "root")
        if self.rank != root:
            if out is None:
                raise ValueError("scatter needs out on the ranks that are not the root")
            target = describe_output(out)
            return self._submit("scatter", self._library.comm_scatter, (None, target.pointer, target.count, target.dtype,
                                                                        root), (out, target), out, wait, timeout,
                                self._tune(target, stream=stream))
        source = describe(array)
        if source.count % self.size != 0:
            raise ValueError(f"{source.count} elements cannot be divided by {self.size} ranks")
        count = source.count // self.size
        out, target = self._target(array, source, out, self._part_shape(array, source), count)
        return self._submit("scatter", self._library.comm_scatter,
                            (source.pointer, target.pointer, count, source.dtype, root), (array, out, source, target), out,
                            wait, timeout, self._tune(source, target, stream=stream))

    def _scatter_list(self, arrays: Any, out: Any, root: int, wait: bool, timeout: float | None,
                      stream: int | None) -> Any:
        pointers, counts, sources = self._pointers(arrays, output=False)
        own = sources[self.rank]
        out, target = self._target(arrays[self.rank], own, out, _shape(arrays[self.rank], own), own.count)
        return self._submit("scatter", self._library.comm_scatter_list,
                            (pointers, counts, target.pointer, target.count, own.dtype, root),
                            (arrays, out, sources, target), out, wait, timeout,
                            self._tune(*sources, target, stream=stream))

    def scatter_v(self, array: Any = None, counts: Sequence[int] | None = None, out: Any = None, root: int = 0,
                  displacements: Sequence[int] | None = None, wait: bool = True, timeout: float | None = None, *,
                  stream: int | None = None) -> Any:
        """As scatter, with blocks of any sizes: rank i gets counts[i] elements. array, counts and displacements are
        read on the root alone. `array` may be a list of arrays, one for each rank; counts are not needed then."""
        root = self._check_rank(root, "root")
        if self.rank == root and isinstance(array, (list, tuple)):
            return self._scatter_list(array, out, root, wait, timeout, stream)
        raw = starts = source = None
        if self.rank == root:
            if counts is None:
                raise ValueError("the root needs counts")
            source = describe(array)
            raw, starts, numbers = _blocks(counts, displacements, source, self.size, "counts")
            out, target = self._target(array, source, out, (numbers[root],), numbers[root])
        else:
            if out is None:
                raise ValueError("scatter_v needs out on the ranks that are not the root")
            target = describe_output(out)
        return self._submit("scatter", self._library.comm_scatter_v,
                            (source.pointer if source else None, raw, starts, target.pointer, target.count, target.dtype,
                             root), (array, out, source, target), out, wait, timeout,
                            self._tune(source or target, target, stream=stream))

    def all_to_all(self, array: Any, out: Any = None, wait: bool = True, timeout: float | None = None, *,
                   stream: int | None = None) -> Any:
        """Sends block j of the array to rank j. Returns the blocks that the ranks have sent here, in rank order.

        array and out: one block for each rank; or lists of arrays, one for each rank, of any sizes.
        """
        if isinstance(array, (list, tuple)):
            return self._all_to_all_list(array, out, wait, timeout, stream)
        source = describe(array)
        if source.count % self.size != 0:
            raise ValueError(f"{source.count} elements cannot be divided by {self.size} ranks")
        out, target = self._target(array, source, out, _shape(array, source), source.count)
        return self._submit("all_to_all", self._library.comm_all_to_all,
                            (source.pointer, target.pointer, source.count // self.size, source.dtype),
                            (array, out, source, target), out, wait, timeout, self._tune(source, target, stream=stream))

    def _all_to_all_list(self, arrays: Any, out: Any, wait: bool, timeout: float | None, stream: int | None) -> Any:
        sends, send_counts, sources = self._pointers(arrays, output=False)
        if out is None:
            out = [memory.new_like(each, source, _shape(each, source), self._client)
                   for each, source in zip(arrays, sources)]
        receives, receive_counts, targets = self._pointers(out, output=True)
        if targets[0].dtype != sources[0].dtype:
            raise TypeError("array and out must have one dtype")
        return self._submit("all_to_all", self._library.comm_all_to_all_list,
                            (sends, send_counts, receives, receive_counts, sources[0].dtype),
                            (arrays, out, sources, targets), out, wait, timeout,
                            self._tune(*sources, *targets, stream=stream))

    def all_to_all_v(self, array: Any, send_counts: Sequence[int], receive_counts: Sequence[int], out: Any = None,
                     send_displacements: Sequence[int] | None = None, receive_displacements: Sequence[int] | None = None,
                     wait: bool = True, timeout: float | None = None, *, stream: int | None = None) -> Any:
        """As all_to_all, with blocks of any sizes. send_counts[j] of rank i must equal receive_counts[i] of rank j."""
        source = describe(array)
        sends, send_starts, _ = _blocks(send_counts, send_displacements, source, self.size, "send_counts")
        numbers = _counts_array(receive_counts, self.size, "receive_counts")[1]
        if out is None:
            if receive_displacements is not None:
                raise ValueError("receive_displacements need out")
            out = memory.new_like(array, source, (sum(numbers),), self._client)
        target = describe_output(out)
        _check_fits("out", target, target.count, source.dtype)
        receives, receive_starts, _ = _blocks(numbers, receive_displacements, target, self.size, "receive_counts")
        return self._submit("all_to_all", self._library.comm_all_to_all_v,
                            (source.pointer, sends, send_starts, target.pointer, receives, receive_starts, source.dtype),
                            (array, out, source, target), out, wait, timeout, self._tune(source, target, stream=stream))

    def barrier(self, wait: bool = True, timeout: float | None = None) -> Any:
        """Waits until every rank has called barrier."""
        return self._submit("barrier", self._library.comm_barrier, (), (), None, wait, timeout)
